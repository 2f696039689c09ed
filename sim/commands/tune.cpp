// kvsim tune: which engine arguments carry the most load under the SLOs.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "kvsim/app/command.hpp"
#include "kvsim/app/csv_row.hpp"
#include "kvsim/app/halving.hpp"
#include "kvsim/app/load_options.hpp"
#include "kvsim/app/load_search.hpp"
#include "kvsim/app/output_folder.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/parallel.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/policy_args.hpp"
#include "kvsim/report/text_table.hpp"

namespace kvsim::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t seeds_by_default = 4;
constexpr std::size_t finalists = 3;
constexpr double coarse_tolerance = 0.04;
/// Without lists a candidate that fails at this share of the best capacity so far, under the same seed, is not looked at
/// further.
constexpr double hopeless_share = 0.95;
constexpr int most_refinements = 5;

struct Argument {
    std::string_view option;
    std::string_view key;
    std::string_view doc;
};
constexpr std::array<Argument, 7> arguments{
    {{"max-num-seqs", "engine.max_num_seqs", "requests that run at once"},
     {"max-num-batched-tokens", "engine.max_num_batched_tokens", "tokens of a step"},
     {"gpu-memory-utilization", "engine.gpu_memory_utilization", "share of the GPU's memory"},
     {"block-size", "engine.block_size", "tokens of a KV block"},
     {"tensor-parallel-size", "hardware.tensor_parallel_size", "GPUs that share each layer"},
     {"preset", "engine.preset", "engines"},
     {"scheduling-policy", "engine.scheduling_policy", "orders of the waiting queue"}}};

const Usage& usage() {
    static const Usage table = [] {
        Usage u{
            "tune",
            "kvsim tune SCENARIO.yaml [--slo 'ttft_p99 <= 2s' ...] [--max-num-seqs 64,128,256 ...] [options]",
            "Searches the engine arguments with the highest rate (or concurrency) per GPU that meets every SLO, by "
            "successive halving\n"
            "over seeds. Without any list in turn: max_num_seqs x max_num_batched_tokens; scheduling_policy x chunked "
            "prefill;\n"
            "gpu_memory_utilization x block_size x tensor_parallel_size; half and twice of the first two until they stay (up\n"
            "to five times); and long_prefill_token_threshold. What --set or --hold names stays as it is. Prints the\n"
            "tables, auto_tune.sh's last line and the engine's command line; writes DIR/tune.csv. Exit code 1: no "
            "candidate\n"
            "meets the SLOs.",
            load_options(),
            "a scenario file",
            1,
            1};
        u.options.insert(u.options.begin() + 6, {"seeds", "N", "of the last round, S ... S+N-1 (4)"});
        std::size_t at = 7;
        for (const Argument& a : arguments)
            u.options.insert(u.options.begin() + static_cast<std::ptrdiff_t>(at++), {a.option, "A,B,...", a.doc});
        u.options.insert(u.options.begin() + static_cast<std::ptrdiff_t>(at),
                         {"hold", "NAME,...", "without lists: settings that stay as the scenario has them"});
        u.options.push_back({"out", "DIR", "where tune.csv goes (results/NAME-tune)"});
        return u;
    }();
    return table;
}

/// One choice of arguments.
struct Candidate {
    std::string label;
    std::unique_ptr<PointSearch> search;
    Capacity capacity;
    std::string error;  ///< why it cannot run
    std::string full_error;
    std::size_t round = 0;  ///< the last it took part in, from 1
    std::size_t seeds = 0;
    double score = 0;             ///< capacity per GPU
    std::string like;             ///< label of an earlier candidate that behaves the same in every run of the first round
    bool now = false;             ///< the scenario as it is
    std::optional<double> below;  ///< it fails at this load, which is enough to know
    std::vector<ReplicatedColumn> limit;

    [[nodiscard]] bool meets() const { return search && capacity.outcome != Capacity::Outcome::none && score > 0; }
    /// Nothing fails up to the highest load tried: how much that is says nothing.
    [[nodiscard]] bool unlimited() const { return search && !below && capacity.outcome == Capacity::Outcome::at_least; }
    void take_capacity() {
        capacity = search->capacity();
        score = below ? 0 : capacity.value / static_cast<double>(search->bill().gpus);
    }
};

/// A grid and who won in it.
struct Stage {
    SweepPlan plan;  ///< the searches refer to it
    std::vector<Candidate> candidates;
    std::optional<std::size_t> best;
};

/// `list` with `own` among its values, in order.
std::vector<std::string> with_own(std::vector<std::int64_t> list, std::int64_t own) {
    if (std::find(list.begin(), list.end(), own) == list.end()) list.push_back(own);
    std::sort(list.begin(), list.end());
    std::vector<std::string> out;
    for (const std::int64_t value : list) out.push_back(std::to_string(value));
    return out;
}

/// One key that takes each of `values`.
SweepAxis axis(std::string key, const std::vector<std::string>& values) {
    SweepAxis out{{std::move(key)}, {}};
    for (const std::string& value : values) out.choices.push_back({value});
    return out;
}

/// `own` first, so that it wins a tie, then what differs from it.
std::vector<std::string> own_first(const std::string& own, const std::vector<std::string>& others) {
    std::vector<std::string> out{own};
    for (const std::string& other : others) {
        if (std::find(out.begin(), out.end(), other) == out.end()) out.push_back(other);
    }
    return out;
}

