// The four waste shares over time: in steps of one length the samples between them hold for a whole step, so their sums are the
// integrals, over the run and over each window.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kvsim/report/windows.hpp"
#include "policy_run.hpp"
#include "unit/report/sample_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr SimDuration step{10};
constexpr SimDuration window{70};

struct Sums {
    Int128 busy = 0, token = 0, reserved = 0, internal = 0;
};

std::vector<Arrival> requests(bool caching) {
    std::vector<Arrival> out;
    for (int i = 0; i < 60; ++i) {
        out.push_back(arrival(10 * (i / 3) + (i >= 40 ? 4000 : 0), 1 + i * 7 % 40, 1 + i * 5 % 17));
        if (caching) out.back().prompt = {{static_cast<std::uint64_t>(i % 4) * 1000, out.back().prompt_tokens}};
        out.back().output_base = 1'000'000 + static_cast<std::uint64_t>(i) * 1000;
    }
    return out;
}

void check(const std::string& keys, EngineForm form) {
    CAPTURE(keys);
    const Policy p = policy(
        "engine: {num_gpu_blocks_override: 40, block_size: 4, max_model_len: 64, max_num_seqs: 6,\n"
        "  max_num_batched_tokens: 64, async_scheduling: false, " +
        keys + "}\nstep_time: {model: constant, step: 10ns}\n");
    for (const std::string& error : p.errors) MESSAGE(error);
    REQUIRE(p.errors.empty());
    SimulationOptions options;
    options.engine = p.deployment.engine;
    options.timeline_interval = step;
    options.window = window;
    options.form = form;
    Listed workload(requests(options.engine.enable_prefix_caching));
    config::Diagnostics diagnostics;
    const auto router = make_router({}, 1, diagnostics);
    const Outcome o = simulate(options, *p.step_time, *router, workload);
    REQUIRE(o.stall_report.empty());
    CHECK(o.counters.completed == 60);

    const Int128 slots = o.usable_blocks * o.slots_per_block;
    std::vector<Sums> windows(o.window_marks.size());
    Sums all;
    for (const TimelineSample& s : o.timeline) {
        if (s.running == 0) continue;
        const std::int64_t held = s.kv_blocks_used * o.slots_per_block;
        CHECK(s.reserved_slots >= 0);
        CHECK(s.internal_slots >= 0);
        CHECK(held >= s.reserved_slots + s.internal_slots);
        for (Sums* sums : {&all, &windows[static_cast<std::size_t>(s.at.time_since_epoch() / window)]}) {
            sums->busy += slots * step.count();
            sums->token += static_cast<Int128>(held - s.reserved_slots - s.internal_slots) * step.count();
            sums->reserved += static_cast<Int128>(s.reserved_slots) * step.count();
            sums->internal += static_cast<Int128>(s.internal_slots) * step.count();
        }
    }
    CHECK(o.integrals.slots_busy_dt > 0);
    CHECK((o.integrals.slots_busy_dt == all.busy));
    CHECK((o.integrals.slots_token_dt == all.token));
    CHECK((o.integrals.slots_reserved_dt == all.reserved));
    CHECK((o.integrals.slots_internal_dt == all.internal));
    bool idle_window = false;
    for (std::size_t i = 0; i + 1 < o.window_marks.size(); ++i) {
        const WindowMark& from = o.window_marks[i];
        const WindowMark& to = o.window_marks[i + 1];
        CHECK((to.slots_busy_dt - from.slots_busy_dt == windows[i].busy));
        CHECK((to.slots_token_dt - from.slots_token_dt == windows[i].token));
        CHECK((to.slots_reserved_dt - from.slots_reserved_dt == windows[i].reserved));
        CHECK((to.slots_internal_dt - from.slots_internal_dt == windows[i].internal));
        idle_window = idle_window || windows[i].busy == 0;
    }
    CHECK(idle_window);

    // As the file has them.
    const std::string text = windows_csv(sample_info(), o);
    std::size_t line = text.find('\n') + 1;
    for (std::size_t i = 0; i + 1 < o.window_marks.size(); ++i) {
        const std::size_t end = text.find('\n', line);
        std::string row = text.substr(line, end - line);
        row.resize(row.rfind(','));  // failed
        double sum = 0;
        double first = 0;
        for (int k = 0; k < 4; ++k) {
            const std::size_t comma = row.rfind(',');
            first = comma + 1 == row.size() ? 0 : std::stod(row.substr(comma + 1));
            CHECK(first >= 0);
            sum += first;
            row.resize(comma);
        }
        const bool busy = windows[i].busy > 0;
        CHECK(sum == doctest::Approx(busy ? 1 : 0));
        if (busy) CHECK(first == doctest::Approx(static_cast<double>(windows[i].token) / static_cast<double>(windows[i].busy)));
        line = end + 1;
    }
}

}  // namespace

TEST_CASE("waste over time: samples and windows add up to the run's four shares, under every KV policy and engine") {
    for (const bool caching : {false, true}) {
        const std::string plain = caching ? "enable_prefix_caching: true" : "enable_prefix_caching: false";
        check(plain, EngineForm::automatic);
        check(plain, EngineForm::per_request);
        check(plain, EngineForm::fast);
        check("preset: vllm-v0, " + plain, EngineForm::automatic);
        check("preset: sglang, " + plain, EngineForm::automatic);
        check("batching: decode-first, preemption: swap, num_cpu_blocks_override: 8, " + plain, EngineForm::automatic);
    }
    for (const char* kv : {"{policy: paged, eviction: lfu}", "radix", "{policy: radix, eviction: session-ttl, ttl: 60ns}"})
        check(std::string("enable_prefix_caching: true, kv_policy: ") + kv, EngineForm::automatic);
    for (const char* kv :
         {"contiguous-max", "contiguous-pow2", "contiguous-exact", "{policy: contiguous-pow2, placement: first-fit}",
          "{policy: contiguous-exact, placement: first-fit}"}) {
        for (const char* style : {"static", "iteration"})
            check(std::string("enable_chunked_prefill: false, batching: ") + style + ", kv_policy: " + kv,
                  EngineForm::automatic);
    }
    check("kv_policy: contiguous-exact, length_predictor: {policy: constant, tokens: 2}", EngineForm::automatic);
}
