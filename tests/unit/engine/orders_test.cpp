// Queue orders, one seat: who starts when shows the order.

#include <doctest/doctest.h>

#include <algorithm>

#include "policy_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

/// One request at a time; a step takes 10 ns.
std::string one_seat(const std::string& order, const std::string& more = "") {
    return "engine: {num_gpu_blocks_override: 1000, block_size: 4, max_model_len: 4000, max_num_seqs: 1,\n"
           "  max_num_batched_tokens: 4000, async_scheduling: false, enable_prefix_caching: false,\n  scheduling_policy: " +
           order + (more.empty() ? "" : ", " + more) + "}\nstep_time: {model: constant, step: 10ns}\n";
}

using Ids = std::vector<RequestId>;

/// Request 0 runs from 0 to 1000 ns; the others arrive meanwhile, in this order.
Ids started(const std::string& text, std::vector<Arrival> others) {
    std::vector<Arrival> all{arrival(0, 1, 100)};
    for (std::size_t i = 0; i < others.size(); ++i) {
        if (others[i].time == SimTime{}) others[i].time = SimTime(SimDuration(static_cast<std::int64_t>(i) + 1));
        all.push_back(others[i]);
    }
    const Policy p = policy(text);
    for (const std::string& error : p.errors) MESSAGE(error);
    REQUIRE(p.errors.empty());
    Ids out = run_policy(p, std::move(all)).started();
    REQUIRE(out.front() == 0);
    out.erase(out.begin());
    return out;
}

Arrival with_priority(std::int64_t at, std::int64_t priority) {
    Arrival a = arrival(at, 1, 1);
    a.priority = priority;
    return a;
}

Arrival of_tenant(const std::string& tenant, std::int64_t prompt, std::int64_t output) {
    Arrival a = arrival(0, prompt, output);
    a.tenant = tenant;
    return a;
}

Arrival of_class(const std::string& name, std::int64_t at, std::int64_t output) {
    Arrival a = arrival(at, 1, output);
    a.request_class = name;
    return a;
}

}  // namespace

TEST_CASE("orders: shortest and longest first, by prompt, output or both, ties in order of arrival") {
    const std::vector<Arrival> requests{arrival(0, 10, 9), arrival(0, 2, 20), arrival(0, 9, 10), arrival(0, 30, 1)};
    CHECK(started(one_seat("fcfs"), requests) == Ids{1, 2, 3, 4});
    CHECK(started(one_seat("sjf"), requests) == Ids{1, 3, 2, 4});
    CHECK(started(one_seat("{policy: sjf, by: prompt}"), requests) == Ids{2, 3, 1, 4});
    CHECK(started(one_seat("{policy: sjf, by: output}"), requests) == Ids{4, 1, 3, 2});
    CHECK(started(one_seat("ljf"), requests) == Ids{4, 2, 1, 3});
    CHECK(started(one_seat("{policy: ljf, by: output}"), requests) == Ids{2, 3, 1, 4});
    // All are believed to yield the same: the prompt decides.
    CHECK(started(one_seat("sjf", "length_predictor: {policy: constant, tokens: 5}"), requests) == Ids{2, 3, 1, 4});
}

TEST_CASE("orders: with aging a request gains a level in every so many ns since it arrived") {
    // Two levels are 200 ns: the one at 100 beats the urgent one that came 201 ns later, not the one 199 ns later.
    const std::vector<Arrival> late{with_priority(100, 2), with_priority(301, 0)};
    const std::vector<Arrival> early{with_priority(100, 2), with_priority(299, 0)};
    CHECK(started(one_seat("priority"), late) == Ids{2, 1});
    CHECK(started(one_seat("{policy: priority, aging: 100ns}"), late) == Ids{1, 2});
    CHECK(started(one_seat("{policy: priority, aging: 100ns}"), early) == Ids{2, 1});
}