constexpr std::string_view seats_key = "engine.max_num_seqs";
constexpr std::string_view budget_key = "engine.max_num_batched_tokens";
constexpr std::string_view order_key = "engine.scheduling_policy";
constexpr std::string_view chunks_key = "engine.enable_chunked_prefill";
constexpr std::string_view long_prompt_key = "engine.long_prefill_token_threshold";
constexpr std::string_view memory_key = "engine.gpu_memory_utilization";
constexpr std::string_view block_key = "engine.block_size";
constexpr std::string_view parallel_key = "hardware.tensor_parallel_size";
constexpr std::array<std::string_view, 8> searched_keys{seats_key,       budget_key, order_key, chunks_key,
                                                        long_prompt_key, memory_key, block_key, parallel_key};

/// What a search without lists does not vary.
using Held = std::set<std::string, std::less<>>;

std::string bare_name(std::string_view key) {
    return std::string(key.substr(key.rfind('.') + 1));
}

Held held_settings(const std::optional<std::string>& names, const std::vector<std::string>& sets) {
    Held out;
    std::vector<std::string> known;
    for (const std::string_view key : searched_keys) known.push_back(bare_name(key));
    const std::vector<std::string_view> views(known.begin(), known.end());
    for (const std::string& set : sets) {
        const std::string_view key = trimmed(std::string_view(set).substr(0, set.find('=')));
        const auto inside = [key](std::string_view searched) {
            return searched == key || (key.starts_with(searched) && key[searched.size()] == '.');
        };
        for (const std::string_view searched : searched_keys) {
            if (inside(searched)) out.emplace(searched);
        }
    }
    std::string_view left = names ? std::string_view(*names) : std::string_view();
    while (names) {
        const std::size_t comma = left.find(',');
        std::string name(trimmed(left.substr(0, comma)));
        if (name.starts_with("engine.") || name.starts_with("hardware.")) name = bare_name(name);
        std::replace(name.begin(), name.end(), '-', '_');
        const auto at = std::find(known.begin(), known.end(), name);
        if (at == known.end()) {
            const std::string_view near = nearest(name, views);
            throw UserError("error: --hold " + excerpt(*names) + ": " +
                            (name.empty() ? std::string("a name is missing") : "'" + excerpt(name) + "' is not searched") +
                            (near.empty() ? std::string() : "; did you mean '" + std::string(near) + "'?"));
        }
        out.emplace(searched_keys[static_cast<std::size_t>(at - known.begin())]);
        if (comma == std::string_view::npos) break;
        left.remove_prefix(comma + 1);
    }
    return out;
}

/// Adds an axis unless it is held or has nothing to choose from.
void add(std::vector<SweepAxis>& axes, SweepAxis more, const Held& held) {
    const bool is_held =
        std::any_of(more.keys.begin(), more.keys.end(), [&](const std::string& key) { return held.contains(key); });
    if (!is_held && more.choices.size() > 1) axes.push_back(std::move(more));
}

std::vector<SweepAxis> batch_axes(const Prepared& own, const Held& held) {
    const EngineArgs& e = own.options.engine;
    std::vector<SweepAxis> out;
    add(out, axis(std::string(seats_key), with_own({64, 128, 256, 512, 1024}, e.max_num_seqs)), held);
    std::vector<std::int64_t> budgets{2048, 4096, 8192, 16384};
    if (!e.enable_chunked_prefill)  // a whole prompt must fit
        std::erase_if(budgets, [&e](std::int64_t tokens) { return tokens < e.max_model_len; });
    add(out, axis(std::string(budget_key), with_own(std::move(budgets), e.max_num_batched_tokens)), held);
    return out;
}

/// What the engine that the scenario names can be told about whose turn it is.
std::vector<SweepAxis> policy_axes(const Prepared& own, const Held& held) {
    const EngineArgs& e = own.options.engine;
    std::vector<SweepAxis> out;
    const bool sglang = e.batching == "sglang";
    // With parameters it is more than a name.
    if (own.scenario.engine.scheduling_policy.params.map.size() <= 1) {
        const std::vector<std::string> orders = sglang ? std::vector<std::string>{"fcfs", "lpm", "dfs-weight", "lof"}
                                                       : std::vector<std::string>{"fcfs", "priority"};
        add(out, axis(std::string(order_key), own_first(e.order_name(), orders)), held);
    }
    if (e.batching == "static" || e.batching == "iteration") return out;  // they take whole prompts
    // Without chunks the budget must hold the longest prompt, so both change together.
    SweepAxis chunks{{std::string(chunks_key), std::string(budget_key)}, {}};
    const std::string budget = std::to_string(e.max_num_batched_tokens);
    if (e.enable_chunked_prefill) {
        const std::int64_t whole = std::max(e.max_num_batched_tokens, e.max_model_len);
        chunks.choices = {{"true", budget}, {"false", std::to_string(whole)}};
        if (held.contains(budget_key) && whole != e.max_num_batched_tokens) chunks.choices.pop_back();
    } else {
        chunks.choices = {{"false", budget}, {"true", budget}};
    }
    if (!held.contains(chunks_key)) add(out, std::move(chunks), {});
    return out;
}

/// A limit on the tokens of one prompt in a step; vLLM's own choice where it sets one is 4 % of max_model_len. Looked at last
/// and by itself: without the limit runs are many times faster.
std::vector<SweepAxis> long_prompt_axes(const Prepared& own, const Held& held) {
    const EngineArgs& e = own.options.engine;
    std::vector<SweepAxis> out;
    if (e.batching == "sglang" || e.batching == "static" || e.batching == "iteration" || !e.enable_chunked_prefill) return out;
    const std::string now = std::to_string(e.long_prefill_token_threshold);
    add(out, axis(std::string(long_prompt_key), own_first(now, {"0", std::to_string(e.max_model_len / 25)})), held);
    return out;
}

