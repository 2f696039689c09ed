#include "kvsim/report/quantile.hpp"

#include <algorithm>

#include "kvsim/base/histogram.hpp"
#include "kvsim/base/rank.hpp"

namespace kvsim {
namespace {

// Below this, sorting a copy is cheaper than clearing the bins.
constexpr std::size_t small_column = 2048;
constexpr int bits = 8;

template <class T>
std::size_t bin_of(T value) {
    return log_linear_bin(static_cast<std::int64_t>(value), bits);
}

// The order statistics at `ranks` (ascending, distinct).
template <class T>
std::vector<T> order_statistics(std::span<const T> column, const std::vector<std::int64_t>& ranks) {
    std::vector<T> found;
    found.reserve(ranks.size());
    if (column.size() <= small_column) {
        std::vector<T> sorted(column.begin(), column.end());
        std::sort(sorted.begin(), sorted.end());
        for (const std::int64_t rank : ranks) found.push_back(sorted[static_cast<std::size_t>(rank)]);
        return found;
    }

    std::vector<std::int64_t> counts(log_linear_bins(bits));
    for (const T value : column) ++counts[bin_of(value)];

    struct Wanted {
        std::int64_t before;  // values in lower bins
        std::vector<T> values;
        std::vector<std::int64_t> ranks;
    };
    std::vector<Wanted> wanted;
    std::vector<std::int16_t> slot(counts.size(), -1);
    std::int64_t before = 0;
    std::size_t next = 0;
    for (std::size_t bin = 0; next < ranks.size(); before += counts[bin++]) {
        if (ranks[next] >= before + counts[bin]) continue;
        slot[bin] = static_cast<std::int16_t>(wanted.size());
        wanted.push_back({before, {}, {}});
        wanted.back().values.reserve(static_cast<std::size_t>(counts[bin]));
        while (next < ranks.size() && ranks[next] < before + counts[bin]) wanted.back().ranks.push_back(ranks[next++]);
    }
    for (const T value : column) {
        const std::int16_t at = slot[bin_of(value)];
        if (at >= 0) wanted[static_cast<std::size_t>(at)].values.push_back(value);
    }
    for (Wanted& w : wanted) {
        auto from = w.values.begin();  // everything before it is known to be smaller
        for (const std::int64_t rank : w.ranks) {
            const auto nth = w.values.begin() + (rank - w.before);
            std::nth_element(from, nth, w.values.end());
            found.push_back(*nth);
            from = nth + 1;
        }
    }
    return found;
}

template <class T>
std::vector<double> select(std::span<const T> column, std::span<const double> qs) {
    if (column.empty()) return std::vector<double>(qs.size());
    const auto n = static_cast<std::int64_t>(column.size());
    std::vector<std::int64_t> ranks;
    for (const double q : qs) {
        const Rank rank = quantile_rank(n, q);
        ranks.push_back(rank.below);
        ranks.push_back(std::min(rank.below + 1, n - 1));
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    const std::vector<T> values = order_statistics(column, ranks);
    const auto at = [&](std::int64_t rank) {
        return static_cast<double>(
            values[static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin())]);
    };
    std::vector<double> out;
    out.reserve(qs.size());
    for (const double q : qs) {
        const Rank rank = quantile_rank(n, q);
        out.push_back(interpolate(at(rank.below), at(std::min(rank.below + 1, n - 1)), rank.fraction));
    }
    return out;
}

}  // namespace

std::vector<double> quantiles(std::span<const std::int64_t> column, std::span<const double> qs) {
    return select(column, qs);
}
std::vector<double> quantiles(std::span<const double> column, std::span<const double> qs) {
    return select(column, qs);
}

}  // namespace kvsim
