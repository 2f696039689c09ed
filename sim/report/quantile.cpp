#include "kvsim/report/quantile.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kvsim/base/check.hpp"
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
    std::vector<ShareRange> wanted;
    for (const double q : qs) wanted.push_back({q, q});
    passes.want(static_cast<std::int64_t>(column.size()), wanted);
    for (const T value : column) passes.collect(value);
    return passes.values(qs);
}

}  // namespace

template <class T>
void QuantilePasses<T>::skip_empty_bins() {
    while (counts_[lowest_] == 0) ++lowest_;
}

template <class T>
void QuantilePasses<T>::want(std::int64_t total, std::span<const ShareRange> shares) {
    total_ = total;
    windows_.clear();
    window_of_.assign(bins + 1, 0);
    next_.assign(1, 0);
    if (total == 0) return;
    std::vector<std::pair<std::int64_t, std::int64_t>> ranks;
    for (const ShareRange& s : shares)
        ranks.emplace_back(quantile_rank(total, s.low).below, std::min(quantile_rank(total, s.high).below + 1, total - 1));
    std::sort(ranks.begin(), ranks.end());
    skip_empty_bins();
    std::size_t bin = lowest_;
    std::int64_t before = 0;
    std::uint32_t kept = 0;
    for (const auto& [first, last] : ranks) {
        while (before + counts_[bin] <= first) before += counts_[bin++];
        if (windows_.empty() || windows_.back().end < bin) {
            windows_.push_back({bin, bin, before, kept, 0});
            next_.push_back(kept);
        }
        Window& window = windows_.back();
        for (;; before += counts_[bin++]) {
            if (bin == window.end) {  // else an earlier range ended in it
                ++window.end;
                window.count += counts_[bin];
                kept += counts_[bin];
                window_of_[bin] = static_cast<std::uint16_t>(windows_.size());
            }
            if (before + counts_[bin] > last) break;
        }
    }
    kept_ = std::make_unique_for_overwrite<T[]>(kept);
}

template <class T>
bool QuantilePasses<T>::wanted(double q) const {
    const std::int64_t low = quantile_rank(total_, q).below;
    const std::int64_t high = std::min(low + 1, total_ - 1);
    const auto kept = [this](std::int64_t rank) {
        return std::any_of(windows_.begin(), windows_.end(),
                           [rank](const Window& w) { return w.before <= rank && rank < w.before + w.count; });
    };
    return kept(low) && kept(high);
}

template <class T>
std::vector<double> QuantilePasses<T>::values(std::span<const double> qs) const {
    if (total_ == 0) return std::vector<double>(qs.size());
    const std::vector<std::int64_t> ranks = ranks_of(total_, qs);
    std::vector<double> found;
    std::vector<T> values;
    auto rank = ranks.begin();
    for (const Window& w : windows_) {
        if (rank == ranks.end() || *rank >= w.before + w.count) continue;
        values.assign(kept_.get() + w.first, kept_.get() + w.first + w.count);
        auto from = values.begin();  // everything before it is known to be smaller
        for (; rank != ranks.end() && *rank < w.before + w.count; ++rank) {
            KVSIM_CHECK(*rank >= w.before, "a quantile is asked for that was not wanted");
            const auto nth = values.begin() + (*rank - w.before);
            std::nth_element(from, nth, values.end());
            found.push_back(static_cast<double>(*nth));
            from = nth + 1;
        }
    }
    KVSIM_CHECK(found.size() == ranks.size(), "a quantile is asked for that was not wanted");
    return interpolated(total_, qs, [&](std::int64_t wanted) {
        return found[static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), wanted) - ranks.begin())];
    });
}

