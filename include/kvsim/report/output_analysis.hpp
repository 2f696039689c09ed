#pragma once
// What one run, or a few, can say about the system: where the warm-up ends, whether a series drifts, how far its mean and
// quantiles may lie from the true ones. A series holds one value a request, in order of arrival; neighbours are correlated.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvsim {

/// Student's t: the value that a variable of `degrees` >= 1 degrees of freedom exceeds with probability `tail`, 0 < tail < 1.
double student_t(double tail, std::int64_t degrees);
/// The probability that it exceeds `t`.
double student_t_tail(double t, std::int64_t degrees);

/// Where the warm-up ends by MSER-5 (White, Cobb, Spratt, "A comparison of five steady-state truncation heuristics for
/// simulation", WSC 2000): over batch means z of 5 values, the smallest d that minimises
///   sum over i > d of (z_i - mean of z_{d+1..k})^2 / (k - d)^2.
/// The last 5 batches are no candidates: a few equal values would win by accident (Hoad, Robinson, Davies 2010). A minimum in
/// the second half says that the series is too short to tell.
struct WarmUp {
    std::size_t values = 0;  ///< to cut: 5 d
    bool found = false;      ///< false: fewer than 10 batches, or the minimum lies in the second half; values is 0 then
};
WarmUp mser5(std::span<const std::int64_t> series);

/// An interval that covers the true value in 95 % of runs.
struct Interval {
    double low = 0;
    double high = 0;
    [[nodiscard]] double half_width() const { return (high - low) / 2; }
};

/// The means of batches of equal length of a series whose length is known before its values pass by.
class BatchMeans {
public:
    /// 20 batches, 10 of 20 to 39 values, none of fewer.
    explicit BatchMeans(std::int64_t values);
    void add(std::int64_t value) {
        const Sum more = sum() + static_cast<Sum>(value);
        low_ = static_cast<std::uint64_t>(more);
        high_ = static_cast<std::uint64_t>(more >> 64);
        if (++seen_ == end_) close();
    }
    /// add() of a value >= 0, where the caller counts the values and calls close() behind the last of each batch.
    void count(std::int64_t value) {
        const auto more = static_cast<std::uint64_t>(value);
        low_ += more;
        high_ += low_ < more;
    }
    void close();
    [[nodiscard]] std::size_t batches() const { return batches_; }
    /// How many values precede the batch.
    [[nodiscard]] std::int64_t start(std::size_t batch) const {
        return static_cast<std::int64_t>(batch) * values_ / static_cast<std::int64_t>(batches_);
    }
    [[nodiscard]] std::int64_t size(std::size_t batch) const { return start(batch + 1) - start(batch); }
    /// Once all values were added.
    [[nodiscard]] std::span<const double> means() const { return means_; }
    [[nodiscard]] double mean() const;  ///< of all values

private:
    __extension__ using Sum = unsigned __int128;  // of negative values as well, modulo 2^128
    /// Of the batch in progress. Its halves are kept apart because the compiler adds to them in two instructions.
    [[nodiscard]] Sum sum() const { return (static_cast<Sum>(high_) << 64) | low_; }
    [[nodiscard]] static double quotient(Sum sum, std::int64_t values);
    std::int64_t values_;
    std::size_t batches_;
    std::int64_t seen_ = 0;
    std::int64_t begin_ = 0;  // of the batch in progress
    std::int64_t end_;
    std::uint64_t low_ = 0;
    std::uint64_t high_ = 0;
    Sum total_ = 0;  // of the batches before it
    std::vector<double> means_;
};

/// By batch means (Schmeiser 1982: 10 to 30 batches): 20 batches of equal length, or 10 of a series of 20 to 39 values. Their
/// lag-1 autocorrelation r, where positive, widens the interval by sqrt((1 + r) / (1 - r)) (Tafazzoli, Wilson, Lada, Steiger,
/// "Performance of Skart", 2011). The interval of the q quantile is that of the share of values at or below it, carried over by
/// the series' own quantiles (Woodruff 1952). For the median that share is q +- h, h from batch means of the indicator. In the
/// tail it is skewed, and few values beyond it tell little about how they clump: there it is that of an order statistic (beta)
/// of so many independent values as the variance of 10 batch means of the indicator leaves, the largest such loss among 0.9,
/// 0.95, ... q (clumps thin out further up). Unset with fewer than 20 values beyond q, and where it passes the largest.
struct Confidence {
    std::optional<Interval> mean;                     ///< unset below 20 values
    std::array<std::optional<Interval>, 4> quantile;  ///< of 0.5, 0.9, 0.95, 0.99
    bool correlated = false;  ///< the batch means are no independent sample (Anderson's one-sided test of r at 1 %): too narrow
};
/// `at`: the series' quantiles 0.5, 0.9, 0.95, 0.99.
Confidence confidence(std::span<const std::int64_t> series, const std::array<double, 4>& at);

/// The same of a series that passes by. Of the shares at or below the quantile 0.5, 0.9, 0.95, 0.99 in each batch: which
/// quantiles of the series are the ends of which interval.
struct QuantileEnds {
    std::vector<std::size_t> of;  ///< place in Confidence::quantile
    std::vector<double> ends;     ///< two shares for each
};
QuantileEnds quantile_ends(const std::array<std::vector<double>, 4>& shares, std::int64_t values);
/// `values`: those quantiles.
Confidence confidence(const BatchMeans& batches, const QuantileEnds& ends, std::span<const double> values);

/// The mean of a ratio of sums, as the gaps between tokens pooled over requests: sum of `over` / sum of `under`, over > 0.
struct RatioConfidence {
    std::optional<Interval> interval;
    bool correlated = false;
};
RatioConfidence ratio_confidence(std::span<const std::int64_t> over, std::span<const std::int64_t> under);
RatioConfidence ratio_confidence(const BatchMeans& over, const BatchMeans& under);

/// Whether a series drifts: Mann and Kendall's test for a trend over 20 batch means (ties and continuity corrected). A drift is
/// reported where it is both significant at 1 % and more than 5 % between the means of the two halves.
struct Drift {
    double tau = 0;     ///< Kendall's, -1 to 1
    double p = 1;       ///< two-sided
    double change = 0;  ///< mean of the second half over that of the first, less 1
    bool drifting = false;
};
/// nullopt below 40 values, or where the first half is 0 throughout.
std::optional<Drift> drift(std::span<const std::int64_t> series);
std::optional<Drift> drift(const BatchMeans& batches);

/// Mean of independent runs with the half width of its 95 % interval (Student t); the half width is unset for one run.
struct ReplicationMean {
    double mean = 0;
    std::optional<double> half_width;
};
ReplicationMean replication_mean(std::span<const double> runs);

}  // namespace kvsim
