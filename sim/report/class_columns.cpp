// What an assertion may ask of one class.

#include <array>

#include "kvsim/report/assertion.hpp"

namespace kvsim {
namespace {

using S = Summary;
using C = ClassSummary;
using D = Distribution;

Cell to_cell(std::int64_t value) {
    return value;
}
Cell to_cell(double value) {
    return value;
}
Cell to_cell(const std::optional<double>& value) {
    return value ? Cell{*value} : Cell{};
}

template <auto Member>
Cell get(const S&, const C& c) {
    return to_cell(c.*Member);
}
template <auto Quantity, auto Statistic>
Cell get(const S&, const C& c) {
    return (c.*Quantity).count > 0 ? to_cell((c.*Quantity).*Statistic) : Cell{};
}
template <auto Count>
Cell per_second(const S& s, const C& c) {
    return s.duration_s > 0 ? Cell{static_cast<double>(c.*Count) / s.duration_s} : Cell{};
}
Cell attainment(const S&, const C& c) {
    return to_cell(c.attainment.all);
}

constexpr std::array columns{
    ClassColumn{"requests", Unit::count, get<&C::requests>},
    ClassColumn{"completed", Unit::count, get<&C::completed>},
    ClassColumn{"rejected", Unit::count, get<&C::rejected>},
    ClassColumn{"timed_out", Unit::count, get<&C::timed_out>},
    ClassColumn{"cancelled", Unit::count, get<&C::cancelled>},
    ClassColumn{"prompt_tokens_mean", Unit::tokens, get<&C::prompt_tokens, &D::mean>},
    ClassColumn{"prompt_tokens_p50", Unit::tokens, get<&C::prompt_tokens, &D::p50>},
    ClassColumn{"prompt_tokens_p99", Unit::tokens, get<&C::prompt_tokens, &D::p99>},
    ClassColumn{"output_tokens_mean", Unit::tokens, get<&C::output_tokens, &D::mean>},
    ClassColumn{"output_tokens_p50", Unit::tokens, get<&C::output_tokens, &D::p50>},
    ClassColumn{"output_tokens_p99", Unit::tokens, get<&C::output_tokens, &D::p99>},
    ClassColumn{"offered_rate_req_s", Unit::per_second, get<&C::offered_rate_req_s>},
    ClassColumn{"served_rate_req_s", Unit::per_second, get<&C::served_rate_req_s>},
    ClassColumn{"request_throughput_req_s", Unit::per_second, per_second<&C::completed>},
    ClassColumn{"output_throughput_tok_s", Unit::per_second, per_second<&C::total_output_tokens>},
    ClassColumn{"goodput_req_s", Unit::per_second, get<&C::goodput_req_s>},
    ClassColumn{"slo_attainment", Unit::share, attainment},
#define KVSIM_LATENCY_COLUMNS(name)                                     \
    ClassColumn{#name "_mean_ms", Unit::ms, get<&C::name, &D::mean>},   \
        ClassColumn{#name "_p50_ms", Unit::ms, get<&C::name, &D::p50>}, \
        ClassColumn{#name "_p90_ms", Unit::ms, get<&C::name, &D::p90>}, \
        ClassColumn{#name "_p95_ms", Unit::ms, get<&C::name, &D::p95>}, \
        ClassColumn{#name "_p99_ms", Unit::ms, get<&C::name, &D::p99>}
    KVSIM_LATENCY_COLUMNS(ttft),
    KVSIM_LATENCY_COLUMNS(tpot),
    ClassColumn{"itl_mean_ms", Unit::ms, get<&C::itl_mean_ms>},
    KVSIM_LATENCY_COLUMNS(e2e),
    KVSIM_LATENCY_COLUMNS(queue),
#undef KVSIM_LATENCY_COLUMNS
    ClassColumn{"preemptions", Unit::count, get<&C::preemptions>},
    ClassColumn{"preempted_requests", Unit::count, get<&C::preempted_requests>},
    ClassColumn{"recomputed_tokens", Unit::tokens, get<&C::recomputed_tokens>},
    ClassColumn{"wasted_tokens", Unit::tokens, get<&C::wasted_tokens>},
    ClassColumn{"wasted_output_tokens", Unit::tokens, get<&C::wasted_output_tokens>},
    ClassColumn{"failed", Unit::count, get<&C::failed>},
};

}  // namespace

std::span<const ClassColumn> class_columns() {
    return columns;
}

}  // namespace kvsim
