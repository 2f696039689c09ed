#include "kvsim/random/distribution.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kvsim/base/avx2.hpp"

namespace kvsim {

namespace {

using Coefficients = std::array<double, 8>;

// Coefficients of AS 241: numerator and denominator of the central, the middle and the far region, highest power last.
constexpr Coefficients central_a{3.3871328727963666080e0,  1.3314166789178437745e+2, 1.9715909503065514427e+3,
                                 1.3731693765509461125e+4, 4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                 3.3430575583588128105e+4, 2.5090809287301226727e+3};
constexpr Coefficients central_b{1.0,
                                 4.2313330701600911252e+1,
                                 6.8718700749205790830e+2,
                                 5.3941960214247511077e+3,
                                 2.1213794301586595867e+4,
                                 3.9307895800092710610e+4,
                                 2.8729085735721942674e+4,
                                 5.2264952788528545610e+3};
constexpr Coefficients middle_a{1.42343711074968357734e0,  4.63033784615654529590e0, 5.76949722146069140550e0,
                                3.64784832476320460504e0,  1.27045825245236838258e0, 2.41780725177450611770e-1,
                                2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr Coefficients middle_b{1.0,
                                2.05319162663775882187e0,
                                1.67638483018380384940e0,
                                6.89767334985100004550e-1,
                                1.48103976427480074590e-1,
                                1.51986665636164571966e-2,
                                5.47593808499534494600e-4,
                                1.05075007164441684324e-9};
constexpr Coefficients far_a{6.65790464350110377720e0,  5.46378491116411436990e0,  1.78482653991729133580e0,
                             2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                             2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr Coefficients far_b{1.0,
                             5.99832206555887937690e-1,
                             1.36929880922735805310e-1,
                             1.48753612908506148525e-2,
                             7.86869131145613259100e-4,
                             1.84631831751005468180e-5,
                             1.42151175831644588870e-7,
                             2.04426310338993978564e-15};

double ratio(const Coefficients& a, const Coefficients& b, double r) {
    double numerator = 0;
    double denominator = 0;
    for (std::size_t i = a.size(); i-- > 0;) {
        numerator = numerator * r + a[i];
        denominator = denominator * r + b[i];
    }
    return numerator / denominator;
}

/// Mantissas m in [1, 2) in 128 cells around `centre`, with 1 / centre and ln(centre); from 1.5 on half of m is meant, so that
/// the logarithm goes through 0 at 1 without cancelling. The cells beside 1 have 1 as their centre.
struct LogCell {
    double centre;
    double inverse;
    double log;
};

constexpr std::array<LogCell, 128> make_log_cells() {
    std::array<LogCell, 128> cells{};
    for (std::size_t i = 0; i < cells.size(); ++i) {
        const double centre = i == 0 ? 1 : i == 127 ? 2 : 1 + (static_cast<double>(i) + 0.5) / 128;
        const double c = i < 64 ? centre : centre / 2;
        // ln c = 2 artanh((c - 1) / (c + 1)); |y| <= 0.2, so 13 terms reach below 1e-17.
        const double y = (c - 1) / (c + 1);
        double sum = 0;
        for (int k = 12; k >= 0; --k) sum = sum * (y * y) + 1.0 / (2 * k + 1);
        cells[i] = {centre, 1 / centre, 2 * y * sum};
    }
    return cells;
}
constexpr std::array<LogCell, 128> log_cells = make_log_cells();
constexpr double ln2 = 0.693147180559945309417;

/// Without a branch and with conversions that AVX2 has too, so that compilers work on several at once.
[[gnu::always_inline]] inline double exponential_of(std::uint64_t bits) {
    // 1 - u in units of 2^-53, exactly: its halves as doubles above 2^52 and 2^84, which are then taken away.
    const std::uint64_t whole = (std::uint64_t{1} << 53) - (bits >> 11 | 1);
    const double low = std::bit_cast<double>(std::uint64_t{0x4330000000000000} | (whole & 0xFFFFFFFF));
    const double high = std::bit_cast<double>(std::uint64_t{0x4530000000000000} | whole >> 32);
    const double rest = high - (0x1p84 + 0x1p52) + low;
    const auto word = std::bit_cast<std::uint64_t>(rest);
    const std::uint64_t i = (word >> 45) & 127;
    const LogCell& cell = log_cells[i];
    const double mantissa = std::bit_cast<double>((word & 0x000FFFFFFFFFFFFFU) | 0x3FF0000000000000U);
    // A small whole number below 0 as a double: added to the last bits of one that is large.
    constexpr double large = 0x1.8p52;
    const double exponent =
        std::bit_cast<double>(std::bit_cast<std::uint64_t>(large) + (word >> 52) + (i >> 6) - (1023 + 53)) - large;
    const double r = (mantissa - cell.centre) * cell.inverse;  // |r| < 2^-7
    const double log1p =
        r * (1 + r * (-1.0 / 2 + r * (1.0 / 3 + r * (-1.0 / 4 + r * (1.0 / 5 + r * (-1.0 / 6 + r * (1.0 / 7)))))));
    return -(exponent * ln2 + (cell.log + log1p));
}

#ifdef KVSIM_AVX2
__attribute__((target("avx2"))) void exponentials_avx2(const std::uint64_t* bits, double* out, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) out[i] = exponential_of(bits[i]);
}
#endif

}  // namespace

double standard_exponential(std::uint64_t bits) {
    return exponential_of(bits);
}

void standard_exponentials(std::span<const std::uint64_t> bits, std::span<double> out) {
#ifdef KVSIM_AVX2
    if (has_avx2) return exponentials_avx2(bits.data(), out.data(), bits.size());
#endif
    for (std::size_t i = 0; i < bits.size(); ++i) out[i] = exponential_of(bits[i]);
}

double exponential_quantile(double u, double mean) {
    return -mean * std::log1p(-u);
}

double normal_quantile(double p) {
    const double q = p - 0.5;
    if (std::abs(q) <= 0.425) return q * ratio(central_a, central_b, 0.180625 - q * q);
    const double tail = q < 0 ? p : 1 - p;
    if (!(tail > 0)) return q < 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
    const double r = std::sqrt(-std::log(tail));
    const double z = r <= 5 ? ratio(middle_a, middle_b, r - 1.6) : ratio(far_a, far_b, r - 5);
    return q < 0 ? -z : z;
}

double normal_cdf(double z) {
    return 0.5 * std::erfc(-z * 0.70710678118654752440);
}

double lognormal_quantile(double u, double mu, double sigma) {
    return std::exp(mu + sigma * normal_quantile(u));
}

double geometric_quantile(double u, double mean) {
    if (mean <= 1) return 1;
    return std::max(1.0, std::ceil(std::log1p(-u) / std::log1p(-1 / mean)));
}

std::int64_t uniform_int(double u, std::int64_t low, std::int64_t high) {
    const double width = static_cast<double>(high) - static_cast<double>(low) + 1;
    return std::min(high, low + static_cast<std::int64_t>(u * width));
}

double gamma_draw(Stream& stream, double shape) {
    if (shape == 1) return standard_exponential(stream.next_u64());
    // The boost's uniform is drawn first, so that shapes below 1 do not make it depend on the number of rejections.
    const double boost = shape < 1 ? std::pow(stream.uniform(), 1 / shape) : 1;
    const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3;
    const double c = 1 / std::sqrt(9 * d);
    for (;;) {
        const double z = normal_quantile(stream.uniform());
        const double u = stream.uniform();
        const double t = 1 + c * z;
        if (t <= 0) continue;
        const double v = t * t * t;
        if (std::log(u) < 0.5 * z * z + d - d * v + d * std::log(v)) return boost * d * v;
    }
}

}  // namespace kvsim
