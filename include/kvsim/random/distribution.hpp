#pragma once
// The laws kvsim draws from, written out because std:: distributions differ between standard libraries. Each is an inverse
// CDF of one uniform u in (0, 1), non-decreasing in u, except gamma_draw.

#include <cstdint>
#include <span>

#include "kvsim/random/stream.hpp"

namespace kvsim {

/// -mean * ln(1 - u).
double exponential_quantile(double u, double mean);

/// exponential_quantile(to_uniform(bits), 1) within 1e-15, by a logarithm of its own: the same on every libm, and cheap.
double standard_exponential(std::uint64_t bits);
/// The same for each of `bits`, several at once, into as many doubles.
void standard_exponentials(std::span<const std::uint64_t> bits, std::span<double> out);

/// Inverse of the standard normal CDF, relative error about 1e-16: Wichura, algorithm AS 241 (PPND16), Applied Statistics 37
/// (1988). -inf at 0, +inf at 1.
double normal_quantile(double p);

/// The standard normal CDF, accurate in the lower tail; for the upper tail use normal_cdf(-z).
double normal_cdf(double z);

/// exp(mu + sigma * normal_quantile(u)); mu and sigma are of the logarithm.
double lognormal_quantile(double u, double mu, double sigma);

/// Trials up to and including the first success, k >= 1, of success probability 1 / mean; mean >= 1.
double geometric_quantile(double u, double mean);

/// Integer in [low, high], both ends included; bias at most (high - low + 1) / 2^53.
std::int64_t uniform_int(double u, std::int64_t low, std::int64_t high);

/// Gamma with mean shape * scale, scale 1: Marsaglia and Tsang, ACM TOMS 26 (2000), for shape >= 1; below, the variate of
/// shape + 1 times U^(1/shape). Shape 1 is exponential_quantile of one draw. It rejects, so how much it draws varies: give each
/// variate a stream of its own.
/// (Shape 1 takes standard_exponential.)
double gamma_draw(Stream& stream, double shape);

}  // namespace kvsim
