#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "gap_sum.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/model/workload_pieces.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/draw_buffer.hpp"
#include "kvsim/random/stream.hpp"
#include "length_table.hpp"

namespace kvsim {

namespace {

class Synthetic : public Workload {
public:
    Synthetic(SyntheticLaws laws, std::uint64_t seed)
        : laws_(std::move(laws)),
          prompt_key_(seed, "prompt_tokens"),
          output_key_(seed, "output_tokens"),
          group_draws_(StreamKey(seed, "prefix_group")),
          prefix_key_(seed, "prefix_tokens"),
          requests_(laws_.requests.value_or(static_cast<std::int64_t>(std::numeric_limits<RequestId>::max()))),
          prompt_table_(*laws_.prompt_tokens),
          output_table_(*laws_.output_tokens) {
        KVSIM_CHECK(laws_.arrivals && laws_.prompt_tokens && laws_.output_tokens, "a synthetic workload without its laws");
        KVSIM_CHECK(laws_.requests || (laws_.duration && std::isfinite(laws_.arrivals->info().rate)), "an endless workload");
        if (laws_.arrivals->info().rescale && laws_.requests) {
            GapSum sum;
            for (std::int64_t i = 0; i < requests_; ++i) sum.add(laws_.arrivals->gap_ns(static_cast<std::uint64_t>(i)));
            const double target = static_cast<double>(requests_) / laws_.arrivals->info().rate * 1e9;
            if (sum.rounded() > 0) stretch_ = target / static_cast<double>(sum.rounded());
            last_ = SimTime(SimDuration(static_cast<std::int64_t>(std::floor(target + 0.5))));
        }
        look_ahead();
    }

    [[nodiscard]] std::optional<SimTime> next_time() override {
        look_ahead();
        if (ahead_.empty()) return std::nullopt;
        return ahead_.front().time;
    }
    [[nodiscard]] bool closed_loop() const override { return false; }
    [[nodiscard]] bool outputs_are_private() const override { return true; }

    void pop(Arrival& out) override {
        KVSIM_CHECK(!ahead_.empty(), "pop() without a request");
        const auto i = static_cast<RequestId>(drawn_ - std::ssize(ahead_));
        const PlainArrival& next = ahead_.front();
        out.time = next.time;
        out.prompt_tokens = next.prompt_tokens;
        out.output_tokens = next.output_tokens;
        out.output_base = own_output_base(i);
        out.prompt.clear();
        if (laws_.prefix) prepend_prefix(*laws_.prefix, i, out);
        ahead_ = ahead_.subspan(1);
    }
    [[nodiscard]] std::span<const PlainArrival> take_plain() override {
        if (laws_.prefix) return {};
        look_ahead();
        return std::exchange(ahead_, {});
    }

    [[nodiscard]] std::optional<std::int64_t> size_hint() const override {
        return laws_.duration ? std::nullopt : std::optional(requests_);
    }

private:
    static constexpr std::size_t batch = 64;
    /// Small runs end before tables would pay; the first event does not wait for them.
    static constexpr std::int64_t draws_before_tables = 1024;
    static_assert(draws_before_tables % batch == 0);

    void look_ahead() {
        if (!ahead_.empty() || drawn_ >= requests_) return;
        if (!too_late_) draw_ahead();
        if (ahead_.empty() && too_late_) std::rethrow_exception(too_late_);
    }

    /// The next requests, which nothing that happens meanwhile changes.
    [[gnu::noinline]] void draw_ahead() {
        if (drawn_ == draws_before_tables) {
            prompt_table_.build(requests_ - drawn_);
            output_table_.build(requests_ - drawn_);
        }
        const auto first = static_cast<std::uint64_t>(drawn_);
        std::array<double, batch> gaps_ns;
        std::array<std::uint64_t, batch> prompts;
        std::array<std::uint64_t, batch> outputs;
        laws_.arrivals->gaps_ns(first, gaps_ns);
        first_draws(prompt_key_, first, prompts);
        first_draws(output_key_, first, outputs);

        const std::span<PlainArrival> next = with_times(gaps_ns);
        for (std::size_t i = 0; i < next.size(); ++i) {
            next[i].prompt_tokens = prompt_table_.sample(prompts[i]);
            next[i].output_tokens = output_table_.sample(outputs[i]);
        }
        drawn_ += std::ssize(next);
        ahead_ = next;
    }