TEST_CASE("orders: deadlines are of the first token while there is none, of the class before the scenario") {
    const std::string slo =
        "slo: {ttft: 5us, e2e: 9us}\nworkload: {requests: 1, arrivals: all_at_once, prompt_tokens: 1, "
        "output_tokens: 1,\n  classes: [{name: tight, slo: {e2e: 2us}}, {name: none, slo: {tpot: 1us}}, "
        "{name: plain}]}\n";
    const std::vector<Arrival> requests{of_class("none", 1, 1), of_class("plain", 2, 1), of_class("tight", 3, 1),
                                        of_class("", 1, 1)};
    CHECK(started(one_seat("edf") + slo, {requests[0], requests[3], requests[1], requests[2]}) == Ids{4, 2, 3, 1});
    // 2 us - 900 outputs x 1 ns = 1.1 us, 2 us - 1 ns; then 1.5 us + 400 ns.
    const std::string slack = "slo: {e2e: 2us, tpot: 1ns}\n";
    CHECK(started(one_seat("slo-slack") + slack, {arrival(1, 1, 1), arrival(2, 1, 900), arrival(300, 1, 500)}) == Ids{2, 3, 1});
}

TEST_CASE("orders: a random order is of the seed and the request alone") {
    std::vector<Arrival> requests(12, arrival(0, 1, 1));
    const Ids first = started(one_seat("random"), requests);
    CHECK(first == started(one_seat("random"), requests));
    CHECK(!std::is_sorted(first.begin(), first.end()));
    // Longer requests do not change it.
    std::vector<Arrival> longer(12, arrival(0, 3, 2));
    CHECK(first == started(one_seat("random"), longer));
}

TEST_CASE("orders: virtual token counters go by what a tenant was served") {
    const std::string order = one_seat("vtc");
    // a: 10 + 2 outputs x 2 = 14 a request, b: 1 + 2 = 3: five of b's to one of a's. The counters start equal, at what request
    // 0, whose tenant has no name, leaves behind.
    std::vector<Arrival> requests;
    for (int i = 0; i < 2; ++i) requests.push_back(of_tenant("a", 10, 2));
    for (int i = 0; i < 6; ++i) requests.push_back(of_tenant("b", 1, 1));
    CHECK(started(order, requests) == Ids{1, 3, 4, 5, 6, 7, 2, 8});
    // Twice the share: a's request counts 7.
    const std::string from_trace = "workload: {arrivals: all_at_once, trace: {path: none.jsonl}}\n";  // tells no tenants
    CHECK(started(one_seat("{policy: vtc, weights: {a: 2}}") + from_trace, requests) == Ids{1, 3, 4, 5, 2, 6, 7, 8});
    // Only outputs count: a's 4, b's 2 each.
    CHECK(started(one_seat("{policy: vtc, input_weight: 0}"), requests) == Ids{1, 3, 4, 2, 5, 6, 7, 8});
}

TEST_CASE("orders: a tenant that comes back is not owed what it did not ask for") {
    // b arrives when a has been served much: lifted to a's counter, it does not get the engine for itself.
    std::vector<Arrival> requests;
    for (int i = 0; i < 6; ++i) requests.push_back(of_tenant("a", 100, 1));
    for (int i = 0; i < 4; ++i) {
        requests.push_back(of_tenant("b", 100, 1));
        requests.back().time = SimTime(SimDuration(1025));  // three of a's are done
    }
    std::vector<Arrival> all{arrival(0, 1, 100)};
    for (std::size_t i = 0; i < requests.size(); ++i) {
        if (requests[i].time == SimTime{}) requests[i].time = SimTime(SimDuration(1));
        all.push_back(requests[i]);
    }
    const Policy p = policy(one_seat("vtc"));
    REQUIRE(p.errors.empty());
    const Ids order = run_policy(p, all).started();
    CHECK(order == Ids{0, 1, 2, 3, 7, 4, 8, 5, 9, 6, 10});
}

