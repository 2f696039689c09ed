#include "kvsim/model/clients.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "kvsim/engine/simulation.hpp"
#include "kvsim/random/stream.hpp"
#include "kvsim/random/zipf.hpp"
#include "unit/workload/goodness.hpp"
#include "unit/workload/support.hpp"

using namespace kvsim;
using test::drain;
using test::ks;
using test::ns;

namespace {

config::Scenario scenario(const std::string& workload, config::Diagnostics& diagnostics) {
    return config::read_scenario(test::yaml("workload: " + workload + "\n"), "t.yaml", diagnostics);
}

std::unique_ptr<Workload> clients(const std::string& text, std::uint64_t seed = 1) {
    config::Diagnostics diagnostics;
    const config::Scenario s = scenario(text, diagnostics);
    auto made = make_workload(s.workload, seed, {}, diagnostics);
    for (const std::string& e : diagnostics.errors()) MESSAGE(e);
    REQUIRE(made);
    return made;
}

std::string error_of(const std::string& text) {
    config::Diagnostics diagnostics;
    const config::Scenario s = scenario(text, diagnostics);
    if (diagnostics.ok()) CHECK(make_workload(s.workload, 1, {}, diagnostics) == nullptr);
    return test::only_error(diagnostics);
}

struct Step10ms final : StepTimeModel {
    [[nodiscard]] SimDuration duration(const StepShape&) const override { return std::chrono::milliseconds(10); }
    [[nodiscard]] std::optional<DecodeLine> decode_line(std::int64_t) const override { return DecodeLine{1e7, 0}; }
    [[nodiscard]] std::string describe() const override { return "10 ms"; }
};
struct First final : Router {
    std::size_t pick(const Arrival&, std::span<const ReplicaLoad>) override { return 0; }
};

SimulationOptions options(std::int64_t seats = 64) {
    SimulationOptions o;
    o.engine.num_gpu_blocks = 10'001;
    o.engine.block_size = 16;
    o.engine.max_num_seqs = seats;
    o.engine.max_num_batched_tokens = 8192;
    o.engine.max_model_len = 65'536;
    o.engine.enable_prefix_caching = true;
    o.engine.async_scheduling = false;
    return o;
}

Outcome run(const std::string& text, const SimulationOptions& o, std::uint64_t seed = 1) {
    const auto w = clients(text, seed);
    First router;
    return simulate(o, Step10ms{}, router, *w);
}

/// Gaps, s, of an open workload with lengths of 1.
std::vector<double> arrival_times(const std::string& arrivals, int requests, std::uint64_t seed = 1) {
    std::vector<double> out;
    for (const Arrival& a : drain(*clients("{requests: " + std::to_string(requests) + ", arrivals: " + arrivals +
                                               ", prompt_tokens: 1, output_tokens: 1, jitter: 0s}",
                                           seed)))
        out.push_back(static_cast<double>(ns(a)) * 1e-9);
    return out;
}

/// Of the times mapped by the integral of the rate: gaps of a Poisson process of rate 1.
template <class Integral>
double ks_poisson(const std::vector<double>& times, Integral&& integral) {
    std::vector<double> u;
    double before = 0;
    for (const double t : times) {
        const double at = integral(t);
        u.push_back(1 - std::exp(-(at - before)));
        before = at;
    }
    return ks(std::move(u));
}

}  // namespace

