// The composed batch policies against their naive form, over random combinations of everything a policy is composed of.
// KVSIM_ORACLE_SCENARIOS: how many; KVSIM_ORACLE_SEED: the first seed.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "compare.hpp"
#include "kvsim/config/diagnostics.hpp"
#include "kvsim/model/deployment.hpp"
#include "naive_policies.hpp"
#include "naive_simulation.hpp"
#include "random_scenarios.hpp"

namespace kvsim::oracle {
namespace {

std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : std::stoull(value);
}

class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::int64_t between(std::int64_t low, std::int64_t high) {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);  // splitmix64
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
        return low + static_cast<std::int64_t>((z ^ (z >> 31)) % static_cast<std::uint64_t>(high - low + 1));
    }
    bool percent(std::int64_t p) { return between(0, 99) < p; }
    template <class T>
    T any_of(const std::vector<T>& values) {
        return values[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(values.size()) - 1))];
    }

private:
    std::uint64_t state_;
};

struct Composed {
    Scenario scenario;
    NaivePolicy policy;
};

NaivePolicy::Piece random_order(Random& random, std::int64_t unit) {
    NaivePolicy::Piece p;
    p.name = random.any_of<std::string>({"fcfs", "priority", "sjf", "ljf", "srpt", "srpt", "edf", "slo-slack", "mlfq", "mlfq",
                                         "vtc", "vtc", "lpm", "dfs-weight", "random"});
    if (p.name == "priority" && random.percent(60)) p.params["aging"] = fmt::format("{}ns", unit * random.between(1, 12));
    if ((p.name == "sjf" || p.name == "ljf") && random.percent(70))
        p.params["by"] = random.any_of<std::string>({"prompt", "output", "total"});
    if (p.name == "mlfq") {
        p.params["quantum"] = std::to_string(random.between(1, 12));
        p.params["levels"] = std::to_string(random.between(1, 5));
        if (random.percent(60)) p.params["promote"] = fmt::format("{}ns", unit * random.between(2, 30));
    }
    if (p.name == "vtc" && random.percent(50)) {
        p.params["input_weight"] = random.any_of<std::string>({"0.5", "1", "2"});
        p.params["output_weight"] = random.any_of<std::string>({"0.25", "1", "3"});
    }
    if (p.name == "vtc" && random.percent(50))
        p.params["weights"] = random.any_of<std::string>({"{a: 2}", "{b: 0.5}", "{chat: 3}"});
    return p;
}

NaivePolicy::Piece random_predictor(Random& random) {
    NaivePolicy::Piece p;
    p.name = random.any_of<std::string>({"oracle", "constant", "class-mean", "noisy", "bucket", "history", "max"});
    if (p.name == "constant") p.params["tokens"] = std::to_string(random.between(1, 12));
    if (p.name == "class-mean" || p.name == "history") p.params["initial"] = std::to_string(random.between(1, 20));
    if (p.name == "history") p.params["window"] = std::to_string(random.between(1, 6));
    if (p.name == "noisy") p.params["sd"] = random.any_of<std::string>({"0.3", "1", "2"});
    if (p.name == "bucket") {
        p.params["bounds"] = random.any_of<std::string>({"[2, 8, 20]", "[4]", "[1, 3, 9, 27]"});
        p.params["accuracy"] = random.any_of<std::string>({"0.5", "0.8", "1"});
    }
    return p;
}

/// `preemption: none` where whoever starts can end: some of those that happen to be such, and some made so.
void draw_no_preemption(Random& random, NaivePolicy& policy, bool contiguous) {
    const bool made_so = random.percent(10);
    if (policy.order.name == "mlfq" || policy.order.name == "srpt") {
        if (!made_so) return;
        policy.order = {"fcfs", {}};
    }
    const bool foretells = policy.predictor.name == "oracle" || policy.kv.name == "contiguous-max";
    const bool expects = contiguous || policy.admission.name == "expected";
    if (policy.style != "no-evict" && !(foretells && expects)) {
        if (!made_so) return;
        policy.predictor = {"oracle", {}};
        if (!contiguous) policy.admission = {"expected", {}};
    }
    if (made_so || random.percent(50)) policy.preemption = "none";
}

