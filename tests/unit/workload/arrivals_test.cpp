#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "../../../sim/workloads/gap_sum.hpp"
#include "kvsim/random/distribution.hpp"
#include "unit/workload/support.hpp"

using namespace kvsim;
using test::drain;
using test::ns;
using test::workload;
using test::workload_error;

namespace {

const std::string lengths =
    "\nprompt_tokens: {distribution: lognormal, p50: 100, p90: 300}\noutput_tokens: {distribution: geometric, mean: 50}\n";

std::vector<std::int64_t> times(const std::string& text, std::uint64_t seed = 1) {
    std::vector<std::int64_t> out;
    for (const Arrival& a : drain(*workload(text + lengths, seed))) out.push_back(ns(a));
    return out;
}

}  // namespace

TEST_CASE("constant arrivals come after each gap and do not drift") {
    CHECK(times("requests: 3\narrivals: {process: constant, rate: 10/s}") ==
          std::vector<std::int64_t>{100'000'000, 200'000'000, 300'000'000});
    const auto thirds = times("requests: 300000\narrivals: {process: constant, rate: 3/s}");
    for (std::size_t i = 2; i < thirds.size(); i += 3) {
        if (thirds[i] != static_cast<std::int64_t>(i + 1) / 3 * 1'000'000'000) FAIL("at " << i << ": " << thirds[i]);
    }
    CHECK(thirds[0] == 333'333'333);
    CHECK(thirds[1] == 666'666'667);
}

TEST_CASE("duration and requests: whichever ends first") {
    CHECK(times("duration: 1s\narrivals: {process: constant, rate: 10/s}").size() == 10);
    CHECK(times("duration: 1s\nrequests: 4\narrivals: {process: constant, rate: 10/s}").size() == 4);
    CHECK(times("duration: 350ms\nrequests: 4\narrivals: {process: constant, rate: 10/s}").size() == 3);
    CHECK(workload("requests: 4\narrivals: all_at_once" + lengths)->size_hint() == 4);
    CHECK(!workload("requests: 4\nduration: 1s\narrivals: all_at_once" + lengths)->size_hint());
}

TEST_CASE("poisson gaps have mean and variance of an exponential") {
    const auto t = times("requests: 40000\narrivals: {process: poisson, rate: 5/s}");
    CHECK(static_cast<double>(t.back()) * 1e-9 == doctest::Approx(8000).epsilon(0.02));
    double squares = 0;
    for (std::size_t i = 0; i < t.size(); ++i) squares += std::pow(static_cast<double>(t[i] - (i ? t[i - 1] : 0)) * 1e-9, 2);
    CHECK(squares / 40'000 == doctest::Approx(2.0 / 25).epsilon(0.04));
    CHECK(t.front() > 0);
}

TEST_CASE("burstiness 1 is poisson and infinite burstiness is constant") {
    CHECK(times("requests: 50\narrivals: {process: gamma, rate: 5/s}") ==
          times("requests: 50\narrivals: {process: poisson, rate: 5/s}"));
    CHECK(times("requests: 50\narrivals: {process: gamma, rate: 5/s, burstiness: inf}") ==
          times("requests: 50\narrivals: {process: constant, rate: 5/s}"));
    const auto bursty = times("requests: 40000\narrivals: {process: gamma, rate: 5/s, burstiness: 0.25}");
    double squares = 0;
    for (std::size_t i = 1; i < bursty.size(); ++i)
        squares += std::pow(static_cast<double>(bursty[i] - bursty[i - 1]) * 1e-9, 2);
    // Variance of a gap is mean^2 / burstiness.
    CHECK(squares / 40'000 - 0.04 == doctest::Approx(0.16).epsilon(0.08));
}

TEST_CASE("rescale puts the last arrival exactly at n / rate") {
    const auto plain = times("requests: 999\narrivals: {process: gamma, rate: 7/s, burstiness: 0.5}");
    const auto t = times("requests: 999\narrivals: {process: gamma, rate: 7/s, burstiness: 0.5, rescale: true}");
    CHECK(t.back() == 142'714'285'714);
    const double factor = static_cast<double>(t.back()) / static_cast<double>(plain.back());
    for (std::size_t i = 0; i < t.size(); ++i) {
        if (std::abs(static_cast<double>(t[i]) - factor * static_cast<double>(plain[i])) > 2) FAIL("at " << i);
        if (i > 0 && t[i] < t[i - 1]) FAIL("unsorted at " << i);
    }
    // Whether the stretched gaps sum to less or more than that is chance.
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        const auto many = times("requests: 9999\narrivals: {process: poisson, rate: 7/s, rescale: true}", seed);
        CHECK(many.back() == 1'428'428'571'429);
        CHECK(std::is_sorted(many.begin(), many.end()));
    }
    CHECK(workload_error("duration: 5s\narrivals: {process: poisson, rate: 7/s, rescale: true}" + lengths)
              .find("rescale needs") != std::string::npos);
}

TEST_CASE("all at once, also by an infinite rate") {
    CHECK(times("requests: 3\narrivals: all_at_once") == std::vector<std::int64_t>{0, 0, 0});
    CHECK(times("requests: 3\narrivals: {process: poisson, rate: inf}") == std::vector<std::int64_t>{0, 0, 0});
    CHECK(times("requests: 3\nmax_concurrency: 2") == std::vector<std::int64_t>{0, 0, 0});
    CHECK(workload_error("duration: 3s\narrivals: all_at_once" + lengths).find("needs requests") != std::string::npos);
}

TEST_CASE("rate_scale multiplies the rate and keeps the draws") {
    const auto slow = times("requests: 100\narrivals: {process: poisson, rate: 5/s}");
    const auto fast = times("requests: 100\nrate_scale: 2\narrivals: {process: poisson, rate: 5/s}");
    for (std::size_t i = 0; i < slow.size(); ++i) CHECK(std::abs(slow[i] - 2 * fast[i]) <= 1);
    const auto info =
        configured_arrivals(test::workload_config("rate_scale: 2\narrivals: {process: gamma, rate: 5/s, burstiness: 0.5}"));
    REQUIRE(info);
    CHECK(info->rate == 10);
    CHECK(info->burstiness == 0.5);
    CHECK(std::isinf(configured_arrivals(test::workload_config("arrivals: all_at_once"))->rate));
    CHECK(!configured_arrivals(test::workload_config("trace: {path: x}")));
}

TEST_CASE("request i is the same request whatever the arrivals") {
    const auto a = drain(*workload("requests: 50\narrivals: {process: poisson, rate: 5/s}" + lengths));
    const auto b = drain(*workload("requests: 80\narrivals: all_at_once" + lengths));
    const auto c = drain(*workload("requests: 50\narrivals: all_at_once" + lengths, 2));
    int differing = 0;
    std::set<std::uint64_t> bases;
    for (std::size_t i = 0; i < a.size(); ++i) {
        CHECK(a[i].prompt_tokens == b[i].prompt_tokens);
        CHECK(a[i].output_tokens == b[i].output_tokens);
        CHECK(a[i].prompt.empty());
        differing += a[i].prompt_tokens != c[i].prompt_tokens;
        bases.insert(a[i].output_base);
    }
    CHECK(differing > 40);
    CHECK(bases.size() == a.size());
}

TEST_CASE("request i is drawn from streams of its own, by the laws' formulas, however many were drawn before") {
    const auto requests = drain(*workload("requests: 3000\narrivals: {process: poisson, rate: 5/s}" + lengths, 9));
    const auto prompts = test::law("{distribution: lognormal, p50: 100, p90: 300}");
    const auto outputs = test::law("{distribution: geometric, mean: 50}");
    const StreamKey gap(9, "arrivals");
    const StreamKey prompt(9, "prompt_tokens");
    const StreamKey output(9, "output_tokens");
    REQUIRE(requests.size() == 3000);
    double sum = 0;
    int differing = 0;
    for (std::uint64_t i = 0; i < requests.size(); ++i) {
        sum += 1e9 / 5 * standard_exponential(gap.first_u64(i));
        differing += std::abs(sum - static_cast<double>(ns(requests[i]))) > 1;
        differing += requests[i].prompt_tokens != prompts->sample(prompt.first_uniform(i));
        differing += requests[i].output_tokens != outputs->sample(output.first_uniform(i));
    }
    CHECK(differing == 0);
}

TEST_CASE("shared prefixes come before the request's own tokens") {
    const auto plain = drain(*workload("requests: 2000\narrivals: all_at_once" + lengths));
    const auto shared =
        drain(*workload("requests: 2000\narrivals: all_at_once\nprefix: {groups: 4, tokens: {distribution: uniform, min: 50, "
                        "max: 5000}, share: 0.5}" +
                        lengths));
    std::map<std::uint64_t, std::int64_t> groups;
    std::set<std::uint64_t> own;
    int with = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
        const Arrival& a = shared[i];
        std::int64_t total = 0;
        for (const TokenRun& run : a.prompt) total += run.count;
        CHECK(total == a.prompt_tokens);
        CHECK(a.prompt.back().count == plain[i].prompt_tokens);
        CHECK(a.output_tokens == plain[i].output_tokens);
        CHECK(own.insert(a.prompt.back().first).second);
        CHECK(own.insert(a.output_base).second);
        if (a.prompt.size() == 2) {
            ++with;
            // One length per group.
            CHECK(groups.try_emplace(a.prompt[0].first, a.prompt[0].count).first->second == a.prompt[0].count);
        }
    }
    CHECK(std::abs(with - 1000) < 5 * std::sqrt(500));
    CHECK(groups.size() == 4);
    std::set<std::int64_t> sizes;
    for (const auto& [base, count] : groups) sizes.insert(count);
    CHECK(sizes.size() == 4);
}

TEST_CASE("request i is what its own streams say, through all batches and tables") {
    const std::string prompts = "{distribution: lognormal, p50: 400, p90: 1000}";
    const std::string outputs = "{distribution: exponential, mean: 300}";
    auto w = workload(
        "requests: 20000\narrivals: {process: poisson, rate: 20/s}\nprompt_tokens: " + prompts + "\noutput_tokens: " + outputs,
        3);
    const auto prompt_law = test::law(prompts);
    const auto output_law = test::law(outputs);
    const StreamKey gap_key(3, "arrivals");
    const StreamKey prompt_key(3, "prompt_tokens");
    const StreamKey output_key(3, "output_tokens");
    GapSum sum;
    int differing = 0;
    std::uint64_t i = 0;
    for (const Arrival& a : drain(*w)) {
        sum.add(1e9 / 20 * standard_exponential(gap_key.first_u64(i)));
        differing += ns(a) != sum.rounded() || a.prompt_tokens != prompt_law->sample(prompt_key.first_uniform(i)) ||
                     a.output_tokens != output_law->sample(output_key.first_uniform(i));
        ++i;
    }
    CHECK(i == 20'000);
    CHECK(differing == 0);
}

TEST_CASE("plain arrivals are the requests that are popped, one by one or many at once") {
    const std::string law =
        "prompt_tokens: {distribution: lognormal, p50: 400, p90: 1000}\n"
        "output_tokens: {distribution: exponential, mean: 300}";
    for (const std::string arrivals :
         {"requests: 3001\narrivals: {process: poisson, rate: 20/s}\n",
          "requests: 3\narrivals: {process: poisson, rate: 20/s, rescale: true}\n",
          "requests: 1088\narrivals: {process: gamma, rate: 20/s, burstiness: 0.5, rescale: true}\n",
          "duration: 30s\narrivals: {process: poisson, rate: 20/s}\n",
          "duration: 1ms\narrivals: {process: constant, rate: 20/s}\n",
          "requests: 700\narrivals: {process: ramp, from: 1/s, to: 20/s, over: 30s}\n"}) {
        CAPTURE(arrivals);
        const std::vector<Arrival> popped = drain(*workload(arrivals + law));
        for (const std::size_t pops_between : {std::size_t{0}, std::size_t{1}, std::size_t{70}}) {
            auto w = workload(arrivals + law);
            std::size_t i = 0;
            int differing = 0;
            const auto compare = [&](SimTime time, std::int64_t prompt, std::int64_t output) {
                REQUIRE(i < popped.size());
                const Arrival& expected = popped[i++];
                differing += time != expected.time || prompt != expected.prompt_tokens || output != expected.output_tokens;
            };
            while (w->next_time()) {
                const std::span<const PlainArrival> many = w->take_plain();
                CHECK(!many.empty());
                for (const PlainArrival& a : many) compare(a.time, a.prompt_tokens, a.output_tokens);
                for (std::size_t k = 0; k < pops_between && w->next_time(); ++k) {
                    Arrival a;
                    w->pop(a);
                    CHECK(a.output_base == own_output_base(static_cast<RequestId>(i)));
                    compare(a.time, a.prompt_tokens, a.output_tokens);
                }
            }
            CHECK(w->take_plain().empty());
            CHECK(i == popped.size());
            CHECK(differing == 0);
        }
    }
    auto shared = workload("requests: 5\narrivals: {process: poisson, rate: 1/s}" + lengths + "prefix: {tokens: 100}");
    CHECK(shared->take_plain().empty());
    CHECK(drain(*shared).size() == 5);
}

TEST_CASE("token ids of different owners do not overlap") {
    constexpr std::uint64_t longest = static_cast<std::uint64_t>(max_request_tokens);
    CHECK(own_prompt_base(5) + longest < own_output_base(5));
    CHECK(own_output_base(5) + longest < own_prompt_base(6));
    CHECK(own_output_base(UINT32_MAX) + longest > own_output_base(UINT32_MAX));
    CHECK(prefix_base(7) + longest < prefix_base(8));
    CHECK(prefix_base(max_prefix_groups - 1) + longest < own_prompt_base(0));
    CHECK(trace_ids_end <= prefix_base(0));
}

TEST_CASE("workloads that are wrong") {
    const std::string good = "arrivals: {process: poisson, rate: 1/s}" + lengths;
    CHECK(workload_error(good).find("needs requests or duration") != std::string::npos);
    CHECK(workload_error("requests: 5" + lengths).find("needs arrivals") != std::string::npos);
    CHECK(workload_error("requests: 5\narrivals: {process: poisson, rate: 0/s}" + lengths).find("t.yaml:2:36: error: rate") ==
          0);
    CHECK(workload_error("requests: 5\narrivals: {process: poisson, rate: 5}" + lengths).find("t.yaml:2:36: error: rate") == 0);
    CHECK(workload_error("requests: 5\narrivals: {process: poison, rate: 5/s}" + lengths) ==
          "t.yaml:2:21: error: unknown arrival process 'poison'; did you mean 'poisson'?");
    CHECK(workload_error("requests: 5\narrivals: {process: gamma, rate: 5/s, burstiness: 1e-300}" + lengths)
              .find("t.yaml:2:51: error: burstiness must be at least 0.001") == 0);
    CHECK(workload_error("requests: 5\narrivals: {process: gamma, rate: 5/s, burstiness: 0}" + lengths).find("t.yaml:2:51") ==
          0);
    CHECK(workload_error("requests: 5\narrivals: poisson" + lengths).find("lacks the key 'rate'") != std::string::npos);
    CHECK(workload_error("requests: 5\n" + good + "prefix: {groups: 0, tokens: 5}").find("groups") != std::string::npos);
    CHECK(workload_error("requests: 5\n" + good + "prefix: {groups: 3}").find("lacks the key 'tokens'") != std::string::npos);
    CHECK(workload_error("requests: 5\n" + good + "prefix: {tokens: {distribution: uniform, min: 2, max: 1}}")
              .find("prefix.tokens: min 2 is above max 1") != std::string::npos);
}

TEST_CASE("arrivals beyond the clock are the user's error") {
    const std::string late = "requests: 5\nrate_scale: 1e-12\narrivals: {process: constant, rate: 1000/s}" + lengths;
    auto w = workload(late);
    Arrival a;
    for (int i = 0; i < 4; ++i) {
        REQUIRE(w->next_time());
        w->pop(a);
    }
    CHECK_THROWS_AS(static_cast<void>(w->next_time()), UserError);
    w = workload(late);
    CHECK(w->take_plain().size() == 4);
    CHECK_THROWS_AS(static_cast<void>(w->take_plain()), UserError);
    CHECK_THROWS_AS(static_cast<void>(w->next_time()), UserError);
    // Nobody asks for what lies behind the last one.
    w = workload("requests: 4" + late.substr(late.find('\n')));
    CHECK(drain(*w).size() == 4);
    CHECK_THROWS_AS(workload("requests: 5\nrate_scale: 1e-15\narrivals: {process: constant, rate: 1/h}" + lengths), UserError);
}
