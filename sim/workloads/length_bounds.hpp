#pragma once
// Shared by the length laws.

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kvsim/model/workload_pieces.hpp"

namespace kvsim {

inline constexpr config::Range token_range{1, static_cast<double>(max_request_tokens)};

/// Bounds that leave less of a law cost LengthLaw::up_to() its precision.
inline constexpr double least_tabled_mass = 0x1p-8;

/// What every law's parameters start with.
struct LengthParams {
    std::string distribution;
    std::optional<std::int64_t> min;
    std::optional<std::int64_t> max;

    [[nodiscard]] std::int64_t lowest() const { return min.value_or(1); }
    [[nodiscard]] std::int64_t highest() const { return max.value_or(max_request_tokens); }
    /// Half up, then into the bounds: the law was conditioned on what rounds to them, so this only catches the last ulp.
    [[nodiscard]] std::int64_t round_half_up(double x) const { return clamp(x + 0.5); }
    [[nodiscard]] std::int64_t round_up(double x) const { return clamp(std::ceil(x)); }

private:
    /// Bounds are whole and positive, so cutting the fraction off afterwards is floor().
    [[nodiscard]] std::int64_t clamp(double x) const {
        return static_cast<std::int64_t>(std::clamp(x, static_cast<double>(lowest()), static_cast<double>(highest())));
    }
};

template <class P>
config::Field<P> distribution_field() {
    return config::field<P, std::string>("distribution", &P::distribution, "the law's name");
}
template <class P>
config::Field<P> min_field() {
    return config::field<P, std::optional<std::int64_t>>("min", &P::min, "shortest length; conditions the law", token_range);
}
template <class P>
config::Field<P> max_field() {
    return config::field<P, std::optional<std::int64_t>>("max", &P::max, "longest length; conditions the law", token_range);
}

/// Where `key` was written, else the map.
inline const config::Mark& mark_of(const config::Value& params, std::string_view key) {
    const config::Value* value = params.find(key);
    return value ? value->mark : params.mark;
}

/// Reads `params`; false after reporting, also for min > max.
template <class P>
bool read_length_params(const config::Schema<P>& schema, const config::Value& params, P& out, std::string_view where,
                        config::Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    schema.read(params, out, where, diagnostics);
    if (diagnostics.error_count() == before && out.min && out.max && *out.min > *out.max)
        diagnostics.error(mark_of(params, "min"), std::string(where) + ": min " + std::to_string(*out.min) + " is above max " +
                                                      std::to_string(*out.max));
    return diagnostics.error_count() == before;
}

/// The law has no mass between its bounds.
inline void report_no_mass(const config::Value& params, std::string_view where, config::Diagnostics& diagnostics) {
    diagnostics.error(mark_of(params, params.find("max") ? "max" : "min"),
                      std::string(where) + ": no length between min and max is possible under this law");
}

/// The exponential law with mean `scale` (tokens), rounded up: P(X > k) = exp(-k / scale).
std::unique_ptr<LengthLaw> make_rounded_up_exponential(double scale, const LengthParams&, const config::Value& params,
                                                       std::string_view where, config::Diagnostics&);

}  // namespace kvsim