/// A random scenario under a random policy.
Composed random_composed(std::uint64_t seed) {
    Random random(seed * 0x9fb21c651e98df25U + 11);
    Composed c;
    c.scenario = random_scenario(seed * 4 + (seed % 3));  // without block groups
    SimulationOptions& options = c.scenario.options;
    EngineArgs& args = options.engine;
    NaivePolicy& policy = c.policy;
    args.kv_groups.clear();
    if (c.scenario.arrivals.size() > 20) c.scenario.arrivals.resize(20);
    args.scheduling_policy = QueueOrder::fcfs;
    policy.seed = seed;
    const auto unit = std::max<std::int64_t>(2, static_cast<std::int64_t>(c.scenario.step_time.c0));

    policy.style = random.any_of<std::string>(
        {"vllm-v1", "vllm-v1", "static", "iteration", "decode-first", "no-evict", "max-utilization", "past-future"});
    policy.order = random_order(random, unit);
    if (random.percent(50)) {
        policy.victim.name = random.any_of<std::string>(
            {"last", "lowest-priority", "latest-deadline", "most-blocks", "least-progress", "longest-remaining", "random"});
    }
    if (random.percent(60)) {
        policy.admission.name = random.any_of<std::string>({"optimistic", "full-input", "expected", "past-future"});
    }
    policy.predictor = random_predictor(random);
    if (random.percent(30)) policy.requeue = "back";
    if (random.percent(15)) policy.max_live_tokens = random.between(args.max_model_len, 3 * args.max_model_len);

    // Classes, tenants, deadlines.
    for (Arrival& a : c.scenario.arrivals) {
        a.request_class = random.any_of<std::string>({"", "chat", "batch"});
        a.tenant = random.any_of<std::string>({"", "a", "b"});
        if (random.percent(50)) a.priority = random.between(0, 3);
    }
    const auto some = [&](std::int64_t most) { return SimDuration(unit * random.between(1, most)); };
    for (const char* name : {"", "chat"}) {
        if (!random.percent(name[0] == 0 ? 80 : 50)) continue;
        NaivePolicy::Slo slo;
        if (random.percent(60)) slo.ttft = some(40);
        if (random.percent(60)) slo.e2e = some(120);
        if (random.percent(60)) slo.tpot = some(4);
        if (slo.ttft || slo.e2e || slo.tpot) policy.slos[name] = slo;
    }
    if (policy.order.name == "edf" || policy.order.name == "slo-slack" || policy.victim.name == "latest-deadline") {
        NaivePolicy::Slo& slo = policy.slos["chat"];
        slo.e2e = some(120);
        slo.tpot = some(4);
    }

    // KV, and what becomes of those that lose it.
    if (random.percent(45)) {
        NaivePolicy::Piece& kv = policy.kv;
        kv.name = random.any_of<std::string>(
            {"paged", "paged", "radix", "radix", "contiguous-max", "contiguous-pow2", "contiguous-exact"});
        if (kv.name == "paged" || kv.name == "radix") {
            args.enable_prefix_caching = true;
            kv.params["eviction"] = random.any_of<std::string>({"lru", "lfu", "fifo", "session-ttl"});
            if (kv.params["eviction"] == "session-ttl") kv.params["ttl"] = fmt::format("{}ns", unit * random.between(1, 40));
        } else {
            if (random.percent(60)) kv.params["placement"] = random.any_of<std::string>({"first-fit", "buddy"});
            args.enable_prefix_caching = false;
            args.num_gpu_blocks = (args.num_gpu_blocks - 1) * args.block_size;
            args.block_size = 1;
            args.null_blocks = 0;
            // The longest request has a range.
            std::int64_t chunk = 1;
            while (chunk < args.max_model_len) chunk *= 2;
            args.num_gpu_blocks = std::max(args.num_gpu_blocks, chunk + random.between(0, chunk));
            const auto kept = [&args] {
                return static_cast<std::int64_t>(args.watermark * static_cast<double>(args.num_gpu_blocks));
            };
            while (args.num_gpu_blocks - kept() < args.max_model_len) ++args.num_gpu_blocks;
            if (policy.admission.name == "expected" || policy.admission.name == "past-future") policy.admission = {};
            // Who outgrows a range that was too short may lose it.
            if (policy.style == "no-evict" && kv.name != "contiguous-max") policy.predictor = {"oracle", {}};
        }
    }
    if (policy.style == "static" || policy.style == "iteration") {
        args.async_scheduling = args.enable_chunked_prefill = false;
        args.long_prefill_token_threshold = 0;
    }
    const bool contiguous = policy.kv.name.rfind("contiguous", 0) == 0;
    if (!contiguous && random.percent(40)) {
        policy.preemption = random.percent(60) ? "swap" : "cheaper";
        args.v0.num_cpu_blocks = random.percent(50) ? random.between(1, 6) : 10 * args.num_gpu_blocks;
        args.v0.swap_ns_per_block =
            random.percent(80) ? static_cast<double>(unit) * static_cast<double>(random.between(1, 40)) / 30 : 0;
        args.v0.swap_overlaps = random.percent(40);
    }
    if (policy.style == "no-evict" && (policy.order.name == "mlfq" || policy.order.name == "srpt")) policy.order = {"sjf", {}};
    if (policy.style == "static" && policy.order.name == "mlfq") policy.order = {"sjf", {}};
    if (policy.order.name == "lpm" || policy.order.name == "dfs-weight") {
        if (contiguous) {
            policy.order = {"fcfs", {}};
        } else {
            args.enable_prefix_caching = true;
        }
    }
    if ((policy.style == "decode-first" || policy.style == "no-evict" || policy.style == "max-utilization") &&
        args.enable_chunked_prefill && random.percent(35)) {
        policy.context_chunking = "equal_progress";
    }
    if (policy.style == "past-future" && random.percent(50)) policy.wait_tokens = random.between(1, 4);
    Random more(seed * 0xc2b2ae3d27d4eb4fU + 3);  // what came later leaves the rest as it was
    draw_no_preemption(more, policy, contiguous);
    if (policy.style == "no-evict" && more.percent(30)) policy.max_new_tokens = more.between(1, args.max_model_len);
    args.sglang.max_new_tokens = policy.max_new_tokens;
    if (!contiguous && more.percent(5)) args.watermark = static_cast<double>(more.between(30, 80)) / 100;
    if (more.percent(30)) {
        const std::int64_t most = more.percent(10) ? 12 : 4;
        for (Arrival& a : c.scenario.arrivals) {
            if (more.percent(50)) a.n = more.between(1, most);
        }
    }
    return c;
}

