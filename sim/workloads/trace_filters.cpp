#include "kvsim/model/trace_filters.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "gap_sum.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "line_reader.hpp"

namespace kvsim {

namespace {

class Filter : public TraceReader {
public:
    explicit Filter(std::unique_ptr<TraceReader> inner) : inner_(std::move(inner)) {}
    [[nodiscard]] std::string_view format() const override { return inner_->format(); }
    [[nodiscard]] TraceTimes times() const override { return inner_->times(); }
    [[nodiscard]] bool paced_by_completions() const override { return inner_->paced_by_completions(); }
    [[nodiscard]] bool may_time_out() const override { return inner_->may_time_out(); }
    [[nodiscard]] bool may_branch() const override { return inner_->may_branch(); }
    [[nodiscard]] bool outputs_may_recur() const override { return inner_->outputs_may_recur(); }
    [[nodiscard]] std::vector<std::string> unknown_keys() const override { return inner_->unknown_keys(); }
    [[nodiscard]] std::vector<std::string> notes() const override { return inner_->notes(); }

protected:
    [[nodiscard]] TraceReader& inner() { return *inner_; }

private:
    std::unique_ptr<TraceReader> inner_;
};

class SkipWrongRows final : public Filter {
public:
    using Filter::Filter;
    bool next(TraceRow& row) override {
        for (;;) {
            try {
                return inner().next(row);
            } catch (const RowError& e) {
                if (skipped_++ == 0) {
                    first_ = e.what();
                    first_.resize(std::min(first_.size(), first_.find('\n')));  // not the line and its caret
                }
            } catch (const UserError& e) {
                if (skipped_ == 0) throw;
                throw UserError(std::string(e.what()) + "\n" + note());
            }
        }
    }
    [[nodiscard]] std::vector<std::string> notes() const override {
        std::vector<std::string> all = Filter::notes();
        if (skipped_ > 0) all.push_back(note());
        return all;
    }

private:
    [[nodiscard]] std::string note() const {
        return std::to_string(skipped_) + (skipped_ == 1 ? " wrong row is" : " wrong rows are") +
               " skipped, the first: " + first_;
    }
    std::int64_t skipped_ = 0;
    std::string first_;
};

class ArrivalTimes {
public:
    ArrivalTimes(std::unique_ptr<ArrivalProcess> process, std::optional<std::int64_t> stretch_to)
        : process_(std::move(process)) {
        if (!stretch_to) return;
        GapSum sum;
        for (std::int64_t i = 0; i < *stretch_to; ++i) sum.add(process_->gap_ns(static_cast<std::uint64_t>(i)));
        const double target = static_cast<double>(*stretch_to) / process_->info().rate * 1e9;
        if (sum.rounded() > 0) stretch_ = target / static_cast<double>(sum.rounded());
        end_index_ = *stretch_to - 1;
        end_ = static_cast<std::int64_t>(std::floor(target + 0.5));
    }
    /// Nullopt: the process has ended.
    std::optional<std::int64_t> next() {
        const double gap = process_->gap_ns(static_cast<std::uint64_t>(index_));
        if (std::isinf(gap)) return std::nullopt;
        sum_.add(gap * stretch_);
        std::int64_t t = sum_.rounded();
        // The stretched sum misses its end by rounding; that arrival is exact and none comes after it.
        if (end_) t = index_ == end_index_ ? *end_ : index_ < end_index_ ? std::min(t, *end_) : std::max(t, *end_);
        ++index_;
        return t;
    }

private:
    std::unique_ptr<ArrivalProcess> process_;
    GapSum sum_;
    double stretch_ = 1;
    std::int64_t index_ = 0;
    std::int64_t end_index_ = 0;
    std::optional<std::int64_t> end_;
};

std::int64_t count_of(SimTime t) {
    return t.time_since_epoch().count();
}

SimTime later(SimTime t, std::int64_t ns) {
    if (count_of(t) > count_of(end_of_time) - ns) throw UserError("a session lies more than 146 years after the start");
    return t + SimDuration(ns);
}

class MergeSessions final : public Filter {
public:
    MergeSessions(std::unique_ptr<TraceReader> given, std::unique_ptr<ArrivalProcess> starts) : Filter(std::move(given)) {
        if (starts) starts_.emplace(std::move(starts), std::nullopt);
        next_session();
    }
    [[nodiscard]] TraceTimes times() const override { return TraceTimes::recorded; }
    bool next(TraceRow& row) override {
        while (have_ahead_ && (heap_.empty() || heap_.front().row.time > ahead_.time)) {
            // Of one session rows are sorted: its first one is the earliest.
            const std::int64_t start = start_;
            do {
                heap_.push_back({rows_++, std::move(ahead_)});
                std::push_heap(heap_.begin(), heap_.end(), comes_later);
                have_ahead_ = inner().next(ahead_);
                if (have_ahead_ && !ahead_.starts_session) ahead_.time = kvsim::later(ahead_.time, start);
            } while (have_ahead_ && !ahead_.starts_session);
            if (have_ahead_) place();
        }
        if (heap_.empty()) return false;
        std::pop_heap(heap_.begin(), heap_.end(), comes_later);
        row = std::move(heap_.back().row);
        heap_.pop_back();
        return true;
    }

private:
    struct Held {
        std::int64_t index;
        TraceRow row;
    };
    static bool comes_later(const Held& a, const Held& b) {
        return a.row.time != b.row.time ? a.row.time > b.row.time : a.index > b.index;
    }
    void next_session() {
        have_ahead_ = inner().next(ahead_);
        if (have_ahead_) place();
    }
    void place() {
        const std::optional<std::int64_t> start = starts_ ? starts_->next() : std::optional<std::int64_t>(0);
        have_ahead_ = start.has_value();
        if (!have_ahead_) return;
        start_ = *start;
        ahead_.time = kvsim::later(ahead_.time, start_);
    }