TEST_CASE("clients: one plain class sends what a plain workload sends") {
    const std::string text =
        "requests: 500, arrivals: {process: gamma, rate: 5/s, burstiness: 0.5}, prompt_tokens: {distribution: lognormal, p50: "
        "100, p90: 300}, output_tokens: {distribution: geometric, mean: 50}, prefix: {groups: 5, tokens: 32, share: 0.7}";
    const auto plain = drain(*clients("{" + text + "}"));
    const auto jittered = drain(*clients("{" + text + ", jitter: 0s}"));
    REQUIRE(plain.size() == jittered.size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
        REQUIRE(plain[i].time == jittered[i].time);
        REQUIRE(plain[i].prompt_tokens == jittered[i].prompt_tokens);
        REQUIRE(plain[i].output_tokens == jittered[i].output_tokens);
        REQUIRE(plain[i].prompt == jittered[i].prompt);
        REQUIRE(plain[i].output_base == jittered[i].output_base);
    }
    const std::string rescaled =
        "{requests: 40, arrivals: {process: poisson, rate: 5/s, rescale: true}, prompt_tokens: 1, output_tokens: 1, jitter: "
        "0s}";
    CHECK(ns(drain(*clients(rescaled)).back()) == 8'000'000'000);
}

TEST_CASE("clients: a class draws the same whatever else is in the mix") {
    const std::string chat =
        "{name: chat, arrivals: {process: poisson, rate: 3/s}, prompt_tokens: {distribution: geometric, mean: 90}, "
        "output_tokens: "
        "{distribution: geometric, mean: 50}, requests: 200}";
    const auto lengths_of = [](const std::string& text) {
        std::vector<std::int64_t> out;
        for (const Arrival& a : drain(*clients(text))) {
            if (a.request_class == "chat") out.insert(out.end(), {ns(a), a.prompt_tokens, a.output_tokens});
        }
        return out;
    };
    const auto alone = lengths_of("{classes: [" + chat + "]}");
    CHECK(alone.size() == 600);
    CHECK(alone == lengths_of("{classes: [{name: x, arrivals: {process: poisson, rate: 50/s}, requests: 900, prompt_tokens: 7, "
                              "output_tokens: 7}, " +
                              chat + "]}"));
}

TEST_CASE("clients: varying rates are Poisson after the integral of the rate (KS)") {
    CHECK(ks_poisson(arrival_times("{process: ramp, from: 2/s, to: 12/s, over: 100s}", 3000),
                     [](double t) { return t < 100 ? 2 * t + 0.05 * t * t : 700 + 12 * (t - 100); }) < 1.95);
    CHECK(ks_poisson(arrival_times("{process: diurnal, rate: 5/s, amplitude: 0.8, period: 100s, phase: 30s}", 3000),
                     [](double t) {
                         const double w = 2 * 3.14159265358979323846 / 100;
                         return 5 * (t + 0.8 / w * (std::cos(w * 30) - std::cos(w * (30 + t))));
                     }) < 1.95);
    CHECK(ks_poisson(
              arrival_times("{process: staged, stages: [{duration: 600s, rate: 8/s}, {duration: 600s, rate: 20/s}]}", 12'000),
              [](double t) { return t < 600 ? 8 * t : 4800 + 20 * (t - 600); }) < 1.95);
    CHECK(ks_poisson(arrival_times("{process: piecewise, points: [{at: 0s, rate: 4/s}, {at: 50s, rate: 4/s}, {at: 50s, rate: "
                                   "16/s}], period: 100s}",
                                   4000),
                     [](double t) {
                         const double days = std::floor(t / 100);
                         const double rest = t - 100 * days;
                         return days * 1000 + (rest < 50 ? 4 * rest : 200 + 16 * (rest - 50));
                     }) < 1.95);
    // And the wrong integral is noticed.
    CHECK(ks_poisson(arrival_times("{process: ramp, from: 2/s, to: 12/s, over: 100s}", 3000), [](double t) { return 9 * t; }) >
          3);
}

TEST_CASE("clients: weibull gaps have their law (KS) and their cv, gamma by cv is gamma by burstiness") {
    const auto t = arrival_times("{process: weibull, rate: 4/s, shape: 0.7}", 5000);
    const double scale = 0.25 / std::tgamma(1 + 1 / 0.7);
    std::vector<double> u;
    for (std::size_t i = 0; i < t.size(); ++i) u.push_back(1 - std::exp(-std::pow((t[i] - (i ? t[i - 1] : 0)) / scale, 0.7)));
    CHECK(ks(u) < 1.95);
    const auto by_cv = arrival_times("{process: weibull, rate: 4/s, cv: 2}", 40'000);
    double squares = 0;
    for (std::size_t i = 0; i < by_cv.size(); ++i) squares += std::pow(by_cv[i] - (i ? by_cv[i - 1] : 0), 2);
    CHECK(by_cv.back() / 40'000 == doctest::Approx(0.25).epsilon(0.04));
    CHECK(squares / 40'000 / 0.0625 == doctest::Approx(5).epsilon(0.15));  // 1 + cv^2
    CHECK(arrival_times("{process: gamma, rate: 4/s, cv: 2}", 100) ==
          arrival_times("{process: gamma, rate: 4/s, burstiness: 0.25}", 100));
}

TEST_CASE("clients: bursts, batches and stages") {
    const auto burst = arrival_times("{process: mmpp, on_rate: 30/s, on_time: 5s, off_time: 10s}", 60'000);
    CHECK(60'000 / burst.back() == doctest::Approx(10).epsilon(0.06));
    std::map<std::int64_t, double> counts;
    for (const double t : burst) ++counts[static_cast<std::int64_t>(t)];
    double squares = 0;
    const double seconds = std::floor(burst.back());
    for (const auto& [second, n] : counts) squares += n * n;
    CHECK(squares / seconds - 100 > 10 * 12);  // a Poisson process of this rate has variance 10
    const auto batches = arrival_times("{process: batches, size: 4, every: 10s}", 10);
    REQUIRE(batches.size() == 10);
    for (std::size_t i = 0; i < 10; ++i) CHECK(batches[i] == doctest::Approx(10.0 * static_cast<double>(i / 4 + 1)));
    // Even spacing fills a stage exactly, and nothing comes after the last; the end needs no key.
    const auto staged =
        drain(*clients("{arrivals: {process: staged, spacing: constant, stages: [{duration: 10s, rate: 8/s}, {duration: "
                       "5s, rate: 0/s}, {duration: 10s, rate: 20/s}]}, prompt_tokens: 1, output_tokens: 1}"));
    REQUIRE(staged.size() == 280);
    CHECK(ns(staged[79]) == 10'000'000'000);
    CHECK(ns(staged[80]) == 15'050'000'000);
    CHECK(ns(staged[279]) == doctest::Approx(25e9));
}

TEST_CASE("clients: Zipf popularity (chi-square), also for prefixes") {
    const StreamKey key(1, "test");
    for (const double s : {0.0, 0.7, 1.0, 2.5}) {
        constexpr int n = 20;
        constexpr int draws = 20'000;
        std::vector<double> seen(n);
        for (int i = 0; i < draws; ++i) {
            Stream stream(key, static_cast<std::uint64_t>(i));
            ++seen[static_cast<std::size_t>(zipf_draw(stream, n, s) - 1)];
        }
        double total = 0;
        for (int k = 1; k <= n; ++k) total += std::pow(k, -s);
        double chi = 0;
        for (int k = 1; k <= n; ++k) {
            const double expected = draws * std::pow(k, -s) / total;
            chi += std::pow(seen[static_cast<std::size_t>(k - 1)] - expected, 2) / expected;
        }
        CHECK_MESSAGE(chi < 43.8, "s = " << s << ": " << chi);  // 19 degrees of freedom, 0.001
    }
    std::map<std::uint64_t, int> groups;
    for (const Arrival& a :
         drain(*clients("{requests: 4000, arrivals: all_at_once, prompt_tokens: 5, output_tokens: 1, prefix: "
                        "{groups: 100, tokens: 32, zipf: 1}}")))
        ++groups[a.prompt.front().first];
    double harmonic = 0;
    for (int k = 1; k <= 100; ++k) harmonic += 1.0 / k;
    int most = 0;
    for (const auto& [group, n] : groups) most = std::max(most, n);
    CHECK(most == doctest::Approx(4000 / harmonic).epsilon(0.1));
}

TEST_CASE("sessions: hits of a chat equal the hand count, generated blocks included") {
    // Turn k brings 100 tokens, each answer 50; 16-token blocks. What the last turn computed: all but its last output token.
    const Outcome o =
        run("{requests: 3, arrivals: {process: constant, rate: 1/s}, sessions: {turns: 3, think_time: 1s, count: 1}, "
            "prompt_tokens: 100, output_tokens: 50}",
            options());
    REQUIRE(o.requests.size() == 3);
    CHECK(o.requests[0].prompt_tokens == 100);
    CHECK(o.requests[1].prompt_tokens == 250);
    CHECK(o.requests[2].prompt_tokens == 400);
    CHECK(o.cached_prompt_tokens[0] == 0);
    CHECK(o.cached_prompt_tokens[1] == 144);  // floor(149 / 16) blocks
    CHECK(o.cached_prompt_tokens[2] == 288);  // floor(299 / 16)
    // A turn is sent one thought after the answer.
    CHECK(o.requests[1].arrival == o.requests[0].arrival + o.requests[0].e2e + std::chrono::seconds(1));
    CHECK(o.sessions[2] == "s0");
    CHECK(o.external_ids[2] == "s0.2");
}

TEST_CASE("sessions: a reasoning model's thinking is no part of later prompts") {
    const Outcome o =
        run("{requests: 2, arrivals: {process: constant, rate: 1/s}, sessions: {turns: 2, count: 1}, prompt_tokens: "
            "100, output_tokens: 50, reasoning_tokens: 200}",
            options());
    REQUIRE(o.requests.size() == 2);
    CHECK(o.requests[0].output_tokens == 250);
    CHECK(o.requests[1].prompt_tokens == 250);  // 100 + 50 + 100
    CHECK(o.cached_prompt_tokens[1] == 96);     // the first prompt only: the answer follows other tokens now
}

TEST_CASE("sessions: steps with tools, some side by side, follow their graph") {
    const Outcome o =
        run("{arrivals: {process: constant, rate: 1/s}, prompt_tokens: 64, output_tokens: 32, sessions: {count: 1, steps: ["
            "{name: plan}, "
            "{name: search, after: [plan], context: none, copies: 2, delay: 300ms, prompt_tokens: 160}, "
            "{name: tool, after: [plan], repeat: 2, delay: 2s}, "
            "{name: join, after: [plan, search, tool], context: tool, prompt_tokens: 16}]}}",
            options());
    REQUIRE(o.requests.size() == 6);
    const auto id_of = [&](const char* name) -> RequestId {
        for (RequestId id = 0; id < o.requests.size(); ++id) {
            if (o.external_ids[id] == name) return id;
        }
        FAIL("no " << name);
        return 0;
    };
    const auto at = [&](const char* name) -> const RequestRecord& { return o.requests[id_of(name)]; };
    const auto end = [](const RequestRecord& r) { return r.arrival + r.e2e; };
    const RequestRecord& plan = at("s0.0");
    CHECK(at("s0.1").arrival == end(plan) + std::chrono::milliseconds(300));
    CHECK(at("s0.2").arrival == at("s0.1").arrival);
    CHECK(at("s0.3").arrival == end(plan) + std::chrono::seconds(2));
    CHECK(at("s0.4").arrival == end(at("s0.3")) + std::chrono::seconds(2));
    CHECK(at("s0.5").arrival == end(at("s0.4")));
    CHECK(at("s0.1").prompt_tokens == 32 + 160);  // a conversation of its own, with the plan's answer
    CHECK(at("s0.3").prompt_tokens == 96 + 64);   // continues the plan's
    CHECK(at("s0.4").prompt_tokens == 96 + 96 + 64);
    CHECK(at("s0.5").prompt_tokens == 96 + 96 + 96 + 32 + 2 * 32 + 16);  // tool's conversation, answers of plan and search
    CHECK(o.cached_prompt_tokens[id_of("s0.3")] == 80);                  // floor(95 / 16) blocks
    CHECK(o.cached_prompt_tokens[id_of("s0.4")] == 176);                 // floor(191 / 16)
    CHECK(o.cached_prompt_tokens[id_of("s0.5")] == 272);
}

TEST_CASE("documents: shared ones hit, and no prompt holds one twice") {
    const auto all =
        drain(*clients("{requests: 300, arrivals: all_at_once, prompt_tokens: 10, output_tokens: 1, documents: {count: 20, "
                       "tokens: {distribution: uniform, min: 10, max: 90}, per_request: 3, zipf: 1}}"));
    std::map<std::uint64_t, std::int64_t> lengths;
    for (const Arrival& a : all) {
        REQUIRE(a.prompt.size() == 4);
        std::int64_t sum = 0;
        for (const TokenRun& run : a.prompt) sum += run.count;
        CHECK(sum == a.prompt_tokens);
        for (std::size_t i = 0; i < 3; ++i) {
            CHECK(lengths.emplace(a.prompt[i].first, a.prompt[i].count).first->second == a.prompt[i].count);
            for (std::size_t j = 0; j < i; ++j) CHECK(a.prompt[i].first != a.prompt[j].first);
        }
    }
    CHECK(lengths.size() == 20);
    const Outcome o =
        run("{requests: 2, arrivals: {process: constant, rate: 1/s}, prompt_tokens: 10, output_tokens: 1, documents: "
            "{count: 1, tokens: 64}}",
            options());
    CHECK(o.cached_prompt_tokens[1] == 64);
}

TEST_CASE("users: each waits for its answer and thinks, request i is the same under every engine") {
    const std::string text =
        "{requests: 60, users: {count: 3, think_time: {distribution: lognormal, p50: 1s, p90: 4s}}, "
        "prompt_tokens: {distribution: geometric, mean: 90}, output_tokens: {distribution: geometric, mean: 50}}";
    const Outcome wide = run(text, options());
    const Outcome narrow = run(text, options(1));
    REQUIRE(wide.requests.size() == 60);
    REQUIRE(narrow.requests.size() == 60);
    for (RequestId i = 0; i < 60; ++i) {
        CHECK(wide.requests[i].prompt_tokens == narrow.requests[i].prompt_tokens);
        CHECK(wide.requests[i].output_tokens == narrow.requests[i].output_tokens);
    }
    CHECK(wide.counters.max_in_system <= 3);
    std::map<std::string_view, SimTime> free_at;
    for (RequestId i = 0; i < 60; ++i) {
        const RequestRecord& r = wide.requests[i];
        SimTime& last = free_at[wide.sessions[i]];
        CHECK(r.arrival >= last);
        last = r.arrival + r.e2e;
    }
    CHECK(free_at.size() == 3);
}

TEST_CASE("jitter: fixed lengths do not march in step") {
    const std::string text = "{requests: 200, max_concurrency: 8, prompt_tokens: 64, output_tokens: 20";
    const auto instants = [](const Outcome& o) {
        std::map<std::int64_t, int> at;
        for (const RequestRecord& r : o.requests) ++at[r.arrival.time_since_epoch().count()];
        return at.size();
    };
    SimulationOptions o = options();
    o.max_concurrency = 8;
    CHECK(instants(run(text + "}", o)) == 25);
    CHECK(instants(run(text + ", jitter: 30ms}", o)) > 190);
}

TEST_CASE("max_concurrency: latencies count from the intended arrival, the client's queue apart") {
    SimulationOptions o = options();
    o.max_concurrency = 1;
    const std::string text = "{requests: 10, arrivals: {process: constant, rate: 10/s}, prompt_tokens: 64, output_tokens: 100}";
    const Outcome sent = run(text, o);
    o.latency_from_intended = true;
    const Outcome intended = run(text, o);
    for (RequestId i = 0; i < 10; ++i) {
        const auto wait = std::chrono::milliseconds(900 * i);  // each takes 1 s, one comes every 100 ms
        CHECK(sent.requests[i].e2e == std::chrono::seconds(1));
        CHECK(intended.requests[i].e2e == std::chrono::seconds(1) + wait);
        CHECK(intended.requests[i].queue == SimDuration::zero());
        CHECK(intended.client_queue.of(i) == wait);
    }
}

TEST_CASE("timeout: blocks come back in the same step, the work is wasted, retries follow") {
    SimulationOptions o = options();
    o.timeline_interval = std::chrono::milliseconds(1);
    std::vector<StepRecord> records;
    o.on_step = [&](std::int64_t, const StepRecord& r) { records.push_back(r); };
    // One at 1 s with 10 blocks, given up after 105 ms, in the middle of a step; sent again 200 ms later, and once more.
    const Outcome out =
        run("{requests: 1, arrivals: {process: constant, rate: 1/s}, prompt_tokens: 150, output_tokens: 1000, timeout: 105ms, "
            "retry: "
            "{max_retries: 2, backoff: 200ms, jitter: 0}}",
            o);
    REQUIRE(out.requests.size() == 3);
    CHECK(out.counters.timed_out == 3);
    CHECK(out.counters.retries == 2);
    CHECK(out.requests[1].arrival.time_since_epoch().count() == 1'305'000'000);
    CHECK(out.requests[2].arrival.time_since_epoch().count() == 1'810'000'000);  // 400 ms after the second time-out
    CHECK(out.external_ids[1] == "0~1");
    CHECK(out.requests[0].output_tokens == 10);
    CHECK(out.cached_prompt_tokens[1] == 144);  // it finds its own prompt
    // 11 steps were scheduled for the first; the retries compute what was not cached.
    CHECK(out.counters.wasted_tokens == (150 + 10) + 2 * (6 + 10));
    CHECK(out.counters.wasted_output_tokens == 30);
    for (const TimelineSample& s : out.timeline) {
        if (s.at == SimTime(std::chrono::milliseconds(1104))) CHECK(s.kv_blocks_used == 10);
        if (s.at == SimTime(std::chrono::milliseconds(1105))) {
            CHECK(s.kv_blocks_used == 0);
            CHECK(s.running == 0);
            CHECK(s.step == std::chrono::milliseconds(10));  // the step goes on
        }
    }
    // The record of that step: nobody gets its token, everything is free.
    const auto step = std::find_if(records.begin(), records.end(), [](const StepRecord& r) { return r.step == 10; });
    REQUIRE(step != records.end());
    CHECK(step->scheduled.size() == 1);
    CHECK(step->received.empty());
    CHECK(step->free_after_update == 10'000);
}

TEST_CASE("timeout: a first token in time is enough for ttft, cancellations and the queue at the client") {
    const Outcome out =
        run("{requests: 2, arrivals: all_at_once, prompt_tokens: 10, output_tokens: 50, timeout: {ttft: 100ms}}", options(1));
    CHECK(out.requests[0].finish == FinishReason::length);
    CHECK(out.requests[1].finish == FinishReason::timed_out);
    const Outcome gone =
        run("{requests: 500, arrivals: {process: constant, rate: 1/s}, prompt_tokens: 10, output_tokens: 50, cancel: {share: "
            "0.3, after: "
            "205ms}}",
            options());
    CHECK(gone.counters.cancelled == doctest::Approx(150).epsilon(0.2));
    CHECK(gone.counters.completed + gone.counters.cancelled == 500);
    for (const auto& [id, after] : gone.unfinished_after) CHECK(after == std::chrono::milliseconds(205));
}

TEST_CASE("clients: what is wrong is said where it stands") {
    const std::string lengths = ", prompt_tokens: 1, output_tokens: 1}";
    CHECK(error_of("{requests: 5, users: {count: 2}, arrivals: all_at_once" + lengths).find("keep one") != std::string::npos);
    CHECK(error_of("{users: {count: 2}" + lengths).find("needs an end") != std::string::npos);
    CHECK(error_of("{requests: 5, users: {cuont: 2}" + lengths).find("did you mean 'count'") != std::string::npos);
    CHECK(error_of("{requests: 5, arrivals: all_at_once, retry: {max_retries: 1}" + lengths).find("retry needs a timeout") !=
          std::string::npos);
    CHECK(error_of("{requests: 5, classes: [{name: a, users: {count: 1}, prompt_tokens: 1}]}").find("lacks 'output_tokens'") !=
          std::string::npos);
    CHECK(error_of("{requests: 5, arrivals: all_at_once, sessions: {steps: [{name: a}, {name: b, after: [aa]}]}" + lengths)
              .find("did you mean 'a'") != std::string::npos);
    CHECK(error_of("{requests: 5, arrivals: {process: staged, stages: []}" + lengths).find("list of") != std::string::npos);
    CHECK(error_of("{requests: 5, arrivals: all_at_once, documents: {count: 2, tokens: 5, per_request: 3}" + lengths)
              .find("documents.count") != std::string::npos);
}

// ---- a bounded queue --------------------------------------------------------------------------------------------------

TEST_CASE("clients: who finds the queue full is rejected, and sent again after a backoff") {
    SimulationOptions o = options(1);
    o.engine.max_queued_requests = 1;
    // Four at once, one seat, one place to wait, 10 steps of 10 ms each: 0 runs, 1 waits, 2 and 3 are turned away at once.
    const std::string four = "requests: 4, arrivals: all_at_once, prompt_tokens: 1, output_tokens: 10";
    const Outcome once = run("{" + four + "}", o);
    CHECK(once.counters.rejected == 2);
    CHECK(once.counters.queue_full == 2);
    CHECK(once.counters.completed == 2);
    for (const RequestId id : {0U, 1U}) CHECK(once.requests[id].finish == FinishReason::length);
    for (const RequestId id : {2U, 3U}) CHECK(once.requests[id].finish == FinishReason::rejected);
    CHECK(once.unfinished_after.empty());
    CHECK(once.integrals.in_system_dt == (once.requests[0].e2e + once.requests[1].e2e).count());

    // Backoffs of 60, 120, 240 ms. At 60 ms one still waits; at 180 ms the second of 0 ... 200 ms runs, so 4 gets the place and
    // 5 (its twin) is turned away once more; that one comes back at 420 ms, when nobody is left.
    config::Diagnostics diagnostics;
    const config::Scenario s = config::read_scenario(test::yaml("engine: {max_queued_requests: 1}\nworkload: {" + four +
                                                                ", retry: {max_retries: 5, backoff: 60ms, jitter: 0}}\n"),
                                                     "t.yaml", diagnostics);
    REQUIRE(diagnostics.ok());
    const auto w = make_workload(s.workload, 1, {}, diagnostics);
    First router;
    const Outcome again = simulate(o, Step10ms{}, router, *w);
    CHECK(again.counters.completed == 4);
    CHECK(again.counters.retries == 5);
    CHECK(again.counters.queue_full == 5);
    std::vector<std::int64_t> sent;
    for (RequestId id = 0; id < again.requests.size(); ++id) {
        if (again.attempts[id] > 0) sent.push_back(again.requests[id].arrival.time_since_epoch().count() / 1'000'000);
    }
    CHECK(sent == std::vector<std::int64_t>{60, 60, 180, 180, 420});
    CHECK(again.external_ids[8] == "3~3");
    CHECK(again.requests[8].finish == FinishReason::length);

    // What can never fit is not tried again.
    o.engine.max_model_len = 20;
    const auto mixed = make_workload(
        config::read_scenario(test::yaml("engine: {max_queued_requests: 9}\nworkload: {requests: 6, arrivals: {process: "
                                         "constant, rate: 1/s}, prompt_tokens: {distribution: uniform, min: 1, max: 40}, "
                                         "output_tokens: 2, retry: {max_retries: 3, backoff: 1ms}}\n"),
                              "t.yaml", diagnostics)
            .workload,
        1, {}, diagnostics);
    const Outcome refused = simulate(o, Step10ms{}, router, *mixed);
    CHECK(refused.counters.rejected > 0);
    CHECK(refused.counters.queue_full == 0);
    CHECK(refused.counters.retries == 0);
}

TEST_CASE("clients: the queue's bound counts free seats, and waits behind blocks") {
    SimulationOptions o = options(3);
    o.engine.max_queued_requests = 0;
    // Three seats: three of four at once are taken although no step has started.
    const std::string four = "{requests: 4, arrivals: all_at_once, prompt_tokens: 16, output_tokens: 1}";
    CHECK(run(four, o).counters.queue_full == 1);
    o.engine.max_queued_requests = 1;
    CHECK(run(four, o).counters.queue_full == 0);
    // Seats are no help where blocks are missing: room for one request, one more may wait.
    o.engine.max_queued_requests = 1;
    o.engine.num_gpu_blocks = 4;
    const Outcome blocks =
        run("{requests: 6, arrivals: {process: constant, rate: 50/s}, prompt_tokens: 32, output_tokens: 12}", o);
    // The first runs from 20 to 140 ms. The second waits from 40 ms on; the others come while it does.
    CHECK(blocks.counters.queue_full == 4);
    CHECK(blocks.counters.completed == 2);
}

TEST_CASE("clients: users who are turned away and never think are stopped, not followed for ever") {
    SimulationOptions o = options(1);
    o.engine.max_queued_requests = 0;
    CHECK_THROWS_AS(run("{duration: 10s, users: {count: 2}, prompt_tokens: 1, output_tokens: 10}", o), UserError);
    // With a pause they come back.
    const Outcome calm = run("{duration: 10s, users: {count: 2, think_time: 50ms}, prompt_tokens: 1, output_tokens: 10}", o);
    CHECK(calm.counters.queue_full > 10);
    CHECK(calm.counters.completed > 50);
}
