#include <algorithm>
#include <array>
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
        const std::size_t at = place(index_);
        out.time = *next_;
        out.prompt_tokens = ahead_.prompts[at];
        out.output_tokens = ahead_.outputs[at];
        out.output_base = own_output_base(i);
        out.prompt.clear();
        if (laws_.prefix) prepend_prefix(*laws_.prefix, i, out);
        ++index_;
        advance();
    }

    [[nodiscard]] std::optional<std::int64_t> size_hint() const override {
        return laws_.duration ? std::nullopt : std::optional(requests_);
    }

private:
    static constexpr std::size_t batch = 32;
    /// Small runs end before tables would pay; the first event does not wait for them.
    static constexpr std::int64_t draws_before_tables = 1024;
    static_assert(draws_before_tables % batch == 0);

    static std::size_t place(std::int64_t index) { return static_cast<std::size_t>(index) % batch; }

    /// Requests index_ ... index_ + batch - 1: nothing that happens meanwhile changes them.
    [[gnu::noinline]] void draw_ahead() {
        if (index_ == draws_before_tables) {
            prompt_table_.build(requests_ - index_);
            output_table_.build(requests_ - index_);
        }
        const auto first = static_cast<std::uint64_t>(index_);
        laws_.arrivals->gaps_ns(first, ahead_.gaps_ns);
        std::array<std::uint64_t, batch> bits;
        first_draws(prompt_key_, first, bits);
        prompt_table_.sample(bits, ahead_.prompts);
        first_draws(output_key_, first, bits);
        output_table_.sample(bits, ahead_.outputs);
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

    void advance() {
        next_.reset();
        if (index_ >= requests_) return;
        const std::size_t at = place(index_);
        if (at == 0) draw_ahead();
        sum_.add(ahead_.gaps_ns[at] * stretch_);
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
    StreamKey prompt_key_;
    StreamKey output_key_;
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
    struct {
        std::array<double, batch> gaps_ns;
        std::array<std::int64_t, batch> prompts;
        std::array<std::int64_t, batch> outputs;
    } ahead_{};  // requests from the last multiple of `batch` on
};

}  // namespace

std::unique_ptr<Workload> make_synthetic(SyntheticLaws laws, std::uint64_t seed) {
    return std::make_unique<Synthetic>(std::move(laws), seed);
}

}  // namespace kvsim
