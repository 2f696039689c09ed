// What a run leaves behind, worked out by hand: warm-up marks, samples, bounds, integrals. Every step takes 10 ns.

#include "kvsim/engine/request_totals.hpp"
#include "support.hpp"

using namespace kvsim;
using namespace kvsim::engine_test;

namespace {

std::vector<bool> measured(const Outcome& o) {
    std::vector<bool> out;
    for (const RequestRecord& r : o.requests) out.push_back(r.measured);
    return out;
}

std::int64_t bound(const Outcome& o, Bound b) {
    return ns(o.integrals.bound[static_cast<std::size_t>(b)]);
}

}  // namespace

TEST_CASE("outcome: warm-up counts from the first arrival, and whoever comes at its end is measured") {
    const std::vector<Spec> specs{{100, 1, 3}, {149, 1, 3}, {150, 1, 3}, {400, 1, 3}};
    SimulationOptions options = roomy();
    in_both_forms(options, specs, [](const Outcome& o) {
        CHECK(measured(o) == std::vector<bool>{true, true, true, true});
        CHECK(o.itl.count() == 8);
        CHECK(o.itl_all.count() == 0);
    });
    options.warmup_time = SimDuration(50);
    in_both_forms(options, specs, [](const Outcome& o) {
        CHECK(measured(o) == std::vector<bool>{false, false, true, true});
        CHECK(o.itl.count() == 4);
        CHECK(o.itl_all.count() == 8);
    });
    options.warmup_time.reset();
    options.warmup_requests = 3;
    in_both_forms(options, specs, [](const Outcome& o) {
        CHECK(measured(o) == std::vector<bool>{false, false, false, true});
        CHECK(o.itl.count() == 2);
        CHECK(o.itl_all.count() == 8);
    });
    options.warmup_time = SimDuration(301);
    options.warmup_requests = 1;
    in_both_forms(options, specs, [](const Outcome& o) {
        CHECK(measured(o) == std::vector<bool>{false, false, false, false});
    });
}

TEST_CASE("outcome: the timeline shows the state after everything that happens at its instant") {
    // 5-15 {0: 9 tokens}, 15-25 {0}, 25-35 {0, 1: 2 tokens}; 1 came at 20.
    SimulationOptions options = roomy();
    options.timeline_interval = SimDuration(5);
    in_both_forms(options, {{5, 9, 3}, {20, 2, 1}}, [](const Outcome& o) {
        struct Row {
            std::int64_t at, running, waiting, blocks, step, tokens, prefill, decode;
        };
        const std::vector<Row> expected{{5, 1, 0, 3, 10, 9, 9, 0},  {10, 1, 0, 3, 10, 9, 9, 0}, {15, 1, 0, 3, 10, 1, 0, 1},
                                        {20, 1, 1, 3, 10, 1, 0, 1}, {25, 2, 0, 4, 10, 3, 2, 1}, {30, 2, 0, 4, 10, 3, 2, 1},
                                        {35, 0, 0, 0, 0, 0, 0, 0}};
        REQUIRE(o.timeline.size() == expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
            CAPTURE(i);
            const TimelineSample& s = o.timeline[i];
            CHECK(ns(s.at) == expected[i].at);
            CHECK(s.running == expected[i].running);
            CHECK(s.waiting == expected[i].waiting);
            CHECK(s.kv_blocks_used == expected[i].blocks);
            CHECK(ns(s.step) == expected[i].step);
            CHECK(s.batch_tokens == expected[i].tokens);
            CHECK(s.prefill_tokens == expected[i].prefill);
            CHECK(s.decode_tokens == expected[i].decode);
            CHECK(s.preemptions == 0);
        }
    });
}

TEST_CASE("outcome: samples stand at multiples of the interval, for every replica, through idle time") {
    SimulationOptions options = roomy();
    options.replicas = 2;
    options.timeline_interval = SimDuration(100);
    in_both_forms(options, {{1, 1, 1}, {450, 1, 1}}, [](const Outcome& o) {
        std::vector<std::int64_t> times;
        for (const TimelineSample& s : o.timeline) {
            times.push_back(ns(s.at));
            CHECK(s.replica == (times.size() + 1) % 2);
            CHECK(s.running == 0);
        }
        CHECK(times == std::vector<std::int64_t>{0, 0, 100, 100, 200, 200, 300, 300, 400, 400});
    });
}

