// A prompt that prefills in one piece stalls every decode by its full price; a token budget bounds the stall.

#include <fmt/format.h>

#include <algorithm>

#include "kvsim/app/selftest.hpp"

namespace kvsim::selftest {
namespace {

/// One request decodes; after 100 ms another one comes with a long prompt.
class DecodeAndPrompt final : public Workload {
public:
    explicit DecodeAndPrompt(std::int64_t prompt) : prompt_(prompt) {}
    [[nodiscard]] std::optional<SimTime> next_time() override {
        if (sent_ == 2) return std::nullopt;
        return SimTime(std::chrono::milliseconds(sent_ * 100));
    }
    void pop(Arrival& out) override {
        out = Arrival{};
        out.time = *next_time();
        out.prompt_tokens = sent_ == 0 ? 1 : prompt_;
        out.output_tokens = sent_ == 0 ? 200 : 1;
        ++sent_;
    }
    [[nodiscard]] bool closed_loop() const override { return false; }

private:
    std::int64_t prompt_;
    int sent_ = 0;
};

/// The largest gap between the first request's tokens, ns, with 8 ms a step and 25 us a token.
double largest_gap(std::int64_t budget, std::int64_t prompt) {
    SimulationOptions options = plain_options();
    options.engine.max_num_batched_tokens = budget;
    options.engine.max_num_seqs = std::min<std::int64_t>(8, budget);
    SimTime last{};
    SimDuration largest{};
    options.on_step = [&](std::int64_t, const StepRecord& record) {
        if (std::find(record.received.begin(), record.received.end(), RequestId{0}) == record.received.end()) return;
        const SimTime now = record.start + record.duration;
        if (last != SimTime{}) largest = std::max(largest, now - last);
        last = now;
    };
    DecodeAndPrompt requests(prompt);
    run(options, *step_time("{model: affine, c0: 8ms, per_token: 25us}"), requests);
    return static_cast<double>(largest.count());
}

}  // namespace

void add_stall(std::vector<Case>& all) {
    constexpr double c0 = 8e6;
    constexpr double c1 = 25e3;
    for (const std::int64_t prompt : {100, 2'000, 30'000})
        all.push_back({fmt::format("unchunked prompt of {}: largest gap of a decode, ns", prompt),
                       c0 + c1 * static_cast<double>(prompt + 1), 0, 1,
                       [prompt](std::uint64_t) { return largest_gap(1 << 20, prompt); }});
    for (const std::int64_t budget : {64, 512, 2'048})
        all.push_back({fmt::format("token budget of {}: largest gap of a decode, ns", budget),
                       c0 + c1 * static_cast<double>(budget), 0, 1,
                       [budget](std::uint64_t) { return largest_gap(budget, 30'000); }});
}

}  // namespace kvsim::selftest