/// What changes how much memory there is; of use only where the blocks are derived from it.
std::vector<SweepAxis> memory_axes(const Prepared& own, const Held& held) {
    const double utilization = own.info.gpu_memory_utilization;
    std::vector<SweepAxis> out;
    if (!own.deployment.gpu || utilization <= 0) return out;
    std::vector<std::string> shares;
    for (const double share : std::set<double>{0.90, 0.95, utilization}) shares.push_back(shortest(share));
    add(out, axis(std::string(memory_key), shares), held);
    add(out, axis(std::string(block_key), with_own({16, 32}, own.options.engine.block_size)), held);
    add(out, axis(std::string(parallel_key), with_own({1, 2, 4}, own.deployment.tensor_parallel_size)), held);
    return out;
}

/// Half and twice of what was found: other memory and another policy may want another batch, and it may lie beyond the lists.
std::vector<SweepAxis> neighbour_axes(const Prepared& best, const Held& held) {
    const EngineArgs& e = best.options.engine;
    std::vector<SweepAxis> out;
    const std::int64_t least = e.enable_chunked_prefill ? 2 * e.max_num_seqs : std::max(2 * e.max_num_seqs, e.max_model_len);
    std::vector<std::int64_t> budgets{2 * e.max_num_batched_tokens};
    if (e.max_num_batched_tokens / 2 >= least) budgets.push_back(e.max_num_batched_tokens / 2);
    std::vector<std::int64_t> seats{2 * e.max_num_seqs};
    if (e.max_num_seqs > 1) seats.push_back(e.max_num_seqs / 2);
    add(out, axis(std::string(seats_key), with_own(std::move(seats), e.max_num_seqs)), held);
    add(out, axis(std::string(budget_key), with_own(std::move(budgets), e.max_num_batched_tokens)), held);
    return out;
}

bool same_engine(const Prepared& a, const Prepared& b) {
    return a.options.engine == b.options.engine && a.options.replicas == b.options.replicas &&
           a.deployment.tensor_parallel_size == b.deployment.tensor_parallel_size &&
           a.info.gpu_memory_utilization == b.info.gpu_memory_utilization;
}

/// What a search saw: two candidates with the same are the same engine for this workload.
std::string seen_by(const SeedSearch& search) {
    std::string out;
    for (const auto& [load, probe] : search.probes()) {
        const Summary& s = probe.summary;
        out += fmt::format("{} {} {} {} {};", load, s.steps, s.duration_s, s.ttft.mean, s.e2e.mean);
    }
    return out;
}

/// What a search in turn knows before a stage.
struct Known {
    const PointSearch* incumbent = nullptr;    ///< the best so far
    std::vector<const PointSearch*> searched;  ///< all so far, the scenario's own first
};

/// What a search carries per GPU under the first seed, less what makes another worth a search.
double reach_of(const PointSearch& best) {
    return hopeless_share * best.seeds().front().low().value_or(0) / static_cast<double>(best.bill().gpus);
}

/// Whether the first seed meets the targets where the candidates beside it are tried; where it does not, the search goes on
/// below that load.
bool holds_at_reach(PointSearch& search) {
    const double load = reach_of(search) * static_cast<double>(search.bill().gpus);
    return load <= 0 || search.reaches(load);
}

/// One engine has one figure: its runs of earlier stages count, and the incumbent stands against the others under every seed.
/// Returns whether it is the incumbent.
bool join(Candidate& c, const Known& known, const LoadRequest& request, std::size_t all_seeds) {
    bool met = false;
    for (const PointSearch* const earlier : known.searched) {
        if (!same_engine(c.search->base(), earlier->base()) || !earlier->seeds().front().low()) continue;
        c.search->adopt(*earlier);
        met = true;
    }
    const bool incumbent = same_engine(c.search->base(), known.incumbent->base());
    if (!met && !incumbent) return false;
    const std::size_t seeds = incumbent ? all_seeds : std::max(c.seeds, c.search->capacity().seeds);
    c.search->search(seeds, incumbent ? request.search.tolerance : std::max(coarse_tolerance, request.search.tolerance),
                     request.jobs);
    c.seeds = seeds;
    c.below.reset();
    c.take_capacity();
    return incumbent;
}

/// The first of `choices` whose lead over the best is within what the brackets leave open: lists go up, so the smaller batch
/// wins a tie; but the incumbent, if it is among them, is not changed for nothing.
std::optional<std::size_t> best_of(const std::vector<Candidate>& candidates, const std::set<std::size_t>& choices,
                                   const std::optional<std::size_t>& incumbent, double tolerance) {
    double highest = 0;
    bool any_unlimited = false;
    for (const std::size_t i : choices) {
        highest = std::max(highest, candidates[i].score);
        any_unlimited = any_unlimited || candidates[i].unlimited();
    }
    const auto tied = [&](std::size_t i) {
        const Candidate& c = candidates[i];
        return any_unlimited ? c.unlimited() : c.meets() && c.score >= highest * (1 - 2 * tolerance);
    };
    if (incumbent && tied(*incumbent)) return incumbent;
    const auto first = std::find_if(choices.begin(), choices.end(), tied);
    return first == choices.end() ? std::nullopt : std::optional(*first);
}

