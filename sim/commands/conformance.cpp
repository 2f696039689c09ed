// kvsim conformance: recorded engine decisions against ours.

#include "kvsim/engine/conformance.hpp"

#include "kvsim/app/command.hpp"
#include "kvsim/app/process.hpp"

namespace kvsim::app {

int conformance_command(const std::vector<std::string>& args) {
    const Usage usage{
        "conformance",
        "kvsim conformance DIR [options]",
        "Replays every NAME.in.json of DIR and compares each decision with NAME.out.jsonl. Exit code 1 when one differs.",
        {{"engine", "ENGINE", "vllm-v1, vllm-v0 or sglang; by default the inputs' keys tell"},
         {"quiet", "", "print only what differs"}},
        "a folder of recordings",
        1,
        1};
    const std::optional<Arguments> given = parse(usage, args);
    if (!given) return exit_done;

    std::int64_t replayed = 0;
    std::int64_t different = 0;
    std::int64_t steps = 0;
    for (const std::filesystem::path& input : conformance_inputs(given->positional.front())) {
        throw_if_stopped();
        const ConformanceResult result = replay(input, given->text("engine").value_or(""));
        ++replayed;
        steps += result.steps;
        if (!result.same) {
            ++different;
            print(result.name + ": DIFFERENT: " + result.difference + "\n");
        } else if (!given->has("quiet")) {
            print(result.name + ": same (" + std::to_string(result.steps) + " steps, " + std::to_string(result.preemptions) +
                  " preemptions)\n");
        }
    }
    print(std::to_string(replayed - different) + " of " + std::to_string(replayed) + " recordings the same, " +
          std::to_string(steps) + " steps\n");
    return different == 0 ? exit_done : exit_gate_failed;
}

}  // namespace kvsim::app