TEST_CASE("outcome: what bound each stretch of time") {
    SUBCASE("seats") {
        // One seat: 0-10 {0} while 1 waits, 10-20 {1}.
        SimulationOptions options = roomy();
        options.engine.max_num_seqs = 1;
        in_both_forms(options, {{0, 1, 1}, {0, 1, 1}, {50, 1, 1}}, [](const Outcome& o) {
            CHECK(bound(o, Bound::seats) == 10);
            CHECK(bound(o, Bound::no_waiting) == 50);
        });
    }
    SUBCASE("token budget") {
        // 20 tokens in steps of 8: 8, 8, 4.
        SimulationOptions options = roomy();
        options.engine.max_num_seqs = 8;
        options.engine.max_num_batched_tokens = 8;
        in_both_forms(options, {{0, 20, 1}}, [](const Outcome& o) {
            CHECK(o.counters.steps == 3);
            CHECK(bound(o, Bound::token_budget) == 20);
            CHECK(bound(o, Bound::no_waiting) == 10);
        });
    }
    SUBCASE("token budget with chunking off") {
        SimulationOptions options = roomy();
        options.engine.enable_chunked_prefill = false;
        options.engine.max_num_batched_tokens = 128;
        in_both_forms(options, {{0, 100, 1}, {0, 100, 1}}, [](const Outcome& o) {
            CHECK(o.counters.steps == 2);
            CHECK(bound(o, Bound::token_budget) == 10);
            CHECK(bound(o, Bound::no_waiting) == 10);
        });
    }
    SUBCASE("KV blocks: the head does not fit") {
        // 8 blocks: 0 takes 5 of them for 17 tokens, 1 needs 5 and waits for 0's three steps.
        SimulationOptions options = roomy();
        options.engine.num_gpu_blocks = 9;
        in_both_forms(options, {{0, 17, 3}, {0, 17, 1}}, [](const Outcome& o) {
            CHECK(bound(o, Bound::kv_blocks) == 30);
            CHECK(bound(o, Bound::no_waiting) == 10);
            CHECK(ns(o.requests[1].queue) == 30);
            CHECK(ns(o.integrals.any_waiting) == 30);
            CHECK(o.integrals.finished_while_waiting == 1);
        });
    }
    SUBCASE("KV blocks: a preemption") {
        // 4 blocks of 4: both prompts of 8 fill them. The ninth token of 0 takes 1's blocks; 1 resumes when 0 is gone at 30.
        SimulationOptions options = roomy();
        options.engine.num_gpu_blocks = 5;
        in_both_forms(options, {{0, 8, 3}, {0, 8, 3}}, [](const Outcome& o) {
            CHECK(o.counters.preemptions == 1);
            CHECK(o.requests[1].preemptions == 1);
            CHECK(bound(o, Bound::kv_blocks) == 20);
            CHECK(bound(o, Bound::no_waiting) == 10 + 20);
            // It had computed 8 tokens and got one output; 9 tokens again, of which 8 were computed before.
            CHECK(o.recomputed_tokens[1] == 8);
            CHECK(o.counters.recomputed_tokens == 8);
            CHECK(o.integrals.recompute_ns == doctest::Approx(10.0 * 8 / 9));
            CHECK(ns(o.requests[1].ttft) == 10);
            CHECK(ns(o.requests[1].e2e) == 50);
            // The gap over the preemption is one of the gaps between tokens: 10 to 40.
            CHECK(o.itl.count() == 4);
            CHECK(o.itl.max() == 30);
        });
    }
}

TEST_CASE("outcome: the waste shares, slot by slot") {
    // One request of 6 prompt and 3 output tokens in blocks of 4; 8 tokens are ever computed, so nothing is internal.
    SimulationOptions options = roomy();
    options.engine.num_gpu_blocks = 6;
    in_both_forms(options, {{0, 6, 3}}, [](const Outcome& o) {
        // Computed 6, 7, 8 in two blocks of 5, 10 ns each.
        CHECK(o.integrals.blocks_used_dt == 60);
        CHECK(o.integrals.slots_busy_dt == 5 * 4 * 30);
        CHECK(o.integrals.slots_token_dt == 60 + 70 + 80);
        CHECK(o.integrals.slots_reserved_dt == 20 + 10);
        CHECK(o.integrals.slots_internal_dt == 0);
    });
    // Two outputs: the eighth slot is never filled.
    in_both_forms(options, {{0, 6, 2}}, [](const Outcome& o) {
        CHECK(o.integrals.slots_token_dt == 60 + 70);
        CHECK(o.integrals.slots_reserved_dt == 10);
        CHECK(o.integrals.slots_internal_dt == 20);
    });
}

TEST_CASE("outcome: recomputed tokens are the same in totals, also of requests that move to a larger ring") {
    std::vector<Spec> specs;
    for (std::int64_t i = 0; i < 4000; ++i) specs.push_back({i * 5, 20 + i % 30, 20 + i * i % 40});
    SimulationOptions options = roomy(true);
    options.engine.num_gpu_blocks = 61;
    for (const EngineForm form : {EngineForm::per_request, EngineForm::fast}) {
        options.form = form;
        options.keep_requests = true;
        const Outcome kept = run(options, specs);
        std::int64_t recomputed = 0;
        for (RequestId id = 0; id < kept.requests.size(); ++id) recomputed += kept.recomputed_tokens[id];
        CHECK(recomputed > 1000);
        CHECK(recomputed == kept.counters.recomputed_tokens);
        options.keep_requests = false;
        const Outcome added = run(options, specs);
        CHECK(added.totals->counts.recomputed_tokens == recomputed);
        CHECK(added.totals->counts.requests == 4000);
    }
}