/// `known`: of a search in turn; a candidate that does not come near the incumbent under the first seed is then not searched,
/// unless `whole` says that all are.
void run_stage(Stage& stage, const LoadRequest& request, const Prepared& own, const Known* known, RunCounter& counter,
               bool whole = false) {
    std::optional<double> reach;
    if (known != nullptr && !whole && reach_of(*known->incumbent) > 0) reach = reach_of(*known->incumbent);
    stage.candidates.clear();
    stage.candidates.resize(static_cast<std::size_t>(stage.plan.points()));
    std::vector<std::size_t> usable;
    for_each_index(stage.candidates.size(), request.jobs, [&](std::size_t i) {
        Candidate& c = stage.candidates[i];
        c.label = stage.plan.label(static_cast<std::int64_t>(i));
        try {
            c.search = std::make_unique<PointSearch>(stage.plan, static_cast<std::int64_t>(i), request.search);
            c.now = same_engine(c.search->base(), own);
            // Alone it is compared with nothing.
            if (known != nullptr && stage.candidates.size() == 1) c.search->adopt(*known->incumbent);
        } catch (const UserError& e) {
            c.full_error = e.what();
            c.error = c.full_error.substr(0, c.full_error.find('\n'));
        }
    });
    for (std::size_t i = 0; i < stage.candidates.size(); ++i) {
        if (stage.candidates[i].search) usable.push_back(i);
    }
    std::size_t round = 0;
    const auto work = [&](const std::vector<std::size_t>& places, std::size_t seeds) {
        ++round;
        const double tolerance = std::max(request.search.tolerance,
                                          seeds == stage.plan.seeds.size() ? 0 : coarse_tolerance / static_cast<double>(round));
        const std::size_t outer = std::min(places.size(), request.jobs);
        Scores scores(places.size(), 0);
        for_each_index(places.size(), outer, [&](std::size_t k) {
            Candidate& c = stage.candidates[usable[places[k]]];
            try {
                if (reach && round == 1) {
                    const double load = *reach * static_cast<double>(c.search->bill().gpus);
                    if (!c.search->reaches(load)) c.below = load;
                }
                if (!c.below) c.search->search(seeds, tolerance, std::max<std::size_t>(1, request.jobs / outer));
                c.take_capacity();
            } catch (const UserError& e) {  // what only a run can tell
                c.full_error = e.what();
                c.error = c.full_error.substr(0, c.full_error.find('\n'));
                c.score = 0;
                c.search.reset();
            }
            c.round = round;
            c.seeds = c.below ? 1 : seeds;
            scores[k] = c.unlimited() ? std::numeric_limits<double>::max() : c.score;
        });
        std::map<std::pair<std::string, std::int64_t>, std::string> seen;
        for (std::size_t k = 0; k < places.size() && round == 1; ++k) {
            Candidate& c = stage.candidates[usable[places[k]]];
            if (!c.search || c.below) continue;
            const auto [earlier, is_new] =
                seen.emplace(std::pair(seen_by(c.search->seeds().front()), c.search->bill().gpus), c.label);
            if (is_new) continue;
            c.like = earlier->second;
            scores[k] = 0;  // one of them is enough
        }
        counter.point(fmt::format("round {}: {} candidates, {} seeds", round, places.size(), seeds));
        return scores;
    };
    const std::vector<Rung> rungs = successive_halving(usable.size(), stage.plan.seeds.size(), finalists, work);
    if (rungs.empty()) return;
    std::set<std::size_t> choices;
    for (const std::size_t place : rungs.back().choices) choices.insert(usable[place]);
    std::optional<std::size_t> incumbent;
    for (std::size_t i = 0; i < stage.candidates.size() && known != nullptr; ++i) {
        if (stage.candidates[i].search && join(stage.candidates[i], *known, request, stage.plan.seeds.size())) {
            incumbent = i;
            choices.insert(i);
        }
    }
    const double tolerance = request.search.tolerance;
    while ((stage.best = best_of(stage.candidates, choices, incumbent, tolerance)) && known != nullptr) {
        Candidate& c = stage.candidates[*stage.best];
        if (c.unlimited() || holds_at_reach(*c.search)) break;
        c.search->search(stage.plan.seeds.size(), tolerance, request.jobs);
        c.take_capacity();
    }
    for (Candidate& c : stage.candidates) {
        if (c.search && !c.below && !c.capacity.at_limit.empty()) c.limit = replicated(c.capacity.at_limit);
    }
    // Over all seeds even the one that carried most under the first may fail.
    if (!stage.best && reach) run_stage(stage, request, own, known, counter, true);
}

std::string number(double value) {
    std::string out = readable(value);
    out.erase(std::remove(out.begin(), out.end(), ','), out.end());
    return out;
}

