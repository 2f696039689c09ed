// vLLM V0's public behaviours, each on a case small enough to be followed by hand; recordings replayed, and a falsified one
// noticed.

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kvsim/engine/conformance.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/model/engine_args.hpp"

namespace fs = std::filesystem;

namespace kvsim {
namespace {

struct Step {
    std::vector<std::pair<RequestId, std::int64_t>> rows;  // request, tokens that are computed
    std::vector<RequestId> preempted;
    std::vector<RequestId> finished;
};
using Rows = decltype(Step::rows);
using Ids = std::vector<RequestId>;

/// 0.8.5 without chunking, caching or async output processing; blocks of 4 tokens.
EngineArgs arguments(std::int64_t blocks) {
    EngineArgs args;
    args.preset = args.batching = "vllm-v0";
    args.num_gpu_blocks = blocks;
    args.null_blocks = 0;
    args.block_size = 4;
    args.max_num_seqs = 16;
    args.max_num_batched_tokens = 512;
    args.max_model_len = 512;
    args.enable_chunked_prefill = args.enable_prefix_caching = args.async_scheduling = false;
    args.watermark = 0.01;
    args.tokens_past_limit = 1;
    args.v0.async_output_processing = false;
    return args;
}

class Driver : private EngineListener {
public:
    explicit Driver(const EngineArgs& args) : engine_(args, *this) {}

