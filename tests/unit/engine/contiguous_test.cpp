// One range of slots per request: placement against a naive address space, fragmentation worked out by hand, waste shares.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <vector>

#include "../../../sim/kv_managers/address_space.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/model/deployment.hpp"
#include "support.hpp"

namespace kvsim::engine_test {
namespace {

using Blocks = std::vector<std::int64_t>;

/// Slot by slot.
struct NaiveSpace {
    std::vector<bool> taken;
    bool buddy;

    [[nodiscard]] bool free(std::int64_t from, std::int64_t count) const {
        if (from + count > static_cast<std::int64_t>(taken.size())) return false;
        for (std::int64_t i = from; i < from + count; ++i) {
            if (taken[static_cast<std::size_t>(i)]) return false;
        }
        return true;
    }
    void mark(std::int64_t from, std::int64_t count, bool value) {
        for (std::int64_t i = from; i < from + count; ++i) taken[static_cast<std::size_t>(i)] = value;
    }
    /// What a range of `length` takes.
    [[nodiscard]] std::int64_t chunk(std::int64_t length) const {
        return buddy ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(length))) : length;
    }
    /// The largest aligned chunks that are free, by size and address.
    [[nodiscard]] std::set<std::pair<std::int64_t, std::int64_t>> chunks() const {
        std::set<std::pair<std::int64_t, std::int64_t>> out;
        const auto size = static_cast<std::int64_t>(taken.size());
        for (std::int64_t at = 0; at < size;) {
            if (!free(at, 1)) {
                ++at;
                continue;
            }
            std::int64_t n = 1;
            while (at % (2 * n) == 0 && free(at, 2 * n)) n *= 2;
            out.insert({n, at});
            at += n;
        }
        return out;
    }
    [[nodiscard]] std::optional<std::int64_t> find(std::int64_t length) const {
        if (!buddy) {
            for (std::int64_t at = 0; at + length <= static_cast<std::int64_t>(taken.size()); ++at) {
                if (free(at, length)) return at;
            }
            return std::nullopt;
        }
        for (const auto& [n, at] : chunks()) {
            if (n >= chunk(length)) return at;
        }
        return std::nullopt;
    }
};

Maker<KvManager> contiguous(const std::string& name, const std::string& placement = "") {
    config::Diagnostics diagnostics;
    const std::string text =
        placement.empty() ? "kv: " + name : fmt::format("kv: {{policy: {}, placement: {}}}", name, placement);
    const config::Value root = config::parse_yaml(text, "kv.yaml", diagnostics);
    config::Choice choice;
    REQUIRE(config::read_choice(*root.find("kv"), "kv", "policy", choice, diagnostics));
    const auto* entry = find_entry(kv_policies(), "kv_policy", choice.name, choice.name_mark, diagnostics);
    REQUIRE(entry != nullptr);
    const config::Scenario scenario;
    const Deployment deployment;
    Maker<KvManager> out{name, entry->make({choice, scenario, deployment}, diagnostics)};
    diagnostics.throw_if_errors();
    return out;
}

SimulationOptions ranges(std::int64_t slots, Maker<KvManager> kv) {
    SimulationOptions options = roomy();
    options.engine.num_gpu_blocks = slots;
    options.engine.null_blocks = 0;
    options.engine.block_size = 1;
    options.engine.policy.kv = std::move(kv);
    return options;
}

/// Believes in half of the outputs.
class Half final : public LengthPredictor {
public:
    std::int64_t predict(const LiveRequest& request) override { return request.max_tokens / 2; }
};

struct Shares {
    double token, reserved, internal, external;
};
Shares shares(const Outcome& out) {
    const Integrals& i = out.integrals;
    const auto busy = static_cast<double>(i.slots_busy_dt);
    Shares s{static_cast<double>(i.slots_token_dt) / busy, static_cast<double>(i.slots_reserved_dt) / busy,
             static_cast<double>(i.slots_internal_dt) / busy, 0};
    s.external = 1 - s.token - s.reserved - s.internal;
    return s;
}

}  // namespace