/// For a POSIX shell.
std::string quoted(const std::string& word) {
    const bool plain =
        !word.empty() &&
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@,+=") == std::string::npos;
    if (plain) return word;
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

/// What starts the engine this way; empty for policies that neither vLLM nor SGLang has.
std::string command_line(const Prepared& p) {
    const EngineArgs& e = p.options.engine;
    const Deployment& d = p.deployment;
    const config::EngineConfig& given = p.scenario.engine;
    if (!p.info.modelled_from.empty()) return "";
    const std::string model = quoted(p.scenario.model.is_scalar() && d.model_name.empty() ? p.scenario.model.scalar
                                     : d.model_name.empty()                               ? "MODEL"
                                                                                          : d.model_name);
    const bool sglang = e.batching == "sglang";
    std::string out = sglang ? "python3 -m sglang.launch_server --model-path " + model : "vllm serve " + model;
    const auto add = [&out](std::string_view name, const std::string& value) {
        out += " --" + std::string(name) + " " + value;
    };
    const auto count = [&add](std::string_view name, std::int64_t value) { add(name, std::to_string(value)); };
    count(sglang ? "tp-size" : "tensor-parallel-size", d.tensor_parallel_size);
    if (d.pipeline_parallel_size > 1) count(sglang ? "pp-size" : "pipeline-parallel-size", d.pipeline_parallel_size);
    if (d.data_parallel_size > 1) count(sglang ? "dp-size" : "data-parallel-size", d.data_parallel_size);
    if (given.max_model_len) count(sglang ? "context-length" : "max-model-len", *given.max_model_len);
    count(sglang ? "max-running-requests" : "max-num-seqs", e.max_num_seqs);
    count(sglang ? "chunked-prefill-size" : "max-num-batched-tokens",
          sglang && !e.enable_chunked_prefill ? -1 : e.max_num_batched_tokens);
    count(sglang ? "page-size" : "block-size", e.block_size);
    if (p.info.gpu_memory_utilization > 0) {
        add(sglang ? "mem-fraction-static" : "gpu-memory-utilization", shortest(p.info.gpu_memory_utilization));
    } else if (!sglang && given.num_gpu_blocks_override) {
        count("num-gpu-blocks-override", *given.num_gpu_blocks_override);
    } else if (!sglang && given.kv_cache_memory_bytes) {
        count("kv-cache-memory-bytes", given.kv_cache_memory_bytes->count());
    } else if (sglang && given.num_gpu_blocks_override) {
        count("max-total-tokens", *given.num_gpu_blocks_override * e.block_size);
    }
    if (d.kv_cache_dtype != "auto") add("kv-cache-dtype", d.kv_cache_dtype);
    if (given.quantization) add("quantization", quoted(*given.quantization));
    const std::string policy(name_of(e.scheduling_policy));
    if (sglang) {
        add("schedule-policy", policy);
        if (!e.enable_prefix_caching) out += " --disable-radix-cache";
        return out;
    }
    if (policy != "fcfs") add("scheduling-policy", policy);
    if (e.long_prefill_token_threshold > 0) count("long-prefill-token-threshold", e.long_prefill_token_threshold);
    if (given.enable_prefix_caching)
        out += *given.enable_prefix_caching ? " --enable-prefix-caching" : " --no-enable-prefix-caching";
    if (given.enable_chunked_prefill)
        out += *given.enable_chunked_prefill ? " --enable-chunked-prefill" : " --no-enable-chunked-prefill";
    if (given.async_scheduling) out += *given.async_scheduling ? " --async-scheduling" : " --no-async-scheduling";
    return out;
}

/// The arguments by name, as in tune.csv.
std::vector<std::pair<std::string, std::string>> settings_of(const Prepared& p) {
    const EngineArgs& e = p.options.engine;
    return {{"preset", e.preset},
            {"scheduling_policy", e.order_name()},
            {"tensor_parallel_size", std::to_string(p.deployment.tensor_parallel_size)},
            {"max_num_seqs", std::to_string(e.max_num_seqs)},
            {"max_num_batched_tokens", std::to_string(e.max_num_batched_tokens)},
            {"gpu_memory_utilization", p.info.gpu_memory_utilization > 0 ? shortest(p.info.gpu_memory_utilization) : ""},
            {"block_size", std::to_string(e.block_size)}};
}
constexpr std::size_t setting_count = 7;

/// The same of what came later; at the end of tune.csv.
std::vector<std::pair<std::string, std::string>> more_settings_of(const Prepared& p) {
    const EngineArgs& e = p.options.engine;
    return {{"enable_chunked_prefill", e.enable_chunked_prefill ? "true" : "false"},
            {"long_prefill_token_threshold", std::to_string(e.long_prefill_token_threshold)}};
}

constexpr std::array<std::string_view, 10> shown_columns{"request_throughput_req_s",
                                                         "output_throughput_tok_s",
                                                         "slo_attainment",
                                                         "ttft_mean_ms",
                                                         "ttft_p99_ms",
                                                         "tpot_mean_ms",
                                                         "e2e_p99_ms",
                                                         "kv_usage_mean",
                                                         "preemptions",
                                                         "batch_size_mean"};

const Candidate& winner(const std::vector<Stage>& stages) {
    const Candidate* out = nullptr;
    for (const Stage& stage : stages) {
        if (stage.best) out = &stage.candidates[*stage.best];
    }
    KVSIM_CHECK(out != nullptr, "a candidate meets the SLOs");
    return *out;
}

std::string_view outcome_of(const Candidate& c) {
    constexpr std::array<std::string_view, 3> outcomes{"found", "at_least", "none"};
    return c.below ? "below" : outcomes[static_cast<std::size_t>(c.capacity.outcome)];
}

std::string csv(const std::vector<Stage>& stages, const Candidate* best) {
    CsvRow header;
    header.add("stage").add("candidate");
    for (const char* name : {"preset", "scheduling_policy", "tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens",
                             "gpu_memory_utilization", "block_size", "gpus", "round", "seeds", "runs", "outcome", "capacity",
                             "capacity_low", "capacity_high", "capacity_per_gpu", "breaks_first"})
        header.add(name);
    for (const std::string_view name : shown_columns) header.add(name);
    header.add("same_as").add("scenario_as_is").add("best").add("error");
    std::string out = header.add("enable_chunked_prefill").add("long_prefill_token_threshold").line();
    for (std::size_t s = 0; s < stages.size(); ++s) {
        for (const Candidate& c : stages[s].candidates) {
            CsvRow row;
            row.add(std::to_string(s + 1)).add(c.label);
            if (!c.search) {
                for (std::size_t i = 0; i < setting_count + 11 + shown_columns.size(); ++i) row.add(std::string_view());
                out += row.add("0").add("0").add(c.error).add("").add("").line();
                continue;
            }
            for (const auto& [name, value] : settings_of(c.search->base())) row.add(value);
            const BrokenSlos broken = broken_above(c.capacity, c.search->targets());
            row.add(std::to_string(c.search->bill().gpus)).add(std::to_string(c.round)).add(std::to_string(c.seeds));
            row.add(std::to_string(c.capacity.runs));
            if (c.below) {
                row.add(outcome_of(c)).add("").add("").add(shortest(*c.below)).add("");
            } else {
                row.add(outcome_of(c)).add(shortest(c.capacity.value));
                row.add(shortest(c.capacity.low)).add(shortest(c.capacity.high)).add(shortest(c.score));
            }
            row.add(broken.empty() ? std::string() : broken.front().first);
            for (const std::string_view name : shown_columns) row.add(mean_of(c.limit, name));
            row.add(c.like).add(c.now ? "1" : "0").add(&c == best ? "1" : "0").add("");
            for (const auto& [name, value] : more_settings_of(c.search->base())) row.add(value);
            out += row.line();
        }
    }
    return out;
}

TextTable table_of(const Stage& stage, const Candidate& best) {
    TextTable out;
    for (const std::string& key : stage.plan.keys()) out.header.push_back(key.substr(key.rfind('.') + 1));
    for (const char* name :
         {"capacity", "95 % interval", "per GPU", "TTFT p99 ms", "TPOT mean ms", "E2E p99 ms", "breaks first", "round", ""})
        out.header.emplace_back(name);
    const auto is_best = [&best](const Candidate& c) {
        return c.search != nullptr && same_engine(c.search->base(), best.search->base());
    };
    std::vector<std::tuple<bool, std::size_t, double>> keys;
    for (const Candidate& c : stage.candidates) keys.emplace_back(is_best(c), c.round, c.score);
    std::vector<std::size_t> order(keys.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&keys](std::size_t a, std::size_t b) { return keys[a] > keys[b]; });
    for (const std::size_t i : order) {
        const Candidate& c = stage.candidates[i];
        std::vector<std::string>& row = out.rows.emplace_back(stage.plan.values(static_cast<std::int64_t>(i)));
        if (!c.search) {
            row.insert(row.end(), {"-", "-", "-", "-", "-", "-", "-", "-", "cannot run"});
            continue;
        }
        const auto figure = [&c](std::string_view column) {
            const std::optional<double> value = mean_of(c.limit, column);
            return value ? readable(*value) : "-";
        };
        const BrokenSlos broken = broken_above(c.capacity, c.search->targets());
        std::string mark = is_best(c) ? "best" : "";
        if (c.now) mark += mark.empty() ? "now" : ", now";
        if (!c.like.empty()) mark += mark.empty() ? "same as another" : ", same as another";
        const bool none = c.below || c.capacity.outcome == Capacity::Outcome::none;
        row.push_back(c.below ? "< " + readable(*c.below)
                      : none  ? "none"
                              : (c.unlimited() ? ">= " : "") + readable(c.capacity.value));
        row.push_back(none || c.unlimited() || c.seeds < 2
                          ? "-"
                          : fmt::format("{} to {}", readable(c.capacity.low), readable(c.capacity.high)));
        row.push_back(none ? "-" : readable(c.score));
        row.push_back(figure("ttft_p99_ms"));
        row.push_back(figure("tpot_mean_ms"));
        row.push_back(figure("e2e_p99_ms"));
        row.push_back(broken.empty() ? "-" : broken.front().first == "stable" ? "overloaded" : broken.front().first);
        row.push_back(std::to_string(c.round));
        row.push_back(mark);
    }
    return out;
}

