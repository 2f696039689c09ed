// kvsim tune: which engine arguments carry the most load under the SLOs.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

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
#include "kvsim/report/text_table.hpp"

namespace kvsim::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t seeds_by_default = 4;
constexpr std::size_t finalists = 3;
constexpr double coarse_tolerance = 0.04;

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
        Usage u{"tune",
                "kvsim tune SCENARIO.yaml [--slo 'ttft_p99 <= 2s' ...] [--max-num-seqs 64,128,256 ...] [options]",
                "Searches the engine arguments with the highest rate (or concurrency) per GPU that meets every SLO, by "
                "successive halving\n"
                "over seeds. Without any list: max_num_seqs x max_num_batched_tokens, then for the best of them "
                "gpu_memory_utilization x\n"
                "block_size x tensor_parallel_size. Prints the table, auto_tune.sh's last line and the engine's command line; "
                "writes\n"
                "DIR/tune.csv. Exit code 1: no candidate meets the SLOs.",
                load_options(),
                "a scenario file",
                1,
                1};
        u.options.insert(u.options.begin() + 6, {"seeds", "N", "of the last round, S ... S+N-1 (4)"});
        std::size_t at = 7;
        for (const Argument& a : arguments)
            u.options.insert(u.options.begin() + static_cast<std::ptrdiff_t>(at++), {a.option, "A,B,...", a.doc});
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
    double score = 0;  ///< capacity per GPU
    std::string like;  ///< label of an earlier candidate that behaves the same in every run of the first round
    bool now = false;  ///< the scenario as it is
    std::vector<ReplicatedColumn> limit;

    [[nodiscard]] bool meets() const { return search && capacity.outcome != Capacity::Outcome::none && score > 0; }
};

/// A grid and who won in it.
struct Stage {
    SweepPlan plan;  ///< the searches refer to it
    std::vector<Candidate> candidates;
    std::optional<std::size_t> best;
};

/// `list` with `own` among its values, in order.
std::string with_own(std::vector<std::int64_t> list, std::int64_t own) {
    if (std::find(list.begin(), list.end(), own) == list.end()) list.push_back(own);
    std::sort(list.begin(), list.end());
    std::string out;
    for (const std::int64_t value : list) out += (out.empty() ? "" : ",") + std::to_string(value);
    return out;
}

std::vector<std::string> first_axes(const Prepared& own) {
    const EngineArgs& e = own.options.engine;
    return {"engine.max_num_seqs=" + with_own({64, 128, 256, 512, 1024}, e.max_num_seqs),
            "engine.max_num_batched_tokens=" + with_own({2048, 4096, 8192, 16384}, e.max_num_batched_tokens)};
}

