// Once it runs steadily the fast engine does not touch the heap, nor do clients. A program of its own, because it replaces
// operator new (allocation_counter.cpp).

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <chrono>
#include <new>
#include <optional>

#include "allocation_counter.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/engine/simulation.hpp"
#include "kvsim/model/pieces.hpp"

namespace kvsim {
namespace {

/// A stream of requests that notes the number of allocations when request `from` and request `to` are issued.
class Counted final : public Workload {
public:
    /// `groups`: prompts begin with one of so many shared texts of 64 tokens; 0: nobody shares any.
    Counted(std::int64_t count, std::int64_t from, std::int64_t to, SimDuration gap, std::int64_t groups = 0)
        : count_(count), from_(from), to_(to), gap_(gap), groups_(groups) {}
    std::optional<SimTime> next_time() override {
        if (next_ == count_) return std::nullopt;
        return SimTime(gap_ * next_);
    }
    void pop(Arrival& out) override {
        if (next_ == from_) at_from_ = allocations();
        if (next_ == to_) at_to_ = allocations();
        out.time = SimTime(gap_ * next_);
        out.prompt_tokens = 20 + 37 * next_ % 400;
        out.output_tokens = 1 + 11 * next_ % 150;
        if (groups_ > 0) {
            out.prompt.clear();
            out.prompt.push_back({static_cast<std::uint64_t>(1 + next_ * next_ % groups_) << 20, 64});
            out.prompt.push_back({private_tokens(static_cast<RequestId>(next_)), out.prompt_tokens});
            out.prompt_tokens += 64;
        }
        ++next_;
    }
    [[nodiscard]] bool closed_loop() const override { return false; }
    [[nodiscard]] bool outputs_are_private() const override { return true; }
    [[nodiscard]] std::optional<std::int64_t> size_hint() const override { return count_; }
    [[nodiscard]] std::int64_t allocated() const { return at_to_ - at_from_; }

private:
    std::int64_t count_;
    std::int64_t from_;
    std::int64_t to_;
    SimDuration gap_;
    std::int64_t groups_;
    std::int64_t next_ = 0;
    std::int64_t at_from_ = -1;
    std::int64_t at_to_ = -1;
};

struct Affine final : StepTimeModel {
    [[nodiscard]] SimDuration duration(const StepShape& shape) const override {
        return round_step(5e6 + 2e4 * static_cast<double>(shape.tokens) + 100.0 * static_cast<double>(shape.decode_context));
    }
    [[nodiscard]] std::optional<DecodeLine> decode_line(std::int64_t rows) const override {
        return DecodeLine{5e6 + 2e4 * static_cast<double>(rows), 100.0};
    }
    [[nodiscard]] std::string describe() const override { return "affine"; }
};

struct First final : Router {
    std::size_t pick(const Arrival&, std::span<const ReplicaLoad>) override { return 0; }
};

}  // namespace

TEST_CASE("the fast engine allocates nothing between two points of a steady run") {
    struct Case {
        const char* name;
        bool async = false;
        std::int64_t blocks = 4'001;
        SimDuration api{};
        std::int64_t groups = 0;
        std::int64_t replicas = 1;
        std::optional<std::int64_t> concurrency = std::nullopt;
        bool keep_requests = true;
    };
    using std::chrono::milliseconds;
    for (const Case& c : {Case{.name = "sync"}, Case{.name = "async", .async = true}, Case{.name = "preempting", .blocks = 480},
                          Case{.name = "async, preempting", .async = true, .blocks = 480},
                          Case{.name = "front end", .async = true, .api = milliseconds(30)},
                          Case{.name = "prefix caching", .async = true, .groups = 7},
                          Case{.name = "prefix caching, preempting", .async = true, .blocks = 480, .groups = 7},
                          Case{.name = "more prefixes than the cache holds", .async = true, .blocks = 600, .groups = 500},
                          Case{.name = "replicas", .async = true, .api = milliseconds(30), .replicas = 3},
                          Case{.name = "at the client", .async = true, .concurrency = 20},
                          Case{.name = "histograms", .async = true, .blocks = 480, .keep_requests = false}}) {
        INFO(std::string(c.name));
        SimulationOptions options;
        options.form = EngineForm::fast;
        options.api = c.api;
        options.replicas = c.replicas;
        options.max_concurrency = c.concurrency;
        options.latency_from_intended = c.concurrency.has_value();
        options.keep_requests = c.keep_requests;
        options.engine.num_gpu_blocks = c.blocks;
        options.engine.max_model_len = 2'048;
        options.engine.max_num_seqs = 64;
        options.engine.max_num_batched_tokens = 512;
        options.engine.enable_prefix_caching = c.groups > 0;
        options.engine.async_scheduling = c.async;
        // Requests come slower than 64 seats can serve them, so the queue stays short.
        Counted workload(20'000, 5'000, 15'000, milliseconds(25), c.groups);
        First router;
        const Outcome outcome = simulate(options, Affine{}, router, workload);
        CHECK(outcome.counters.completed == 20'000);
        CHECK((outcome.counters.preemptions > 0) == (c.blocks < 1'000));
        CHECK((outcome.counters.hit_tokens_first > 0) == (c.groups > 0));
        CHECK(outcome.client_queue.empty() != c.concurrency.has_value());
        CHECK(workload.allocated() == 0);
    }
}

TEST_CASE("a recorded step allocates nothing for a row that only decodes") {
    std::int64_t rows = 0;
    SimulationOptions options;
    options.form = EngineForm::fast;
    options.engine.num_gpu_blocks = 4'001;
    options.engine.max_model_len = 2'048;
    options.engine.max_num_seqs = 64;
    options.engine.max_num_batched_tokens = 512;
    options.engine.enable_prefix_caching = false;
    options.on_step = [&rows](std::int64_t, const StepRecord& record) {
        rows += static_cast<std::int64_t>(record.scheduled.size());
    };
    Counted workload(20'000, 5'000, 15'000, std::chrono::milliseconds(25));
    First router;
    CHECK(simulate(options, Affine{}, router, workload).counters.completed == 20'000);
    CHECK(rows > 70 * 20'000);
    // Lists of blocks grow: that of a request that prefills, and of one in block_size of those that decode.
    CHECK(workload.allocated() < 10 * 10'000);
}

TEST_CASE("classes of an open loop keep nothing of what they have sent") {
    config::Diagnostics diagnostics;
    const config::Scenario scenario = config::read_scenario(
        config::parse_yaml("workload:\n"
                           "  requests: 20000\n"
                           "  classes:\n"
                           "    - {name: a, arrivals: {process: poisson, rate: 3/s}, prompt_tokens: 50, output_tokens: 20}\n"
                           "    - {name: b, arrivals: {process: poisson, rate: 2/s}, prompt_tokens: 70, output_tokens: 5}\n",
                           "t.yaml", diagnostics),
        "t.yaml", diagnostics);
    const auto workload = make_workload(scenario.workload, 1, {}, diagnostics);
    REQUIRE(workload);
    CHECK_FALSE(workload->listens());
    Arrival arrival;
    std::int64_t after_half = 0;
    for (int i = 0; i < 20'000; ++i) {
        REQUIRE(workload->next_time());
        workload->pop(arrival);
        if (i == 10'000) after_half = allocations();
    }
    CHECK(allocations() == after_half);
    CHECK_FALSE(workload->next_time());
}

TEST_CASE("the counter counts") {
    const std::int64_t before = allocations();
    ::operator delete(::operator new(8));
    CHECK(allocations() == before + 1);
}

}  // namespace kvsim
