// Victims, and what becomes of them: recomputed, swapped, or whichever is cheaper.

#include <doctest/doctest.h>

#include <algorithm>

#include "kvsim/engine/engine.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "policy_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

using Ids = std::vector<RequestId>;

/// 12 usable blocks of 4 tokens; a step takes 10 ns.
std::string small(const std::string& more) {
    return "engine: {num_gpu_blocks_override: 13, block_size: 4, max_model_len: 48, max_num_seqs: 8,\n"
           "  max_num_batched_tokens: 64, async_scheduling: false, enable_prefix_caching: false" +
           (more.empty() ? "" : ", " + more) + "}\nstep_time: {model: constant, step: 10ns}\n";
}

PolicyRun run(const std::string& text, const std::vector<Arrival>& arrivals) {
    const Policy p = policy(text);
    for (const std::string& error : p.errors) MESSAGE(error);
    REQUIRE(p.errors.empty());
    return run_policy(p, arrivals);
}

RequestId first_victim(const std::string& more, const std::vector<Arrival>& arrivals, const std::string& rest = "") {
    const PolicyRun r = run(small(more) + rest, arrivals);
    for (const StepRecord& step : r.steps) {
        if (!step.preempted.empty()) return step.preempted.front();
    }
    FAIL("nobody was preempted");
    return 0;
}

}  // namespace

TEST_CASE("victims: each rule picks its own") {
    // At the shortage: 0 has the longest context, 1 the most to come, 2 is urgent least of all, 3 came last.
    std::vector<Arrival> arrivals{arrival(0, 15, 12), arrival(1, 6, 30), arrival(2, 10, 12), arrival(3, 8, 12)};
    arrivals[0].request_class = "loose";
    arrivals[2].priority = 5;
    const std::string slo =
        "slo: {e2e: 2s}\nworkload: {requests: 1, arrivals: all_at_once, prompt_tokens: 1, output_tokens: 1,"
        "\n  classes: [{name: loose, slo: {e2e: 9s}}]}\n";
    CHECK(first_victim("", arrivals) == 3);
    CHECK(first_victim("victim: last", arrivals) == 3);
    CHECK(first_victim("victim: lowest-priority", arrivals) == 2);
    CHECK(first_victim("scheduling_policy: {policy: priority, aging: 1s}", arrivals) == 2);
    CHECK(first_victim("victim: latest-deadline", arrivals, slo) == 0);
    CHECK(first_victim("victim: most-blocks", arrivals) == 0);
    CHECK(first_victim("victim: least-progress", arrivals) == 1);
    CHECK(first_victim("victim: longest-remaining", arrivals) == 1);
    // Believed to yield 1 each, all have one more to come: the last admitted.
    CHECK(first_victim("victim: longest-remaining, length_predictor: {policy: constant, tokens: 1}", arrivals) == 3);
    const RequestId any = first_victim("victim: random", arrivals);
    const auto expected = static_cast<RequestId>(uniform_int(StreamKey(1, "victim").first_uniform(0), 0, 3));
    CHECK(any == expected);
}

TEST_CASE("preemption: a swapped request resumes with what was computed, a recomputed one from nothing") {
    // 6 blocks each at the end, of 12 - 1... both start with 4 and take a block each at the same steps.
    const std::vector<Arrival> arrivals{arrival(0, 20, 10), arrival(0, 20, 10)};
    const PolicyRun recomputed = run(small(""), arrivals);
    REQUIRE(recomputed.outcome.counters.preemptions == 1);
    CHECK(recomputed.outcome.counters.recomputed_tokens > 0);
    CHECK(recomputed.outcome.counters.swapped_tokens == 0);

    const PolicyRun swapped = run(small("preemption: swap, num_cpu_blocks_override: 7"), arrivals);
    REQUIRE(swapped.outcome.counters.preemptions == 1);
    CHECK(swapped.outcome.counters.recomputed_tokens == 0);
    // Its 24 tokens fill 6 blocks when the other needs a seventh.
    CHECK(swapped.outcome.counters.swapped_tokens == 24);
    CHECK(swapped.outcome.recomputed_tokens[1] == 0);
    std::int64_t resumed = 0;
    for (const StepRecord& step : swapped.steps) {
        for (const ScheduledRow& row : step.scheduled) {
            if (row.kind != ScheduledRow::Kind::resumed) continue;
            ++resumed;
            CHECK(row.id == 1);
            CHECK(row.computed == 24);
            CHECK(row.tokens == 1);
        }
    }
    CHECK(resumed == 1);
    CHECK(swapped.outcome.counters.completed == 2);

    // One block too few on the CPU.
    const PolicyRun full = run(small("preemption: swap, num_cpu_blocks_override: 5"), arrivals);
    CHECK(full.outcome.counters.swapped_tokens == 0);
    CHECK(full.outcome.counters.recomputed_tokens == recomputed.outcome.counters.recomputed_tokens);
}