TEST_CASE("orders: a feedback queue skips levels by prompt, sinks by service, rises by waiting") {
    const std::string mlfq = one_seat("{policy: mlfq, quantum: 4, levels: 3, promote: 1s}", "requeue: back");
    // Levels 2 (prompt 9), 0, 1 (prompt 5), 0; request 0 sinks to level 1 after 4 tokens, to the last after 8 more.
    const Policy p = policy(mlfq);
    REQUIRE(p.errors.empty());
    const PolicyRun run =
        run_policy(p, {arrival(0, 1, 100), arrival(25, 9, 1), arrival(26, 1, 1), arrival(27, 5, 1), arrival(28, 1, 1)});
    CHECK(run.started() == Ids{0, 2, 4, 3, 1});
    // By request 2 alone: 3 is on its level, and joined it before.
    CHECK(run.outcome.counters.preemptions == 1);
    CHECK(run.outcome.requests[0].preemptions == 1);

    // Nobody is starved: requests of the first level keep coming, and the one on the last is let in after 500 ns.
    std::vector<Arrival> stream{arrival(0, 1, 1), arrival(0, 20, 2)};
    for (int i = 0; i < 200; ++i) stream.push_back(arrival(10 * i, 1, 1));
    const auto waited = [&](const std::string& promote) {
        const Policy q = policy(one_seat("{policy: mlfq, quantum: 4, levels: 3, promote: " + promote + "}"));
        REQUIRE(q.errors.empty());
        return run_policy(q, stream).outcome.requests[1].queue.count();
    };
    CHECK(waited("1s") == 2010);
    CHECK(waited("500ns") < 2010);
    CHECK(waited("500ns") >= 500);
}

TEST_CASE("orders: shortest remaining time displaces the running request with most left, and only strictly") {
    const Policy p = policy(one_seat("srpt"));
    REQUIRE(p.errors.empty());
    // Request 0: 1 + 10 - 1 = 10 tokens. At 55 ns six steps are planned, 4 tokens left: 3 displaces, 4 does not.
    const auto finished = [&](std::int64_t prompt) {
        const PolicyRun run = run_policy(p, {arrival(0, 1, 10), arrival(55, prompt, 1)});
        return std::pair(run.outcome.requests[0].e2e.count(), run.outcome.requests[1].e2e.count());
    };
    CHECK(finished(4) == std::pair<std::int64_t, std::int64_t>{100, 55});
    // One step for the short one at 60, then all of 0's 7 tokens again in one, and four more.
    CHECK(finished(3) == std::pair<std::int64_t, std::int64_t>{110, 15});
}

