// When steps start, end and see arrivals. Every step takes 10 ns.

#include "support.hpp"

using namespace kvsim;
using namespace kvsim::engine_test;

namespace {

struct Expected {
    std::int64_t queue;
    std::int64_t ttft;
    std::int64_t e2e;
};

void check_latencies(const Outcome& outcome, const std::vector<Expected>& expected) {
    REQUIRE(outcome.requests.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        CHECK(ns(outcome.requests[i].queue) == expected[i].queue);
        CHECK(ns(outcome.requests[i].ttft) == expected[i].ttft);
        CHECK(ns(outcome.requests[i].e2e) == expected[i].e2e);
    }
}

}  // namespace

TEST_CASE("clock, sync: a step starts at the arrival when idle, else when the step before has ended") {
    // Steps: 5-15 {0}, 15-25 {0, 1}, 25-35 {1, 2}, then idle, 1000-1010 {3}.
    in_both_forms(roomy(), {{5, 3, 2}, {15, 1, 2}, {16, 1, 1}, {1000, 1, 1}}, [](const Outcome& o) {
        check_latencies(o, {{0, 10, 20}, {0, 10, 20}, {9, 19, 19}, {0, 10, 10}});
        CHECK(ns(o.first_arrival) == 5);
        CHECK(ns(o.end) == 1010);
        CHECK(o.counters.steps == 4);
        CHECK(o.counters.rows == 6);
        CHECK(ns(o.integrals.stepping) == 40);
        CHECK(ns(o.integrals.idle) == 1010 - 5 - 40);
        CHECK(ns(o.integrals.any_waiting) == 9);
    });
}

TEST_CASE("clock: at one instant results arrive before requests, and requests before the step starts") {
    for (const bool async : {false, true}) {
        CAPTURE(async);
        SimulationOptions options = roomy(async);
        options.engine.max_num_seqs = 1;
        in_both_forms(options, {{0, 1, 1}, {10, 1, 1}}, [](const Outcome& o) {
            // The seat is free again when request 1 comes, and it is in the step that starts then.
            check_latencies(o, {{0, 10, 10}, {0, 10, 10}});
            CHECK(o.counters.max_in_system == 1);
            CHECK(o.counters.completed_by_last_arrival == 1);
            CHECK(o.counters.waiting_at_last_arrival == 1);
        });
    }
}

TEST_CASE("clock: arrivals at one instant keep their order") {
    SimulationOptions options = roomy();
    options.engine.max_num_seqs = 1;
    in_both_forms(options, {{7, 1, 1}, {7, 1, 1}, {7, 1, 1}}, [](const Outcome& o) {
        check_latencies(o, {{0, 10, 10}, {10, 20, 20}, {20, 30, 30}});
    });
}

TEST_CASE("clock, async: the next batch is decided when the one before starts") {
    // Batches: 0-10 {0}, 10-20 {0} (decided at 0), 20-30 {0, 1} (decided at 10, after 1 came at 5).
    in_both_forms(roomy(true), {{0, 1, 3}, {5, 1, 1}}, [](const Outcome& o) {
        check_latencies(o, {{0, 10, 30}, {5, 25, 25}});
        CHECK(o.counters.steps == 3);
    });
}

TEST_CASE("clock, async: behind an empty schedule the next is at the end of the batch, whoever comes in between") {
    // 20-30 {0} holds its last token, so the schedule at 20 has no rows; request 1 comes at 25 and starts at 30.
    in_both_forms(roomy(true), {{0, 1, 3}, {25, 1, 2}}, [](const Outcome& o) {
        check_latencies(o, {{0, 10, 30}, {5, 15, 25}});
        CHECK(ns(o.integrals.idle) == 0);
    });
}

TEST_CASE("clock, async: a finish is noticed one batch late") {
    // 0 ends at 20. Synchronously 2 has its seat in 20-30; asynchronously 20-30 was decided at 10, so it starts at 30.
    const std::vector<Spec> specs{{0, 1, 2}, {0, 1, 5}, {0, 1, 1}};
    SimulationOptions options = roomy(false);
    options.engine.max_num_seqs = 2;
    in_both_forms(options, specs, [](const Outcome& o) { check_latencies(o, {{0, 10, 20}, {0, 10, 50}, {20, 30, 30}}); });
    options.engine.async_scheduling = true;
    in_both_forms(options, specs, [](const Outcome& o) { check_latencies(o, {{0, 10, 20}, {0, 10, 50}, {20, 40, 40}}); });
}

TEST_CASE("clock, async: idle gaps empty the queue of batches") {
    in_both_forms(roomy(true), {{0, 1, 2}, {500, 1, 2}, {2000, 1, 1}}, [](const Outcome& o) {
        check_latencies(o, {{0, 10, 20}, {0, 10, 20}, {0, 10, 10}});
        CHECK(ns(o.integrals.idle) == 2010 - 50);
    });
}

TEST_CASE("clock: step records carry start and duration, empty schedules none") {
    const std::vector<StepRecord> sync = records(roomy(), {{5, 3, 2}});
    REQUIRE(sync.size() == 2);
    CHECK(ns(sync[0].start) == 5);
    CHECK(ns(sync[0].duration) == 10);
    CHECK(sync[0].total_tokens == 3);
    CHECK(ns(sync[1].start) == 15);
    CHECK(sync[1].updated_step == 1);

    const std::vector<StepRecord> async = records(roomy(true), {{5, 3, 2}});
    REQUIRE(async.size() == 3);
    CHECK(ns(async[0].start) == 5);
    CHECK(async[0].updated_step == StepRecord::none);
    CHECK(ns(async[1].start) == 15);
    CHECK(async[1].updated_step == 0);
    CHECK(async[2].scheduled.empty());
    CHECK(ns(async[2].duration) == 0);
    CHECK(async[2].finished == std::vector<RequestId>{0});
}