TEST_CASE("preemption: the CPU's room of a request that is given up comes back") {
    const Policy p = policy(small("preemption: swap, num_cpu_blocks_override: 6"));
    REQUIRE(p.errors.empty());
    EngineListener nobody;
    Engine engine(p.deployment.engine, nobody);
    const auto join = [&](RequestId id) {
        NewRequest r;
        r.id = id;
        r.arrival_rank = id;
        r.prompt = 20;
        r.max_tokens = 10;
        return engine.enqueue(r);
    };
    Batch batch;
    std::int64_t swapped = 0;
    const auto step = [&](SimTime now) {
        engine.schedule(batch, now);
        swapped += batch.swapped_tokens;
        engine.update(batch, now);
    };
    SimTime now{};
    join(0);
    const Slot second = join(1);
    for (; swapped == 0 && now < SimTime(SimDuration(20)); now += SimDuration(1)) step(now);
    REQUIRE(swapped == 24);  // all 6 blocks of the CPU
    engine.abort(second);
    join(2);
    for (; engine.unfinished() > 0; now += SimDuration(1)) step(now);
    CHECK(swapped == 24 + 20);
    CHECK(engine.used_blocks() == 0);
}

TEST_CASE("preemption: the CPU's room comes back, with the resumed and with those that finish in flight") {
    // Async scheduling, caching and shortage for long: every request ends, and as much moves in as out.
    std::vector<Arrival> arrivals;
    for (int i = 0; i < 60; ++i) arrivals.push_back(arrival(i * 7, 5 + i % 11, 4 + i % 17));
    for (const std::string& more :
         {std::string("preemption: swap, num_cpu_blocks_override: 9"),
          std::string("preemption: swap, num_cpu_blocks_override: 9, victim: random, scheduling_policy: srpt"),
          std::string(
              "preemption: swap, num_cpu_blocks_override: 9, scheduling_policy: {policy: mlfq, quantum: 8, levels: 3}")}) {
        for (const bool async : {false, true}) {
            CAPTURE(more);
            CAPTURE(async);
            std::string text = small(more);
            text.replace(text.find("async_scheduling: false"), 23,
                         async ? "async_scheduling: true " : "async_scheduling: false");
            const PolicyRun r = run(text, arrivals);
            CHECK(r.outcome.stall_report.empty());
            CHECK(r.outcome.counters.completed == 60);
            CHECK(r.outcome.counters.swapped_tokens > 0);
        }
    }
}

TEST_CASE("preemption: the preempted wait in front, or behind all others") {
    const std::vector<Arrival> arrivals{arrival(0, 20, 12), arrival(0, 20, 12), arrival(15, 4, 1)};
    const auto order = [&](const std::string& more) {
        Ids out;
        for (const StepRecord& step : run(small(more), arrivals).steps) {
            for (const ScheduledRow& row : step.scheduled) {
                if (row.kind != ScheduledRow::Kind::running) out.push_back(row.id);
            }
        }
        return out;
    };
    CHECK(order("") == Ids{0, 1, 1, 2});
    CHECK(order("requeue: front") == Ids{0, 1, 1, 2});
    CHECK(order("requeue: back") == Ids{0, 1, 2, 1});
}