/// What changes how much memory there is; of use only where the blocks are derived from it.
std::vector<std::string> second_axes(const Prepared& own) {
    const double utilization = own.info.gpu_memory_utilization;
    if (!own.deployment.gpu || utilization <= 0) return {};
    std::set<double> shares{0.90, 0.95, utilization};
    std::string list;
    for (const double share : shares) list += (list.empty() ? "" : ",") + shortest(share);
    return {"engine.gpu_memory_utilization=" + list, "engine.block_size=" + with_own({16, 32}, own.options.engine.block_size),
            "hardware.tensor_parallel_size=" + with_own({1, 2, 4}, own.deployment.tensor_parallel_size)};
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

void run_stage(Stage& stage, const LoadRequest& request, const Prepared& own, RunCounter& counter) {
    stage.candidates.resize(static_cast<std::size_t>(stage.plan.points()));
    std::vector<std::size_t> usable;
    for_each_index(stage.candidates.size(), request.jobs, [&](std::size_t i) {
        Candidate& c = stage.candidates[i];
        c.label = stage.plan.label(static_cast<std::int64_t>(i));
        try {
            c.search = std::make_unique<PointSearch>(stage.plan, static_cast<std::int64_t>(i), request.search);
            c.now = same_engine(c.search->base(), own);
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
                c.search->search(seeds, tolerance, std::max<std::size_t>(1, request.jobs / outer));
                c.capacity = c.search->capacity();
                c.score = c.capacity.value / static_cast<double>(c.search->bill().gpus);
            } catch (const UserError& e) {  // what only a run can tell
                c.full_error = e.what();
                c.error = c.full_error.substr(0, c.full_error.find('\n'));
                c.score = 0;
                c.search.reset();
            }
            c.round = round;
            c.seeds = seeds;
            scores[k] = c.score;
        });
        std::map<std::pair<std::string, std::int64_t>, std::string> known;
        for (std::size_t k = 0; k < places.size() && round == 1; ++k) {
            Candidate& c = stage.candidates[usable[places[k]]];
            if (!c.search) continue;
            const auto [earlier, is_new] =
                known.emplace(std::pair(seen_by(c.search->seeds().front()), c.search->bill().gpus), c.label);
            if (is_new) continue;
            c.like = earlier->second;
            scores[k] = 0;  // one of them is enough
        }
        counter.point(fmt::format("round {}: {} candidates, {} seeds", round, places.size(), seeds));
        return scores;
    };
    const std::vector<Rung> rungs = successive_halving(usable.size(), stage.plan.seeds.size(), finalists, work);
    if (rungs.empty()) return;
    // The first whose lead over the best is within what the brackets leave open: lists go up, so the smaller batch wins a tie.
    double best = 0;
    for (const std::size_t place : rungs.back().choices) best = std::max(best, stage.candidates[usable[place]].score);
    for (const std::size_t place : rungs.back().choices) {
        const std::size_t i = usable[place];
        const bool tied = best > 0 && stage.candidates[i].score >= best * (1 - 2 * request.search.tolerance);
        if (tied && (!stage.best || i < *stage.best)) stage.best = i;
    }
    for (Candidate& c : stage.candidates) {
        if (c.search && !c.capacity.at_limit.empty()) c.limit = replicated(c.capacity.at_limit);
    }
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
            {"scheduling_policy", std::string(name_of(e.scheduling_policy))},
            {"tensor_parallel_size", std::to_string(p.deployment.tensor_parallel_size)},
            {"max_num_seqs", std::to_string(e.max_num_seqs)},
            {"max_num_batched_tokens", std::to_string(e.max_num_batched_tokens)},
            {"gpu_memory_utilization", p.info.gpu_memory_utilization > 0 ? shortest(p.info.gpu_memory_utilization) : ""},
            {"block_size", std::to_string(e.block_size)}};
}
constexpr std::size_t setting_count = 7;

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

std::string csv(const std::vector<Stage>& stages, const Candidate* best) {
    CsvRow header;
    header.add("stage").add("candidate");
    for (const char* name : {"preset", "scheduling_policy", "tensor_parallel_size", "max_num_seqs", "max_num_batched_tokens",
                             "gpu_memory_utilization", "block_size", "gpus", "round", "seeds", "runs", "outcome", "capacity",
                             "capacity_low", "capacity_high", "capacity_per_gpu", "breaks_first"})
        header.add(name);
    for (const std::string_view name : shown_columns) header.add(name);
    std::string out = header.add("same_as").add("scenario_as_is").add("best").add("error").line();
    for (std::size_t s = 0; s < stages.size(); ++s) {
        for (const Candidate& c : stages[s].candidates) {
            CsvRow row;
            row.add(std::to_string(s + 1)).add(c.label);
            if (!c.search) {
                for (std::size_t i = 0; i < setting_count + 11 + shown_columns.size(); ++i) row.add(std::string_view());
                out += row.add("0").add("0").add(c.error).line();
                continue;
            }
            for (const auto& [name, value] : settings_of(c.search->base())) row.add(value);
            constexpr std::array<std::string_view, 3> outcomes{"found", "at_least", "none"};
            const BrokenSlos broken = broken_above(c.capacity, c.search->targets());
            row.add(std::to_string(c.search->bill().gpus)).add(std::to_string(c.round)).add(std::to_string(c.seeds));
            row.add(std::to_string(c.capacity.runs)).add(outcomes[static_cast<std::size_t>(c.capacity.outcome)]);
            row.add(shortest(c.capacity.value)).add(shortest(c.capacity.low)).add(shortest(c.capacity.high));
            row.add(shortest(c.score)).add(broken.empty() ? std::string() : broken.front().first);
            for (const std::string_view name : shown_columns) row.add(mean_of(c.limit, name));
            out += row.add(c.like).add(c.now ? "1" : "0").add(&c == best ? "1" : "0").add(std::string_view()).line();
        }
    }
    return out;
}

