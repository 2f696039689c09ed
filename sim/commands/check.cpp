// kvsim check: everything a run would refuse, without running.

#include "kvsim/base/check.hpp"

#include <cstdio>

#include "kvsim/app/command.hpp"
#include "kvsim/app/prepare.hpp"
#include "kvsim/app/process.hpp"

namespace kvsim::app {

int check_command(const std::vector<std::string>& args) {
    const Usage usage{"check",
                      "kvsim check SCENARIO.yaml... [options]",
                      "Validates scenarios and lists everything that is wrong with them.",
                      {{"set", "KEY.PATH=VALUE", "change a key of the scenarios first", true}},
                      "a scenario file",
                      1,
                      static_cast<std::size_t>(-1)};
    const std::optional<Arguments> given = parse(usage, args);
    if (!given) return exit_done;
    int code = exit_done;
    for (const std::string& file : given->positional) {
        try {
            config::Diagnostics diagnostics;
            const Prepared prepared = prepare(file, given->all("set"), diagnostics);
            for (const std::string& warning : diagnostics.warnings()) log_diagnostic(warning);
            diagnostics.throw_if_errors();
            for (const std::string& warning : prepared.deployment.warnings) log_warning(file + ": " + warning);
            print(file + ": ok\n");
        } catch (const UserError& e) {
            std::fprintf(stderr, "%s\n", e.what());
            code = exit_bad_input;
        }
    }
    return code;
}

}  // namespace kvsim::app
