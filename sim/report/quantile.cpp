#include "kvsim/report/quantile.hpp"

#include <algorithm>

#include "kvsim/base/rank.hpp"

namespace kvsim {
namespace {

// Below this, sorting a copy is cheaper than clearing the bins.
constexpr std::size_t small_column = 2048;

std::vector<std::int64_t> ranks_of(std::int64_t n, std::span<const double> qs) {
    std::vector<std::int64_t> ranks;
    for (const double q : qs) {
        const Rank rank = quantile_rank(n, q);
        ranks.push_back(rank.below);
        ranks.push_back(std::min(rank.below + 1, n - 1));
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
}

/// `at(rank)` is the order statistic.
template <class At>
std::vector<double> interpolated(std::int64_t n, std::span<const double> qs, At at) {
    std::vector<double> out;
    out.reserve(qs.size());
    for (const double q : qs) {
        const Rank rank = quantile_rank(n, q);
        out.push_back(interpolate(at(rank.below), at(std::min(rank.below + 1, n - 1)), rank.fraction));
    }
    return out;
}

template <class T>
std::vector<double> select(std::span<const T> column, std::span<const double> qs) {
    if (column.empty()) return std::vector<double>(qs.size());
    const bool negative =
        std::any_of(column.begin(), column.end(), [](T value) { return value < 0; });  // there are no bins below 0
    if (column.size() <= small_column || negative) {
        std::vector<T> sorted(column.begin(), column.end());
        std::sort(sorted.begin(), sorted.end());
        return interpolated(static_cast<std::int64_t>(column.size()), qs, [&sorted](std::int64_t rank) {
            return static_cast<double>(sorted[static_cast<std::size_t>(rank)]);
        });
    }
    QuantilePasses<T> passes;
    for (const T value : column) passes.count(value);
    passes.want(static_cast<std::int64_t>(column.size()), qs);
    for (const T value : column) passes.collect(value);
    return passes.values();
}

}  // namespace

template <class T>
void QuantilePasses<T>::want(std::int64_t total, std::span<const double> qs) {
    total_ = total;
    qs_.assign(qs.begin(), qs.end());
    wanted_.clear();
    batches_.clear();
    begins_.assign(1, 0);
    if (total == 0) return;
    ranks_ = ranks_of(total, qs);
    parts_.resize(counts_.size());
    std::int64_t before = 0;
    std::size_t next = 0;
    std::uint32_t kept = 0;
    std::size_t bin = 0;
    while (counts_[bin] == 0) ++bin;
    for (; before < total; ++bin) {
        const std::uint32_t count = counts_[bin];
        const std::int64_t after = before + std::int64_t{count};
        parts_[bin] = static_cast<std::uint16_t>(2 * wanted_.size());
        if (next < ranks_.size() && ranks_[next] < after) {
            ++parts_[bin];
            wanted_.push_back({before, kept, count, {}});
            while (next < ranks_.size() && ranks_[next] < after) wanted_.back().ranks.push_back(ranks_[next++]);
            begins_.insert(begins_.end(), {kept, 0});
            kept += count;
        }
        before = after;
    }
    ends_ = begins_;
    kept_.resize(kept);
}

template <class T>
std::vector<double> QuantilePasses<T>::values() const {
    if (total_ == 0) return std::vector<double>(qs_.size());
    std::vector<double> found;
    std::vector<T> values;
    for (const Wanted& w : wanted_) {
        values.assign(kept_.begin() + w.first, kept_.begin() + w.first + w.count);
        auto from = values.begin();  // everything before it is known to be smaller
        for (const std::int64_t rank : w.ranks) {
            const auto nth = values.begin() + (rank - w.before);
            std::nth_element(from, nth, values.end());
            found.push_back(static_cast<double>(*nth));
            from = nth + 1;
        }
    }
    return interpolated(total_, qs_, [&](std::int64_t rank) {
        return found[static_cast<std::size_t>(std::lower_bound(ranks_.begin(), ranks_.end(), rank) - ranks_.begin())];
    });
}

template <class T>
std::vector<std::int64_t> QuantilePasses<T>::at_or_below(T limit) const {
    const std::size_t part = parts_[bin_of(limit)];
    std::vector<std::int64_t> found;
    std::vector<std::uint32_t> begins = begins_;
    for (std::size_t at = 0; at < batches_.size(); at += begins.size()) {
        const std::span<const std::uint32_t> ends(batches_.data() + at, begins.size());
        std::int64_t count = 0;
        for (std::size_t p = 0; p < part; ++p) count += ends[p] - begins[p];
        if (part % 2 != 0) {
            for (std::uint32_t i = begins[part]; i < ends[part]; ++i) count += kept_[i] <= limit ? 1 : 0;
        }  // else no value lies in the part: its neighbours hold the order statistics around `limit`
        found.push_back(count);
        begins.assign(ends.begin(), ends.end());
    }
    return found;
}

template class QuantilePasses<std::int64_t>;
template class QuantilePasses<double>;

std::vector<double> quantiles(std::span<const std::int64_t> column, std::span<const double> qs) {
    return select(column, qs);
}
std::vector<double> quantiles(std::span<const double> column, std::span<const double> qs) {
    return select(column, qs);
}

}  // namespace kvsim
