#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <unordered_map>
#include <utility>

#include "kvsim/base/check.hpp"
#include "kvsim/model/workload_pieces.hpp"
#include "kvsim/random/stream.hpp"

namespace kvsim {

namespace {

/// Rows wait in a heap by (arrival, row) until no later row can overtake them: the next recorded time has reached the heap's
/// head. So only the rows of one jitter window are held, and those that follow a request of their session that has not left.
class Replay : public Workload {
public:
    Replay(std::unique_ptr<TraceReader> reader, const ReplayOptions& options, std::uint64_t seed)
        : reader_(std::move(reader)),
          options_(options),
          jitter_key_(seed, "trace_jitter"),
          paced_(reader_->paced_by_completions()) {
        KVSIM_CHECK(options.rate_scale > 0 && options.jitter.count() >= 0, "replay options out of range");
        KVSIM_CHECK(reader_->times() == TraceTimes::recorded, "a replay of rows that have times");
        read_ahead();
        fill();
    }

    [[nodiscard]] std::optional<SimTime> next_time() override { return next_; }
    [[nodiscard]] bool closed_loop() const override { return paced_; }
    [[nodiscard]] bool may_cancel() const override { return reader_->may_time_out(); }
    [[nodiscard]] bool may_branch() const override { return reader_->may_branch(); }
    [[nodiscard]] bool outputs_are_private() const override { return !reader_->outputs_may_recur(); }
    [[nodiscard]] std::vector<std::string> notes() const override { return reader_->notes(); }

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
        out.n = row.n;
        out.output_base = own_output_base(id);
        if (row.output_hash_id)
            out.output_base = *row.output_hash_id * static_cast<std::uint64_t>(row.block_size) +
                              static_cast<std::uint64_t>(row.input_length % row.block_size);
        out.external_id = row.request_id;
        out.request_class = row.request_class;
        out.session_id = row.session_id;
        out.tenant = row.tenant;
        out.timeout = row.timeout.value_or(SimDuration::zero());
        fill_prompt(row, id, out.prompt);
        if (paced_ && !row.session_id.empty()) in_flight_[id] = {&sessions_[row.session_id], head.index};
        spare_.push_back(std::move(head.row));
        fill();
    }

    void finished(RequestId id, SimTime now, FinishReason, std::int64_t) override {
        const auto found = in_flight_.find(id);
        if (found == in_flight_.end()) return;
        const auto [session, index] = found->second;
        in_flight_.erase(found);
        if (index != session->last) return;
        session->left = now.time_since_epoch().count();
        release(*session);
        fill();
    }

private:
    struct Waiting {
        std::int64_t time;  ///< ns, jitter and rate_scale included
        std::int64_t index;
        TraceRow row;
        [[nodiscard]] std::int64_t order() const { return row.order.value_or(index); }
    };
    static bool later(const Waiting& a, const Waiting& b) {
        if (a.time != b.time) return a.time > b.time;
        return a.order() != b.order() ? a.order() > b.order() : a.index > b.index;
    }

    /// A client sends its session's rows in their order: behind one that waits for an answer the others wait too.
    struct Session {
        std::int64_t last = -1;            ///< the row that came last
        std::int64_t sent = 0;             ///< its arrival
        std::optional<std::int64_t> left;  ///< when it left
        std::deque<Waiting> behind;        ///< `time`: the earliest
    };

    void read_ahead() {
        const std::int64_t limit = options_.requests.value_or(static_cast<std::int64_t>(std::numeric_limits<RequestId>::max()));
        if (!spare_.empty()) {
            ahead_ = std::move(spare_.back());
            spare_.pop_back();
        }
        have_ahead_ = rows_ < limit && reader_->next(ahead_);
        if (have_ahead_) ahead_time_ = scaled(ahead_.time.time_since_epoch().count());
    }

    /// The next row may be due with the head and stand before it.
    [[nodiscard]] bool overtakes_ties() const { return ahead_.order && ahead_time_ == waiting_.front().time; }

