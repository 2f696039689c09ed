// kvsim list: everything a scenario may name.

#include <algorithm>
#include <functional>
#include <utility>

#include "kvsim/app/command.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/model/catalog.hpp"
#include "kvsim/model/clients.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/model/trace.hpp"
#include "kvsim/model/workload_pieces.hpp"

namespace kvsim::app {
namespace {

struct Line {
    std::string name;
    std::string summary;
};

struct Kind {
    std::string_view name;
    std::string_view where;  ///< the key that takes such a name
    std::function<std::vector<Line>()> lines;
};

template <class Make>
std::vector<Line> lines_of(std::span<const Entry<Make>> entries) {
    std::vector<Line> out;
    for (const Entry<Make>& entry : entries) out.push_back({std::string(entry.name), std::string(entry.summary)});
    return out;
}

std::vector<Line> lines_of(const std::vector<std::string>& names) {
    std::vector<Line> out;
    for (const std::string& name : names) out.push_back({name, ""});
    return out;
}

const std::vector<Kind>& kinds() {
    static const std::vector<Kind> all{
        {"models", "model", [] { return lines_of(Catalog::open().model_names()); }},
        {"gpus", "hardware.gpu", [] { return lines_of(Catalog::open().gpu_names()); }},
        {"presets", "engine.preset",
         [] {
             std::vector<Line> out;
             for (const Preset& preset : presets()) out.push_back({std::string(preset.name), std::string(preset.summary)});
             return out;
         }},
        {"batching", "engine.batching", [] { return lines_of(schedulers()); }},
        {"scheduling_policy", "engine.scheduling_policy", [] { return lines_of(queue_orders()); }},
        {"victim", "engine.victim", [] { return lines_of(victim_rules()); }},
        {"admission", "engine.admission", [] { return lines_of(admission_rules()); }},
        {"length_predictor", "engine.length_predictor", [] { return lines_of(length_predictors()); }},
        {"kv_policy", "engine.kv_policy", [] { return lines_of(kv_policies()); }},
        {"step_time", "step_time.model", [] { return lines_of(step_time_models()); }},
        {"arrivals", "workload.arrivals.process", [] { return lines_of(arrival_processes()); }},
        {"distributions", "workload.prompt_tokens.distribution", [] { return lines_of(length_distributions()); }},
        {"times", "workload.users.think_time.distribution", [] { return lines_of(time_distributions()); }},
        {"traces", "workload.trace.format", [] { return lines_of(trace_formats()); }},
        {"routers", "router.policy", [] { return lines_of(routers()); }},
    };
    return all;
}

constexpr std::string_view policy_kinds[] = {"presets",   "batching",         "scheduling_policy", "victim",
                                             "admission", "length_predictor", "kv_policy"};

void print_kind(const Kind& kind, bool titled) {
    if (titled) print(std::string(kind.name) + " (" + std::string(kind.where) + "):\n");
    const std::vector<Line> lines = kind.lines();
    std::size_t width = 0;
    for (const Line& line : lines) width = std::max(width, line.name.size());
    for (const Line& line : lines) {
        std::string text = (titled ? "  " : "") + line.name;
        if (!line.summary.empty()) text += std::string(width - line.name.size() + 2, ' ') + line.summary;
        print(text + "\n");
    }
}

}  // namespace

int list_command(const std::vector<std::string>& args) {
    std::string names;
    for (const Kind& kind : kinds()) names += (names.empty() ? "" : ", ") + std::string(kind.name);
    const std::string description =
        "Lists what a scenario may name; KIND is one of " + names + "; or policies: all that a batch policy is composed of.";
    const std::optional<Arguments> given = parse({"list", "kvsim list [KIND]", description, {}, "a kind", 0, 1}, args);
    if (!given) return exit_done;
    if (given->positional.empty()) {
        for (const Kind& kind : kinds()) {
            if (&kind != &kinds().front()) print("\n");
            print_kind(kind, true);
        }
        return exit_done;
    }
    const std::string& wanted = given->positional.front();
    if (wanted == "policies") {
        bool first = true;
        for (const std::string_view name : policy_kinds) {
            if (!std::exchange(first, false)) print("\n");
            print_kind(*std::find_if(kinds().begin(), kinds().end(), [&](const Kind& kind) { return kind.name == name; }),
                       true);
        }
        return exit_done;
    }
    std::vector<std::string_view> known{"policies"};
    for (const Kind& kind : kinds()) {
        if (kind.name == wanted) {
            print_kind(kind, false);
            return exit_done;
        }
        known.push_back(kind.name);
    }
    const std::string_view near = nearest(wanted, known);
    throw UserError("error: unknown kind '" + wanted + "'" +
                    (near.empty() ? std::string() : "; did you mean '" + std::string(near) + "'?") + " (one of: " + names +
                    ", policies)");
}

}  // namespace kvsim::app