/// auto_tune.sh's last line. Its throughput is over the seeds that the capacity is over: none under one that meets the SLOs
/// nowhere.
std::string best_line(const Candidate& best) {
    const EngineArgs& e = best.search->base().options.engine;
    const double share = static_cast<double>(best.capacity.at_limit.size()) / static_cast<double>(best.capacity.seeds);
    return fmt::format("best_max_num_seqs: {}, best_num_batched_tokens: {}, best_throughput: {}", e.max_num_seqs,
                       e.max_num_batched_tokens, number(share * mean_of(best.limit, "request_throughput_req_s").value_or(0)));
}

std::string recommended(const Candidate& best) {
    std::string out;
    for (const auto& [name, value] : settings_of(best.search->base())) {
        if (!value.empty()) out += (out.empty() ? "" : ", ") + name + " " + value;
    }
    for (const auto& [name, value] : more_settings_of(best.search->base())) out += ", " + name + " " + value;
    return out;
}

std::vector<std::string> refusals(const std::vector<Stage>& stages) {
    std::vector<std::string> out;
    for (const Stage& stage : stages) {
        for (const Candidate& c : stage.candidates) {
            if (!c.error.empty()) out.push_back(c.label + ": " + c.error);
        }
    }
    return out;
}

std::vector<std::string> warnings_of(const Candidate& best) {
    std::vector<std::string> out = best.capacity.warnings;
    if (best.capacity.outcome == Capacity::Outcome::at_least)
        out.emplace_back(
            "no limit found for the best candidate: the run is too short to overload, or the SLOs do not depend on "
            "the load; nothing tells settings that carry that much apart, so no more of them were searched");
    for (const std::string& warning : best.capacity.at_limit.front().warnings) {
        if (!warning.starts_with("saturated:") && !warning.starts_with("the batch means of")) out.push_back(warning);
    }
    return out;
}

/// The scenario's own settings, where they were searched.
const Candidate* as_it_is(const std::vector<Stage>& stages) {
    for (const Stage& stage : stages) {
        for (const Candidate& c : stage.candidates) {
            if (c.now && c.search && !c.below) return &c;
        }
    }
    return nullptr;
}

