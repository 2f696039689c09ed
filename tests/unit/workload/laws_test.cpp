// Every law of lengths and times and every arrival process, from the scenario's text to what a workload sends: chi-square,
// Kolmogorov-Smirnov, and pinned streams.

#include <array>
#include <functional>
#include <tuple>
#include <vector>

#include "kvsim/engine/simulation.hpp"
#include "kvsim/model/clients.hpp"
#include "kvsim/random/stream.hpp"
#include "unit/workload/goodness.hpp"
#include "unit/workload/support.hpp"

using namespace kvsim;
using test::chi_square;
using test::drain;
using test::ks;
using test::ns;

namespace {

std::unique_ptr<Workload> clients(const std::string& text, std::uint64_t seed = 1) {
    config::Diagnostics diagnostics;
    const config::Scenario s = config::read_scenario(test::yaml("workload: " + text + "\n"), "t.yaml", diagnostics);
    auto made = make_workload(s.workload, seed, {}, diagnostics);
    for (const std::string& e : diagnostics.errors()) MESSAGE(e);
    REQUIRE(made);
    return made;
}

std::string sends(std::int64_t requests, const std::string& arrivals) {
    return "{requests: " + std::to_string(requests) + ", arrivals: " + arrivals + ", prompt_tokens: 1, output_tokens: 1}";
}

std::vector<double> times(const std::string& arrivals, std::int64_t requests) {
    std::vector<double> out;
    for (const Arrival& a : drain(*clients(sends(requests, arrivals)))) out.push_back(static_cast<double>(ns(a)) * 1e-9);
    return out;
}

double exponential_ks(const std::vector<double>& values, double mean) {
    std::vector<double> u;
    for (const double v : values) u.push_back(1 - std::exp(-v / mean));
    return ks(u);
}

double normal_cdf(double z) {
    return std::erfc(-z / std::sqrt(2.0)) / 2;
}

struct TwoSteps final : StepTimeModel {
    [[nodiscard]] SimDuration duration(const StepShape&) const override { return std::chrono::milliseconds(10); }
    [[nodiscard]] std::optional<DecodeLine> decode_line(std::int64_t) const override { return DecodeLine{1e7, 0}; }
    [[nodiscard]] std::string describe() const override { return "10 ms"; }
};
struct First final : Router {
    std::size_t pick(const Arrival&, std::span<const ReplicaLoad>) override { return 0; }
};

/// What one user thinks between an answer and its next request, s.
std::vector<double> thoughts(const std::string& law, std::int64_t requests) {
    SimulationOptions o;
    o.engine.num_gpu_blocks = 100;
    o.engine.max_model_len = 64;
    o.engine.async_scheduling = false;
    First router;
    const auto w = clients("{requests: " + std::to_string(requests) + ", users: {count: 1, think_time: " + law +
                           "}, prompt_tokens: 1, output_tokens: 2}");
    const Outcome out = simulate(o, TwoSteps{}, router, *w);
    std::vector<double> result;
    for (std::size_t i = 1; i < out.requests.size(); ++i)
        result.push_back(to_seconds(out.requests[i].arrival - (out.requests[i - 1].arrival + out.requests[i - 1].e2e)));
    return result;
}

}  // namespace

TEST_CASE("laws: think times of every law (KS), as users show them") {
    for (const double t : thoughts("1500ms", 50)) CHECK(t == doctest::Approx(1.5));
    for (const double t : thoughts("{distribution: constant, value: 20ms}", 50)) CHECK(t == doctest::Approx(0.02));
    CHECK(exponential_ks(thoughts("{distribution: exponential, mean: 3s}", 3000), 3) < 1.95);
    CHECK(exponential_ks(thoughts("{distribution: exponential, mean: 3s}", 3000), 3.4) > 1.95);  // a wrong mean is noticed
    const auto lognormal = [](const std::vector<double>& values, double mu, double sigma) {
        std::vector<double> u;
        for (const double v : values) u.push_back(normal_cdf((std::log(v) - mu) / sigma));
        return ks(u);
    };
    const double z90 = 1.2815515655446004;
    const auto by_quantiles = thoughts("{distribution: lognormal, p50: 2s, p90: 9s}", 3000);
    CHECK(lognormal(by_quantiles, std::log(2), std::log(4.5) / z90) < 1.95);
    CHECK(lognormal(by_quantiles, std::log(2), 1.15 * std::log(4.5) / z90) > 1.95);
    const double variance = std::log1p(4.0);  // cv 2
    CHECK(lognormal(thoughts("{distribution: lognormal, mean: 5s, sd: 10s}", 3000), std::log(5) - variance / 2,
                    std::sqrt(variance)) < 1.95);
    std::vector<double> u;
    for (const double v : thoughts("{distribution: uniform, min: 1s, max: 4s}", 3000)) u.push_back((v - 1) / 3);
    CHECK(ks(u) < 1.95);
}

