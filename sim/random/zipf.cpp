#include "kvsim/random/zipf.hpp"

#include <algorithm>
#include <cmath>

namespace kvsim {

namespace {

/// (exp(x) - 1) / x, 1 at 0.
double expm1_over(double x) {
    return std::abs(x) > 1e-8 ? std::expm1(x) / x : 1 + x / 2 * (1 + x / 3);
}
/// ln(1 + x) / x, 1 at 0.
double log1p_over(double x) {
    return std::abs(x) > 1e-8 ? std::log1p(x) / x : 1 - x / 2 * (1 - 2 * x / 3);
}

/// The hat x^-s, its integral from 1 and that one's inverse.
struct Hat {
    double s;
    [[nodiscard]] double value(double x) const { return std::exp(-s * std::log(x)); }
    [[nodiscard]] double integral(double x) const {
        const double log_x = std::log(x);
        return expm1_over((1 - s) * log_x) * log_x;
    }
    [[nodiscard]] double inverse(double y) const {
        const double t = std::max(-1.0, y * (1 - s));
        return std::exp(log1p_over(t) * y);
    }
};

}  // namespace

std::int64_t zipf_draw(Stream& stream, std::int64_t n, double s) {
    const Hat hat{s};
    const double top = hat.integral(static_cast<double>(n) + 0.5);
    const double bottom = hat.integral(1.5) - 1;
    const double sure = 2 - hat.inverse(hat.integral(2.5) - hat.value(2));
    for (;;) {
        const double y = top + stream.uniform() * (bottom - top);
        const double x = hat.inverse(y);
        const double k = std::clamp(std::floor(x + 0.5), 1.0, static_cast<double>(n));
        if (k - x <= sure || y >= hat.integral(k + 0.5) - hat.value(k)) return static_cast<std::int64_t>(k);
    }
}

}  // namespace kvsim
