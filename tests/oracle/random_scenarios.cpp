#include "random_scenarios.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kvsim/base/check.hpp"
#include "naive_simulation.hpp"

namespace kvsim::oracle {

VectorWorkload::VectorWorkload(std::vector<Arrival> arrivals, std::int64_t users, SimDuration think, bool plain)
    : arrivals_(std::move(arrivals)), users_(users), think_(think), plain_(plain) {}

std::optional<SimTime> VectorWorkload::next_time() {
    if (next_ == arrivals_.size()) return std::nullopt;
    const SimTime intended = std::max(arrivals_[next_].time, last_popped_);
    const auto index = static_cast<std::int64_t>(next_);
    if (users_ == 0 || index < users_) return intended;
    const auto departure = static_cast<std::size_t>(index - users_);
    if (departure >= left_.size()) return std::nullopt;
    return std::max(intended, left_[departure].second + think_);
}

void VectorWorkload::pop(Arrival& out) {
    const std::optional<SimTime> time = next_time();
    KVSIM_CHECK(time, "pop() without a next request");
    out = arrivals_[next_++];
    out.time = *time;
    last_popped_ = *time;
}

std::span<const PlainArrival> VectorWorkload::take_plain() {
    if (!plain_) return {};
    KVSIM_CHECK(users_ == 0, "who waits for others is not known beforehand");
    const std::size_t end = std::min(arrivals_.size(), next_ + 1 + next_ % 5);
    taken_.clear();
    while (next_ < end) {
        const Arrival& next = arrivals_[next_];
        last_popped_ = *next_time();
        taken_.push_back({last_popped_, next.prompt_tokens, next.output_tokens});
        ++next_;
    }
    return taken_;
}

bool VectorWorkload::may_cancel() const {
    return std::any_of(arrivals_.begin(), arrivals_.end(), [](const Arrival& a) {
        return a.timeout.count() > 0 || a.ttft_timeout.count() > 0 || a.cancel_after.count() > 0;
    });
}

void VectorWorkload::finished(RequestId id, SimTime now, FinishReason, std::int64_t) {
    left_.emplace_back(id, now);
}

bool VectorWorkload::may_branch() const {
    return std::any_of(arrivals_.begin(), arrivals_.end(), [](const Arrival& a) { return a.n > 1; });
}

bool VectorWorkload::outputs_are_private() const {
    const auto overlap = [](const TokenRun& a, const TokenRun& b) {
        return a.first < b.first + static_cast<std::uint64_t>(b.count) &&
               b.first < a.first + static_cast<std::uint64_t>(a.count);
    };
    for (const Arrival& a : arrivals_) {
        const TokenRun outputs{a.output_base, a.output_tokens};
        for (const Arrival& b : arrivals_) {
            // Neither in a prompt nor among another's outputs: a preempted request looks up its outputs as well.
            if (&a != &b && overlap(outputs, {b.output_base, b.output_tokens})) return false;
            for (const TokenRun& run : b.prompt) {
                if (overlap(outputs, run)) return false;
            }
        }
    }
    return true;
}

std::size_t TestRouter::pick(const Arrival&, std::span<const ReplicaLoad> loads) {
    if (loads.size() == 1) return 0;
    for (const ReplicaLoad& load : loads) shown_.emplace_back(load.requests, load.tokens);
    if (!fewest_tokens_) return next_++ % loads.size();
    const auto fewest = std::min_element(loads.begin(), loads.end(),
                                         [](const ReplicaLoad& a, const ReplicaLoad& b) { return a.tokens < b.tokens; });
    return static_cast<std::size_t>(fewest - loads.begin());
}

SimDuration AffineStepTime::duration(const StepShape& shape) const {
    double context = static_cast<double>(shape.decode_context);
    for (const PrefillChunk& chunk : shape.chunks) {
        context += static_cast<double>(chunk.new_tokens * chunk.context_before);
        context += static_cast<double>(chunk.new_tokens * (chunk.new_tokens + 1) / 2);
    }
    std::int64_t windows = 0;
    for (const WindowContext& window : shape.windows) windows += window.context * window.window;
    const double base = c0 + per_window * static_cast<double>(windows) + per_token * static_cast<double>(shape.tokens) +
                        per_sequence * static_cast<double>(shape.sequences) + per_sampled * static_cast<double>(shape.sampled);
    return SimDuration(std::max<std::int64_t>(1, static_cast<std::int64_t>(std::floor(base + per_context * context + 0.5))));
}

std::optional<DecodeLine> AffineStepTime::decode_line(std::int64_t rows) const {
    if (!has_line) return std::nullopt;
    const double n = static_cast<double>(rows);
    return DecodeLine{c0 + per_token * n + per_sequence * n + per_sampled * n, per_context};
}

namespace {

class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {  // splitmix64
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
        return z ^ (z >> 31);
    }
    std::int64_t between(std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
    }
    bool percent(std::int64_t p) { return between(0, 99) < p; }
    std::int64_t any_of(std::initializer_list<std::int64_t> values) {
        return *(values.begin() + between(0, static_cast<std::int64_t>(values.size()) - 1));
    }

private:
    std::uint64_t state_;
};

EngineArgs random_engine(Random& random) {
    EngineArgs args;
    args.scheduling_policy = random.percent(40) ? QueueOrder::priority : QueueOrder::fcfs;
    args.block_size = random.any_of({1, 1, 2, 3, 4, 4, 4, 5, 7, 8, 16, 32});
    args.max_model_len = random.percent(80) ? random.between(8, 48) : random.between(49, 160);
    args.max_num_seqs = random.any_of({1, 2, 3, 4, 5, 6, 8, 12, 16});
    args.enable_chunked_prefill = random.percent(75);
    const std::int64_t least =
        args.enable_chunked_prefill ? args.max_num_seqs : std::max(args.max_num_seqs, args.max_model_len);
    args.max_num_batched_tokens = least + (random.percent(50) ? random.between(0, 8) : random.between(0, 96));
    args.long_prefill_token_threshold = random.percent(30) ? random.between(1, 20) : 0;
    args.enable_prefix_caching = random.percent(65);
    args.async_scheduling = random.percent(55);
    args.scheduler_reserve_full_isl = random.percent(65);

    // The pool holds the longest possible request, so that nothing is recomputed for ever; see below for the exceptions.
    const std::int64_t longest = ceil_div(args.max_model_len, args.block_size);
    args.num_gpu_blocks =
        1 + longest + (random.percent(70) ? random.between(0, longest) : random.between(longest, 6 * longest));
    if (random.percent(20)) {
        args.watermark = static_cast<double>(random.between(1, 30)) / 100.0;
        if (random.percent(85)) args.num_gpu_blocks += args.num_gpu_blocks / 2;  // else it may stall
    } else if (args.scheduler_reserve_full_isl && random.percent(6)) {
        // Requests that outgrow the pool or are refused: ends in a stall or in rejections, never in a loop.
        args.num_gpu_blocks = std::max<std::int64_t>(3, random.between(longest / 2, longest));
    } else if (random.percent(15)) {
        // Much preemption by priority, with several seats and little budget.
        args.scheduling_policy = QueueOrder::priority;
        args.scheduler_reserve_full_isl = false;
        args.enable_chunked_prefill = true;
        args.block_size = random.between(1, 4);
        args.max_num_seqs = random.between(3, 5);
        args.max_num_batched_tokens = random.between(5, 12);
        args.max_model_len = random.between(8, 24);
        args.num_gpu_blocks = 1 + ceil_div(args.max_model_len, args.block_size) + random.between(0, 2);
    }
    return args;
}

/// A hybrid model: a few groups of tables, and a pool that holds as many blocks more as they need.
void add_groups(Random& random, EngineArgs& args) {
    const bool state = random.percent(20);
    const bool several_sizes = random.percent(25);
    if (state) args.enable_prefix_caching = false;
    const std::int64_t groups = random.any_of({1, 2, 2, 2, 3});
    std::int64_t before = ceil_div(args.max_model_len, args.block_size);
    for (std::int64_t g = 0; g < groups; ++g) {
        BlockGroup group;
        group.rule = random.percent(55)   ? BlockGroup::Rule::sliding
                     : random.percent(60) ? BlockGroup::Rule::full
                                          : BlockGroup::Rule::chunked;
        if (g == 0 && groups > 1) group.rule = random.percent(60) ? BlockGroup::Rule::sliding : BlockGroup::Rule::full;
        if (state && g + 1 == groups) group.rule = BlockGroup::Rule::state;
        group.block_size = args.block_size * (several_sizes ? random.any_of({1, 2, 3}) : 1);
        group.window = random.percent(50) ? random.between(1, 2 * args.block_size) : random.between(1, args.max_model_len);
        group.tables = random.any_of({1, 1, 2, 3});
        group.state_blocks = random.between(1, 2);
        args.kv_groups.push_back(group);
    }
    // What one request of full attention took of the pool, its tables may take now.
    std::int64_t now = 0;
    for (const BlockGroup& group : args.kv_groups) {
        const std::int64_t all = ceil_div(args.max_model_len, group.block_size);
        const std::int64_t windowed =
            ceil_div(std::min(group.window + args.max_num_batched_tokens, args.max_model_len), group.block_size) + 1;
        now += group.tables * (group.rule == BlockGroup::Rule::state  ? group.state_blocks
                               : group.rule == BlockGroup::Rule::full ? all
                                                                      : std::min(all + 1, windowed));
    }
    const bool tight = args.num_gpu_blocks <= before;
    args.num_gpu_blocks = tight ? args.num_gpu_blocks * now / before + 1 : args.num_gpu_blocks - before + now;
}

enum class Content { unnamed, unique, system_prompts, identical, turns };

/// `length` tokens that start as `runs` do and continue with ids from `fresh` on.
std::vector<TokenRun> fit(const std::vector<TokenRun>& runs, std::int64_t length, std::uint64_t fresh) {
    std::vector<TokenRun> out;
    for (const TokenRun& run : runs) {
        const std::int64_t count = std::min(run.count, length);
        if (count > 0) out.push_back({run.first, count});
        length -= count;
    }
    if (length > 0) out.push_back({fresh, length});
    return out;
}

std::vector<Arrival> random_arrivals(Random& random, const EngineArgs& args, std::int64_t unit) {
    const Content content = static_cast<Content>(random.between(0, 4));
    const std::int64_t count = random.percent(80) ? random.between(1, 16) : random.between(17, 40);
    const std::int64_t longest_prompt =
        random.percent(50) ? args.max_model_len - 1 : std::max<std::int64_t>(1, args.max_model_len / 3);
    const std::int64_t longest_output =
        random.percent(50) ? args.max_model_len : std::max<std::int64_t>(1, args.max_model_len / 4);
    const std::int64_t priorities = random.between(1, 4);
    const std::int64_t crowding = random.between(0, 3);
    const bool block_lengths = random.percent(20);
    const bool named = random.percent(30);
    const bool private_ids = content != Content::turns && random.percent(60);
    const bool same_outputs = random.percent(40);
    const bool too_long = random.percent(args.num_gpu_blocks - 1 < ceil_div(args.max_model_len, args.block_size) ? 50 : 8);

    std::vector<Arrival> arrivals;
    std::int64_t time = random.percent(30) ? 0 : unit * random.between(0, 40);
    for (std::int64_t i = 0; i < count; ++i) {
        if (crowding == 1 && random.percent(40)) time += unit * random.between(0, 4) / 2;
        if (crowding == 2) time += unit * random.between(0, 12) / 2;
        if (crowding == 3 && random.percent(15)) time += unit * random.between(1, 200);
        const auto u = static_cast<std::uint64_t>(i);
        Arrival a;
        a.time = SimTime(SimDuration(time));
        a.prompt_tokens = random.between(1, longest_prompt);
        a.output_tokens = random.percent(15) ? 1 : random.between(1, longest_output);
        if (block_lengths) {
            a.prompt_tokens = std::clamp<std::int64_t>(ceil_div(a.prompt_tokens, args.block_size) * args.block_size, 1,
                                                       std::max<std::int64_t>(1, args.max_model_len - 1));
        }
        if (too_long && random.percent(20)) a.prompt_tokens = args.max_model_len + random.between(-1, 3);
        const std::int64_t pool = (args.num_gpu_blocks - 1) * args.block_size;
        if (too_long && pool < args.max_model_len && random.percent(40)) a.prompt_tokens = pool - random.between(0, 1);
        a.priority = random.between(0, priorities - 1);
        a.output_base = same_outputs ? 900'000'000U : 500'000'000U + u * 100'000U;

        // Request i of the workload is arrival i.
        const std::uint64_t fresh = private_ids ? private_tokens(static_cast<RequestId>(i)) : 1'000'000'000U + u * 1'000'000U;
        if (content == Content::unique) {
            a.prompt = {{fresh, a.prompt_tokens}};
        } else if (content == Content::system_prompts) {
            const std::int64_t group = random.between(0, 2);
            const std::int64_t shared = std::min(a.prompt_tokens, args.max_model_len / 4 * (group + 1));
            a.prompt = fit({{static_cast<std::uint64_t>(group) * 10'000U, shared}}, a.prompt_tokens, fresh);
        } else if (content == Content::identical) {
            if (random.percent(70) && i > 0) a.prompt_tokens = arrivals[0].prompt_tokens;
            a.prompt = {{7, a.prompt_tokens}};
        } else if (content == Content::turns) {
            if (i > 0 && random.percent(75)) {
                const Arrival& before = arrivals[static_cast<std::size_t>(random.between(0, i - 1))];
                std::vector<TokenRun> history = before.prompt;
                history.push_back({before.output_base, before.output_tokens});
                const std::int64_t length = before.prompt_tokens + before.output_tokens + random.between(0, 6);
                a.prompt_tokens = std::clamp<std::int64_t>(length, 1, args.max_model_len - 1);
                a.prompt = fit(history, a.prompt_tokens, fresh);
            } else {
                a.prompt = {{fresh, a.prompt_tokens}};
            }
        }
        if (named) {
            a.external_id = fmt::format("q{}", (i * 37) % 101);  // unique, and its order is not that of arrival
            if (random.percent(50)) a.request_class = random.percent(50) ? "chat" : "batch";
            if (random.percent(50)) a.session_id = fmt::format("s{}", random.between(0, 3));
        }
        arrivals.push_back(std::move(a));
    }
    return arrivals;
}

}  // namespace

Scenario random_scenario(std::uint64_t seed) {
    Random random(seed * 0x2545f4914f6cdd1dU + 1);
    Scenario s;
    s.seed = seed;
    s.options.engine = random_engine(random);
    s.options.replicas = random.any_of({1, 1, 1, 2, 3});
    const bool long_decodes = random.percent(8);
    if (long_decodes) {  // stretches in which nothing happens but decoding
        EngineArgs& engine = s.options.engine;
        engine.max_model_len *= 8;
        engine.max_num_batched_tokens += engine.enable_chunked_prefill ? 0 : engine.max_model_len;
        engine.num_gpu_blocks *= random.between(8, 12);
    }

    // Arrivals fall on multiples of half a unit; constant steps of one unit make many events coincide.
    const std::int64_t unit = random.any_of({2, 100, 1'000'000, 70'000'000});
    const double scale = static_cast<double>(unit);
    s.step_time.c0 = scale;
    if (random.percent(60)) {
        s.step_time.c0 = scale * static_cast<double>(random.between(1, 8)) / 8.0;
        s.step_time.per_token = scale * static_cast<double>(random.between(0, 6)) / 37.0;
        s.step_time.per_sequence = scale * static_cast<double>(random.between(0, 3)) / 23.0;
        s.step_time.per_context = random.percent(60) ? scale * static_cast<double>(random.between(0, 9)) / 700.0 : 0;
        s.step_time.per_sampled = random.percent(40) ? scale * static_cast<double>(random.between(0, 5)) / 61.0 : 0;
    }
    s.step_time.has_line = random.percent(80);
    s.arrivals = random_arrivals(random, s.options.engine, unit);
    if (long_decodes && s.arrivals.size() > 5) s.arrivals.resize(5);

    if (random.percent(25)) s.options.api = SimDuration(unit * random.between(1, 9) / 2);
    if (random.percent(25)) s.options.max_concurrency = random.between(1, 6);
    if (random.percent(15)) s.options.warmup_time = SimDuration(unit * random.between(0, 40));
    if (random.percent(15)) s.options.warmup_requests = random.between(0, 8);
    if (random.percent(35)) s.options.timeline_interval = SimDuration(unit * random.between(1, 30) / 2);
    if (random.percent(15)) {
        s.users = random.between(1, 5);
        s.think = SimDuration(unit * random.between(0, 10) / 2);
    }
    s.fewest_tokens = random.percent(40);
    if (seed % 4 == 3) {
        add_groups(random, s.options.engine);
        if (random.percent(50)) s.step_time.per_window = scale / 900.0;
    }
    Random queue(seed * 0x9e3779b97f4a7c15U + 5);
    if (queue.percent(20)) s.options.engine.max_queued_requests = queue.any_of({0, 0, 1, 2, 5});
    if (seed % 5 == 3) s.options.cold_start = {SimDuration(unit * static_cast<std::int64_t>(seed % 61)), 0.7};
    // Clients of three in four scenarios may give up. Drawn last: the rest of them does not depend on this.
    if (seed % 4 == 1) return s;
    s.options.latency_from_intended = random.percent(50);
    s.options.itl_per_request = random.percent(20);
    if (random.percent(70)) {
        const std::int64_t patience = random.between(1, 60);
        const std::int64_t share = random.any_of({10, 40, 90});
        for (Arrival& a : s.arrivals) {
            if (!random.percent(share)) continue;
            const SimDuration after(std::max<std::int64_t>(1, unit * random.between(0, patience) / 2));
            (random.percent(50) ? a.timeout : random.percent(50) ? a.ttft_timeout : a.cancel_after) = after;
            if (random.percent(20)) a.cancel_after = after + SimDuration(unit * random.between(-1, 1) / 2);
        }
    }
    return s;
}

std::string describe(const Scenario& s) {
    const EngineArgs& e = s.options.engine;
    std::string text =
        fmt::format("seed {}: {} {}, {} blocks of {}, max_num_seqs {}, budget {}, max_model_len {}, threshold {}", s.seed,
                    e.scheduling_policy == QueueOrder::priority ? "priority" : "fcfs", e.async_scheduling ? "async" : "sync",
                    e.num_gpu_blocks, e.block_size, e.max_num_seqs, e.max_num_batched_tokens, e.max_model_len,
                    e.long_prefill_token_threshold);
    text += fmt::format(", chunking {}, caching {}, reserve {}, watermark {}", e.enable_chunked_prefill,
                        e.enable_prefix_caching, e.scheduler_reserve_full_isl, e.watermark);
    text += fmt::format("; replicas {}, api {}, max_concurrency {}, warm-up {} ns and {} requests, timeline {}",
                        s.options.replicas, s.options.api.count(), s.options.max_concurrency.value_or(0),
                        s.options.warmup_time.value_or(SimDuration(-1)).count(), s.options.warmup_requests.value_or(-1),
                        s.options.timeline_interval.count());
    text += fmt::format("; cold for {} ns, window {}, plain {}", s.options.cold_start.length.count(), s.options.window.count(),
                        s.plain);
    text += fmt::format("; fewest_tokens {}, latency from intended {}, itl per request {}", s.fewest_tokens,
                        s.options.latency_from_intended, s.options.itl_per_request);
    text += fmt::format("; queue bound {}", e.max_queued_requests);
    text += fmt::format("; users {}, think {}; step {} + {} t + {} s + {} c + {} sampled, line {}", s.users, s.think.count(),
                        s.step_time.c0, s.step_time.per_token, s.step_time.per_sequence, s.step_time.per_context,
                        s.step_time.per_sampled, s.step_time.has_line);
    for (const BlockGroup& g : e.kv_groups) {
        text += fmt::format("; group rule {} blocks of {} window {} tables {} state {}", static_cast<int>(g.rule), g.block_size,
                            g.window, g.tables, g.state_blocks);
    }
    for (const Arrival& a : s.arrivals) {
        text += fmt::format("\n  at {} prompt {} output {} priority {} base {} {}", a.time.time_since_epoch().count(),
                            a.prompt_tokens, a.output_tokens, a.priority, a.output_base, a.external_id);
        if (a.n > 1) text += fmt::format(" n {}", a.n);
        if (a.timeout.count() > 0) text += fmt::format(" timeout {}", a.timeout.count());
        if (a.ttft_timeout.count() > 0) text += fmt::format(" ttft_timeout {}", a.ttft_timeout.count());
        if (a.cancel_after.count() > 0) text += fmt::format(" cancel_after {}", a.cancel_after.count());
        for (const TokenRun& run : a.prompt) text += fmt::format(" {}x{}", run.first, run.count);
    }
    return text;
}

namespace {

Run run_with(const Scenario& scenario, const Simulate& simulate, const SimulationOptions& options) {
    Run result;
    result.replicas = scenario.options.replicas;
    TestRouter router(scenario.fewest_tokens);
    VectorWorkload workload(scenario.arrivals, scenario.users, scenario.think, scenario.plain);
    try {
        result.outcome = simulate(options, scenario.step_time, router, workload);
    } catch (const UserError&) { result.refused = true; } catch (const TooManySteps&) {
        result.endless = true;
    }
    result.left = workload.left();
    result.loads = router.shown();
    return result;
}

}  // namespace

Run run(const Scenario& scenario, const Simulate& simulate, std::int64_t max_steps) {
    std::map<std::int64_t, std::vector<StepRecord>> records;
    std::int64_t steps = 0;
    SimulationOptions options = scenario.options;
    options.on_step = [&](std::int64_t replica, const StepRecord& record) {
        records[replica].push_back(record);
        if (++steps == max_steps) throw TooManySteps("the run was cut");
    };
    Run result = run_with(scenario, simulate, options);
    result.steps = std::move(records);
    return result;
}

Run run_without_records(const Scenario& scenario, const Simulate& simulate) {
    std::int64_t calls = 0;
    SimulationOptions options = scenario.options;
    options.on_progress = [&](const Outcome&, SimTime) {
        if (++calls == 100) throw TooManySteps("the run does not end");
    };
    Run result = run_with(scenario, simulate, options);
    result.recorded = false;
    return result;
}

}  // namespace kvsim::oracle