TEST_CASE("outcome: totals in place of records count the same, also what a warm-up cuts, what is refused and what stalls") {
    std::vector<Spec> specs;
    for (std::int64_t i = 0; i < 5000; ++i) specs.push_back({i * 7, 1 + i % 60, 1 + i * i % 40});
    specs[10].prompt = 500;        // refused
    specs[20] = {140, 4, 120};     // stays while thousands pass
    specs[4999] = {34'993, 1, 1};  // one output token: no TPOT
    SimulationOptions options = roomy(true);
    options.slo.ttft = SimDuration(5000);
    for (const bool cut : {false, true}) {
        if (cut) options.warmup_requests = 100;
        for (const EngineForm form : {EngineForm::per_request, EngineForm::fast}) {
            options.form = form;
            options.keep_requests = true;
            const Outcome kept = run(options, specs);
            options.keep_requests = false;
            const Outcome added = run(options, specs);
            CHECK(added.requests.empty());
            CHECK(added.counters == kept.counters);
            REQUIRE(added.totals);
            REQUIRE((added.totals_all != nullptr) == cut);
            RequestTotals measured;
            RequestTotals all;
            for (RequestId id = 0; id < kept.requests.size(); ++id) {
                const RequestRecord& r = kept.requests[id];
                all.add(r, options.slo, kept.recomputed_tokens[id]);
                if (r.measured) measured.add(r, options.slo, kept.recomputed_tokens[id]);
            }
            const auto same = [](const RequestTotals& a, const RequestTotals& b) {
                CHECK(a.counts.requests == b.counts.requests);
                CHECK(a.counts.completed == b.counts.completed);
                CHECK(a.counts.rejected == b.counts.rejected);
                CHECK(a.counts.met == b.counts.met);
                CHECK(a.counts.output_tokens == b.counts.output_tokens);
                CHECK(a.counts.first_arrival == b.counts.first_arrival);
                CHECK(a.counts.last_completion == b.counts.last_completion);
                for (const auto h : {&RequestTotals::prompt, &RequestTotals::output, &RequestTotals::ttft, &RequestTotals::tpot,
                                     &RequestTotals::e2e, &RequestTotals::queue}) {
                    CHECK((a.*h).count() == (b.*h).count());
                    CHECK((a.*h).mean() == (b.*h).mean());
                    for (const double q : {0.0, 0.1, 0.5, 0.99, 1.0}) CHECK((a.*h).quantile(q) == (b.*h).quantile(q));
                }
            };
            same(*added.totals, measured);
            if (cut) same(*added.totals_all, all);
            CHECK(measured.counts.met > 0);
            CHECK(measured.counts.met < measured.counts.completed);
        }
    }
    // Two requests that never fit together with what they grow to: the run stalls, and they count as unfinished.
    options = roomy();
    options.keep_requests = false;
    options.engine.num_gpu_blocks = 5;
    options.engine.scheduler_reserve_full_isl = false;
    const Outcome stalled = run(options, {{0, 4, 100}, {0, 4, 100}});
    CHECK(!stalled.stall_report.empty());
    CHECK(stalled.totals->counts.requests == 2);
    CHECK(stalled.totals->counts.completed == 0);
}

TEST_CASE("outcome: what an arrival finds counts those who finish while it is in the front end") {
    for (const std::int64_t api : {0, 4, 35, 400}) {
        for (const bool async : {false, true}) {
            CAPTURE(api);
            CAPTURE(async);
            SimulationOptions options = roomy(async);
            options.api = SimDuration(api);
            for (std::int64_t last = 1; last < 120; ++last) {
                in_both_forms(options, {{0, 5, 30}, {0, 5, 3}, {1, 5, 9}, {last, 5, 2}}, [](const Outcome& o) {
                    std::int64_t most = 0, done = 0;
                    Int128 in_system = 0;
                    for (const RequestRecord& arriving : o.requests) {
                        std::int64_t there = 0;
                        done = 0;
                        for (const RequestRecord& r : o.requests) {
                            const bool ended = r.arrival + r.e2e <= arriving.arrival;
                            there += r.arrival <= arriving.arrival && !ended;
                            done += ended;
                        }
                        most = std::max(most, there);
                        in_system += arriving.e2e.count();
                    }
                    CHECK(o.counters.max_in_system == most);
                    CHECK(o.counters.completed_by_last_arrival == done);
                    CHECK((o.integrals.in_system_dt == in_system));
                });
            }
        }
    }
}