TEST_CASE("address space: first fit and buddy against one that looks at every slot") {
    for (const bool buddy : {false, true}) {
        for (const std::int64_t size : {1, 16, 100, 127}) {
            CAPTURE(buddy);
            CAPTURE(size);
            const auto space = buddy ? make_buddy(size) : make_first_fit(size);
            NaiveSpace naive{std::vector<bool>(static_cast<std::size_t>(size)), buddy};
            CHECK(space->longest() == (buddy ? naive.chunks().rbegin()->first : size));
            std::vector<std::pair<std::int64_t, std::int64_t>> held;
            std::uint64_t state = 7;
            const auto below = [&state](std::int64_t n) {
                state = state * 6364136223846793005ULL + 1442695040888963407ULL;
                return static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(n));
            };
            for (int step = 0; step < 2000; ++step) {
                const std::int64_t length = 1 + below(1 + size / 3);
                const auto at = space->find(length);
                REQUIRE(at == naive.find(length));
                if (at && below(5) < 3) {
                    REQUIRE(space->take(length) == *at);
                    naive.mark(*at, naive.chunk(length), true);
                    held.emplace_back(*at, length);
                } else if (!held.empty()) {
                    const auto i = static_cast<std::size_t>(below(static_cast<std::int64_t>(held.size())));
                    space->give(held[i].first, held[i].second);
                    naive.mark(held[i].first, naive.chunk(held[i].second), false);
                    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
                }
            }
            for (const auto& [at, length] : held) space->give(at, length);
            CHECK(space->find(space->longest()) == 0);
        }
    }
}

TEST_CASE("contiguous: free slots that are no hole keep the queue waiting") {
    // 20 slots. A 4 + 3, B 4 + 9, C 4 + 3 outputs: final lengths 6, 12 -> A at 0, B at 6; C (6) waits for A. D would need 8.
    const std::vector<Spec> specs{{0, 4, 3}, {0, 4, 9}, {0, 6, 3}};
    const auto records = engine_test::records(ranges(20, contiguous("contiguous-exact", "first-fit")), specs);
    REQUIRE(records.size() >= 4);
    CHECK(records[0].scheduled.size() == 2);
    CHECK(records[0].scheduled[0].blocks == Blocks{0, 6});
    CHECK(records[0].scheduled[1].blocks == Blocks{6, 12});
    CHECK(records[0].free_after_schedule == 2);
    // A ends with the third step. Its 6 slots and the 2 behind B are 8, as many as C's 6 + 3 - 1 = 8 needs, but two holes.
    CHECK(records[2].finished == std::vector<RequestId>{0});
    CHECK(records[2].free_after_update == 8);
    CHECK(records[3].scheduled.size() == 1);
    CHECK(records[3].waiting == std::vector<RequestId>{2});
    // B ends with the ninth, and C has the whole space before it.
    CHECK(records[8].finished == std::vector<RequestId>{1});
    CHECK(records[9].scheduled[0].blocks == Blocks{0, 8});
}

TEST_CASE("contiguous: what each policy reserves, and its shares") {
    // One request of 5 + 6: computed 5 to 10, final length 10.
    const std::vector<Spec> one{{0, 5, 6}};
    const auto run_with = [&](const char* name) {
        SimulationOptions options = ranges(32, contiguous(name));
        options.engine.max_model_len = 24;
        return run(options, one);
    };
    const double token = (5 + 6 + 7 + 8 + 9 + 10) / 6.0 / 32;
    for (const auto& [policy, internal] :
         {std::pair{"contiguous-max", 24 - 10}, std::pair{"contiguous-pow2", 5 + 8 - 10}, std::pair{"contiguous-exact", 0}}) {
        const std::string name = policy;
        CAPTURE(name);
        const Shares s = shares(run_with(name.c_str()));
        CHECK(s.token == doctest::Approx(token));
        CHECK(s.reserved == doctest::Approx(10.0 / 32 - token));
        CHECK(s.internal == doctest::Approx(internal / 32.0));
        CHECK(s.external == doctest::Approx(1 - (10 + internal) / 32.0));
    }
}