TEST_CASE("laws: lengths of every law (chi-square), as requests show them") {
    struct Law {
        std::string text;
        std::function<double(double)> at_most;  ///< P(length <= k), k whole
    };
    const auto table = [](double x) {  // the quantile table below, inverted
        const std::array<std::pair<double, double>, 4> points{{{1, 0}, {11, 0.25}, {60, 0.9}, {200, 1}}};
        if (x <= 1) return 0.0;
        for (std::size_t i = 1; i < points.size(); ++i) {
            const auto& [low, from] = points[i - 1];
            const auto& [high, to] = points[i];
            if (x <= high) return from + (to - from) * (x - low) / (high - low);
        }
        return 1.0;
    };
    const double sigma = std::log(3) / 1.2815515655446004;
    const std::vector<Law> laws{
        {"{distribution: uniform, min: 3, max: 40}", [](double k) { return std::clamp((k - 2) / 38, 0.0, 1.0); }},
        {"{distribution: geometric, mean: 12}", [](double k) { return 1 - std::pow(1 - 1.0 / 12, k); }},
        {"{distribution: exponential, mean: 12}", [](double k) { return 1 - std::exp(-k / 12); }},
        {"{distribution: lognormal, p50: 20, p90: 60}",
         [=](double k) { return k < 1 ? 0 : normal_cdf(std::log((k + 0.5) / 20) / sigma); }},
        {"{distribution: lognormal, p50: 20, p90: 60, min: 10, max: 50}",
         [=](double k) {
             const auto f = [&](double x) { return normal_cdf(std::log(x / 20) / sigma); };
             return std::clamp((f(k + 0.5) - f(9.5)) / (f(50.5) - f(9.5)), 0.0, 1.0);
         }},
        {"{distribution: empirical, quantiles: {0: 1, 0.25: 11, 0.9: 60, 1: 200}}",
         [=](double k) { return k < 1 ? 0 : table(k + 0.5); }},
    };
    constexpr std::int64_t requests = 20'000;
    constexpr std::size_t longest = 400;
    for (const Law& law : laws) {
        CAPTURE(law.text);
        for (const bool prompt : {true, false}) {
            std::vector<double> seen(longest + 1);
            std::vector<double> expected(longest + 1);
            for (const Arrival& a : drain(*clients("{requests: " + std::to_string(requests) +
                                                   ", arrivals: all_at_once, prompt_tokens: " + (prompt ? law.text : "1") +
                                                   ", output_tokens: " + (prompt ? "1" : law.text) + "}"))) {
                const std::int64_t length = prompt ? a.prompt_tokens : a.output_tokens;
                ++seen[std::min(static_cast<std::size_t>(length), longest)];
            }
            for (std::size_t k = 1; k <= longest; ++k) {
                const double below = law.at_most(static_cast<double>(k) - 1);
                expected[k] =
                    static_cast<double>(requests) * ((k == longest ? 1 : law.at_most(static_cast<double>(k))) - below);
            }
            CHECK(chi_square(seen, expected) < 1);
            // A neighbour of the law is noticed.
            std::rotate(expected.begin() + 1, expected.begin() + 2, expected.end());
            CHECK(chi_square(seen, expected) > 1);
        }
    }
}

TEST_CASE("laws: poisson, gamma and weibull gaps (KS)") {
    const auto gaps = [](const std::vector<double>& t) {
        std::vector<double> out;
        for (std::size_t i = 0; i < t.size(); ++i) out.push_back(t[i] - (i > 0 ? t[i - 1] : 0));
        return out;
    };
    CHECK(exponential_ks(gaps(times("{process: poisson, rate: 4/s}", 5000)), 0.25) < 1.95);
    // Gamma of shape 2: 1 - (1 + x) exp(-x) with x = 2 rate t.
    std::vector<double> u;
    for (const double g : gaps(times("{process: gamma, rate: 4/s, burstiness: 2}", 5000)))
        u.push_back(1 - (1 + 8 * g) * std::exp(-8 * g));
    CHECK(ks(u) < 1.95);
    // Gamma of shape 1/2: chi-square of one degree, erf(sqrt(x)) with x = rate t / 2.
    u.clear();
    for (const double g : gaps(times("{process: gamma, rate: 4/s, burstiness: 0.5}", 5000)))
        u.push_back(std::erf(std::sqrt(2 * g)));
    CHECK(ks(u) < 1.95);
    // The cv alone gives the shape: cv 2 is a gamma of 1/4 and a weibull of 0.5427.
    u.clear();
    const double shape = 0.542691;
    for (const double g : gaps(times("{process: weibull, rate: 4/s, cv: 2}", 5000)))
        u.push_back(1 - std::exp(-std::pow(g * 4 * std::tgamma(1 + 1 / shape), shape)));
    CHECK(ks(u) < 1.95);
}