std::string text_report(const std::vector<Stage>& stages, const Candidate& best, bool as_markdown) {
    const PointSearch& search = *best.search;
    std::string slos;
    for (const std::string& text : search.targets().texts) slos += (slos.empty() ? "" : ", ") + text;
    std::string out =
        fmt::format("{}{}: engine arguments with the highest load per GPU ({}) that meets: {}\n", as_markdown ? "## " : "",
                    stages.front().plan.scenario.stem().string(), search.knob().unit, slos);
    for (const Stage& stage : stages) {
        const TextTable table = table_of(stage, best);
        out += "\n" + (as_markdown ? markdown(table) : plain_text(table));
        if (!out.ends_with('\n')) out += '\n';
    }
    const std::string line_end = as_markdown ? "  \n" : "\n";
    out += "\nrecommended: " + recommended(best) + line_end;
    const auto figure_of = [](const Candidate& c) {
        std::string text = capacity_text(c.capacity, c.search->knob());
        if (c.capacity.outcome == Capacity::Outcome::found)
            text += fmt::format(", 95 % interval {} to {}", readable(c.capacity.low), readable(c.capacity.high));
        return text;
    };
    out += "capacity: " + figure_of(best) + line_end;
    if (const Candidate* const now = as_it_is(stages); now != nullptr && !same_engine(now->search->base(), search.base()))
        out += "the scenario as it is: " + figure_of(*now) + line_end;
    for (const std::string& text : refusals(stages)) out += "cannot run: " + text + line_end;
    for (const std::string& text : warnings_of(best)) out += "warning: " + text + line_end;
    const char* const fence = as_markdown ? "```\n" : "";
    const std::string command = command_line(search.base());
    if (command.empty())
        out += fmt::format("no command line: neither vLLM nor SGLang schedules like this ({}){}",
                           search.base().info.modelled_from, line_end);
    out += "\n" + std::string(fence) + (command.empty() ? "" : command + "\n") + best_line(best) + "\n" + fence;
    return out;
}

std::string json_report(const std::vector<Stage>& stages, const Candidate& best) {
    const auto object = [&best](const Candidate& c) {
        Json row{{"candidate", c.label}};
        if (!c.search) {
            row["error"] = c.error;
            return row;
        }
        for (const auto& [name, value] : settings_of(c.search->base())) row[name] = value;
        for (const auto& [name, value] : more_settings_of(c.search->base())) row[name] = value;
        row["round"] = c.round;
        row["seeds"] = c.seeds;
        row["capacity"] = c.below ? Json(nullptr) : Json(c.capacity.value);
        row["capacity_ci95"] = c.below ? Json::array({nullptr, *c.below}) : Json::array({c.capacity.low, c.capacity.high});
        row["outcome"] = outcome_of(c);
        row["capacity_per_gpu"] = c.score;
        row["meets"] = c.meets();
        row["scenario_as_is"] = c.now;
        row["same_as"] = c.like;
        row["best"] = &c == &best;
        for (const std::string_view name : shown_columns) {
            const std::optional<double> value = mean_of(c.limit, name);
            row[std::string(name)] = value ? Json(*value) : Json(nullptr);
        }
        return row;
    };
    const std::string command = command_line(best.search->base());
    Json out{{"scenario", stages.front().plan.scenario.stem().string()},
             {"slos", best.search->targets().texts},
             {"searched", best.search->knob().key},
             {"unit", best.search->knob().unit},
             {"best", object(best)},
             {"command", command.empty() ? Json() : Json(command)},
             {"result", best_line(best)},
             {"warnings", warnings_of(best)},
             {"candidates", Json::array()}};
    for (const Stage& stage : stages) {
        for (const Candidate& c : stage.candidates) out["candidates"].push_back(object(c));
    }
    return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// Grid after grid, each around the best of those before it: the settings of one depend on each other more than on those of
/// another.
void search_in_turn(std::vector<Stage>& stages, const LoadRequest& asked, PointSearch& own, const Held& held,
                    RunCounter& counter) {
    LoadRequest request = asked;
    own.search(1, coarse_tolerance, request.jobs);
    while (!holds_at_reach(own)) own.search(1, coarse_tolerance, request.jobs);
    Known known{&own, {&own}};
    bool open = own.capacity().outcome == Capacity::Outcome::at_least;
    const auto run = [&](std::vector<SweepAxis> axes) {
        // What was chosen before stays, but for what varies now.
        std::vector<std::string> sets;
        for (const std::string& set : request.sweep.sets) {
            const std::string key(trimmed(set.substr(0, set.find('='))));
            const bool varies = std::any_of(axes.begin(), axes.end(), [&key](const SweepAxis& a) {
                return std::find(a.keys.begin(), a.keys.end(), key) != a.keys.end();
            });
            if (!varies) sets.push_back(set);
        }
        request.sweep.sets = std::move(sets);
        request.sweep.axes = std::move(axes);
        Stage& stage = stages.emplace_back();
        stage.plan = plan_load(request);
        run_stage(stage, request, own.base(), &known, counter);
        for (const Candidate& c : stage.candidates) {
            if (c.search && !c.below) known.searched.push_back(c.search.get());
        }
        if (!stage.best) return false;
        const Candidate& found = stage.candidates[*stage.best];
        const bool moved = !same_engine(found.search->base(), known.incumbent->base());
        known.incumbent = found.search.get();
        open = found.unlimited();
        request.sweep.sets = stage.plan.assignment(static_cast<std::int64_t>(*stage.best)).sets;
        return moved;
    };
    if (open) {  // no setting carries more, as far as such runs can tell
        run({});
        return;
    }
    const auto run_some = [&](std::vector<SweepAxis> axes) { return !open && !axes.empty() && run(std::move(axes)); };
    run(batch_axes(own.base(), held));
    const auto any = [&stages] {
        return std::any_of(stages.begin(), stages.end(), [](const Stage& stage) { return stage.best.has_value(); });
    };
    // Where no batch meets the SLOs another policy may, or more memory.
    bool all_failed = !any();
    for (auto* const axes : {&policy_axes, &memory_axes}) {
        run_some(axes(known.incumbent->base(), held));
        if (std::exchange(all_failed, !any()) && any()) run_some(batch_axes(known.incumbent->base(), held));
    }
    if (!any()) return;
    for (int n = 0; n < most_refinements; ++n) {
        if (!run_some(neighbour_axes(known.incumbent->base(), held))) break;
    }
    run_some(long_prompt_axes(known.incumbent->base(), held));
}

/// What a later stage found of an engine is what the tables of the earlier ones show.
void agree(std::vector<Stage>& stages) {
    std::vector<const Candidate*> later;
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
        for (Candidate& c : stage->candidates) {
            if (!c.search) continue;
            const auto same = std::find_if(later.begin(), later.end(), [&c](const Candidate* other) {
                return same_engine(other->search->base(), c.search->base());
            });
            if (same == later.end()) continue;
            c.capacity = (*same)->capacity;
            c.score = (*same)->score;
            c.seeds = (*same)->seeds;
            c.limit = (*same)->limit;
            c.below.reset();
        }
        for (const Candidate& c : stage->candidates) {
            if (c.search && !c.below) later.push_back(&c);
        }
    }
}