TEST_CASE("contiguous: who outgrows its range moves to one twice as long") {
    SimulationOptions options = ranges(64, contiguous("contiguous-exact", "first-fit"));
    options.engine.policy.predictor = {"half", [](Engine&) { return std::make_unique<Half>(); }};
    std::vector<StepRecord> records;
    options.on_step = [&](std::int64_t, const StepRecord& record) { records.push_back(record); };
    // 4 + 20 outputs believed to be 10: 13 slots. The fourteenth token comes with step 10, and moves it behind itself.
    const Outcome out = run(options, {{0, 4, 20}});
    CHECK(out.counters.completed == 1);
    CHECK(out.counters.preemptions == 0);
    CHECK(records[0].scheduled[0].blocks == Blocks{0, 13});
    for (std::size_t i = 1; i < records.size(); ++i)
        CHECK(records[i].scheduled[0].blocks == (i == 10 ? Blocks{13, 26} : Blocks{}));
    CHECK(records[10].free_after_schedule == 64 - 26);
}

TEST_CASE("contiguous: without a larger range the victim rule makes room") {
    SimulationOptions options = ranges(40, contiguous("contiguous-exact", "first-fit"));
    options.engine.policy.predictor = {"half", [](Engine&) { return std::make_unique<Half>(); }};
    // Both believed to need 13: at 0 and 13. When the first outgrows it, 26 slots are not to be had beside both.
    const Outcome out = run(options, {{0, 4, 20}, {0, 4, 20}});
    CHECK(out.counters.completed == 2);
    CHECK(out.counters.preemptions >= 1);
    CHECK(out.integrals.blocks_used_peak <= 40);
}

TEST_CASE("contiguous: a scenario's blocks become slots, and what needs blocks is refused") {
    const auto resolve = [](const std::string& engine, const std::string& model = "facebook/opt-13b") {
        config::Diagnostics diagnostics;
        const std::string text = fmt::format(
            "model: {}\nhardware: {{gpu: A100-40GB}}\nengine: {{{}}}\n"
            "workload: {{requests: 1, arrivals: all_at_once, prompt_tokens: 1, output_tokens: 1}}\n",
            model, engine);
        const config::Value root = config::parse_yaml(text, "kv.yaml", diagnostics);
        const config::Scenario scenario = config::read_scenario(root, "kv.yaml", diagnostics);
        const Deployment d = resolve_deployment(scenario, Catalog::open(), diagnostics);
        diagnostics.throw_if_errors();
        return d;
    };
    const Deployment d = resolve("kv_cache_memory_bytes: 12GiB, kv_policy: contiguous-max");
    CHECK(d.engine.block_size == 1);
    CHECK(d.engine.usable_blocks() == 15'728);
    CHECK_FALSE(d.engine.enable_prefix_caching);
    CHECK(std::find(d.deviations.begin(), d.deviations.end(), "enable_prefix_caching=false (vllm-v1: true)") !=
          d.deviations.end());
    CHECK_THROWS_WITH_AS(resolve("num_gpu_blocks_override: 983, kv_policy: contiguous-max, enable_prefix_caching: true"),
                         doctest::Contains("a range belongs to one request"), UserError);
    CHECK_THROWS_WITH_AS(resolve("num_gpu_blocks_override: 98300, kv_policy: contiguous-exact", "google/gemma-3-27b-it"),
                         doctest::Contains("several kinds need block tables"), UserError);
    CHECK_THROWS_WITH_AS(resolve("kv_policy: contiguous-max, num_gpu_blocks_override: 100"),
                         doctest::Contains("longer than the longest range of kv_policy contiguous-max, 1600 of 1600"),
                         UserError);
    CHECK_THROWS_WITH_AS(
        resolve("num_gpu_blocks_override: 98300, max_model_len: 8192, kv_policy: radix", "google/gemma-3-27b-it"),
        doctest::Contains("which plain paged has"), UserError);
    const Deployment hybrid =
        resolve("num_gpu_blocks_override: 98300, max_model_len: 8192, kv_policy: paged", "google/gemma-3-27b-it");
    CHECK_FALSE(hybrid.engine.policy.kv);
    CHECK_FALSE(hybrid.engine.kv_groups.empty());
    // Of 2,400 slots the buddy system gives at most 2,048.
    CHECK_NOTHROW(resolve("kv_policy: contiguous-exact, num_gpu_blocks_override: 150"));
    CHECK_THROWS_WITH_AS(resolve("num_gpu_blocks_override: 983, kv_policy: {policy: contiguous-exact, placement: worst}"),
                         doctest::Contains("first-fit"), UserError);
}

}  // namespace kvsim::engine_test
