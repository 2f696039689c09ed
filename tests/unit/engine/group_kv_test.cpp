// Several block tables per request, worked out by hand. Blocks of 4 tokens; ids are given out from 1 on.

#include <cstdint>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/report/step_log.hpp"
#include "support.hpp"

namespace kvsim::engine_test {
namespace {

using Blocks = std::vector<std::int64_t>;
using Rule = BlockGroup::Rule;

BlockGroup group(Rule rule, std::int64_t window = 0, std::int64_t tables = 1, std::int64_t block_size = 4) {
    BlockGroup g;
    g.rule = rule;
    g.block_size = block_size;
    g.window = window;
    g.tables = tables;
    return g;
}

SimulationOptions grouped(std::vector<BlockGroup> groups, bool caching = false) {
    SimulationOptions options = roomy();
    options.engine.num_gpu_blocks = 101;
    options.engine.kv_groups = std::move(groups);
    options.engine.enable_prefix_caching = caching;
    return options;
}

/// Requests with one and the same prompt, each cut to its length.
class SamePrompt final : public Workload {
public:
    explicit SamePrompt(std::vector<Spec> specs) : specs_(std::move(specs)) {}
    std::optional<SimTime> next_time() override {
        if (next_ == specs_.size()) return std::nullopt;
        return SimTime(SimDuration(specs_[next_].at));
    }
    void pop(Arrival& out) override {
        const Spec& s = specs_[next_];
        out = {};
        out.time = SimTime(SimDuration(s.at));
        out.prompt_tokens = s.prompt;
        out.output_tokens = s.output;
        out.prompt = {{1'000'000, s.prompt}};
        out.output_base = 2'000'000 + 1000 * next_++;
    }
    [[nodiscard]] bool closed_loop() const override { return false; }
    [[nodiscard]] bool outputs_are_private() const override { return true; }

private:
    std::vector<Spec> specs_;
    std::size_t next_ = 0;
};

std::vector<StepRecord> same_prompt_records(SimulationOptions options, const std::vector<Spec>& specs) {
    std::vector<StepRecord> out;
    options.on_step = [&out](std::int64_t, const StepRecord& record) { out.push_back(record); };
    SamePrompt requests(specs);
    InTurn router;
    simulate(options, TenNanoseconds{}, router, requests);
    return out;
}

void check_row(const StepRecord& record, const Blocks& blocks, const Blocks& tables, std::int64_t free) {
    CAPTURE(record.step);
    REQUIRE(record.scheduled.size() == 1);
    CHECK(record.scheduled[0].blocks == blocks);
    CHECK(record.scheduled[0].tables == tables);
    CHECK(record.free_after_schedule == free);
}

TEST_CASE("groups: a request's blocks in a window and in full attention, step by step") {
    SimulationOptions options = grouped({group(Rule::sliding, 6), group(Rule::full)});
    options.engine.max_num_batched_tokens = 8;
    options.engine.max_num_seqs = 8;
    const auto steps = records(options, {{0, 12, 4}});
    REQUIRE(steps.size() == 5);
    check_row(steps[0], {1, 2, 3, 4}, {2, 2}, 96);
    // 8 computed: the next token sees from 8 - 5 = 3 on, in the first block still.
    check_row(steps[1], {5, 6}, {1, 1}, 94);
    // 12 computed, from 7 on: block 1 (tokens 0 to 3) goes, then each table takes one for token 12.
    check_row(steps[2], {7, 8}, {1, 1}, 93);
    // 13 computed, from 8 on: block 2 goes.
    check_row(steps[3], {}, {0, 0}, 94);
    check_row(steps[4], {}, {0, 0}, 94);
    CHECK(steps[4].free_after_update == 100);
}

TEST_CASE("groups: chunked attention keeps the current chunk, a state its fixed blocks") {
    SimulationOptions options = grouped({group(Rule::chunked, 8), group(Rule::state, 0, 3)});
    options.engine.kv_groups[1].state_blocks = 2;
    options.engine.max_num_batched_tokens = 8;
    options.engine.max_num_seqs = 8;
    const auto steps = records(options, {{0, 12, 6}});
    REQUIRE(steps.size() == 7);
    // Two blocks for the chunk's 8 tokens, and 3 tables of 2.
    check_row(steps[0], {1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 2, 2}, 92);
    // The ninth token opens a chunk: both blocks go before one is taken.
    check_row(steps[1], {9}, {1, 0, 0, 0}, 93);
    check_row(steps[2], {10}, {1, 0, 0, 0}, 92);  // token 12
    check_row(steps[5], {}, {0, 0, 0, 0}, 92);    // token 15
    check_row(steps[6], {11}, {1, 0, 0, 0}, 93);  // token 16 opens the third chunk
    CHECK(steps[6].free_after_update == 100);
}

TEST_CASE("groups: a hit needs the window's blocks only, and null blocks stand before it") {
    const SimulationOptions options = grouped({group(Rule::sliding, 6), group(Rule::full)}, true);
    const auto steps = same_prompt_records(options, {{0, 40, 1}, {100, 40, 1}});
    REQUIRE(steps.size() == 2);
    check_row(steps[0], {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, {10, 10}, 80);
    // At most 39 tokens: 9 blocks. The token after 36 sees from 31 on: blocks 7 and 8 of the window's table.
    CHECK(steps[1].scheduled[0].computed == 36);
    check_row(steps[1], {0, 0, 0, 0, 0, 0, 0, 8, 9, 21, 11, 12, 13, 14, 15, 16, 17, 18, 19, 22}, {10, 10}, 87);
    CHECK(steps[1].free_after_update == 100);
}

TEST_CASE("groups: the hit ends where the last group's does") {
    // 5 blocks of full attention survive; of the window's table only what the pool left. 18 usable blocks: the second request
    // takes the 10 never used and 2 released ones, which are the first table's last.
    SimulationOptions options = grouped({group(Rule::sliding, 6), group(Rule::full)}, true);
    options.engine.num_gpu_blocks = 21;
    options.engine.scheduler_reserve_full_isl = true;
    // A: 20 tokens, 5 + 5 blocks, ids 1-5 and 6-10; released as 5 4 3 2 1 10 9 8 7 6 behind 11-20.
    // B: 24 tokens of its own content, 6 + 6 blocks: takes 11-20, then 5 and 4.
    class Two final : public Workload {
    public:
        std::optional<SimTime> next_time() override {
            if (next_ == 3) return std::nullopt;
            return SimTime(SimDuration(next_ * 100));
        }
        void pop(Arrival& out) override {
            out = {};
            out.time = SimTime(SimDuration(next_ * 100));
            out.prompt_tokens = next_ == 1 ? 24 : 20;
            out.output_tokens = 1;
            out.prompt = {{next_ == 1 ? 5'000'000U : 1'000'000U, out.prompt_tokens}};
            out.output_base = 2'000'000 + 1000 * static_cast<std::uint64_t>(next_++);
        }
        [[nodiscard]] bool closed_loop() const override { return false; }
        [[nodiscard]] bool outputs_are_private() const override { return true; }

    private:
        std::int64_t next_ = 0;
    } requests;
    std::vector<StepRecord> steps;
    options.on_step = [&steps](std::int64_t, const StepRecord& record) { steps.push_back(record); };
    InTurn router;
    simulate(options, TenNanoseconds{}, router, requests);
    REQUIRE(steps.size() == 3);
    CHECK(steps[1].scheduled[0].blocks == Blocks{11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 5, 4});
    // Full attention would give 4 blocks (16 of 19 tokens). The window's table has lost its blocks 3 and 4 (ids 4, 5), so the
    // longest run that covers a window ends after block 2: 12 tokens, and the token after them sees from 7 on, in block 1.
    CHECK(steps[2].scheduled[0].computed == 12);
    CHECK(steps[2].scheduled[0].tables == Blocks{5, 5});
    const Blocks& blocks = steps[2].scheduled[0].blocks;
    CHECK(Blocks(blocks.begin(), blocks.begin() + 3) == Blocks{0, 2, 3});
    CHECK(Blocks(blocks.begin() + 5, blocks.begin() + 8) == Blocks{6, 7, 8});
}

TEST_CASE("groups: a hit is a whole number of every group's blocks") {
    const SimulationOptions options = grouped({group(Rule::full, 0, 1, 8), group(Rule::full, 0, 1, 12)}, true);
    const auto steps = same_prompt_records(options, {{0, 40, 1}, {100, 48, 1}, {200, 49, 1}});
    REQUIRE(steps.size() == 3);
    CHECK(steps[0].scheduled[0].tables == Blocks{5, 4});
    CHECK(steps[1].scheduled[0].computed == 24);  // 40 tokens were there, 24 in blocks of both sizes
    CHECK(steps[2].scheduled[0].computed == 48);
}

TEST_CASE("groups: waste shares count a token once in every table") {
    // One request of 6 tokens for one step of 10 ns; 2 tables of 4-token blocks: 2 blocks each, 2 slots of each never filled.
    const Outcome o = run(grouped({group(Rule::sliding, 100, 2)}), {{0, 6, 1}});
    CHECK(o.integrals.blocks_used_dt == 4 * 10);
    CHECK(o.integrals.slots_token_dt == 2 * 6 * 10);
    CHECK(o.integrals.slots_internal_dt == 2 * 2 * 10);
    CHECK(o.integrals.slots_busy_dt == 100 * 4 * 10);
    // Blocks of 4 and 8 tokens: a slot is an eighth of a block, a state fills its block.
    SimulationOptions options = grouped({group(Rule::full, 0, 1, 4), group(Rule::full, 0, 1, 8), group(Rule::state)});
    const Outcome mixed = run(options, {{0, 6, 1}});
    CHECK(mixed.integrals.blocks_used_dt == 4 * 10);
    CHECK(mixed.integrals.slots_busy_dt == 100 * 8 * 10);
    CHECK(mixed.integrals.slots_internal_dt == (2 * 2 + 2) * 10);
    CHECK(mixed.integrals.slots_token_dt == (2 * 6 + 6 + 8) * 10);
}

TEST_CASE("groups: a request is refused by what its windows need, not by its length") {
    // Window 8, 16 tokens a step: at most ceil((7 + 16) / 4) + 1 = 7 blocks of a table, full attention takes ceil(61 / 4) = 16.
    SimulationOptions options = grouped({group(Rule::sliding, 8, 2), group(Rule::full)});
    options.engine.max_num_batched_tokens = 16;
    for (const std::int64_t usable : {29, 30}) {
        CAPTURE(usable);
        options.engine.num_gpu_blocks = usable + 1;
        const Outcome o = run(options, {{0, 60, 2}, {0, 4, 1}});
        CHECK(o.counters.rejected == (usable == 29 ? 1 : 0));
        CHECK(o.counters.completed == (usable == 29 ? 1 : 2));
        CHECK(o.integrals.blocks_used_peak <= usable);
    }
}

TEST_CASE("groups: a preempted request gives every table's blocks back and resumes from nothing without caching") {
    SimulationOptions options = grouped({group(Rule::sliding, 8), group(Rule::full)});
    options.engine.scheduler_reserve_full_isl = false;
    options.engine.num_gpu_blocks = 22;
    const Outcome o = run(options, {{0, 20, 20}, {0, 20, 20}});
    CHECK(o.counters.preemptions > 0);
    CHECK(o.counters.completed == 2);
    CHECK(o.stall_report == "");
}

TEST_CASE("groups: the step log has a list of blocks for each table") {
    const auto steps =
        same_prompt_records(grouped({group(Rule::sliding, 6), group(Rule::full)}, true), {{0, 9, 1}, {100, 9, 1}});
    REQUIRE(steps.size() == 2);
    const std::string line = to_json(
        steps[0], [](RequestId id) { return std::to_string(id); }, false);
    CHECK(line.find(R"("b":[[1,2,3],[4,5,6]]})") != std::string::npos);
    StepRecord empty = steps[0];
    empty.scheduled[0].blocks.clear();
    empty.scheduled[0].tables = {0, 0};
    CHECK(to_json(
              empty, [](RequestId id) { return std::to_string(id); }, false)
              .find(R"("b":[[],[]]})") != std::string::npos);
}

TEST_CASE("groups: decode rows tell what they attend to in each window") {
    struct Watch final : StepTimeModel {
        SimDuration duration(const StepShape& shape) const override {
            if (shape.chunks.empty()) {
                for (const WindowContext& w : shape.windows) seen.push_back(w.context);
            }
            return SimDuration(10);
        }
        [[nodiscard]] std::string describe() const override { return ""; }
        mutable std::vector<std::int64_t> seen;
    } watch;
    Requests requests({{0, 12, 3}, {0, 3, 3}});
    InTurn router;
    // Contexts 13 and 4, then 14 and 5: a window of 6 sees 6 + 4 and 6 + 5, chunks of 5 see 3 + 4 and 4 + 5.
    simulate(grouped({group(Rule::sliding, 6, 2), group(Rule::chunked, 5), group(Rule::full), group(Rule::sliding, 6)}), watch,
             router, requests);
    CHECK(watch.seen == Blocks{10, 7, 11, 9});
}

}  // namespace
}  // namespace kvsim::engine_test
