#include "kvsim/base/histogram.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>

#include "kvsim/base/rank.hpp"

namespace kvsim {

template <class T>
CounterArray<T>::CounterArray(std::size_t size)
    : data_(static_cast<T*>(std::calloc(size, sizeof(T)))), size_(size) {  // NOLINT(*-no-malloc)
    if (!data_) throw std::bad_alloc();
}
template <class T>
CounterArray<T>::CounterArray(const CounterArray& other) : CounterArray(other.size_) {
    std::copy_n(other.data_.get(), size_, data_.get());
}
template <class T>
void CounterArray<T>::Free::operator()(T* data) const {
    std::free(data);  // NOLINT(*-no-malloc)
}
template class CounterArray<std::int64_t>;
template class CounterArray<std::uint32_t>;

void LogLinearHistogram::merge(const LogLinearHistogram& other) {
    if (other.total_ == 0) return;
    const std::size_t last = log_linear_bin(other.max_, bits);
    for (std::size_t i = log_linear_bin(other.min_, bits); i <= last; ++i) counts_[i] += other.counts_[i];
    total_ += other.total_;
    sum_ += other.sum_;
    min_ = std::min(min_, other.min_);
    max_ = std::max(max_, other.max_);
}

double LogLinearHistogram::mean() const {
    return total_ ? static_cast<double>(sum_) / static_cast<double>(total_) : 0;
}

double LogLinearHistogram::midpoint(std::size_t bin) const {
    const std::size_t per_octave = std::size_t{1} << bits;
    if (bin < 2 * per_octave) return static_cast<double>(bin);
    const std::size_t shift = (bin >> bits) - 1;
    const double width = std::ldexp(1.0, static_cast<int>(shift));
    const double low = static_cast<double>(bin - (shift << bits)) * width;
    return std::clamp(low + (width - 1) / 2, static_cast<double>(min_), static_cast<double>(max_));
}

double LogLinearHistogram::standard_deviation() const {
    if (!total_) return 0;
    const double centre = mean();
    double squares = 0;
    const std::size_t last = log_linear_bin(max_, bits);
    for (std::size_t bin = log_linear_bin(min_, bits); bin <= last; ++bin) {
        if (!counts_[bin]) continue;
        const double distance = midpoint(bin) - centre;
        squares += static_cast<double>(counts_[bin]) * distance * distance;
    }
    return std::sqrt(squares / static_cast<double>(total_));
}

double LogLinearHistogram::quantile(double q) const {
    if (!total_) return 0;
    const Rank rank = quantile_rank(total_, q);
    std::size_t bin = log_linear_bin(min_, bits);
    std::int64_t seen = counts_[bin];
    while (seen <= rank.below) seen += counts_[++bin];
    // The extreme order statistics are known exactly.
    const double low = rank.below == 0 ? static_cast<double>(min_) : midpoint(bin);
    if (rank.below + 1 >= total_) return static_cast<double>(max_);
    if (rank.fraction <= 0) return low;
    while (seen <= rank.below + 1) seen += counts_[++bin];
    const double high = rank.below + 2 == total_ ? static_cast<double>(max_) : midpoint(bin);
    return interpolate(low, high, rank.fraction);
}

}  // namespace kvsim