template <class Piece, class Table>
Maker<Piece> make_piece(const Table& table, const NaivePolicy::Piece& piece, const config::Scenario& scenario,
                        const Deployment& deployment) {
    if (piece.name.empty()) return {};
    config::Choice choice;
    choice.name = piece.name;
    choice.written = true;
    choice.params.kind = config::Value::Kind::map;
    const auto add = [&choice](const std::string& key, const std::string& text) {
        config::Member member;
        member.key = key;
        if (text.front() == '{') {
            const std::size_t colon = text.find(':');
            member.value.kind = config::Value::Kind::map;
            config::Member& inner = member.value.map.emplace_back();
            inner.key = text.substr(1, colon - 1);
            inner.value.kind = config::Value::Kind::scalar;
            inner.value.scalar = text.substr(colon + 2, text.size() - colon - 3);
        } else if (text.front() == '[') {
            member.value.kind = config::Value::Kind::list;
            for (const std::int64_t number : NaivePolicy::Piece{"", {{key, text}}}.list(key, {})) {
                config::Value& item = member.value.list.emplace_back();
                item.kind = config::Value::Kind::scalar;
                item.scalar = std::to_string(number);
            }
        } else {
            member.value.kind = config::Value::Kind::scalar;
            member.value.scalar = text;
        }
        choice.params.map.push_back(std::move(member));
    };
    add("policy", piece.name);
    for (const auto& [key, text] : piece.params) add(key, text);
    config::Diagnostics diagnostics;
    for (const auto& entry : table) {
        if (entry.name != piece.name) continue;
        std::string name = piece.name;
        for (const auto& [key, text] : piece.params) name += fmt::format("{}{}={}", name == piece.name ? "(" : " ", key, text);
        if (!piece.params.empty()) name += ')';
        Maker<Piece> maker{name, entry.make({choice, scenario, deployment}, diagnostics)};
        REQUIRE_MESSAGE(diagnostics.ok(), diagnostics.errors().front());
        return maker;
    }
    FAIL("no such piece: " << piece.name);
    return {};
}

