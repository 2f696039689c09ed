// kvsim check: everything a run would refuse, without running.

#include "kvsim/base/check.hpp"

#include "kvsim/app/command.hpp"
#include "kvsim/app/prepare.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/model/trace.hpp"
#include "kvsim/model/trace_stats.hpp"

namespace kvsim::app {

int check_command(const std::vector<std::string>& args) {
    const Usage usage{"check",
                      "kvsim check [SCENARIO.yaml...] [options]",
                      "Validates scenarios and lists everything that is wrong with them; describes traces.",
                      {{"set", "KEY.PATH=VALUE", "change a key of the scenarios first", true},
                       {"catalog", "DIR", "own models.yaml and gpus.yaml, asked before the shipped ones"},
                       {"stats", "TRACE", "print what a trace holds: lengths, arrivals, prefix reuse", true},
                       {"trace-format", "FORMAT", "of the trace; by default its content tells"},
                       {"trace-block-size", "N", "tokens per hash id (512)"}},
                      "a scenario file",
                      0,
                      static_cast<std::size_t>(-1)};
    const std::optional<Arguments> given = parse(usage, args);
    if (!given) return exit_done;
    const std::vector<std::string> traces = given->all("stats");
    if (given->positional.empty() && traces.empty()) throw UserError("error: name a scenario file, or a trace with --stats");
    TraceOptions options;
    options.trace_block_size = given->integer("trace-block-size", 1, 1'000'000).value_or(options.trace_block_size);
    for (const std::string& trace : traces) {
        const std::unique_ptr<TraceReader> reader = open_trace(trace, given->text("trace-format").value_or(""), options);
        print(render(trace_stats(*reader, options)));
    }
    int code = exit_done;
    for (const std::string& file : given->positional) {
        try {
            config::Diagnostics diagnostics;
            const Prepared prepared = prepare(file, given->all("set"), diagnostics, given->text("catalog").value_or(""));
            for (const std::string& warning : diagnostics.warnings()) log_diagnostic(warning);
            diagnostics.throw_if_errors();
            for (const std::string& warning : prepared.deployment.warnings) log_warning(file + ": " + warning);
            print(file + ": ok\n");
        } catch (const UserError& e) {
            print_error(e.what());
            code = exit_bad_input;
        }
    }
    return code;
}

}  // namespace kvsim::app
