#pragma once
// Durations of some rows of a table whose rows come in ascending order, in 5 bytes a row where neighbours have similar ones.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/base/units.hpp"

namespace kvsim {

class DurationColumn {
public:
    /// `row` is greater than every earlier one, value > 0.
    void append(std::uint64_t row, SimDuration value) {
        KVSIM_DCHECK(value > SimDuration::zero() && (runs_.empty() || row >= end()), "rows come in ascending order");
        if (runs_.empty() || row - end() > most_skipped || !fits(value)) {
            runs_.push_back({row, low_.size(), value.count()});
        } else {
            for (std::uint64_t skipped = row - end(); skipped > 0; --skipped) push(0);
        }
        push(static_cast<std::uint64_t>(value.count() - runs_.back().base) + middle);
    }
    /// Room for so many rows.
    void reserve(std::size_t rows) {
        low_.reserve(rows);
        high_.reserve(rows);
    }
    [[nodiscard]] bool empty() const { return runs_.empty(); }
    /// 0 for a row without a value.
    [[nodiscard]] SimDuration of(std::uint64_t row) const { return Reader(*this).of(row); }

    /// of() of rows that come mostly one after the other. More may be appended meanwhile.
    class Reader {
    public:
        explicit Reader(const DurationColumn& column) : column_(column) {}
        [[nodiscard]] SimDuration of(std::uint64_t row) {
            if (row - first_ >= rows_) enter(row);
            return row - first_ < rows_ ? column_.at(at_ + static_cast<std::size_t>(row - first_), base_) : SimDuration::zero();
        }

    private:
        [[gnu::noinline]] void enter(std::uint64_t row) {
            if (!column_.covers(run_, row)) run_ = column_.run_of(row);
            if (run_ == column_.runs_.size()) return;
            const Run& run = column_.runs_[run_];
            first_ = run.first;
            rows_ = column_.stored(run_);
            at_ = run.at;
            base_ = run.base;
        }

        const DurationColumn& column_;
        std::size_t run_ = 0;
        // Of that run.
        std::uint64_t first_ = 0;
        std::uint64_t rows_ = 0;
        std::size_t at_ = 0;
        std::int64_t base_ = 0;
    };

    bool operator==(const DurationColumn&) const = default;

private:
    // Rows that follow each other and are within 9 minutes of the first.
    struct Run {
        std::uint64_t first = 0;  // row
        std::size_t at = 0;       // its place in low_ and high_
        std::int64_t base = 0;    // ns
        bool operator==(const Run&) const = default;
    };
    static constexpr std::uint64_t middle = std::uint64_t{1} << 39;
    static constexpr std::uint64_t most_skipped = 4;  // a row without a value takes 5 bytes, a run 24

    [[nodiscard]] std::uint64_t end() const { return runs_.back().first + (low_.size() - runs_.back().at); }
    [[nodiscard]] bool fits(SimDuration value) const {
        return std::abs(value.count() - runs_.back().base) < static_cast<std::int64_t>(middle);
    }
    void push(std::uint64_t coded) {
        low_.push_back(static_cast<std::uint32_t>(coded));
        high_.push_back(static_cast<std::uint8_t>(coded >> 32));
    }
    /// Index of the last run that begins at or before the row; runs_.size() where none does.
    [[nodiscard]] std::size_t run_of(std::uint64_t row) const {
        const auto next = std::upper_bound(runs_.begin(), runs_.end(), row,
                                           [](std::uint64_t wanted, const Run& run) { return wanted < run.first; });
        return next == runs_.begin() ? runs_.size() : static_cast<std::size_t>(next - runs_.begin()) - 1;
    }
    [[nodiscard]] bool covers(std::size_t run, std::uint64_t row) const {
        return run < runs_.size() && row >= runs_[run].first && (run + 1 == runs_.size() || row < runs_[run + 1].first);
    }
    /// Rows from the run's first on that stand in low_ and high_.
    [[nodiscard]] std::uint64_t stored(std::size_t run) const {
        return (run + 1 < runs_.size() ? runs_[run + 1].at : low_.size()) - runs_[run].at;
    }
    [[nodiscard]] SimDuration at(std::size_t place, std::int64_t base) const {
        const std::uint64_t coded = std::uint64_t{high_[place]} << 32 | low_[place];
        return SimDuration(coded == 0 ? 0 : base + static_cast<std::int64_t>(coded - middle));
    }

    std::vector<Run> runs_;
    // By row of each run: 2^39 more than what its value is above the run's base, or 0 without one.
    std::vector<std::uint32_t> low_;
    std::vector<std::uint8_t> high_;
};

}  // namespace kvsim