    std::optional<ArrivalTimes> starts_;
    std::int64_t start_ = 0;
    std::int64_t rows_ = 0;
    TraceRow ahead_;  ///< the first row of the next session
    bool have_ahead_ = false;
    std::vector<Held> heap_;
};

class Window final : public Filter {
public:
    Window(std::unique_ptr<TraceReader> given, SimDuration start, std::optional<SimDuration> end)
        : Filter(std::move(given)), start_(start), end_(end) {}
    bool next(TraceRow& row) override {
        while (inner().next(row)) {
            if (end_ && row.time.time_since_epoch() >= *end_) return false;
            if (row.time.time_since_epoch() < start_) continue;
            row.time -= start_;
            return true;
        }
        return false;
    }

private:
    SimDuration start_;
    std::optional<SimDuration> end_;
};

class Sample final : public Filter {
public:
    Sample(std::unique_ptr<TraceReader> given, double share, std::uint64_t seed)
        : Filter(std::move(given)), share_(share), key_(seed, "trace_sample") {}
    bool next(TraceRow& row) override {
        while (inner().next(row)) {
            std::uint64_t index = rows_++;
            if (!row.session_id.empty()) {
                index = 0xCBF29CE484222325U;  // FNV-1a
                for (const char c : row.session_id) index = (index ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
            }
            if (key_.first_uniform(index) < share_) return true;
        }
        return false;
    }

private:
    double share_;
    StreamKey key_;
    std::uint64_t rows_ = 0;
};

class Clip final : public Filter {
public:
    Clip(std::unique_ptr<TraceReader> given, std::int64_t prompt, std::int64_t output)
        : Filter(std::move(given)), prompt_(prompt), output_(output) {}
    bool next(TraceRow& row) override {
        if (!inner().next(row)) return false;
        row.output_length = std::min(row.output_length, output_);
        if (row.input_length > prompt_) {
            row.input_length = prompt_;
            row.output_hash_id.reset();  // they no longer follow the same tokens
            if (!row.hash_ids.empty()) {
                const auto blocks = static_cast<std::size_t>(ceil_div(prompt_, row.block_size));
                row.hash_ids.resize(std::min(blocks, row.hash_ids.size()));
            }
        }
        return true;
    }

private:
    std::int64_t prompt_;
    std::int64_t output_;
};

class Shuffle final : public Filter {
public:
    Shuffle(std::unique_ptr<TraceReader> given, std::uint64_t seed) : Filter(std::move(given)), seed_(seed) {}
    bool next(TraceRow& row) override {
        if (!filled_) fill();
        if (at_ == rows_.size()) return false;
        row = std::move(rows_[at_]);
        row.time = times_[at_++];
        return true;
    }

private:
    void fill() {
        filled_ = true;
        TraceRow row;
        while (inner().next(row)) {
            if (row.think) throw UserError("trace.shuffle does not go with rows that follow one another (think_ms)");
            times_.push_back(row.time);
            rows_.push_back(std::move(row));
        }
        const StreamKey key(seed_, "trace_shuffle");
        for (std::size_t i = rows_.size(); i-- > 1;) {  // Fisher and Yates
            const std::int64_t j = uniform_int(key.first_uniform(i), 0, static_cast<std::int64_t>(i));
            std::swap(rows_[i], rows_[static_cast<std::size_t>(j)]);
        }
    }