/// As resolve_deployment() does it from a scenario's keys.
void give_policy(Composed& c) {
    EngineArgs& args = c.scenario.options.engine;
    const NaivePolicy& policy = c.policy;
    config::Scenario scenario;
    scenario.seed = static_cast<std::int64_t>(policy.seed);
    scenario.workload.trace.kind = config::Value::Kind::scalar;  // whose tenants are its rows'
    for (const auto& [name, slo] : policy.slos) {
        config::SloConfig out;
        out.ttft = slo.ttft;
        out.tpot = slo.tpot;
        out.e2e = slo.e2e;
        if (name.empty()) {
            scenario.slo = out;
        } else {
            scenario.workload.classes.emplace_back();
            scenario.workload.classes.back().name = name;
            scenario.workload.classes.back().slo = out;
        }
    }
    args.batching = policy.style;
    args.seed = policy.seed;
    Deployment deployment;
    deployment.engine = args;
    PolicyArgs& out = args.policy;
    if (policy.order.params.empty() && (policy.order.name == "fcfs" || policy.order.name == "priority")) {
        args.scheduling_policy = policy.order.name == "fcfs" ? QueueOrder::fcfs : QueueOrder::priority;
    } else {
        out.order = make_piece<WaitingQueue>(queue_orders(), policy.order, scenario, deployment);
    }
    NaivePolicy::Piece victim = policy.victim;
    if (victim.name.empty() && out.order && policy.order.name == "priority") victim.name = "lowest-priority";
    out.victim = make_piece<VictimRule>(victim_rules(), victim, scenario, deployment);
    out.admission = make_piece<AdmissionRule>(admission_rules(), policy.admission, scenario, deployment);
    if (policy.predictor.name != "oracle")
        out.predictor = make_piece<LengthPredictor>(length_predictors(), policy.predictor, scenario, deployment);
    if (policy.kv.name != "paged" || !policy.kv.params.empty())
        out.kv = make_piece<KvManager>(kv_policies(), policy.kv, scenario, deployment);
    out.preemption = policy.preemption == "swap"      ? PolicyArgs::Preemption::swap
                     : policy.preemption == "cheaper" ? PolicyArgs::Preemption::cheaper
                     : policy.preemption == "none"    ? PolicyArgs::Preemption::none
                                                      : PolicyArgs::Preemption::recompute;
    out.requeue = policy.requeue == "back" ? PolicyArgs::Requeue::back : PolicyArgs::Requeue::front;
    out.max_live_tokens = policy.max_live_tokens;
    out.decodes_between = policy.wait_tokens;
    out.equal_progress = policy.context_chunking == "equal_progress";
}

Run naive_run(const Composed& c, NaiveTrail& trail, PolicyMutation mutation, std::int64_t max_steps) {
    return run(
        c.scenario,
        [&](const SimulationOptions& o, const StepTimeModel& s, Router& r, Workload& w) {
            return naive_simulate(
                o, s, r, w, [&](const EngineArgs& args) { return make_naive_policies(args, c.policy, s, trail, mutation); });
        },
        max_steps);
}

