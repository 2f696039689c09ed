// Laws of think times and tool durations.

#include <algorithm>
#include <cmath>

#include "kvsim/base/text.hpp"
#include "kvsim/model/clients.hpp"
#include "kvsim/random/distribution.hpp"

namespace kvsim {

namespace {

using config::Diagnostics;
using config::Value;

inline constexpr config::Range law_time{0, 366.0 * 86'400};

SimDuration whole(double ns) {
    return SimDuration(
        static_cast<std::int64_t>(std::clamp(std::floor(ns + 0.5), 0.0, static_cast<double>(max_law_time.count()))));
}

struct TimeParams {
    std::string distribution;
    std::optional<SimDuration> value, mean, sd, p50, p90, min, max;
};

using P = TimeParams;

config::Field<P> name_field() {
    return config::field("distribution", &P::distribution, "the law's name");
}

const config::Schema<P>& constant_schema() {
    static const config::Schema<P> table{name_field(), config::field("value", &P::value, "the time", law_time).need()};
    return table;
}
const config::Schema<P>& exponential_schema() {
    static const config::Schema<P> table{name_field(), config::field("mean", &P::mean, "mean time", law_time).need()};
    return table;
}
const config::Schema<P>& lognormal_schema() {
    static const config::Schema<P> table{
        name_field(), config::field("p50", &P::p50, "median, with p90", config::Range{0, 366.0 * 86'400, true}),
        config::field("p90", &P::p90, "90th percentile, with p50", law_time),
        config::field("mean", &P::mean, "mean time, with sd", config::Range{0, 366.0 * 86'400, true}),
        config::field("sd", &P::sd, "standard deviation, with mean", law_time)};
    return table;
}
const config::Schema<P>& uniform_schema() {
    static const config::Schema<P> table{name_field(), config::field("min", &P::min, "shortest time", law_time).need(),
                                         config::field("max", &P::max, "longest time", law_time).need()};
    return table;
}

class Constant final : public TimeLaw {
public:
    explicit Constant(SimDuration value) : value_(value) {}
    [[nodiscard]] SimDuration sample(double) const override { return value_; }

private:
    SimDuration value_;
};

class Exponential final : public TimeLaw {
public:
    explicit Exponential(SimDuration mean) : mean_ns_(static_cast<double>(mean.count())) {}
    [[nodiscard]] SimDuration sample(double u) const override { return whole(exponential_quantile(u, mean_ns_)); }

private:
    double mean_ns_;
};

class Lognormal final : public TimeLaw {
public:
    Lognormal(double mu, double sigma) : mu_(mu), sigma_(sigma) {}
    [[nodiscard]] SimDuration sample(double u) const override { return whole(lognormal_quantile(u, mu_, sigma_)); }

private:
    double mu_;  // of ln ns
    double sigma_;
};

class Uniform final : public TimeLaw {
public:
    Uniform(SimDuration min, SimDuration max) : min_(min), max_(max) {}
    [[nodiscard]] SimDuration sample(double u) const override {
        return whole(static_cast<double>(min_.count()) + u * static_cast<double>((max_ - min_).count()));
    }

private:
    SimDuration min_, max_;
};

bool read(const config::Schema<P>& schema, const Value& params, P& out, std::string_view where, Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    schema.read(params, out, where, diagnostics);
    return diagnostics.error_count() == before;
}

}  // namespace

std::vector<config::FieldDoc> constant_time_docs() {
    return constant_schema().docs();
}
std::vector<config::FieldDoc> exponential_time_docs() {
    return exponential_schema().docs();
}
std::vector<config::FieldDoc> lognormal_time_docs() {
    return lognormal_schema().docs();
}
std::vector<config::FieldDoc> uniform_time_docs() {
    return uniform_schema().docs();
}

std::unique_ptr<TimeLaw> make_constant_time(const Value& params, std::string_view where, Diagnostics& diagnostics) {
    P p;
    if (!read(constant_schema(), params, p, where, diagnostics)) return nullptr;
    return std::make_unique<Constant>(*p.value);
}

std::unique_ptr<TimeLaw> make_exponential_time(const Value& params, std::string_view where, Diagnostics& diagnostics) {
    P p;
    if (!read(exponential_schema(), params, p, where, diagnostics)) return nullptr;
    return std::make_unique<Exponential>(*p.mean);
}

std::unique_ptr<TimeLaw> make_lognormal_time(const Value& params, std::string_view where, Diagnostics& diagnostics) {
    P p;
    if (!read(lognormal_schema(), params, p, where, diagnostics)) return nullptr;
    const bool by_quantiles = p.p50 && p.p90 && !p.mean && !p.sd;
    const bool by_moments = p.mean && p.sd && !p.p50 && !p.p90;
    if (!by_quantiles && !by_moments) {
        diagnostics.error(params.mark, std::string(where) + ": lognormal needs p50 + p90, or mean + sd");
        return nullptr;
    }
    if (by_quantiles) {
        if (*p.p90 < *p.p50) {
            diagnostics.error(params.mark, std::string(where) + ": p90 is below p50");
            return nullptr;
        }
        const double mu = std::log(static_cast<double>(p.p50->count()));
        return std::make_unique<Lognormal>(mu, (std::log(static_cast<double>(p.p90->count())) - mu) / normal_quantile(0.9));
    }
    const double cv = static_cast<double>(p.sd->count()) / static_cast<double>(p.mean->count());
    const double variance = std::log1p(cv * cv);
    return std::make_unique<Lognormal>(std::log(static_cast<double>(p.mean->count())) - variance / 2, std::sqrt(variance));
}

std::unique_ptr<TimeLaw> make_uniform_time(const Value& params, std::string_view where, Diagnostics& diagnostics) {
    P p;
    if (!read(uniform_schema(), params, p, where, diagnostics)) return nullptr;
    if (*p.max < *p.min) {
        diagnostics.error(params.mark, std::string(where) + ": min is above max");
        return nullptr;
    }
    return std::make_unique<Uniform>(*p.min, *p.max);
}

std::unique_ptr<TimeLaw> make_time_law(const Value& value, std::string_view where, Diagnostics& diagnostics) {
    if (value.is_scalar()) {
        SimDuration time{};
        if (!config::decode(value, time, where, law_time, diagnostics)) return nullptr;
        return std::make_unique<Constant>(time);
    }
    const Value* name = value.find("distribution");
    if (!name || !name->is_scalar()) {
        diagnostics.error(value.mark, std::string(where) + " must be a duration or a map with 'distribution'");
        return nullptr;
    }
    const auto* entry = find_entry(time_distributions(), "time distribution", name->scalar, name->mark, diagnostics);
    return entry ? entry->make(value, where, diagnostics) : nullptr;
}

}  // namespace kvsim