    /// Ids count from 0. `shared` tokens at the beginning are the same for all.
    void add(std::int64_t prompt, std::int64_t tokens, std::int64_t shared = 0) {
        NewRequest request;
        request.id = next_++;
        request.prompt = prompt;
        request.max_tokens = tokens;
        if (shared > 0) request.content.push_back({7, shared});
        if (shared < prompt) request.content.push_back({1'000'000 + 1'000 * std::uint64_t{request.id}, prompt - shared});
        request.output_base = 1'000'000'000 + 1'000 * std::uint64_t{request.id};
        engine_.enqueue(request);
    }
    Step step() {
        Step out;
        engine_.schedule(batch_, SimTime{});
        for (const BatchRow& row : batch_.rows) out.rows.emplace_back(row.id, row.tokens);
        out.preempted = batch_.preempted;
        engine_.update(batch_, SimTime{});
        out.finished = engine_.finished();
        return out;
    }
    Engine& engine() { return engine_; }
    Ids dropped;
    std::vector<std::int64_t> outputs;

private:
    void on_dropped(RequestId id, const Aborted&, SimTime) override { dropped.push_back(id); }
    void on_finished(RequestId, std::int64_t n, SimTime) override { outputs.push_back(n); }

    Engine engine_;
    Batch batch_;
    RequestId next_ = 0;
};

TEST_CASE("V0 preempts with a free block short although none is needed") {
    Driver v0(arguments(4));
    v0.add(7, 3);
    v0.add(7, 3);
    CHECK(v0.step().rows == Rows{{0, 7}, {1, 7}});
    CHECK(v0.engine().free_blocks() == 0);
    // Both have room for their 8th token in the block they hold; each demands a free block all the same.
    const Step step = v0.step();
    CHECK(step.preempted == Ids{1});
    CHECK(step.rows == Rows{{0, 1}});
    CHECK(v0.engine().free_blocks() == 2);  // and nothing was taken
}

TEST_CASE("V0: a decode demands a block: a lone request whose last block has room preempts itself") {
    Driver v0(arguments(2));
    v0.add(7, 2);
    v0.step();
    const Step step = v0.step();
    CHECK(step.preempted == Ids{0});
    CHECK(step.rows.empty());
    CHECK(v0.step().rows == Rows{{0, 8}});  // recomputed with its first output, and that yields the second
}

TEST_CASE("V0: recompute ping-pong: the victim comes back in the next step, stops all decodes and is preempted again") {
    Driver v0(arguments(4));
    v0.add(7, 9);
    v0.add(7, 9);
    v0.step();
    CHECK(v0.step().preempted == Ids{1});
    CHECK(v0.step().rows == Rows{{1, 8}});
    const Step again = v0.step();
    CHECK(again.preempted == Ids{1});
    CHECK(again.rows == Rows{{0, 1}});
}

TEST_CASE("V0: the default mode stalls all decodes in a step with an admission") {
    Driver v0(arguments(50));
    v0.add(8, 5);
    v0.add(8, 5);
    v0.step();
    CHECK(v0.step().rows == Rows{{0, 1}, {1, 1}});
    v0.add(20, 2);
    CHECK(v0.step().rows == Rows{{2, 20}});
    CHECK(v0.step().rows == Rows{{0, 1}, {1, 1}, {2, 1}});
    SUBCASE("with chunked prefill they go on beside it") {
        EngineArgs args = arguments(50);
        args.enable_chunked_prefill = true;
        Driver chunked(args);
        chunked.add(8, 5);
        chunked.step();
        chunked.add(20, 2);
        CHECK(chunked.step().rows == Rows{{1, 20}, {0, 1}});
    }
}

TEST_CASE("V0 admits nothing while one request is swapped out") {
    EngineArgs args = arguments(6);
    args.v0.preemption = VllmV0Args::Preemption::swap;
    args.v0.num_cpu_blocks = 8;
    Driver v0(args);
    v0.add(8, 6);
    v0.add(8, 6);
    v0.step();
    v0.step();  // each takes a third block: none is free
    v0.add(3, 1);
    const Step out = v0.step();
    CHECK(out.preempted == Ids{1});
    CHECK(v0.engine().free_blocks() == 3);
    const Step in = v0.step();  // room for the newcomer too, which still waits
    CHECK(in.rows == Rows{{0, 1}, {1, 1}});
    CHECK(v0.engine().waiting_count() == 1);
    int steps = 0;
    while (v0.step().rows != Rows{{2, 3}} && steps < 20) ++steps;
    CHECK(steps < 20);
}

TEST_CASE("V0: the watermark truncates to 0 below 100 blocks") {
    Driver below(arguments(99));
    below.add(99 * 4, 1);
    CHECK(below.step().rows.size() == 1);
    Driver from(arguments(100));
    from.add(100 * 4, 1);  // one of the 100 must stay free: never
    from.add(99 * 4, 1);
    CHECK(from.step().rows == Rows{{1, 99 * 4}});
    CHECK(from.dropped == Ids{0});
}

TEST_CASE("V0: prefix caching with chunked prefill caps concurrency at about budget - block_size + 1") {
    EngineArgs args = arguments(100);
    args.enable_chunked_prefill = args.enable_prefix_caching = true;
    args.max_num_batched_tokens = 10;
    args.max_num_seqs = 10;
    args.max_model_len = 64;
    Driver v0(args);
    for (int i = 0; i < 10; ++i) v0.add(4, 40);
    std::size_t most = 0;
    for (int i = 0; i < 20; ++i) most = std::max(most, v0.step().rows.size());
    CHECK(most == 7);
    args.enable_prefix_caching = false;
    Driver plain(args);
    for (int i = 0; i < 10; ++i) plain.add(4, 40);
    for (int i = 0; i < 20; ++i) most = std::max(most, plain.step().rows.size());
    CHECK(most == 10);
}

TEST_CASE("V0: hit counts are frozen at the first look") {
    EngineArgs args = arguments(10);
    args.enable_prefix_caching = true;
    Driver v0(args);
    v0.add(24, 2, 20);  // 6 blocks
    v0.add(24, 2, 20);  // 6 more are asked for, no discount: it waits, and what it hits is fixed to nothing
    CHECK(v0.step().rows == Rows{{0, 24}});
    while (v0.step().finished.empty()) {}
    v0.add(24, 2, 20);
    // 20 of its tokens are cached by now; the second request computes them all the same.
    CHECK(v0.step().rows == Rows{{1, 24}});
    int steps = 0;
    Step last;
    do last = v0.step();
    while (last.rows != Rows{{2, 4}} && ++steps < 20);
    CHECK(steps < 20);  // the third was looked at later and computes 4
}

TEST_CASE("V0 gives one token more than max_model_len") {
    EngineArgs args = arguments(50);
    args.max_model_len = 16;
    Driver v0(args);
    v0.add(10, 100);
    for (int i = 0; i < 30 && v0.outputs.empty(); ++i) v0.step();
    CHECK(v0.outputs == std::vector<std::int64_t>{7});
}

TEST_CASE("V0: equal prompts of one step share blocks and compute everything") {
    EngineArgs args = arguments(50);
    args.enable_prefix_caching = true;
    Driver v0(args);
    v0.add(8, 3, 8);
    v0.add(8, 3, 8);
    CHECK(v0.step().rows == Rows{{0, 8}, {1, 8}});
    CHECK(v0.engine().used_blocks() == 2);
}

TEST_CASE("V0: a full pool with a partial last block under chunked prefill preempts itself for ever") {
    EngineArgs args = arguments(7);
    args.enable_chunked_prefill = true;
    args.max_num_batched_tokens = 16;
    Driver v0(args);
    v0.add(27, 3);
    int preempted = 0;
    for (int i = 0; i < 20; ++i) preempted += static_cast<int>(v0.step().preempted.size());
    CHECK(preempted == 10);
    CHECK(v0.outputs.empty());
}

TEST_CASE("V0: async output processing wastes one decode per request and frees its blocks a step late") {
    EngineArgs args = arguments(50);
    args.v0.async_output_processing = true;
    Driver v0(args);
    v0.add(8, 2);
    v0.step();
    v0.step();  // the second and last token
    const Step wasted = v0.step();
    CHECK(wasted.rows == Rows{{0, 1}});
    CHECK(wasted.finished == Ids{0});
    CHECK(v0.engine().used_blocks() == 0);
    CHECK(v0.outputs == std::vector<std::int64_t>{2});
}

TEST_CASE("V0 dies where it must swap and the CPU has no room") {
    EngineArgs args = arguments(4);
    args.v0.preemption = VllmV0Args::Preemption::swap;
    args.v0.num_cpu_blocks = 1;
    Driver v0(args);
    v0.add(7, 3);
    v0.add(7, 3);
    v0.step();
    CHECK_THROWS_AS(v0.step(), EngineCrash);
}

TEST_CASE("V0 of 0.6.3 forks a request's outputs, copies the block they both write to, and swap ends the sharing") {
    EngineArgs args = arguments(9);
    args.v0.release = VllmV0Args::Release::v0_6_3;
    args.v0.num_cpu_blocks = 20;
    args.max_num_seqs = 2;
    Driver v0(args);
    NewRequest two;
    two.prompt = 10;
    two.max_tokens = 6;
    two.sequences = 2;
    v0.engine().enqueue(two);
    v0.step();
    CHECK(v0.engine().used_blocks() == 3);
    v0.step();  // the partial third block is copied once
    CHECK(v0.engine().used_blocks() == 4);
    for (int i = 0; i < 10 && v0.outputs.empty(); ++i) v0.step();
    CHECK(v0.outputs == std::vector<std::int64_t>{12});
    CHECK(v0.engine().used_blocks() == 0);
}

TEST_CASE("V0: a request that leaves while it waits, runs or is swapped out holds nothing") {
    EngineArgs args = arguments(6);
    args.v0.preemption = VllmV0Args::Preemption::swap;
    args.v0.num_cpu_blocks = 8;
    Driver v0(args);
    v0.add(8, 6);
    v0.add(8, 6);
    v0.step();
    v0.step();
    CHECK(v0.step().preempted == Ids{1});  // slot 1 is on the CPU
    v0.add(3, 1);                          // slot 2 waits
    for (const Slot slot : {Slot{2}, Slot{1}, Slot{0}}) v0.engine().abort(slot);
    CHECK(v0.engine().used_blocks() == 0);
    CHECK(v0.engine().unfinished() == 0);
    v0.add(8, 1);
    CHECK(v0.step().finished.size() == 1);
}

TEST_CASE("V0: recordings are replayed, and a falsified field is noticed") {
    const fs::path folder = fs::path(KVSIM_SOURCE_DIR) / "tests" / "golden" / "vllm_v0";
    const fs::path copy = fs::temp_directory_path() / "kvsim_v0_falsified";
    fs::create_directories(copy);
    for (const fs::path& input : conformance_inputs(folder)) {
        const ConformanceResult right = replay(input, "");
        CHECK_MESSAGE(right.same, right.name << ": " << right.difference);
        std::string stem = input.filename().string();
        stem.resize(stem.size() - std::string(".in.json").size());
        fs::copy_file(input, copy / (stem + ".in.json"), fs::copy_options::overwrite_existing);
        std::ifstream in(folder / (stem + ".out.jsonl"));
        std::stringstream text;
        text << in.rdbuf();
        for (const char* field : {"\"gpu\":", "\"q\":", "\"cpu_sched\":", "\"t\":", "\"nb\":[", "\"end\":\""}) {
            std::string wrong = text.str();
            const std::size_t at = wrong.rfind(field) + std::string(field).size();
            wrong[at] = wrong[at] == '1' ? '2' : '1';
            std::ofstream(copy / (stem + ".out.jsonl")) << wrong;
            CHECK_MESSAGE(!replay(copy / (stem + ".in.json"), "").same, stem << " with another " << field);
        }
    }
    fs::remove_all(copy);
}

}  // namespace
}  // namespace kvsim
