#include <algorithm>
#include <cmath>
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
          prompt_draws_(StreamKey(seed, "prompt_tokens")),
          output_draws_(StreamKey(seed, "output_tokens")),
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
            last_ = static_cast<std::int64_t>(std::floor(target + 0.5));
        }
        advance();
    }

    [[nodiscard]] std::optional<SimTime> next_time() override { return next_; }
    [[nodiscard]] bool closed_loop() const override { return false; }
    [[nodiscard]] bool outputs_are_private() const override { return true; }

    void pop(Arrival& out) override {
        KVSIM_CHECK(next_, "pop() without a request");
        const auto i = static_cast<RequestId>(index_);
        out.time = *next_;
        if (index_ == draws_before_tables) make_tables();
        out.prompt_tokens = prompt_table_.sample(prompt_draws_.first_u64(i));
        out.output_tokens = output_table_.sample(output_draws_.first_u64(i));
        out.priority = 0;
        out.n = 1;
        out.output_base = own_output_base(i);
        out.prompt.clear();
        out.external_id.clear();
        out.request_class.clear();
        out.session_id.clear();
        if (laws_.prefix) prepend_prefix(*laws_.prefix, i, out);
        ++index_;
        advance();
    }

    [[nodiscard]] std::optional<std::int64_t> size_hint() const override {
        return laws_.duration ? std::nullopt : std::optional(requests_);
    }

private:
    /// Small runs end before tables would pay; the first event does not wait for them.
    static constexpr std::int64_t draws_before_tables = 1024;
    void make_tables() {
        prompt_table_.build(requests_ - index_);
        output_table_.build(requests_ - index_);
    }

    void prepend_prefix(const PrefixLaw& prefix, RequestId i, Arrival& out) {
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

    void advance() {
        next_.reset();
        if (index_ >= requests_) return;
        sum_.add(laws_.arrivals->gap_ns(static_cast<std::uint64_t>(index_)) * stretch_);
        std::int64_t t = sum_.rounded();
        // The stretched sum misses its end by rounding; the last arrival is exact and none comes after it.
        if (last_) t = index_ + 1 == requests_ ? *last_ : std::min(t, *last_);
        if (laws_.duration && t > laws_.duration->count()) {
            requests_ = index_;
            return;
        }
        next_ = SimTime(SimDuration(t));
    }

    SyntheticLaws laws_;
    DrawBuffer prompt_draws_;
    DrawBuffer output_draws_;
    DrawBuffer group_draws_;
    StreamKey prefix_key_;
    std::int64_t requests_;
    LengthTable prompt_table_;
    LengthTable output_table_;
    std::vector<std::int64_t> prefix_tokens_;  // by group; -1: not drawn yet
    std::int64_t index_ = 0;
    GapSum sum_;
    double stretch_ = 1;
    std::optional<std::int64_t> last_;
    std::optional<SimTime> next_;
};

}  // namespace

std::unique_ptr<Workload> make_synthetic(SyntheticLaws laws, std::uint64_t seed) {
    return std::make_unique<Synthetic>(std::move(laws), seed);
}

}  // namespace kvsim
