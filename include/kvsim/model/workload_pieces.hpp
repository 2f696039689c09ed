#pragma once
// What a workload is composed of: length laws, arrival processes, trace formats. Their tables stand in sim/registry.cpp.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kvsim/config/scenario.hpp"
#include "kvsim/model/registry.hpp"
#include "kvsim/model/token_ids.hpp"
#include "kvsim/model/trace.hpp"
#include "kvsim/model/workload.hpp"

namespace kvsim {

/// A law of token counts in [1, max_request_tokens].
///
/// Continuous laws become whole numbers by rounding half up (exponential and geometric: up), then at least 1. `min` and `max`
/// condition the law on the reals that round to a number in [min, max], that is [min - 0.5, max + 0.5) for half up and
/// (min - 1, max] for up, by drawing on [F(lower), F(upper)]: one draw, every whole number keeps its relative probability, and
/// no mass gathers on a bound. Parameters describe the law before that.
class LengthLaw {
public:
    virtual ~LengthLaw() = default;
    /// The length at probability u in (0, 1); non-decreasing in u.
    [[nodiscard]] virtual std::int64_t sample(double u) const = 0;
    /// The u up to which sample() gives at most `length` (1 where it always does), within 2^-42; for tables (LengthTable).
    /// Nullopt: as cheap as a table, or not known that well.
    [[nodiscard]] virtual std::optional<double> up_to(std::int64_t /*length*/) const { return std::nullopt; }
};

/// `params` is the map the law was named in. Null after reporting.
using MakeLengthLaw = std::unique_ptr<LengthLaw> (*)(const config::Value& params, std::string_view where, config::Diagnostics&);
std::span<const Entry<MakeLengthLaw>> length_distributions();

/// A bare integer is a constant; otherwise a map whose `distribution` names the law. `where` names the key in messages.
std::unique_ptr<LengthLaw> make_length_law(const config::Value&, std::string_view where, config::Diagnostics&);

struct ArrivalInfo {
    double rate = std::numeric_limits<double>::infinity();  ///< requests per second, rate_scale applied; infinite: all at once
    double burstiness = 1;                                  ///< gamma shape of the gaps; infinite: constant gaps
    bool rescale = false;  ///< stretch all gaps so that the last of n requests arrives at n / rate, as `vllm bench serve` does
    bool ends = false;     ///< it stops by itself
    double expected = 0;   ///< requests until it stops; 0: not known
};

/// Gaps between arrivals; the first arrival comes after the first gap.
class ArrivalProcess {
public:
    explicit ArrivalProcess(const ArrivalInfo& info) : info_(info) {}
    virtual ~ArrivalProcess() = default;
    /// Nanoseconds between arrival i - 1 (the start for i = 0) and arrival i, >= 0; infinite: no more arrivals. Asked in the
    /// order i = 0, 1, 2, ...; i = 0 begins anew and gives the same gaps again.
    [[nodiscard]] virtual double gap_ns(std::uint64_t i) const = 0;
    /// The gaps i, i + 1, ... of which there may be more than anybody will ask for.
    virtual void gaps_ns(std::uint64_t i, std::span<double> out) const {
        for (double& gap : out) gap = gap_ns(i++);
    }
    [[nodiscard]] const ArrivalInfo& info() const { return info_; }

private:
    ArrivalInfo info_;
};

using MakeArrivals = std::unique_ptr<ArrivalProcess> (*)(const config::Value& params, double rate_scale, std::uint64_t seed,
                                                         config::Diagnostics&);
std::span<const Entry<MakeArrivals>> arrival_processes();

/// A bare process name or a map whose `process` names it.
std::unique_ptr<ArrivalProcess> make_arrivals(const config::Value&, double rate_scale, std::uint64_t seed,
                                              config::Diagnostics&);

/// What reports print as configured load; nullopt for a trace's own times (or a workload that make_workload refuses).
std::optional<ArrivalInfo> configured_arrivals(const config::WorkloadConfig&);

/// Shared system prompts: a share of the requests starts with the tokens of one of `groups` prefixes, each equally likely.
/// They come before the request's own prompt_tokens, like `--random-prefix-len`.
struct PrefixLaw {
    std::int64_t groups = 1;
    double share = 1;
    std::unique_ptr<LengthLaw> tokens;  ///< drawn once per group
};

/// The keys of `workload.prefix` and `workload.trace`, for the schema.
std::vector<config::FieldDoc> prefix_docs();
std::vector<config::FieldDoc> trace_docs();

/// A synthetic workload. Request i's lengths come from streams (seed, "prompt_tokens", i) and (seed, "output_tokens", i), its
/// prefix from (seed, "prefix_group", i): it is the same request whatever the policy, the rate or the number of requests.
struct SyntheticLaws {
    std::unique_ptr<ArrivalProcess> arrivals;
    std::unique_ptr<LengthLaw> prompt_tokens;
    std::unique_ptr<LengthLaw> output_tokens;
    std::optional<PrefixLaw> prefix;
    std::optional<std::int64_t> requests;  ///< at least one of requests and duration, requests where the rate is infinite
    std::optional<SimDuration> duration;   ///< arrivals later than this are left out
};
std::unique_ptr<Workload> make_synthetic(SyntheticLaws laws, std::uint64_t seed);

/// Jitter and limits of a replayed trace.
struct ReplayOptions {
    SimDuration jitter{};                  ///< each row comes uniform [0, jitter) later, stream (seed, "trace_jitter", row)
    double rate_scale = 1;                 ///< recorded (and jittered) times are divided by it
    std::optional<std::int64_t> requests;  ///< the first rows of the file
    std::optional<SimDuration> duration;
};
/// Rows with TraceTimes::recorded. Reads the first one at once, so that a wrong file is refused early; every problem of the
/// file throws UserError `path:line:column: error: ...`, later rows when they are reached. A row with `think` arrives that long
/// after its session's previous row left, not before its time; think times are not scaled.
std::unique_ptr<Workload> make_replay(std::unique_ptr<TraceReader>, const ReplayOptions&, std::uint64_t seed);

}  // namespace kvsim