TEST_CASE("laws: vllm bench serve's ramp-up: each gap at the rate of its number") {
    const auto unit = times("{process: poisson, rate: 1/s}", 300);
    for (const bool exponential : {false, true}) {
        const auto t = times(std::string("{process: ramp_up, ramp_up_strategy: ") + (exponential ? "exponential" : "linear") +
                                 ", ramp_up_start_rps: 2/s, ramp_up_end_rps: 50/s, requests: 201}",
                             300);
        for (std::size_t i = 0; i < 300; ++i) {
            const double progress = std::min(1.0, static_cast<double>(i) / 200);
            const double rate = exponential ? 2 * std::pow(25, progress) : 2 + 48 * progress;
            const double gap = (unit[i] - (i > 0 ? unit[i - 1] : 0)) / rate;
            CHECK(t[i] - (i > 0 ? t[i - 1] : 0) == doctest::Approx(gap).epsilon(1e-6));
        }
    }
    const auto smooth = times(
        "{process: ramp_up, ramp_up_strategy: linear, ramp_up_start_rps: 4/s, ramp_up_end_rps: 4/s, requests: 10, burstiness: "
        "0.5}",
        50);
    CHECK(smooth == times("{process: gamma, rate: 4/s, burstiness: 0.5}", 50));
    CHECK(test::workload_error("requests: 5\narrivals: {process: ramp_up, ramp_up_strategy: linaer, ramp_up_start_rps: 1/s, "
                               "ramp_up_end_rps: 2/s, requests: 5}\nprompt_tokens: 1\noutput_tokens: 1")
              .find("did you mean 'linear'") != std::string::npos);
}

