#pragma once
// How well draws follow a law. Streams are pinned, so nothing here flickers.

#include <algorithm>
#include <cmath>
#include <vector>

namespace kvsim::test {

/// sqrt(n) times the Kolmogorov-Smirnov distance of `u` from uniform on (0, 1); above 1.95 with probability 0.001.
inline double ks(std::vector<double> u) {
    std::sort(u.begin(), u.end());
    const auto n = static_cast<double>(u.size());
    double d = 0;
    for (std::size_t i = 0; i < u.size(); ++i) {
        d = std::max({d, u[i] - static_cast<double>(i) / n, static_cast<double>(i + 1) / n - u[i]});
    }
    return d * std::sqrt(n);
}

/// Pearson's statistic over the value that it exceeds with probability 0.001 (Wilson and Hilferty); neighbouring cells are
/// joined until each expects 10.
inline double chi_square(const std::vector<double>& seen, const std::vector<double>& expected) {
    double statistic = 0;
    double cells = 0;
    double s = 0;
    double e = 0;
    for (std::size_t k = 0; k < expected.size(); ++k) {
        s += seen[k];
        e += expected[k];
        if (e < 10) continue;
        statistic += (s - e) * (s - e) / e;
        cells += 1;
        s = e = 0;
    }
    if (e > 0) statistic += (s - e) * (s - e) / std::max(e, 1.0);
    const double df = std::max(1.0, cells - 1);
    const double root = 1 - 2 / (9 * df) + 3.09 * std::sqrt(2 / (9 * df));
    return statistic / (df * root * root * root);
}

}  // namespace kvsim::test