/// What no policy may break, seen from outside; empty when it holds.
std::string broken_invariant(const Composed& c, const Run& run) {
    const EngineArgs& args = c.scenario.options.engine;
    const Counters& n = run.outcome.counters;
    const bool budgeted = c.policy.style != "static" && c.policy.style != "iteration";
    for (const auto& [replica, records] : run.steps) {
        std::map<RequestId, std::int64_t> left;
        for (const StepRecord& record : records) {
            const std::string at = fmt::format("replica {}, {}: ", replica, to_string(record));
            if (std::ssize(record.running) > args.max_num_seqs) return at + "more requests run than there are seats";
            if (budgeted && record.total_tokens > args.max_num_batched_tokens) return at + "more tokens than the budget";
            for (const std::int64_t free : {record.free_after_schedule, record.free_after_update}) {
                if (free < 0 || free > args.usable_blocks()) return at + "free blocks are some of the pool";
            }
            std::map<RequestId, std::int64_t> present;  // its outputs
            for (const auto* list : {&record.running, &record.waiting}) {
                for (const RequestId id : *list) ++present[id];
            }
            for (const RequestId id : record.finished) ++left[id];
            for (const auto& [id, times] : left) {
                if (times + (present.count(id) > 0 ? present[id] : 0) > c.scenario.arrivals[id].n)
                    return at + "a request finished twice, or came back";
            }
            for (const auto& [id, times] : present) {
                if (times > c.scenario.arrivals[id].n) return at + "a request is in two places";
            }
            if (record.running.empty() && record.free_after_update != args.usable_blocks())
                return at + "blocks are held and nobody runs";
            if (c.policy.preemption == "none" && !record.preempted.empty()) return at + "somebody was preempted";
            if (c.policy.style == "no-evict" && !record.preempted.empty()) return at + "no-evict preempted";
        }
    }
    if (run.refused || run.endless) return "";
    std::int64_t unfinished = 0;
    for (std::size_t i = 0; i < run.outcome.requests.size(); ++i) {
        const RequestRecord& record = run.outcome.requests[i];
        unfinished += record.finish == FinishReason::unfinished ? 1 : 0;
        const Arrival& a = c.scenario.arrivals[i];
        if (record.finish == FinishReason::length &&
            record.output_tokens != a.n * std::min(a.output_tokens, args.max_model_len - a.prompt_tokens))
            return fmt::format("request {} finished with {} outputs", i, record.output_tokens);
    }
    if (n.arrivals != n.completed + n.rejected + n.timed_out + n.cancelled + n.dropped + unfinished)
        return "requests are not conserved";
    const Integrals& sums = run.outcome.integrals;
    if (sums.slots_token_dt < 0 || sums.slots_reserved_dt < 0 || sums.slots_internal_dt < 0 ||
        sums.slots_token_dt + sums.slots_reserved_dt + sums.slots_internal_dt > sums.slots_busy_dt)
        return "the waste shares are more than the slots";
    return "";
}

constexpr std::uint64_t default_scenarios = 600;

constexpr const char* must_be_reached[] = {
    // Pieces.
    "style vllm-v1", "style static", "style iteration", "style decode-first", "style no-evict", "style max-utilization",
    "style past-future", "order fcfs", "order priority", "order priority aging", "order sjf", "order ljf", "order srpt",
    "order edf", "order slo-slack", "order mlfq", "order vtc", "order lpm", "order dfs-weight", "order random",
    "victim by last", "victim by lowest-priority", "victim by latest-deadline", "victim by most-blocks",
    "victim by least-progress", "victim by longest-remaining", "victim by random", "refused by full-input",
    "refused by expected", "refused by past-future", "refused by no-evict", "predictor oracle", "predictor constant",
    "predictor class-mean", "predictor noisy", "predictor bucket", "predictor history", "predictor max", "kv paged",
    "kv paged lru", "kv paged lfu", "kv paged fifo", "kv paged session-ttl", "kv radix lru", "kv radix lfu", "kv radix fifo",
    "kv radix session-ttl", "kv contiguous-max", "kv contiguous-pow2", "kv contiguous-exact", "preemption recompute",
    "preemption swap", "preemption cheaper", "preemption none", "no-evict over contiguous ranges", "several outputs",
    // Events.
    "shortage", "row dropped", "recompute", "max_live_tokens", "prefix hit", "swapped out", "swapped in", "CPU full",
    "swap is cheaper", "more is asked for", "kept out by the watermark", "recompute is cheaper", "displaced",
    "the displaced stands at the head", "a level down", "promoted", "counter lifted", "class mean", "history", "wrong bucket",
    "branches of the prefix tree", "idle row", "prompt step", "prompts wait for decodes", "equal progress",
    "equal progress lacks blocks", "a whole prompt waits for the budget", "moved to a longer range",
    "no range, though enough is free", "evicted", "evicted before others that were used earlier", "expired",
    "given back for a cached one"};

void note_pieces(const Composed& c, NaiveTrail& trail) {
    const NaivePolicy& policy = c.policy;
    ++trail.times["style " + policy.style];
    ++trail.times["order " + policy.order.name + (policy.order.params.count("aging") > 0 ? " aging" : "")];
    ++trail.times["predictor " + policy.predictor.name];
    const auto eviction = policy.kv.params.find("eviction");
    ++trail.times["kv " + policy.kv.name + (eviction == policy.kv.params.end() ? "" : " " + eviction->second)];
    ++trail.times["preemption " + policy.preemption];
    if (policy.style == "no-evict" && policy.kv.name.rfind("contiguous", 0) == 0)
        ++trail.times["no-evict over contiguous ranges"];
    const auto& all = c.scenario.arrivals;
    if (std::any_of(all.begin(), all.end(), [](const Arrival& a) { return a.n > 1; })) ++trail.times["several outputs"];
}

