#include <algorithm>
#include <cmath>

#include "kvsim/base/check.hpp"
#include "kvsim/model/workload_pieces.hpp"
#include "kvsim/random/stream.hpp"

namespace kvsim {

namespace {

/// Rows wait in a heap by (time with jitter, row) until no later row can overtake them: the next recorded time has reached the
/// heap's head. So only the rows of one jitter window are held.
class Replay : public Workload {
public:
    Replay(std::unique_ptr<TraceReader> reader, const ReplayOptions& options, std::uint64_t seed)
        : reader_(std::move(reader)), options_(options), jitter_key_(seed, "trace_jitter") {
        KVSIM_CHECK(options.rate_scale > 0 && options.jitter.count() >= 0, "replay options out of range");
        read_ahead();
        fill();
    }

    [[nodiscard]] std::optional<SimTime> next_time() override { return next_; }
    [[nodiscard]] bool closed_loop() const override { return false; }
    [[nodiscard]] bool outputs_are_private() const override { return true; }

    void pop(Arrival& out) override {
        KVSIM_CHECK(next_, "pop() without a request");
        std::pop_heap(waiting_.begin(), waiting_.end(), later);
        Waiting head = std::move(waiting_.back());
        waiting_.pop_back();
        const TraceRow& row = head.row;
        const auto id = static_cast<RequestId>(popped_++);
        out.time = *next_;
        out.prompt_tokens = row.input_length;
        out.output_tokens = row.output_length;
        out.priority = row.priority;
        out.output_base = own_output_base(id);
        out.external_id = row.request_id;
        out.request_class = row.request_class;
        out.session_id = row.session_id;
        fill_prompt(row, out.prompt);
        spare_.push_back(std::move(head.row));
        fill();
    }

private:
    struct Waiting {
        std::int64_t time;  ///< ns, jitter included, rate_scale not
        std::int64_t index;
        TraceRow row;
    };
    static bool later(const Waiting& a, const Waiting& b) { return a.time != b.time ? a.time > b.time : a.index > b.index; }

    void read_ahead() {
        const std::int64_t limit = options_.requests.value_or(static_cast<std::int64_t>(std::numeric_limits<RequestId>::max()));
        if (!spare_.empty()) {
            ahead_ = std::move(spare_.back());
            spare_.pop_back();
        }
        have_ahead_ = rows_ < limit && reader_->next(ahead_);
    }

    void fill() {
        while (have_ahead_ && (waiting_.empty() || ahead_.time.time_since_epoch().count() < waiting_.front().time)) {
            const auto index = static_cast<std::uint64_t>(rows_);
            const std::int64_t late = options_.jitter.count() == 0
                                          ? 0
                                          : static_cast<std::int64_t>(jitter_key_.first_uniform(index) *
                                                                      static_cast<double>(options_.jitter.count()));
            waiting_.push_back({ahead_.time.time_since_epoch().count() + late, rows_, std::move(ahead_)});
            std::push_heap(waiting_.begin(), waiting_.end(), later);
            ++rows_;
            read_ahead();
        }
        next_.reset();
        if (waiting_.empty()) return;
        const std::int64_t t = scaled(waiting_.front().time);
        if (!options_.duration || t <= options_.duration->count()) next_ = SimTime(SimDuration(t));
    }

    [[nodiscard]] std::int64_t scaled(std::int64_t ns) const {
        if (options_.rate_scale == 1) return ns;
        const double t = static_cast<double>(ns) / options_.rate_scale;
        if (t > 4.6e18) throw UserError("workload.rate_scale moves an arrival more than 146 years after the start");
        return static_cast<std::int64_t>(std::floor(t + 0.5));
    }

    void fill_prompt(const TraceRow& row, std::vector<TokenRun>& prompt) const {
        prompt.clear();
        const std::int64_t block = options_.trace.trace_block_size;
        std::int64_t left = row.input_length;
        for (const std::uint64_t id : row.hash_ids) {
            const std::uint64_t first = id * static_cast<std::uint64_t>(block);
            const std::int64_t count = std::min(block, left);
            left -= count;
            if (!prompt.empty() && prompt.back().first + static_cast<std::uint64_t>(prompt.back().count) == first) {
                prompt.back().count += count;
            } else {
                prompt.push_back({first, count});
            }
        }
    }

    std::unique_ptr<TraceReader> reader_;
    ReplayOptions options_;
    StreamKey jitter_key_;
    TraceRow ahead_;
    bool have_ahead_ = false;
    std::int64_t rows_ = 0;  ///< moved into waiting_
    std::int64_t popped_ = 0;
    std::vector<Waiting> waiting_;
    std::vector<TraceRow> spare_;  ///< storage to reuse
    std::optional<SimTime> next_;
};

}  // namespace

std::unique_ptr<Workload> make_replay(std::unique_ptr<TraceReader> reader, const ReplayOptions& options, std::uint64_t seed) {
    return std::make_unique<Replay>(std::move(reader), options, seed);
}

}  // namespace kvsim
