// Bytes as a trace: either refused with a UserError or read to the end; anything else is a bug.

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvsim/base/check.hpp"
#include "kvsim/model/trace_stats.hpp"
#include "kvsim/model/workload_pieces.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string text(data, data + size);
    const kvsim::TraceOptions options{4};
    try {
        const auto reader = kvsim::open_trace_text("fuzz", text, "", options);
        static_cast<void>(kvsim::render(kvsim::trace_stats(*reader, options, {3})));
    } catch (const kvsim::UserError&) {}
    try {
        const kvsim::ReplayOptions replay{options, std::chrono::seconds(1), 0.5, 1000, {}};
        const auto workload = kvsim::make_replay(kvsim::open_trace_text("fuzz", text, "", options), replay, 1);
        kvsim::Arrival arrival;
        kvsim::SimTime last{};
        while (const auto t = workload->next_time()) {
            KVSIM_CHECK(*t >= last, "arrivals went backwards");
            last = *t;
            workload->pop(arrival);
            std::int64_t covered = 0;
            for (const kvsim::TokenRun& run : arrival.prompt) covered += run.count;
            KVSIM_CHECK(arrival.prompt.empty() || covered == arrival.prompt_tokens, "a prompt its runs do not cover");
        }
    } catch (const kvsim::UserError&) {}
    return 0;
}