TextTable table_of(const Stage& stage, const Candidate* best) {
    TextTable out;
    for (const std::string& key : stage.plan.keys()) out.header.push_back(key.substr(key.rfind('.') + 1));
    for (const char* name :
         {"capacity", "95 % interval", "per GPU", "TTFT p99 ms", "TPOT mean ms", "E2E p99 ms", "breaks first", "round", ""})
        out.header.emplace_back(name);
    std::vector<std::size_t> order(stage.candidates.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const Candidate& x = stage.candidates[a];
        const Candidate& y = stage.candidates[b];
        return std::tuple(&x == best, x.round, x.score) > std::tuple(&y == best, y.round, y.score);
    });
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
        std::string mark = &c == best ? "best" : "";
        if (c.now) mark += mark.empty() ? "now" : ", now";
        if (!c.like.empty()) mark += mark.empty() ? "same as another" : ", same as another";
        const bool none = c.capacity.outcome == Capacity::Outcome::none;
        row.push_back(none ? "none" : readable(c.capacity.value));
        row.push_back(none || c.seeds < 2 ? "-" : fmt::format("{} to {}", readable(c.capacity.low), readable(c.capacity.high)));
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

/// auto_tune.sh's last line.
std::string best_line(const Candidate& best) {
    const EngineArgs& e = best.search->base().options.engine;
    return fmt::format("best_max_num_seqs: {}, best_num_batched_tokens: {}, best_throughput: {}", e.max_num_seqs,
                       e.max_num_batched_tokens, number(mean_of(best.limit, "request_throughput_req_s").value_or(0)));
}

std::string recommended(const Candidate& best) {
    std::string out;
    for (const auto& [name, value] : settings_of(best.search->base())) {
        if (!value.empty()) out += (out.empty() ? "" : ", ") + name + " " + value;
    }
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
            "the load");
    for (const std::string& warning : best.capacity.at_limit.front().warnings) {
        if (!warning.starts_with("saturated:") && !warning.starts_with("the batch means of")) out.push_back(warning);
    }
    return out;
}

std::string text_report(const std::vector<Stage>& stages, const Candidate& best, bool as_markdown) {
    const PointSearch& search = *best.search;
    std::string slos;
    for (const std::string& text : search.targets().texts) slos += (slos.empty() ? "" : ", ") + text;
    std::string out =
        fmt::format("{}{}: engine arguments with the highest load per GPU ({}) that meets: {}\n", as_markdown ? "## " : "",
                    stages.front().plan.scenario.stem().string(), search.knob().unit, slos);
    for (const Stage& stage : stages) {
        const TextTable table = table_of(stage, &best);
        out += "\n" + (as_markdown ? markdown(table) : plain_text(table));
        if (!out.ends_with('\n')) out += '\n';
    }
    const std::string line_end = as_markdown ? "  \n" : "\n";
    out += "\nrecommended: " + recommended(best) + line_end;
    out += fmt::format("capacity: {}, 95 % interval {} to {}{}", capacity_text(best.capacity, search.knob()),
                       readable(best.capacity.low), readable(best.capacity.high), line_end);
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
        row["round"] = c.round;
        row["seeds"] = c.seeds;
        row["capacity"] = c.capacity.value;
        row["capacity_ci95"] = {c.capacity.low, c.capacity.high};
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
    std::vector<Stage> stages;
    stages.reserve(3);  // the searches hold on to their plans
    stages.emplace_back();
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
    if (!lists && own) request.sweep.vary = first_axes(own->base());
    stages.front().plan = plan_load(request);
    RunCounter counter(0, request.quiet);
    request.search.on_run = [&counter] { counter.run(); };
    const Prepared nothing;
    const Prepared& base = own ? own->base() : nothing;
    run_stage(stages.front(), request, base, counter);
    if (!lists && own && stages.front().best) {
        const Candidate& first = stages.front().candidates[*stages.front().best];
        request.sweep.vary = second_axes(first.search->base());
        if (!request.sweep.vary.empty()) {
            const SweepPlan::Assignment chosen =
                stages.front().plan.assignment(static_cast<std::int64_t>(*stages.front().best));
            request.sweep.sets = chosen.sets;
            stages.emplace_back().plan = plan_load(request);
            run_stage(stages.back(), request, base, counter);
        }
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
        print_error("no candidate meets the SLOs: " + told.label + ": " + capacity_text(told.capacity, told.search->knob()));
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