TEST_CASE("orders: longest cached prefix, and the heaviest branch of the cached tree, first") {
    const std::string text =
        "engine: {num_gpu_blocks_override: 1000, block_size: 4, max_model_len: 4000, max_num_seqs: 1,\n"
        "  max_num_batched_tokens: 4000, async_scheduling: false, scheduling_policy: ORDER}\n"
        "step_time: {model: constant, step: 10ns}\n";
    const auto with = [&](std::string order) {
        std::string out = text;
        return out.replace(out.find("ORDER"), 5, order);
    };
    const auto prompt = [](std::vector<TokenRun> runs) {
        Arrival a = arrival(0, 0, 1);
        for (const TokenRun& run : runs) a.prompt_tokens += run.count;
        a.prompt = std::move(runs);
        a.output_base = 1'000'000;
        return a;
    };
    // Request 0 caches A (8 tokens) + X (8); who starts with A finds two blocks, with A + X four.
    const std::vector<TokenRun> a{{100, 8}};
    std::vector<Arrival> all{prompt({{100, 8}, {200, 8}, {900, 1}}),
                             prompt({{300, 8}, {901, 4}}),
                             prompt({{100, 8}, {902, 4}}),
                             prompt({{500, 20}}),
                             prompt({{300, 8}, {903, 4}}),
                             prompt({{100, 8}, {200, 8}, {904, 4}}),
                             prompt({{300, 8}, {905, 4}})};
    all[0].output_tokens = 50;
    for (std::size_t i = 1; i < all.size(); ++i) all[i].time = SimTime(SimDuration(static_cast<std::int64_t>(i)));
    const auto order = [&](const std::string& name) {
        const Policy p = policy(with(name));
        REQUIRE(p.errors.empty());
        return run_policy(p, all).started();
    };
    // B (300) is cached only once request 1 has started: then its sharers come before the one that has nothing.
    CHECK(order("lpm") == Ids{0, 5, 2, 1, 4, 6, 3});
    // The branch A weighs two at first: its deeper part, then 2; the others have nothing cached, in order of arrival.
    CHECK(order("dfs-weight") == Ids{0, 5, 2, 1, 4, 6, 3});
    CHECK(order("fcfs") == Ids{0, 1, 2, 3, 4, 5, 6});
    // Two branches at once: B's two against A's one; then one against one, in order of arrival.
    std::vector<Arrival> two{prompt({{100, 8}, {900, 1}}), prompt({{300, 8}, {901, 1}}), prompt({{100, 8}, {902, 1}}),
                             prompt({{300, 8}, {903, 1}}), prompt({{300, 8}, {904, 1}}), prompt({{500, 9}})};
    two[0].output_tokens = two[1].output_tokens = 50;
    for (std::size_t i = 2; i < two.size(); ++i) two[i].time = SimTime(SimDuration(600 + static_cast<std::int64_t>(i)));
    const Policy p = policy(with("dfs-weight"));
    REQUIRE(p.errors.empty());
    CHECK(run_policy(p, two).started() == Ids{0, 1, 3, 2, 4, 5});
}

TEST_CASE("orders: what makes no sense is refused with the reason") {
    const auto refused = [](const std::string& text, const std::string& why) {
        const Policy p = policy(text);
        CAPTURE(text);
        REQUIRE(!p.errors.empty());
        CHECK(p.errors.front().find(why) != std::string::npos);
    };
    refused(one_seat("edf"), "no request has a deadline");
    refused(one_seat("edf") + "slo: {tpot: 10ms}\n", "no request has a deadline");
    refused(one_seat("slo-slack") + "slo: {ttft: 1s, tpot: 10ms}\n", "needs both");
    refused(one_seat("fcfs", "victim: latest-deadline"), "no request has a deadline");
    refused(one_seat("lpm"), "enable_prefix_caching is false");
    refused(one_seat("dfs-weight"), "enable_prefix_caching is false");
    refused(
        "engine: {num_gpu_blocks_override: 100, max_model_len: 400, kv_policy: contiguous-max, scheduling_policy: lpm}\n"
        "step_time: {model: constant, step: 10ns}\n",
        "ranges have none");
    refused(one_seat("{policy: vtc, input_weight: 0, output_weight: 0}"), "nothing would be counted");
    refused(one_seat("{policy: vtc, weights: {a: 0}}"), "weights.a");
    refused(one_seat("{policy: sjf, by: size}"), "by");
    refused(one_seat("{policy: srpt, by: total}"), "by");
    refused(one_seat("{policy: fcfs, aging: 1s}"), "aging");
    refused(one_seat("shortest"), "unknown scheduling_policy 'shortest'");
    refused(one_seat("fcfs", "length_predictor: noisy"), "sd");
    refused(one_seat("fcfs", "length_predictor: {policy: bucket, accuracy: 0.5, bounds: [4, 4]}"), "ascending");
    refused(one_seat("fcfs", "preemption: none"), "guarantees room to the end");
    refused(one_seat("fcfs", "preemption: swap"), "num_cpu_blocks_override");
    refused(one_seat("fcfs", "preemption: swap, num_cpu_blocks_override: 0"), "nowhere to move");
    const Policy one_tenant = policy(one_seat("vtc"));
    CHECK(one_tenant.errors.empty());
    REQUIRE(!one_tenant.warnings.empty());
    CHECK(one_tenant.warnings.front().find("all requests are of one") != std::string::npos);
}

