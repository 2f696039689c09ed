#include "kvsim/report/output_analysis.hpp"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <boost/math/special_functions/beta.hpp>
#include <cmath>

#include "kvsim/base/check.hpp"
#include "kvsim/report/quantile.hpp"

namespace kvsim {
namespace {

constexpr double tail = 0.025;
constexpr std::size_t many_batches = 20;
constexpr std::size_t few_batches = 10;

// How many batches a series of n values is cut into; 0: too short.
std::size_t batch_count(std::size_t n) {
    if (n >= 2 * many_batches) return many_batches;
    return n >= 2 * few_batches ? few_batches : 0;
}

// First value of batch j of k.
std::size_t batch_start(std::size_t n, std::size_t k, std::size_t j) {
    return j * n / k;
}

std::vector<double> batch_means(std::span<const std::int64_t> series, std::size_t k) {
    std::vector<double> means;
    means.reserve(k);
    for (std::size_t j = 0; j < k; ++j) {
        const std::size_t from = batch_start(series.size(), k, j);
        const std::size_t to = batch_start(series.size(), k, j + 1);
        double sum = 0;
        for (std::size_t i = from; i < to; ++i) sum += static_cast<double>(series[i]);
        means.push_back(sum / static_cast<double>(to - from));
    }
    return means;
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

double student_t(double tail_share, std::int64_t degrees) {
    KVSIM_CHECK(degrees >= 1 && tail_share > 0 && tail_share < 1, "a t distribution has at least one degree of freedom");
    const boost::math::students_t law(static_cast<double>(degrees));
    return boost::math::quantile(boost::math::complement(law, tail_share));
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
    constexpr std::array<double, 4> shares{0.5, 0.9, 0.95, 0.99};
    Confidence out;
    const std::size_t k = batch_count(series.size());
    if (k == 0) return out;
    std::array<std::int64_t, 4> limits{};
    for (std::size_t q = 0; q < limits.size(); ++q)
        limits[q] = static_cast<std::int64_t>(std::floor(at[q] + 1e-3));  // `at` may have been scaled

    std::vector<double> means;
    std::array<std::vector<double>, 4> below;
    double total = 0;
    for (std::size_t j = 0; j < k; ++j) {
        const std::size_t from = batch_start(series.size(), k, j);
        const std::size_t to = batch_start(series.size(), k, j + 1);
        double sum = 0;
        std::array<std::int64_t, 4> counts{};
        for (std::size_t i = from; i < to; ++i) {
            const std::int64_t value = series[i];
            sum += static_cast<double>(value);
            for (std::size_t q = 0; q < limits.size(); ++q) counts[q] += value <= limits[q] ? 1 : 0;
        }
        total += sum;
        const auto size = static_cast<double>(to - from);
        means.push_back(sum / size);
        for (std::size_t q = 0; q < limits.size(); ++q) below[q].push_back(static_cast<double>(counts[q]) / size);
    }
    const double mean = total / static_cast<double>(series.size());
    const Spread of_mean = spread_of(means, mean);
    out.mean = Interval{mean - of_mean.half_width, mean + of_mean.half_width};
    out.correlated = of_mean.correlated;

    std::vector<double> ends;
    std::vector<std::size_t> known;
    const auto n = static_cast<double>(series.size());
    double clump = 1;
    for (std::size_t q = 0; q < shares.size(); ++q) {
        double share = 0;
        for (const double b : below[q]) share += b;
        share /= static_cast<double>(k);
        std::optional<Shares> ends_at;
        if (shares[q] < 0.9) {
            const double h = spread_of(below[q], share).half_width;
            if (shares[q] - h > 0 && shares[q] + h < 1) ends_at = Shares{shares[q] - h, shares[q] + h};
        } else if (k == many_batches) {
            const double variance = spread_of(paired(below[q]), share).variance;
            clump = std::max(clump, variance * n / (shares[q] * (1 - shares[q])));
            ends_at = tail_shares(n, shares[q], clump);
        }
        if (!ends_at) continue;
        known.push_back(q);
        ends.push_back(ends_at->low);
        ends.push_back(ends_at->high);
    }
    const std::vector<double> values = quantiles(series, ends);
    for (std::size_t i = 0; i < known.size(); ++i) out.quantile[known[i]] = Interval{values[2 * i], values[2 * i + 1]};
    return out;
}

RatioConfidence ratio_confidence(std::span<const std::int64_t> over, std::span<const std::int64_t> under) {
    KVSIM_CHECK(over.size() == under.size(), "a ratio needs both sums of each request");
    RatioConfidence out;
    const std::size_t k = batch_count(over.size());
    if (k == 0) return out;
    const std::vector<double> above = batch_means(over, k);
    const std::vector<double> below = batch_means(under, k);
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
    if (series.size() < 2 * many_batches) return std::nullopt;
    const std::vector<double> means = batch_means(series, many_batches);
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
    std::vector<double> sorted = means;
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