TEST_CASE("laws: bursts last exponential times, so do the pauses, and gaps within a burst are exponential (KS)") {
    // Evenly spaced within a burst, so its length shows to 2 ms of its mean of 1 s.
    const auto even = times("{process: mmpp, on_rate: 500/s, on_time: 1s, off_time: 4s, spacing: constant}", 200'000);
    std::vector<double> bursts;
    std::vector<double> pauses;
    double begin = even.front();
    for (std::size_t i = 1; i < even.size(); ++i) {
        const double gap = even[i] - even[i - 1];
        if (gap < 0.0021) continue;
        bursts.push_back(even[i - 1] - begin + 0.002);
        pauses.push_back(gap - 0.002);
        begin = even[i];
    }
    CHECK(bursts.size() > 300);
    CHECK(exponential_ks(bursts, 1) < 1.95);
    CHECK(exponential_ks(pauses, 4) < 1.95);
    CHECK(exponential_ks(bursts, 1.5) > 1.95);
    CHECK(exponential_ks(pauses, 3) > 1.95);
    // The pauses of this one are mostly longer than any gap within a burst.
    std::vector<double> gaps;
    const auto burst = times("{process: mmpp, on_rate: 100/s, on_time: 2s, off_time: 100s}", 6000);
    for (std::size_t i = 1; i < burst.size(); ++i) {
        if (burst[i] - burst[i - 1] < 0.2) gaps.push_back(burst[i] - burst[i - 1]);
    }
    CHECK(gaps.size() > 5900);
    CHECK(exponential_ks(gaps, 0.01) < 1.95);
    // Between bursts the slow rate: both phases are told apart by their counts.
    const auto both = times("{process: mmpp, on_rate: 200/s, off_rate: 2/s, on_time: 20s, off_time: 20s}", 40'000);
    std::vector<double> slow;
    for (std::size_t i = 2; i + 1 < both.size(); ++i) {
        // Neighbours of 100 ms and more are slow ones: exponential, cut at 100 ms, forgets the cut.
        if (both[i] - both[i - 1] > 0.1 && both[i - 1] - both[i - 2] > 0.1) slow.push_back(both[i] - both[i - 1] - 0.1);
    }
    CHECK(slow.size() > 100);
    CHECK(exponential_ks(slow, 0.5) < 1.95);
}

TEST_CASE("laws: batches come when they should and are as large as their law says") {
    for (const bool poisson : {false, true}) {
        const auto t =
            times(std::string("{process: batches, size: {distribution: uniform, min: 1, max: 9}, every: 2s, spacing: ") +
                      (poisson ? "poisson}" : "constant}"),
                  20'000);
        std::vector<double> sizes(10);
        std::vector<double> gaps;
        double last = 0;
        std::size_t size = 0;
        for (std::size_t i = 0; i < t.size(); ++i) {
            if (i > 0 && t[i] == t[i - 1]) {
                ++size;
                continue;
            }
            if (i > 0) ++sizes[size];
            gaps.push_back(t[i] - last);
            last = t[i];
            size = 1;
        }
        double batches = 0;
        for (const double n : sizes) batches += n;
        std::vector<double> expected(10, batches / 9);
        expected[0] = 0;
        CHECK(batches > 3500);
        CHECK(chi_square(sizes, expected) < 1);
        if (poisson) {
            CHECK(exponential_ks(gaps, 2) < 1.95);
        } else {
            for (const double g : gaps) CHECK(g == doctest::Approx(2));
        }
    }
}

TEST_CASE("laws: pinned streams, a change here changes results that were published") {
    const auto sent = [](const std::string& arrivals) {
        std::vector<std::int64_t> out;
        for (const Arrival& a : drain(*clients(sends(4, arrivals), 7))) out.push_back(ns(a));
        return out;
    };
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>> arrivals{
        {"{process: poisson, rate: 4/s}", {78109891, 219050317, 636663637, 725979302}},
        {"{process: gamma, rate: 4/s, burstiness: 0.5}", {74864946, 259767217, 487869489, 596671729}},
        {"{process: weibull, rate: 4/s, cv: 2}", {16858537, 66879159, 437052455, 458635004}},
        {"{process: constant, rate: 4/s}", {250000000, 500000000, 750000000, 1000000000}},
        {"{process: mmpp, on_rate: 30/s, on_time: 5s, off_time: 10s}", {10414652, 29206709, 84888485, 96797240}},
        {"{process: diurnal, rate: 5/s, amplitude: 0.8, period: 100s}", {62390083, 174475180, 502973304, 572545605}},
        {"{process: piecewise, points: [{at: 0s, rate: 1/s}, {at: 10s, rate: 9/s}]}",
         {280881741, 687266932, 1565872221, 1720234506}},
        {"{process: ramp, from: 2/s, to: 12/s, over: 100s}", {155614385, 433404644, 1235185211, 1402764872}},
        {"{process: staged, stages: [{duration: 2s, rate: 1/s}, {duration: 60s, rate: 20/s}]}",
         {312439562, 876201267, 2027332727, 2045195860}},
        {"{process: batches, size: {distribution: uniform, min: 1, max: 3}, every: 2s, spacing: poisson}",
         {624879125, 1752402534, 1752402534, 1752402534}},
        {"{process: ramp_up, ramp_up_strategy: linear, ramp_up_start_rps: 1/s, ramp_up_end_rps: 9/s, requests: 4}",
         {312439562, 466192755, 729948536, 769644387}},
        {"all_at_once", {0, 0, 0, 0}},
    };
    for (const auto& pin : arrivals) {
        CAPTURE(pin.first);
        CHECK(sent(pin.first) == pin.second);
    }
    const std::vector<std::pair<std::string, std::vector<std::int64_t>>> lengths{
        {"{distribution: uniform, min: 3, max: 40}", {39, 39, 20, 18, 24, 30}},
        {"{distribution: geometric, mean: 12}", {35, 40, 8, 7, 10, 16}},
        {"{distribution: exponential, mean: 12}", {36, 41, 8, 7, 11, 16}},
        {"{distribution: lognormal, p50: 20, p90: 60}", {81, 96, 19, 16, 23, 34}},
        {"{distribution: empirical, quantiles: {0: 1, 0.25: 11, 0.9: 60, 1: 200}}", {129, 153, 28, 23, 35, 47}},
    };
    for (const auto& pin : lengths) {
        CAPTURE(pin.first);
        std::vector<std::int64_t> drawn;
        for (const Arrival& a :
             drain(*clients("{requests: 6, arrivals: all_at_once, prompt_tokens: " + pin.first + ", output_tokens: 1}", 7)))
            drawn.push_back(a.prompt_tokens);
        CHECK(drawn == pin.second);
    }
}