TEST_CASE("orders: weights name tenants that exist") {
    const std::string classes =
        "workload: {requests: 10, arrivals: {process: poisson, rate: 1/s}, prompt_tokens: 5, output_tokens: 5, "
        "classes: [{name: chat}, {name: batch, tenant: acme}]}\n";
    const auto errors = [](const std::string& weights, const std::string& workload) {
        return policy(one_seat("{policy: vtc, weights: " + weights + "}") + workload).errors;
    };
    CHECK(errors("{chat: 2, acme: 3}", classes).empty());
    const auto wrong = errors("{chat: 2, acne: 3}", classes);
    REQUIRE(wrong.size() == 1);
    CHECK(wrong.front().find("unknown tenant 'acne'; did you mean 'acme'?") != std::string::npos);
    CHECK(wrong.front().find("policy.yaml:3:") == 0);
    // The class is no tenant's name where it has a tenant.
    const auto by_class = errors("{batch: 3}", classes);
    REQUIRE(by_class.size() == 1);
    CHECK(by_class.front().find("unknown tenant 'batch' (one of: acme, chat)") != std::string::npos);
    const auto none = errors("{a: 3}", "");
    REQUIRE(none.size() == 1);
    CHECK(none.front().find("weights name tenant 'a', and no request has one") != std::string::npos);
}

TEST_CASE("orders: weights of tenants that no row of a trace has are told when the run is over") {
    const Policy p = policy(one_seat("{policy: vtc, weights: {acme: 2, acne: 3, zz: 4}}") +
                            "workload: {arrivals: all_at_once, trace: {path: none.jsonl}}\n");
    for (const std::string& error : p.errors) MESSAGE(error);
    REQUIRE(p.errors.empty());
    std::vector<Arrival> requests{of_tenant("acme", 1, 1), of_tenant("b", 1, 1)};
    const std::vector<std::string> warnings = run_policy(p, requests).outcome.warnings;
    REQUIRE(warnings.size() == 2);
    CHECK(std::count(warnings.begin(), warnings.end(),
                     "engine.scheduling_policy: no request is of tenant 'acne'; did you mean 'acme'?") == 1);
    CHECK(std::count(warnings.begin(), warnings.end(), "engine.scheduling_policy: no request is of tenant 'zz'") == 1);
}

TEST_CASE("orders: an mlfq whose requests displace each other before they get anywhere ends with a report that says so") {
    // A prompt takes five steps; whoever waits is back on the first level after each, and a chunk is more than any quantum.
    const auto text = [](const std::string& order) {
        return "engine: {num_gpu_blocks_override: 60, block_size: 16, max_model_len: 800, max_num_seqs: 1,\n"
               "  max_num_batched_tokens: 64, async_scheduling: false, enable_prefix_caching: false, scheduling_policy: " +
               order + "}\nstep_time: {model: constant, step: 10ns}\n";
    };
    const std::vector<Arrival> requests(4, arrival(0, 300, 5));
    const Outcome stuck = run_policy(policy(text("{policy: mlfq, quantum: 1, levels: 5, promote: 1ns}")), requests).outcome;
    CHECK(stuck.counters.completed == 0);
    CHECK(stuck.counters.preemptions < 2000);
    CHECK(stuck.stall_report.find("4 requests are left, and they preempt each other") != std::string::npos);
    CHECK(stuck.stall_report.find("or mlfq a longer quantum and promote") != std::string::npos);
    const Outcome done = run_policy(policy(text("{policy: mlfq, quantum: 1, levels: 5, promote: 1us}")), requests).outcome;
    CHECK(done.stall_report.empty());
    CHECK(done.counters.completed == 4);
}
