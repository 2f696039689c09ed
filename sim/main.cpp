// kvsim: picks the command and turns failures into exit codes.

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include "kvsim/app/command.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/engine/simulation.hpp"

namespace kvsim::app {
namespace {

constexpr std::array commands{
    Command{"run", "simulate scenarios (the default: kvsim SCENARIO.yaml...)", run_command},
    Command{"sweep", "run a grid of scenarios on all cores, or a shard of it", sweep_command},
    Command{"merge", "the parts of a sharded sweep as one file", merge_command},
    Command{"compare", "has a result become worse than a baseline? a gate for CI", compare_command},
    Command{"capacity", "the highest rate or concurrency that meets SLOs, and its price", capacity_command},
    Command{"tune", "recommend engine arguments under SLOs", tune_command},
    Command{"memory", "how much KV cache fits, term by term, and how many requests that serves", memory_command},
    Command{"from-vllm", "a scenario from an engine's command line and start-up log", from_vllm_command},
    Command{"conformance", "replay recorded engine decisions and compare step by step", conformance_command},
    Command{"policies", "engines on the same requests, side by side", policies_command},
    Command{"calibrate", "fit the few constants of the step time to measured runs", calibrate_command},
    Command{"validate", "replay measured runs and print the error of the model", validate_command},
    Command{"check", "validate scenarios without running them; statistics of a trace", check_command},
    Command{"workload", "write the requests of a scenario as a trace", workload_command},
    Command{"selftest", "cases whose right value is known, measured", selftest_command},
    Command{"list", "the models, GPUs, presets and pieces a scenario may name", list_command},
    Command{"schema", "every key of a scenario file", schema_command},
};

std::string overview() {
    std::string out =
        "Usage: kvsim SCENARIO.yaml... [options]\n"
        "       kvsim COMMAND [arguments]\n\n"
        "Simulates LLM serving: batching against a KV-cache budget, in the engine's own terms. No GPU needed.\n\n"
        "Commands:\n";
    for (const Command& command : commands) {
        out +=
            "  " + std::string(command.name) + std::string(14 - command.name.size(), ' ') + std::string(command.summary) + "\n";
    }
    out += "\n'kvsim help COMMAND' shows its options ('kvsim help run' those of a run); 'kvsim --version' the version.\n";
    return out;
}

const Command* find(std::string_view name) {
    const auto found = std::find_if(commands.begin(), commands.end(), [&](const Command& c) { return c.name == name; });
    return found == commands.end() ? nullptr : &*found;
}

[[noreturn]] void unknown_command(const std::string& word) {
    std::vector<std::string_view> names{"help"};
    for (const Command& command : commands) names.push_back(command.name);
    const std::string_view near = nearest(word, names);
    throw UserError("error: '" + excerpt(word) + "' is neither a command nor a scenario file" +
                    (near.empty() ? std::string() : "; did you mean '" + std::string(near) + "'?") + " (see kvsim --help)");
}

/// A word that is no command is taken as a scenario if it could be a path.
bool looks_like_file(const std::string& word) {
    std::error_code error;
    return word.find_first_of("./") != std::string::npos || std::filesystem::exists(word, error);
}

int dispatch(std::vector<std::string> args) {
    if (args.empty()) {
        std::fputs(overview().c_str(), stderr);
        return exit_bad_input;
    }
    const std::string first = args.front();
    if (first == "--version") {
        if (args.size() > 1) throw UserError("error: unexpected argument '" + args[1] + "' after --version");
        print("kvsim " KVSIM_VERSION "\n");
        return exit_done;
    }
    if (first == "--help" || first == "-h" || first == "help") {
        if (args.size() > 2) throw UserError("error: unexpected argument '" + args[2] + "'");
        if (args.size() == 1) {
            print(overview());
            return exit_done;
        }
        const Command* command = find(args[1]);
        if (command == nullptr) unknown_command(args[1]);
        return command->run({"--help"});
    }
    if (const Command* command = find(first)) {
        args.erase(args.begin());
        return command->run(args);
    }
    if (first.starts_with('-') || looks_like_file(first)) return run_command(args);
    unknown_command(first);
}

int interrupted() {
    std::fputs("interrupted\n", stderr);
    return 128 + stop_signal();
}

int guarded(const std::vector<std::string>& args) {
    try {
        install_signal_handlers();
        const int code = dispatch(args);
        flush_output();
        return code;
    } catch (const Interrupted&) { return interrupted(); } catch (const UserError& e) {
        if (stop_requested().load()) return interrupted();  // a signal ended a system call that waited
        print_error(e.what());
        return exit_bad_input;
    } catch (const std::filesystem::filesystem_error& e) {
        print_error(e.what());
        return exit_bad_input;
    } catch (const std::bad_alloc&) {
        print_error("out of memory; simulate fewer requests at once (workload.requests, workload.duration) or fewer replicas");
        return exit_bad_input;
    } catch (const std::exception& e) {
        std::fprintf(stderr, "kvsim has a bug: %s\nPlease report it with the command line and the scenario.\n", e.what());
        return exit_bug;
    }
}

}  // namespace
}  // namespace kvsim::app

int main(int argc, char** argv) {
    return kvsim::app::guarded(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