/// Where a figure was lowered later on, a candidate that lost may stand above the winner: it wins if it holds too.
void choose_again(std::vector<Stage>& stages, const LoadRequest& request) {
    const double tolerance = request.search.tolerance;
    for (agree(stages);; agree(stages)) {
        const Candidate& chosen = winner(stages);
        if (chosen.unlimited()) return;
        Stage* where = nullptr;
        std::size_t place = 0;
        double highest = chosen.score;
        for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {  // the last has all that ran
            for (std::size_t i = 0; i < stage->candidates.size(); ++i) {
                const Candidate& c = stage->candidates[i];
                if (!c.search || c.below || c.unlimited() || c.seeds < stage->plan.seeds.size()) continue;
                if (c.score * (1 - 2 * tolerance) <= chosen.score || c.score <= highest) continue;
                where = &*stage;
                place = i;
                highest = c.score;
            }
        }
        if (where == nullptr) return;
        Candidate& c = where->candidates[place];
        if (holds_at_reach(*c.search)) {
            for (Stage& stage : stages) stage.best.reset();
            where->best = place;
            return;
        }
        c.search->search(where->plan.seeds.size(), tolerance, request.jobs);
        c.take_capacity();
        c.limit = c.capacity.at_limit.empty() ? std::vector<ReplicatedColumn>() : replicated(c.capacity.at_limit);
    }
}

}  // namespace

int tune_command(const std::vector<std::string>& args) {
    const std::optional<Arguments> given = parse(usage(), args);
    if (!given) return exit_done;
    LoadRequest request = read_load_options(*given, "tune", seeds_by_default);
    if (request.quiet) set_log_level("error");
    for (const Argument& a : arguments) {
        const std::optional<std::string> list = given->text(a.option);
        if (list && trimmed(*list).empty()) throw UserError("error: --" + std::string(a.option) + " names no candidate");
        if (list) request.sweep.vary.push_back(std::string(a.key) + "=" + *list);
    }
    // The scenario as it is: whether it can be searched at all, and what the lists start from.
    SweepRequest alone = request.sweep;
    alone.vary.clear();
    const bool lists = !request.sweep.vary.empty();
    const std::optional<std::string> hold = given->text("hold");
    const Held held = held_settings(hold, request.sweep.sets);
    if (hold && lists) throw UserError("error: --hold is for a search without lists: with lists only these vary");
    std::optional<SweepPlan> listed;
    if (lists) listed.emplace(plan_load(request));
    LoadRequest own_request = request;
    own_request.sweep = alone;
    const SweepPlan own_plan = plan_load(own_request);
    std::optional<PointSearch> own;
    try {
        if (own_plan.axes.empty()) own.emplace(own_plan, 0, request.search);
    } catch (const UserError&) {  // the lists may give what it lacks
        if (!lists) throw;
    }
    const OutputFolder folder(request.out);
    RunCounter counter(0, request.quiet);
    request.search.on_run = [&counter] { counter.run(); };
    std::vector<Stage> stages;
    stages.reserve(7 + most_refinements);  // the searches hold on to their plans
    if (lists || !own) {
        const Prepared nothing;
        stages.emplace_back().plan = listed ? std::move(*listed) : plan_load(request);
        run_stage(stages.back(), request, own ? own->base() : nothing, nullptr, counter);
    } else {
        search_in_turn(stages, request, *own, held, counter);
        if (std::any_of(stages.begin(), stages.end(), [](const Stage& s) { return s.best.has_value(); }))
            choose_again(stages, request);
    }
    throw_if_stopped();

    const bool any = std::any_of(stages.begin(), stages.end(), [](const Stage& s) { return s.best.has_value(); });
    const std::vector<Candidate>& first = stages.front().candidates;
    if (std::none_of(first.begin(), first.end(), [](const Candidate& c) { return c.search != nullptr; }))
        throw UserError("error: no candidate can run\n" + first.front().full_error);
    const Candidate* const best = any ? &winner(stages) : nullptr;
    AtomicFile file(folder.path() / "tune.csv");
    const std::string rows = csv(stages, best);
    file.write(rows);
    file.commit();
    if (!any) {
        const Candidate& told =
            *std::find_if(first.begin(), first.end(), [](const Candidate& c) { return c.search != nullptr; });
        print_error("no candidate meets the SLOs: " + (told.label.empty() ? std::string() : told.label + ": ") +
                    capacity_text(told.capacity, told.search->knob()));
        if (!request.quiet) print("best_max_num_seqs: 0, best_num_batched_tokens: 0, best_throughput: 0\n");
        return exit_gate_failed;
    }
    if (!request.quiet) {
        print(request.format == "csv"    ? rows
              : request.format == "json" ? json_report(stages, *best)
                                         : text_report(stages, *best, request.format == "markdown"));
    }
    return exit_done;
}

}  // namespace kvsim::app
