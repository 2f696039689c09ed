// Bytes as a trace, in the format they show and in another one: either refused with a UserError or read to the end,
// wrong rows passed over; anything else is a bug.

#include <cstddef>
#include <cstdint>
#include <string>

#include "kvsim/base/check.hpp"
#include "kvsim/model/trace_filters.hpp"
#include "kvsim/model/trace_stats.hpp"
#include "kvsim/model/workload_pieces.hpp"

namespace {

void replay(std::unique_ptr<kvsim::TraceReader> reader) {
    reader = kvsim::skip_wrong_rows(std::move(reader));
    if (reader->times() == kvsim::TraceTimes::per_session) reader = kvsim::merge_sessions(std::move(reader), nullptr);
    if (reader->times() == kvsim::TraceTimes::none) return;
    const kvsim::ReplayOptions options{std::chrono::seconds(1), 0.5, 1000, {}};
    const auto workload = kvsim::make_replay(std::move(reader), options, 1);
    kvsim::Arrival arrival;
    kvsim::SimTime last{};
    kvsim::RequestId id = 0;
    while (const auto t = workload->next_time()) {
        KVSIM_CHECK(*t >= last, "arrivals went backwards");
        last = *t;
        workload->pop(arrival);
        std::int64_t covered = 0;
        for (const kvsim::TokenRun& run : arrival.prompt) covered += run.count;
        KVSIM_CHECK(arrival.prompt.empty() || covered == arrival.prompt_tokens, "a prompt its runs do not cover");
        workload->finished(id++, last, kvsim::FinishReason::length, 1);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string text(data, data + size);
    kvsim::TraceOptions options;
    options.trace_block_size = 4;
    try {
        const auto reader = kvsim::open_trace_text("fuzz", text, "", options);
        static_cast<void>(kvsim::render(kvsim::trace_stats(*reader, {3})));
    } catch (const kvsim::UserError&) {}
    // And in one format by name, which its content need not show.
    const auto formats = kvsim::trace_formats();
    for (const std::string_view format : {std::string_view(), formats[size % formats.size()].name}) {
        try {
            replay(kvsim::open_trace_text("fuzz", text, format, options));
        } catch (const kvsim::UserError&) {}
    }
    return 0;
}