TEST_CASE("predictors: what each believes") {
    const auto believed = [](const std::string& predictor, std::vector<NewRequest> requests, std::uint64_t seed = 1) {
        const Policy p = policy(small("length_predictor: " + predictor));
        for (const std::string& error : p.errors) MESSAGE(error);
        REQUIRE(p.errors.empty());
        EngineArgs args = p.deployment.engine;
        args.seed = seed;
        EngineListener nobody;
        Engine engine(args, nobody);
        std::vector<std::int64_t> out;
        for (NewRequest& request : requests) {
            const Slot slot = engine.enqueue(request);
            out.push_back(engine.request(slot).predicted);
        }
        return out;
    };
    const auto request = [](RequestId id, std::int64_t prompt, std::int64_t outputs) {
        NewRequest r;
        r.id = id;
        r.prompt = prompt;
        r.max_tokens = outputs;
        return r;
    };
    using Lengths = std::vector<std::int64_t>;
    const std::vector<NewRequest> requests{request(0, 8, 5), request(1, 8, 1), request(2, 40, 7)};
    CHECK(believed("oracle", requests) == Lengths{5, 1, 7});
    CHECK(believed("{policy: constant, tokens: 20}", requests) == Lengths{20, 20, 8});  // 48 - 40 are left
    CHECK(believed("max", requests) == Lengths{40, 40, 8});
    CHECK(believed("class-mean", requests) == Lengths{40, 40, 8});
    CHECK(believed("{policy: class-mean, initial: 3}", requests) == Lengths{3, 3, 3});
    CHECK(believed("{policy: history, initial: 4}", requests) == Lengths{4, 4, 4});
    CHECK(believed("{policy: noisy, sd: 0}", requests) == Lengths{5, 1, 7});
    CHECK(believed("{policy: bucket, bounds: [4, 6], accuracy: 1}", requests) == Lengths{6, 4, 8});  // twice 6, cut to 8
    // Never the right one; which of the two others is a fair coin.
    std::vector<NewRequest> many;
    for (RequestId id = 0; id < 2000; ++id) many.push_back(request(id, 8, 5));
    const Lengths wrong = believed("{policy: bucket, bounds: [4, 6], accuracy: 0}", many);
    CHECK(std::count(wrong.begin(), wrong.end(), 6) == 0);
    CHECK(std::count(wrong.begin(), wrong.end(), 4) + std::count(wrong.begin(), wrong.end(), 12) == 2000);
    CHECK(std::abs(std::count(wrong.begin(), wrong.end(), 4) - 1000) < 110);  // 5 sd of a binomial law
    const Lengths mostly = believed("{policy: bucket, bounds: [4, 6], accuracy: 0.8}", many);
    CHECK(std::abs(std::count(mostly.begin(), mostly.end(), 6) - 1600) < 90);
    // The median factor is 1, and one in six is more than a factor exp(sd) off on either side.
    const Lengths noisy = believed("{policy: noisy, sd: 0.7}", many);
    CHECK(std::abs(std::count_if(noisy.begin(), noisy.end(), [](auto n) { return n > 10; }) - 289) < 80);
    // Draws are of the seed and the request alone.
    std::vector<NewRequest> backwards(many.rbegin(), many.rend());
    Lengths reversed = believed("{policy: noisy, sd: 0.7}", backwards);
    std::reverse(reversed.begin(), reversed.end());
    CHECK(reversed == noisy);
    CHECK(believed("{policy: noisy, sd: 0.7}", many, 2) != noisy);
}

TEST_CASE("predictors: the mean of the class, and the last ones, follow what has finished") {
    EngineListener nobody;
    for (const bool history : {false, true}) {
        const Policy p = policy(small(history ? "length_predictor: {policy: history, window: 1, initial: 9}"
                                              : "length_predictor: {policy: class-mean, initial: 9}"));
        REQUIRE(p.errors.empty());
        Engine engine(p.deployment.engine, nobody);
        std::vector<std::int64_t> believed;
        RequestId id = 0;
        for (const auto& [name, outputs] :
             {std::pair{"a", 2}, std::pair{"a", 5}, std::pair{"b", 1}, std::pair{"a", 1}, std::pair{"", 3}}) {
            NewRequest r;
            r.id = id++;
            r.prompt = 4;
            r.max_tokens = outputs;
            r.request_class = name;
            believed.push_back(engine.request(engine.enqueue(r)).predicted);
            Batch batch;
            for (SimTime now{}; engine.unfinished() > 0; now += SimDuration(1)) {
                engine.schedule(batch, now);
                engine.update(batch, now);
            }
        }
        // a: 2, then (2 + 5) / 2 rounded half up.
        if (history) {
            CHECK(believed == std::vector<std::int64_t>{9, 2, 5, 1, 1});
        } else {
            CHECK(believed == std::vector<std::int64_t>{9, 2, 9, 4, 9});
        }
    }
}