TEST_CASE("clock: the front end's time is part of ttft and e2e, not of the queue") {
    SimulationOptions options = roomy();
    options.api = SimDuration(7);
    options.engine.max_num_seqs = 1;
    // Joins at 7 and 8; 7-17 {0}, 17-27 {1}.
    in_both_forms(options, {{0, 1, 1}, {1, 1, 1}}, [](const Outcome& o) {
        check_latencies(o, {{0, 17, 17}, {9, 26, 26}});
        CHECK(o.integrals.in_system_dt == 17 + 26);
    });
}

TEST_CASE("clock: one tokenizer takes requests in order of arrival, a part of ttft, not of the queue") {
    SimulationOptions options = roomy();
    options.tokenizer_ns = 3;
    options.tokenizer_ns_per_token = 2;
    // Tokenized 0-5, 5-12 and 100-105; the second joins while the first computes and starts with the step after.
    in_both_forms(options, {{0, 1, 1}, {1, 2, 1}, {100, 1, 1}}, [](const Outcome& o) {
        check_latencies(o, {{0, 15, 15}, {3, 24, 24}, {0, 15, 15}});
    });
    options.api = SimDuration(7);  // joins at 12, 19 and 112
    in_both_forms(options, {{0, 1, 1}, {1, 2, 1}, {100, 1, 1}}, [](const Outcome& o) {
        check_latencies(o, {{0, 22, 22}, {3, 31, 31}, {0, 22, 22}});
    });
}

TEST_CASE("clock: a cold engine's steps take longer, the less the later they start") {
    SimulationOptions options = roomy();
    options.cold_start = {SimDuration(40), 0.5};
    // From the first arrival at 100: at 0 a step takes 10 x 1.5, at 15 10 x (1 + 0.5 x 25/40) = 13, at 28 10 x 1.15 = 12 (half
    // up), from 40 on 10.
    in_both_forms(options, {{100, 1, 5}, {200, 1, 2}}, [](const Outcome& o) {
        check_latencies(o, {{0, 15, 15 + 13 + 12 + 10 + 10}, {0, 10, 20}});
    });
    options.engine.async_scheduling = true;  // a step is decided while another runs, but starts when that one ends
    in_both_forms(options, {{100, 1, 5}}, [](const Outcome& o) { check_latencies(o, {{0, 15, 60}}); });
}

TEST_CASE("clock: with max_concurrency a request arrives when one leaves") {
    SimulationOptions options = roomy();
    options.max_concurrency = 2;
    in_both_forms(options, {{0, 1, 1}, {0, 1, 3}, {0, 1, 1}, {0, 1, 1}, {70, 1, 1}}, [](const Outcome& o) {
        std::vector<std::int64_t> arrivals;
        for (const RequestRecord& r : o.requests) arrivals.push_back(ns(r.arrival));
        CHECK(arrivals == std::vector<std::int64_t>{0, 0, 10, 20, 70});
        check_latencies(o, {{0, 10, 10}, {0, 10, 30}, {0, 10, 10}, {0, 10, 10}, {0, 10, 10}});
        CHECK(o.counters.max_in_system == 2);
    });
}

TEST_CASE("clock: who is preempted while the last arrival is in the front end does not wait yet when it comes") {
    SimulationOptions options = roomy(true);
    options.engine.num_gpu_blocks = 20;
    options.engine.max_num_seqs = 8;
    options.api = SimDuration(24);
    const std::vector<Spec> specs{{1, 10, 23}, {1, 16, 20}, {1, 6, 26}, {1, 25, 21}, {66, 4, 44}, {148, 18, 20}};
    in_both_forms(options, specs, [](const Outcome& o) {
        CHECK(o.counters.preemptions == 4);
        CHECK(o.counters.waiting_at_last_arrival == 2);  // the next one loses its blocks before it joins them
    });
}

TEST_CASE("clock: a rejected request takes no place at the client, and the workload hears of it") {
    SimulationOptions options = roomy();
    options.max_concurrency = 1;
    Requests requests({{0, 200, 1}, {0, 1, 1}, {0, 300, 1}, {0, 1, 1}});
    const Outcome o = run(options, requests);
    CHECK(requests.left == std::map<RequestId, std::int64_t>{{0, 0}, {1, 10}, {2, 10}, {3, 20}});
    CHECK(o.counters.rejected == 2);
    CHECK(ns(o.end) == 20);
}

TEST_CASE("clock: replicas keep their own time") {
    SimulationOptions options = roomy();
    options.replicas = 2;
    in_both_forms(options, {{0, 1, 2}, {3, 1, 2}, {4, 1, 1}}, [](const Outcome& o) {
        check_latencies(o, {{0, 10, 20}, {0, 10, 20}, {6, 16, 16}});
        CHECK(o.requests[1].replica == 1);
        CHECK(o.requests[2].replica == 0);
        // 0-20 on one, 3-23 on the other.
        CHECK(ns(o.integrals.stepping) == 40);
        CHECK(ns(o.integrals.idle) == 3 + 3);
    });
}
