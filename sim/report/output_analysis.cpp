#include "kvsim/report/output_analysis.hpp"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <boost/math/special_functions/beta.hpp>
#include <cmath>

#include "kvsim/base/check.hpp"
#include "kvsim/base/units.hpp"
#include "kvsim/report/quantile.hpp"

namespace kvsim {
namespace {

constexpr double tail = 0.025;
constexpr std::size_t many_batches = 20;
constexpr std::size_t few_batches = 10;

BatchMeans batch_means(std::span<const std::int64_t> series) {
    BatchMeans batches(static_cast<std::int64_t>(series.size()));
    for (const std::int64_t value : series) batches.add(value);
    return batches;
}

struct Spread {
    double variance = 0;
    double half_width = 0;
    bool correlated = false;
};

// Of the mean of `batches` around `centre`.
Spread spread_of(std::span<const double> batches, double centre) {
    const auto k = static_cast<double>(batches.size());
    double squares = 0;
    double products = 0;
    for (std::size_t j = 0; j < batches.size(); ++j) {
        squares += (batches[j] - centre) * (batches[j] - centre);
        if (j > 0) products += (batches[j] - centre) * (batches[j - 1] - centre);
    }
    if (squares <= 0) return {};
    const double r = std::clamp(products / squares, 0.0, 0.9);
    // Anderson (1942), one-sided 1 %.
    const double critical = (-1 + 2.326 * std::sqrt(k - 2)) / (k - 1);
    const double variance = squares / (k - 1) / k * (1 + r) / (1 - r);
    return {variance, student_t(tail, static_cast<std::int64_t>(batches.size()) - 1) * std::sqrt(variance), r > critical};
}

// Where the share of values at or below the true q quantile lies in 95 % of runs.
struct Shares {
    double low = 0, high = 0;
};

constexpr double fewest_beyond = 20;

// Of a quantile in the tail. `clump`: by how much the variance of that share exceeds that of independent values.
std::optional<Shares> tail_shares(double n, double q, double clump) {
    if (n * (1 - q) < fewest_beyond) return std::nullopt;
    // The variance came from few batches: their t over the normal quantile.
    const double uncertain = student_t(tail, few_batches - 1) / 1.959964;
    const double independent = n / (clump * uncertain * uncertain);
    const double below = independent * q;
    const double beyond = independent * (1 - q);
    // In double: long double's tables are filled before main, which every start would pay for.
    const boost::math::policies::policy<boost::math::policies::promote_double<false>> as_double;
    const Shares s{1 - boost::math::ibeta_inv(beyond + 1, below, 1 - tail, as_double),
                   1 - boost::math::ibeta_inv(beyond, below + 1, tail, as_double)};
    if (s.low <= 0 || n * (1 - s.high) < 1) return std::nullopt;  // past the largest value
    return s;
}

// Neighbours in pairs.
std::vector<double> paired(std::span<const double> batches) {
    std::vector<double> out;
    for (std::size_t j = 0; j + 1 < batches.size(); j += 2) out.push_back((batches[j] + batches[j + 1]) / 2);
    return out;
}

}  // namespace

BatchMeans::BatchMeans(std::int64_t values)
    : values_(values),
      batches_(values >= std::int64_t{2 * many_batches}  ? many_batches
               : values >= std::int64_t{2 * few_batches} ? few_batches
                                                         : 0),
      end_(batches_ > 0 ? start(1) : -1) {
    means_.reserve(batches_);
}

void BatchMeans::close() {
    means_.push_back(quotient(sum(), end_ - begin_));
    total_ += sum();
    low_ = high_ = 0;
    begin_ = end_;
    end_ = means_.size() < batches_ ? start(means_.size() + 1) : -1;
}

double BatchMeans::mean() const {
    return quotient(total_ + sum(), values_);
}

double BatchMeans::quotient(Sum sum, std::int64_t values) {
    return static_cast<double>(static_cast<Int128>(sum)) / static_cast<double>(values);
}

double student_t(double tail_share, std::int64_t degrees) {
    KVSIM_CHECK(degrees >= 1 && tail_share > 0 && tail_share < 1, "a t distribution has at least one degree of freedom");
    const boost::math::students_t law(static_cast<double>(degrees));
    return boost::math::quantile(boost::math::complement(law, tail_share));
}

double student_t_tail(double t, std::int64_t degrees) {
    KVSIM_CHECK(degrees >= 1 && std::isfinite(t), "a t distribution has at least one degree of freedom");
    const boost::math::students_t law(static_cast<double>(degrees));
    return boost::math::cdf(boost::math::complement(law, t));
}

WarmUp mser5(std::span<const std::int64_t> series) {
    constexpr std::size_t width = 5;
    constexpr std::size_t no_candidates = 5;
    const std::size_t k = series.size() / width;
    if (k < 2 * no_candidates) return {};
    // From the end on, so that each batch is taken into mean and squares once (Welford).
    double mean = 0;
    double squares = 0;
    double least = 0;
    std::size_t best = k;
    for (std::size_t d = k; d-- > 0;) {
        double z = 0;
        for (std::size_t i = 0; i < width; ++i) z += static_cast<double>(series[d * width + i]);
        z /= width;
        const auto count = static_cast<double>(k - d);
        const double delta = z - mean;
        mean += delta / count;
        squares += delta * (z - mean);
        if (k - d <= no_candidates) continue;
        const double statistic = squares / (count * count);
        if (best == k || statistic <= least) {  // of equal ones the earliest
            least = statistic;
            best = d;
        }
    }
    if (2 * best > k) return {};
    return {best * width, true};
}

Confidence confidence(std::span<const std::int64_t> series, const std::array<double, 4>& at) {
    const BatchMeans batches = batch_means(series);
    if (batches.batches() == 0) return {};
    std::array<std::int64_t, 4> limits{};
    for (std::size_t q = 0; q < limits.size(); ++q)
        limits[q] = static_cast<std::int64_t>(std::floor(at[q] + 1e-3));  // `at` may have been scaled
    std::array<std::vector<double>, 4> shares;
    std::size_t from = 0;
    for (std::size_t j = 0; j < batches.batches(); ++j) {
        const auto batch = series.subspan(from, static_cast<std::size_t>(batches.size(j)));
        for (std::size_t q = 0; q < limits.size(); ++q) {
            const auto below =
                std::count_if(batch.begin(), batch.end(), [&](std::int64_t value) { return value <= limits[q]; });
            shares[q].push_back(static_cast<double>(below) / static_cast<double>(batch.size()));
        }
        from += batch.size();
    }
    const QuantileEnds ends = quantile_ends(shares, static_cast<std::int64_t>(series.size()));
    return confidence(batches, ends, quantiles(series, ends.ends));
}

QuantileEnds quantile_ends(const std::array<std::vector<double>, 4>& shares, std::int64_t values) {
    constexpr std::array<double, 4> wanted{0.5, 0.9, 0.95, 0.99};
    const auto n = static_cast<double>(values);
    QuantileEnds out;
    double clump = 1;
    for (std::size_t q = 0; q < wanted.size(); ++q) {
        if (shares[q].empty()) continue;
        double share = 0;
        for (const double b : shares[q]) share += b;
        share /= static_cast<double>(shares[q].size());
        std::optional<Shares> ends;
        if (wanted[q] < 0.9) {
            const double h = spread_of(shares[q], share).half_width;
            if (wanted[q] - h > 0 && wanted[q] + h < 1) ends = Shares{wanted[q] - h, wanted[q] + h};
        } else if (shares[q].size() == many_batches) {
            const double variance = spread_of(paired(shares[q]), share).variance;
            clump = std::max(clump, variance * n / (wanted[q] * (1 - wanted[q])));
            ends = tail_shares(n, wanted[q], clump);
        }
        if (!ends) continue;
        out.of.push_back(q);
        out.ends.push_back(ends->low);
        out.ends.push_back(ends->high);
    }
    return out;
}

Confidence confidence(const BatchMeans& batches, const QuantileEnds& ends, std::span<const double> values) {
    Confidence out;
    if (batches.batches() == 0) return out;
    const double mean = batches.mean();
    const Spread of_mean = spread_of(batches.means(), mean);
    out.mean = Interval{mean - of_mean.half_width, mean + of_mean.half_width};
    out.correlated = of_mean.correlated;
    for (std::size_t i = 0; i < ends.of.size(); ++i) out.quantile[ends.of[i]] = Interval{values[2 * i], values[2 * i + 1]};
    return out;
}

RatioConfidence ratio_confidence(std::span<const std::int64_t> over, std::span<const std::int64_t> under) {
    return ratio_confidence(batch_means(over), batch_means(under));
}

RatioConfidence ratio_confidence(const BatchMeans& over, const BatchMeans& under) {
    const std::span<const double> above = over.means();
    const std::span<const double> below = under.means();
    KVSIM_CHECK(above.size() == below.size(), "a ratio needs both sums of each request");
    RatioConfidence out;
    const std::size_t k = above.size();
    if (k == 0) return out;
    double sum_above = 0;
    double sum_below = 0;
    for (std::size_t j = 0; j < k; ++j) {
        sum_above += above[j];
        sum_below += below[j];
    }
    if (sum_below <= 0) return out;
    // Linearised: the ratio moves as the mean of (above - ratio x below) over the mean of below.
    const double ratio = sum_above / sum_below;
    const double scale = sum_below / static_cast<double>(k);
    std::vector<double> parts;
    for (std::size_t j = 0; j < k; ++j) parts.push_back((above[j] - ratio * below[j]) / scale);
    const Spread s = spread_of(parts, 0);
    out.interval = Interval{ratio - s.half_width, ratio + s.half_width};
    out.correlated = s.correlated;
    return out;
}

std::optional<Drift> drift(std::span<const std::int64_t> series) {
    return drift(batch_means(series));
}

std::optional<Drift> drift(const BatchMeans& batches) {
    const std::span<const double> means = batches.means();
    if (means.size() < many_batches) return std::nullopt;
    const std::size_t half = many_batches / 2;
    double first = 0;
    double second = 0;
    for (std::size_t j = 0; j < half; ++j) {
        first += means[j];
        second += means[j + half];
    }
    if (first <= 0) return std::nullopt;

    std::int64_t score = 0;
    for (std::size_t i = 0; i < means.size(); ++i) {
        for (std::size_t j = i + 1; j < means.size(); ++j) score += (means[j] > means[i]) - (means[j] < means[i]);
    }
    const auto part = [](double n) { return n * (n - 1) * (2 * n + 5); };
    const auto n = static_cast<double>(means.size());
    double variance = part(n);
    std::vector<double> sorted(means.begin(), means.end());
    std::sort(sorted.begin(), sorted.end());
    for (auto from = sorted.begin(); from != sorted.end();) {
        const auto to = std::upper_bound(from, sorted.end(), *from);
        variance -= part(static_cast<double>(to - from));
        from = to;
    }
    Drift out;
    out.change = second / first - 1;
    out.tau = static_cast<double>(score) / (n * (n - 1) / 2);
    if (variance > 0) {
        const double z = (static_cast<double>(std::abs(score)) - (score == 0 ? 0 : 1)) / std::sqrt(variance / 18);
        out.p = std::erfc(z / std::sqrt(2.0));
    }
    out.drifting = out.p < 0.01 && std::abs(out.change) > 0.05;
    return out;
}

ReplicationMean replication_mean(std::span<const double> runs) {
    ReplicationMean out;
    if (runs.empty()) return out;
    double n = 0;
    double squares = 0;
    for (const double x : runs) {  // Welford: equal runs give exactly 0
        const double delta = x - out.mean;
        out.mean += delta / ++n;
        squares += delta * (x - out.mean);
    }
    if (runs.size() < 2) return out;
    out.half_width = student_t(tail, static_cast<std::int64_t>(runs.size()) - 1) * std::sqrt(squares / (n - 1) / n);
    return out;
}

}  // namespace kvsim