    /// Those of plain_ that come, after one of the gaps each.
    std::span<PlainArrival> with_times(std::span<const double> gaps_ns) {
        const auto most = static_cast<std::size_t>(std::min<std::int64_t>(batch, requests_ - drawn_));
        std::size_t n = 0;
        try {
            GapSum sum = sum_;
            for (; n < most; ++n) {
                sum.add(gaps_ns[n] * stretch_);
                plain_[n].time = SimTime(SimDuration(sum.rounded()));
            }
            sum_ = sum;
        } catch (const UserError&) { too_late_ = std::current_exception(); }
        const std::span<PlainArrival> all = std::span(plain_).first(n);
        if (last_) {  // the stretched sum misses it by rounding; the last arrival is exact and none comes after it
            for (PlainArrival& a : all) a.time = std::min(a.time, *last_);
            if (drawn_ + std::ssize(all) == requests_) all.back().time = *last_;
        }
        if (!laws_.duration || all.empty() || all.back().time <= SimTime(*laws_.duration)) return all;
        const auto after = [](SimDuration end, const PlainArrival& a) { return end < a.time.time_since_epoch(); };
        const auto end = std::upper_bound(all.begin(), all.end(), *laws_.duration, after);
        requests_ = drawn_ + (end - all.begin());
        return {all.begin(), end};
    }

    [[gnu::noinline]] void prepend_prefix(const PrefixLaw& prefix, RequestId i, Arrival& out) {
        const std::int64_t group = uniform_int(to_uniform(group_draws_.first_u64(i)), 0, prefix.groups - 1);
        if (to_uniform(group_draws_.second_u64(i)) < prefix.share)
            out.prompt.push_back({prefix_base(group), prefix_tokens(prefix, static_cast<std::uint64_t>(group))});
        out.prompt.push_back({own_prompt_base(i), out.prompt_tokens});
        if (out.prompt.size() > 1) out.prompt_tokens += out.prompt.front().count;
    }

    /// All requests of a group share one prefix, so its length is drawn once (of the first groups; each is drawn anew beyond).
    std::int64_t prefix_tokens(const PrefixLaw& prefix, std::uint64_t group) {
        constexpr std::uint64_t most = 65'536;
        const auto draw = [&] { return prefix.tokens->sample(prefix_key_.first_uniform(group)); };
        if (group >= most) return draw();
        if (group >= prefix_tokens_.size())
            prefix_tokens_.resize(static_cast<std::size_t>(std::min<std::int64_t>(prefix.groups, most)), -1);
        std::int64_t& tokens = prefix_tokens_[group];
        if (tokens < 0) tokens = draw();
        return tokens;
    }

    SyntheticLaws laws_;
    StreamKey prompt_key_;
    StreamKey output_key_;
    DrawBuffer group_draws_;
    StreamKey prefix_key_;
    std::int64_t requests_;
    LengthTable prompt_table_;
    LengthTable output_table_;
    std::vector<std::int64_t> prefix_tokens_;  // by group; -1: not drawn yet
    GapSum sum_;
    double stretch_ = 1;
    std::optional<SimTime> last_;
    std::array<PlainArrival, batch> plain_;
    std::span<const PlainArrival> ahead_;  // of plain_: not taken yet
    std::int64_t drawn_ = 0;               // up to the end of plain_
    std::exception_ptr too_late_;          // what stands behind them
};

}  // namespace

std::unique_ptr<Workload> make_synthetic(SyntheticLaws laws, std::uint64_t seed) {
    return std::make_unique<Synthetic>(std::move(laws), seed);
}

}  // namespace kvsim
