// Beam search: which blocks beams share, step by step, from the tables of the step log.

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "kvsim/base/check.hpp"
#include "support.hpp"

namespace kvsim::engine_test {
namespace {

class Beams final : public Workload {
public:
    Beams(std::int64_t prompt, std::int64_t output, std::int64_t beams, std::uint64_t seed)
        : prompt_(prompt), output_(output), beams_(beams), seed_(seed) {}
    std::optional<SimTime> next_time() override { return sent_ ? std::nullopt : std::optional(SimTime{}); }
    void pop(Arrival& out) override {
        sent_ = true;
        out = {};
        out.prompt_tokens = prompt_;
        out.output_tokens = output_;
        out.n = beams_;
        out.beam_seed = seed_;
    }
    [[nodiscard]] bool closed_loop() const override { return false; }
    [[nodiscard]] bool outputs_are_private() const override { return true; }
    [[nodiscard]] bool may_branch() const override { return true; }

private:
    std::int64_t prompt_, output_, beams_;
    std::uint64_t seed_;
    bool sent_ = false;
};

SimulationOptions vllm_0_6_3() {
    SimulationOptions options = roomy();
    options.engine.preset = options.engine.batching = "vllm-v0";
    options.engine.null_blocks = 0;
    options.engine.tokens_past_limit = 1;
    options.engine.v0.release = VllmV0Args::Release::v0_6_3;
    options.engine.enable_chunked_prefill = false;
    options.engine.max_num_batched_tokens = 512;
    return options;
}

struct Run {
    Outcome out;
    std::vector<std::vector<std::vector<std::int64_t>>> tables;  // by decode step and beam
    std::vector<std::int64_t> used;
};

Run search(std::int64_t prompt, std::int64_t output, std::int64_t beams, std::uint64_t seed) {
    Run run;
    SimulationOptions options = vllm_0_6_3();
    options.on_step = [&](std::int64_t, const StepRecord& record) {
        for (const ScheduledRow& row : record.scheduled) {
            if (row.tables.empty()) continue;
            auto& step = run.tables.emplace_back();
            std::size_t at = 0;
            for (const std::int64_t n : row.tables) {
                step.emplace_back(row.blocks.begin() + static_cast<std::ptrdiff_t>(at),
                                  row.blocks.begin() + static_cast<std::ptrdiff_t>(at + static_cast<std::size_t>(n)));
                at += static_cast<std::size_t>(n);
            }
            run.used.push_back(options.engine.usable_blocks() - record.free_after_schedule);
        }
    };
    Beams workload(prompt, output, beams, seed);
    InTurn router;
    run.out = simulate(options, TenNanoseconds{}, router, workload);
    return run;
}

}  // namespace

TEST_CASE("beam search: beams share what they have in common, each writes to a block of its own, nothing is lost") {
    for (const std::int64_t beams : {2, 3, 6}) {
        for (std::uint64_t seed = 1; seed <= 5; ++seed) {
            CAPTURE(beams);
            CAPTURE(seed);
            const Run run = search(10, 40, beams, seed);
            CHECK(run.out.counters.completed == 1);
            CHECK(run.out.requests[0].output_tokens == 40 * beams);
            REQUIRE(run.tables.size() == 39);
            std::int64_t saved = 0;
            for (std::size_t s = 0; s < run.tables.size(); ++s) {
                const auto& tables = run.tables[s];
                REQUIRE(static_cast<std::int64_t>(tables.size()) == beams);
                std::map<std::int64_t, std::size_t> place;  // of each block
                std::set<std::int64_t> last;
                for (const auto& table : tables) {
                    REQUIRE(static_cast<std::int64_t>(table.size()) == ceil_div(10 + static_cast<std::int64_t>(s) + 1, 4));
                    // The prompt's two full blocks are everybody's.
                    REQUIRE(table[0] == tables[0][0]);
                    REQUIRE(table[1] == tables[0][1]);
                    for (std::size_t j = 0; j < table.size(); ++j) REQUIRE(place.emplace(table[j], j).first->second == j);
                    last.insert(table.back());
                }
                REQUIRE(static_cast<std::int64_t>(last.size()) == beams);
                // Beams that share a block share all before it: they have one ancestor.
                for (const auto& a : tables) {
                    for (const auto& b : tables) {
                        bool apart = false;
                        for (std::size_t j = 0; j < a.size(); ++j) {
                            apart = apart || a[j] != b[j];
                            REQUIRE((a[j] != b[j]) == apart);
                        }
                    }
                }
                REQUIRE(run.used[s] == static_cast<std::int64_t>(place.size()));
                saved += beams * static_cast<std::int64_t>(tables[0].size()) - run.used[s];
            }
            CHECK(static_cast<std::int64_t>(run.out.integrals.blocks_saved_dt) == saved * 10);
            const Integrals& i = run.out.integrals;
            const auto held = static_cast<std::int64_t>(i.slots_token_dt + i.slots_reserved_dt + i.slots_internal_dt);
            CHECK(static_cast<std::int64_t>(i.slots_token_dt) > 0);
            CHECK(held == static_cast<std::int64_t>(i.blocks_used_dt) * 4);
        }
    }
}

TEST_CASE("beam search: beams have a common past, which outputs drawn independently have not") {
    const auto saved = [](std::uint64_t seed) {
        return static_cast<std::int64_t>(search(10, 100, 4, seed).out.integrals.blocks_saved_dt);
    };
    const std::int64_t parallel = saved(0);  // no beams
    for (std::uint64_t seed = 1; seed <= 5; ++seed) CHECK(saved(seed) > 4 * parallel);
    CHECK(saved(1) == saved(1));
    CHECK(saved(1) != saved(2));
}

TEST_CASE("beam search: engines without it refuse it with the reason") {
    SimulationOptions options = roomy();
    Beams workload(10, 10, 2, 1);
    InTurn router;
    CHECK_THROWS_WITH_AS(simulate(options, TenNanoseconds{}, router, workload), doctest::Contains("vllm-0.6.3-v0"), UserError);
}

}  // namespace kvsim::engine_test