    std::uint64_t seed_;
    bool filled_ = false;
    std::vector<TraceRow> rows_;
    std::vector<SimTime> times_;
    std::size_t at_ = 0;
};

class Retime final : public Filter {
public:
    Retime(std::unique_ptr<TraceReader> given, std::unique_ptr<ArrivalProcess> process, std::optional<std::int64_t> requests)
        : Filter(std::move(given)), arrivals_(std::move(process), requests) {}
    [[nodiscard]] TraceTimes times() const override { return TraceTimes::recorded; }
    bool next(TraceRow& row) override {
        if (ended_ || !inner().next(row)) return false;
        if (!row.think) {
            const std::optional<std::int64_t> t = arrivals_.next();
            ended_ = !t;
            if (ended_) return false;
            last_ = SimTime(SimDuration(*t));
        }
        row.time = last_;
        return true;
    }

private:
    ArrivalTimes arrivals_;
    bool ended_ = false;
    SimTime last_{};
};

}  // namespace

std::unique_ptr<TraceReader> skip_wrong_rows(std::unique_ptr<TraceReader> reader) {
    return std::make_unique<SkipWrongRows>(std::move(reader));
}

std::unique_ptr<TraceReader> merge_sessions(std::unique_ptr<TraceReader> reader, std::unique_ptr<ArrivalProcess> starts) {
    return std::make_unique<MergeSessions>(std::move(reader), std::move(starts));
}

std::unique_ptr<TraceReader> cut_window(std::unique_ptr<TraceReader> reader, SimDuration start,
                                        std::optional<SimDuration> end) {
    return std::make_unique<Window>(std::move(reader), start, end);
}

std::unique_ptr<TraceReader> sample_rows(std::unique_ptr<TraceReader> reader, double share, std::uint64_t seed) {
    return std::make_unique<Sample>(std::move(reader), share, seed);
}

std::unique_ptr<TraceReader> clip_lengths(std::unique_ptr<TraceReader> reader, std::optional<std::int64_t> prompt,
                                          std::optional<std::int64_t> output) {
    return std::make_unique<Clip>(std::move(reader), prompt.value_or(max_request_tokens), output.value_or(max_request_tokens));
}

std::unique_ptr<TraceReader> shuffle_rows(std::unique_ptr<TraceReader> reader, std::uint64_t seed) {
    return std::make_unique<Shuffle>(std::move(reader), seed);
}

std::unique_ptr<TraceReader> retime(std::unique_ptr<TraceReader> reader, std::unique_ptr<ArrivalProcess> process,
                                    std::optional<std::int64_t> requests) {
    return std::make_unique<Retime>(std::move(reader), std::move(process), requests);
}

}  // namespace kvsim
