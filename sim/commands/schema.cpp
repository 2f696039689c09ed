// kvsim schema: the scenario's keys as Markdown, from the same tables that read them.

#include "kvsim/config/schema.hpp"

#include <array>

#include "kvsim/app/command.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/catalog.hpp"
#include "kvsim/model/clients.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/model/policy_args.hpp"
#include "kvsim/model/trace.hpp"
#include "kvsim/model/workload_pieces.hpp"

namespace kvsim::app {
namespace {

/// A cell must not end early.
std::string cell(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '|') out += '\\';
        out += c;
    }
    return out;
}

void table(const std::vector<config::FieldDoc>& docs) {
    if (docs.empty()) {
        print("No keys of its own.\n");
        return;
    }
    print("| key | type | default | range | meaning |\n|---|---|---|---|---|\n");
    for (const config::FieldDoc& doc : docs) {
        std::string range = config::describe(doc.range);
        if (doc.type == "duration" && !range.empty()) range += " s";
        for (const std::string& choice : doc.choices) range += (range.empty() ? "" : ", ") + choice;
        print("| `" + doc.key + "` | " + cell(doc.type) + " | " + cell(doc.default_text) + " | " + cell(range) + " | " +
              cell(doc.doc) + " |\n");
    }
}

template <class Make>
void pieces(std::string_view title, std::string_view intro, std::span<const Entry<Make>> entries) {
    print("\n## " + std::string(title) + "\n\n" + std::string(intro) + "\n");
    for (const Entry<Make>& entry : entries) {
        print("\n### " + std::string(entry.name) + "\n\n" + std::string(entry.summary) + "\n\n");
        table(entry.docs());
    }
}

}  // namespace

int schema_command(const std::vector<std::string>& args) {
    static constexpr std::array<std::string_view, 1> formats{"md"};
    const Usage usage{
        "schema", "kvsim schema [options]", "Prints every key of a scenario file.", {{"format", "FORMAT", "md"}}, "", 0, 0};
    const std::optional<Arguments> given = parse(usage, args);
    if (!given) return exit_done;
    static_cast<void>(given->choice("format", formats));

    print(
        "# The scenario file\n\n"
        "Written by `kvsim schema`. Units are part of a value: `ns us ms s min h`, `B KiB MiB GiB TiB kB MB GB TB`, `/s /min "
        "/h`; `GB`\n"
        "is not `GiB`. Any key can be set on the command line: `--set engine.max_num_seqs=64`. An empty default: required, or\n"
        "decided by the preset.\n");
    for (const auto& [section, docs] : config::scenario_docs()) {
        print("\n## " + section + "\n\n");
        table(docs);
    }
    print("\n## workload.prefix\n\n");
    table(prefix_docs());
    for (const auto& [section, docs] : client_docs()) {
        print("\n## " + section + "\n\n");
        table(docs);
    }
    print("\n## workload.trace\n\n");
    table(trace_docs());
    print("\n## model as a map\n\n");
    table(model_docs());
    print("\n## hardware.gpu as a map\n\n");
    table(gpu_docs());
    pieces("step_time models", "`step_time: {model: NAME, ...}`", step_time_models());
    pieces("arrival processes", "`workload.arrivals: {process: NAME, ...}`", arrival_processes());
    pieces("length distributions",
           "`workload.prompt_tokens`, `workload.output_tokens`: `{distribution: NAME, ...}`; a bare integer is a constant.",
           length_distributions());
    pieces("time distributions", "Think times, delays: `{distribution: NAME, ...}`; a bare duration is a constant.",
           time_distributions());
    pieces("trace formats", "`workload.trace: {path: FILE, format: NAME, ...}`", trace_formats());
    pieces("queue orders", "`engine.scheduling_policy: {policy: NAME, ...}` (docs/policies.md)", queue_orders());
    pieces("victims", "`engine.victim: {policy: NAME, ...}` (docs/policies.md)", victim_rules());
    pieces("admission rules", "`engine.admission: {policy: NAME, ...}` (docs/policies.md)", admission_rules());
    pieces("KV policies", "`engine.kv_policy: {policy: NAME, ...}` (docs/policies.md)", kv_policies());
    pieces("length predictors", "`engine.length_predictor: {policy: NAME, ...}` (docs/policies.md)", length_predictors());
    pieces("routers", "`router: {policy: NAME, ...}`", routers());
    return exit_done;
}

}  // namespace kvsim::app
