// kvsim workload: the requests a scenario would send, as a trace.

#include "kvsim/app/command.hpp"
#include "kvsim/app/prepare.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/model/trace_writer.hpp"

namespace kvsim::app {

int workload_command(const std::vector<std::string>& args) {
    const Usage usage{
        "workload",
        "kvsim workload SCENARIO.yaml --out TRACE.jsonl [options]",
        "Writes the requests a run of the scenario would send as a trace (format mooncake); a scenario that\n"
        "replays it gives the same run. Refused: requests that depend on when others finish, and prompts that\n"
        "repeat generated tokens, because no trace can say them.",
        {{"out", "TRACE.jsonl", "the trace"},
         {"set", "KEY.PATH=VALUE", "change a key of the scenario first", true},
         {"seed", "N", "the same as --set seed=N"},
         {"trace-block-size", "N", "tokens per hash id; divides the engine's block_size (and is that by default)"}},
        "a scenario file",
        1,
        1};
    const std::optional<Arguments> given = parse(usage, args);
    if (!given) return exit_done;
    const std::optional<std::string> out = given->text("out");
    if (!out || out->empty()) throw UserError("error: name the trace to write with --out");
    std::vector<std::string> sets = given->all("set");
    if (const auto seed = given->text("seed")) sets.push_back("seed=" + *seed);

    const std::string& file = given->positional.front();
    config::Diagnostics diagnostics;
    Prepared prepared = prepare(file, sets, diagnostics);
    for (const std::string& warning : diagnostics.warnings()) log_diagnostic(warning);
    diagnostics.throw_if_errors();
    Workload& workload = *prepared.workload;
    const auto refuse = [&](const std::string& why) {
        throw UserError(file + ": error: cannot be written as a trace: " + why);
    };
    if (workload.closed_loop()) refuse("its requests depend on when others finish");
    if (!workload.outputs_are_private()) refuse("its prompts repeat generated tokens");
    const std::int64_t engine_block = prepared.options.engine.block_size;
    const std::int64_t block = given->integer("trace-block-size", 1, engine_block).value_or(engine_block);
    if (engine_block % block != 0)
        throw UserError("error: --trace-block-size " + std::to_string(block) + " does not divide the engine's block_size of " +
                        std::to_string(engine_block));

    AtomicFile trace(*out);
    TraceWriter writer(block, workload.may_cancel(), workload.may_branch());
    Arrival arrival;
    std::string line;
    std::int64_t count = 0;
    while (workload.next_time()) {
        workload.pop(arrival);
        if (const std::string what = TraceWriter::left_out(arrival); !what.empty())
            refuse("request " + std::to_string(count) + " has " + what + ", for which the format has no key");
        line.clear();
        writer.append(arrival, line);
        trace.write(line);
        if ((++count & 0xFFF) == 0) throw_if_stopped();
    }
    throw_if_stopped();
    trace.commit();
    for (const std::string& note : workload.notes()) log_warning(note);
    print(std::to_string(count) + " requests written to " + *out + "\nreplay: workload: {trace: {path: " + *out + "}" +
          (prepared.options.max_concurrency ? ", max_concurrency: " + std::to_string(*prepared.options.max_concurrency)
                                            : std::string()) +
          "}\n");
    return exit_done;
}

}  // namespace kvsim::app