template <class T>
std::vector<std::vector<double>> QuantilePasses<T>::in_bins_below(std::span<const std::size_t> ends) const {
    std::vector<std::vector<double>> found(ends.size(), std::vector<double>(batches_));
    for (std::size_t b = 0; b < batches_; ++b) {
        const std::uint32_t* const counts = batch(b);
        std::uint32_t below = 0;
        std::size_t from = lowest_;
        for (std::size_t i = 0; i < ends.size(); ++i) {
            for (std::size_t bin = from; bin < ends[i]; ++bin) below += counts[bin];
            from = std::max(from, ends[i]);
            found[i][b] = static_cast<double>(below);
        }
    }
    return found;
}

template <class T>
std::vector<std::vector<double>> QuantilePasses<T>::about_below(std::int64_t total, std::span<const double> qs) {
    skip_empty_bins();
    std::vector<std::size_t> at;
    std::vector<double> part;  // of that bin: all batches have as much of theirs below
    std::size_t bin = lowest_;
    std::int64_t before = 0;
    for (const double q : qs) {
        const Rank rank = quantile_rank(total, q);
        while (before + counts_[bin] <= rank.below) before += counts_[bin++];
        at.push_back(bin);
        part.push_back(static_cast<double>(rank.below + 1 - before) / static_cast<double>(counts_[bin]));
    }
    std::vector<std::vector<double>> found = in_bins_below(at);
    for (std::size_t i = 0; i < at.size(); ++i) {
        for (std::size_t b = 0; b < batches_; ++b) found[i][b] += part[i] * batch(b)[at[i]];
    }
    return found;
}

template <class T>
std::vector<std::vector<double>> QuantilePasses<T>::at_or_below(std::span<const double> limits) const {
    std::vector<std::size_t> ends;
    std::vector<const Window*> windows;  // null: no value lies in the limit's bin, its neighbours in order lie around it
    for (const double limit : limits) {
        const std::size_t bin = QuantileBins::of(static_cast<T>(limit));
        const std::uint16_t window = window_of_[bin];
        windows.push_back(window == 0 ? nullptr : &windows_[window - std::size_t{1}]);
        ends.push_back(window == 0 ? bin : windows.back()->begin);
    }
    std::vector<std::vector<double>> found = in_bins_below(ends);
    for (std::size_t i = 0; i < limits.size(); ++i) {
        if (windows[i] == nullptr) continue;
        const T* from = kept_.get() + windows[i]->first;
        for (std::size_t b = 0; b < batches_; ++b) {
            const std::uint32_t* const counts = batch(b);
            const T* const to = from + std::accumulate(counts + windows[i]->begin, counts + windows[i]->end, std::int64_t{0});
            found[i][b] += static_cast<double>(
                std::count_if(from, to, [limit = limits[i]](T value) { return static_cast<double>(value) <= limit; }));
            from = to;
        }
    }
    return found;
}

template <class Take>
void NumberCounts::each(std::int64_t total, Take&& take) const {
    std::int64_t left = total - static_cast<std::int64_t>(large_.size());
    for (std::size_t value = 0; left > 0; ++value) {
        const std::int64_t count = counts_[value];
        if (count > 0) take(static_cast<std::int64_t>(value), count);
        left -= count;
    }
    std::vector<std::int32_t> sorted = large_;
    std::sort(sorted.begin(), sorted.end());
    for (const std::int32_t value : sorted) take(value, 1);
}

std::vector<double> NumberCounts::quantiles(std::int64_t total, std::span<const double> qs) const {
    const std::vector<std::int64_t> ranks = ranks_of(total, qs);
    std::vector<double> found;
    std::int64_t passed = 0;
    each(total, [&](std::int64_t value, std::int64_t count) {
        passed += count;
        while (found.size() < ranks.size() && ranks[found.size()] < passed) found.push_back(static_cast<double>(value));
    });
    return interpolated(total, qs, [&](std::int64_t rank) {
        return found[static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin())];
    });
}

double NumberCounts::squares(std::int64_t total, std::int64_t centre) const {
    double sum = 0;
    each(total, [&](std::int64_t value, std::int64_t count) {
        const auto beside = static_cast<double>(value - centre);
        sum += static_cast<double>(count) * (beside * beside);
    });
    return sum;
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