TEST_CASE("oracle: composed policies decide as their naive form on random scenarios") {
    const std::uint64_t first = from_environment("KVSIM_ORACLE_SEED", 0);
    const std::uint64_t count = from_environment("KVSIM_ORACLE_SCENARIOS", default_scenarios);
    const bool all = std::getenv("KVSIM_ORACLE_ALL") != nullptr;
    std::uint64_t differing = 0;
    NaiveTrail trail;
    std::map<std::string, int> by_piece;
    std::uint64_t livelocks = 0;
    for (std::uint64_t seed = first; seed < first + count && (all || differing < 5); ++seed) {
        Composed c = random_composed(seed);
        give_policy(c);
        note_pieces(c, trail);
        INFO(c.policy.describe());
        INFO(describe(c.scenario));
        std::string difference;
        try {
            Run naive = naive_run(c, trail, PolicyMutation::none, 2'000);
            Run product = run(c.scenario, simulate, 2'000);
            if (naive.endless && !product.endless && !product.outcome.stall_report.empty()) {
                // It tells a livelock from progress and ends; up to there they agree.
                ++livelocks;
                product.endless = true;
                for (auto& [replica, records] : naive.steps)
                    records.resize(std::min(records.size(), product.steps[replica].size()));
            }
            if (naive.endless && product.endless) {
                // Cut at some record of one replica: what the others had recorded by then depends on whose turn it was.
                for (auto& [replica, records] : naive.steps) {
                    auto& others = product.steps[replica];
                    const std::size_t both = std::min(records.size(), others.size());
                    records.resize(both);
                    others.resize(both);
                }
            }
            difference = first_difference(naive, product);
            if (difference.empty()) difference = broken_invariant(c, product);
            if (difference.empty() && !naive.endless) {
                difference = first_difference(naive, run_without_records(c.scenario, simulate));
                if (!difference.empty()) difference = "without step records: " + difference;
            }
        } catch (const std::exception& e) { difference = std::string("threw: ") + e.what(); }
        if (!difference.empty()) {
            ++differing;
            if (all) {
                MESSAGE(seed << ": " << c.policy.describe() << "\n" << difference.substr(0, 1500));
                for (const std::string& piece :
                     {c.policy.style, c.policy.order.name, "victim " + c.policy.victim.name,
                      "admission " + c.policy.admission.name, c.policy.predictor.name, c.policy.kv.name, c.policy.preemption})
                    ++by_piece[piece];
                continue;
            }
        }
        CHECK_MESSAGE(difference.empty(), difference);
    }
    if (all) {
        std::string reached;
        for (const auto& [what, times] : trail.times) reached += fmt::format("{}: {}; ", what, times);
        MESSAGE(reached);
    }
    // A rule that no scenario reaches is not tested.
    for (const char* what : must_be_reached) {
        if (count >= default_scenarios) CHECK_MESSAGE(trail.times[what] > 0, "never: " << std::string(what));
    }
    for (const auto& [what, times] : by_piece) MESSAGE(what << " differs " << times);
    CHECK(differing == 0);
    CHECK(livelocks * 20 <= count);
}

TEST_CASE("oracle: no rule of the composed policies can be changed unnoticed") {
    std::vector<PolicyMutation> unnoticed;
    for (int m = 1; m < static_cast<int>(PolicyMutation::count); ++m) unnoticed.push_back(static_cast<PolicyMutation>(m));
    constexpr std::uint64_t most_scenarios = 3000;
    for (std::uint64_t seed = 0; seed < most_scenarios && !unnoticed.empty(); ++seed) {
        Composed c = random_composed(seed);
        give_policy(c);
        NaiveTrail trail;
        const Run right = naive_run(c, trail, PolicyMutation::none, 2'000);
        if (right.endless) continue;
        std::erase_if(unnoticed, [&](PolicyMutation mutation) {
            try {
                return !first_difference(right, naive_run(c, trail, mutation, 3'000)).empty();
            } catch (const std::exception&) {
                return true;  // it broke an invariant
            }
        });
    }
    for (const PolicyMutation mutation : unnoticed)
        FAIL_CHECK("nothing tells mutation " << static_cast<int>(mutation) << " from the rules");
}

}  // namespace
}  // namespace kvsim::oracle