    void fill() {
        while (have_ahead_ && (waiting_.empty() || ahead_time_ < waiting_.front().time || overtakes_ties())) {
            std::int64_t time = ahead_time_;
            if (options_.jitter.count() != 0 && !ahead_.think) {
                const double late =
                    jitter_key_.first_uniform(static_cast<std::uint64_t>(rows_)) * static_cast<double>(options_.jitter.count());
                time = scaled(ahead_.time.time_since_epoch().count() + static_cast<std::int64_t>(late));
            }
            Waiting row{time, rows_++, std::move(ahead_)};
            if (paced_ && !row.row.session_id.empty()) {
                Session& session = sessions_[row.row.session_id];
                session.behind.push_back(std::move(row));
                release(session);
            } else {
                send(std::move(row));
            }
            read_ahead();
        }
        next_.reset();
        if (waiting_.empty()) return;
        const std::int64_t t = waiting_.front().time;
        if (!options_.duration || t <= options_.duration->count()) next_ = SimTime(SimDuration(t));
    }

    void send(Waiting row) {
        waiting_.push_back(std::move(row));
        std::push_heap(waiting_.begin(), waiting_.end(), later);
    }

    /// Sends what no longer waits for an answer.
    void release(Session& session) {
        while (!session.behind.empty()) {
            Waiting& head = session.behind.front();
            if (head.row.think && session.last >= 0) {
                if (!session.left) return;
                const std::int64_t think = head.row.think->count();
                if (*session.left > end_of_time.time_since_epoch().count() - think)
                    throw UserError("a request would follow its session's previous one more than 146 years after the start");
                head.time = std::max(head.time, *session.left + think);
            } else {
                head.time = std::max(head.time, session.sent);
            }
            session.last = head.index;
            session.sent = head.time;
            session.left.reset();
            send(std::move(head));
            session.behind.pop_front();
        }
    }

    [[nodiscard]] std::int64_t scaled(std::int64_t ns) const {
        if (options_.rate_scale == 1) return ns;
        const double t = static_cast<double>(ns) / options_.rate_scale;
        if (t > 4.6e18) throw UserError("workload.rate_scale moves an arrival more than 146 years after the start");
        return static_cast<std::int64_t>(std::floor(t + 0.5));
    }

    static void fill_prompt(const TraceRow& row, RequestId id, std::vector<TokenRun>& prompt) {
        prompt.clear();
        if (row.hash_ids.empty()) return;
        std::int64_t left = row.input_length;
        for (const std::uint64_t hash : row.hash_ids) {
            const std::uint64_t first = hash * static_cast<std::uint64_t>(row.block_size);
            const std::int64_t count = std::min(row.block_size, left);
            left -= count;
            if (!prompt.empty() && prompt.back().first + static_cast<std::uint64_t>(prompt.back().count) == first) {
                prompt.back().count += count;
            } else {
                prompt.push_back({first, count});
            }
        }
        if (left > 0) prompt.push_back({own_prompt_base(id), left});
    }

    std::unique_ptr<TraceReader> reader_;
    ReplayOptions options_;
    StreamKey jitter_key_;
    bool paced_;
    TraceRow ahead_;
    std::int64_t ahead_time_ = 0;
    bool have_ahead_ = false;
    std::int64_t rows_ = 0;  ///< read
    std::int64_t popped_ = 0;
    std::vector<Waiting> waiting_;
    std::vector<TraceRow> spare_;  ///< storage to reuse
    std::optional<SimTime> next_;
    // Only with paced_; looked up, never iterated over.
    std::unordered_map<std::string, Session> sessions_;
    std::unordered_map<RequestId, std::pair<Session*, std::int64_t>> in_flight_;
};

}  // namespace

std::unique_ptr<Workload> make_replay(std::unique_ptr<TraceReader> reader, const ReplayOptions& options, std::uint64_t seed) {
    return std::make_unique<Replay>(std::move(reader), options, seed);
}

}  // namespace kvsim
