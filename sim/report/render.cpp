#include "kvsim/report/render.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/writers.hpp"

namespace kvsim {
namespace {

constexpr std::size_t page_width = 100;
constexpr std::string_view absent = "-";

// 1234567.8 -> "1,234,567.8"
std::string grouped(std::string_view digits) {
    const std::size_t point = std::min(digits.find('.'), digits.size());
    std::string out;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        const bool digit_before = i > 0 && digits[i - 1] != '-';
        if (digit_before && i < point && (point - i) % 3 == 0) out += ',';
        out += digits[i];
    }
    return out;
}

std::string count_text(std::int64_t value) {
    return grouped(std::to_string(value));
}

// About four significant digits.
std::string figure(double value) {
    const double size = std::fabs(value);
    const int digits = size < 0.1 ? 4 : size < 1 ? 3 : size < 100 ? 2 : size < 1000 ? 1 : 0;
    return grouped(fmt::format("{:.{}f}", value, digits));
}

std::string figure(const std::optional<double>& value) {
    return value ? figure(*value) : std::string(absent);
}

std::string percent(double share) {
    if (share > 0 && share < 0.0005) return "<0.1%";
    return fmt::format("{:.1f}%", share * 100);
}

std::string percent(const std::optional<double>& share) {
    return share ? percent(*share) : std::string(absent);
}

std::string duration_text(SimDuration d) {
    const std::int64_t ns = d.count();
    if (ns >= 1'000'000'000) return decimals(static_cast<double>(ns) / 1e9, 6) + " s";
    return decimals(static_cast<double>(ns) / 1e6, 6) + " ms";
}

std::string plural(std::int64_t n, std::string_view one, std::string_view many) {
    return count_text(n) + " " + std::string(n == 1 ? one : many);
}

std::string bytes_text(std::int64_t bytes) {
    return bytes % KiB == 0 ? fmt::format("{} KiB", count_text(bytes / KiB)) : fmt::format("{} bytes", count_text(bytes));
}

struct LatencyRow {
    std::string_view name;
    const Distribution* d;
    const DistributionInterval* ci95;
};
std::array<LatencyRow, 5> latency_rows(const Summary& s) {
    return {{{"TTFT", &s.ttft, &s.ttft_ci95},
             {"TPOT", &s.tpot, &s.tpot_ci95},
             {"ITL", &s.itl, &s.itl_ci95},
             {"E2E", &s.e2e, &s.e2e_ci95},
             {"Queue", &s.queue, &s.queue_ci95}}};
}

using Half = std::optional<double>;
std::array<Half, 5> half_widths(const DistributionInterval& i) {
    const auto half = [](const std::optional<Interval>& interval) { return interval ? Half(interval->half_width()) : Half(); };
    return {half(i.mean), half(i.p50), half(i.p90), half(i.p95), half(i.p99)};
}

std::vector<std::string> slo_limits(const config::SloConfig& slo) {
    std::vector<std::string> out;
    const auto add = [&](std::string_view name, const std::optional<SimDuration>& limit) {
        if (limit) out.push_back(fmt::format("{} <= {}", name, duration_text(*limit)));
    };
    add("TTFT", slo.ttft);
    add("TPOT", slo.tpot);
    add("ITL p99", slo.itl_p99);
    add("E2E", slo.e2e);
    add("queue", slo.queue);
    return out;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
    std::string out;
    for (const std::string& part : parts) {
        if (!out.empty()) out += separator;
        out += part;
    }
    return out;
}

// ---- facts: label and sentence, shared by table and markdown -----------------------------------------------------------

using Facts = std::vector<std::pair<std::string, std::string>>;

std::string hardware_text(const RunInfo& info, const Summary& s) {
    std::string out = info.gpu.empty() ? "no GPU named" : info.gpu;
    out += fmt::format(", TP {}", info.tensor_parallel_size);
    if (info.pipeline_parallel_size > 1) out += fmt::format(", PP {}", info.pipeline_parallel_size);
    if (info.data_parallel_size > 1) out += fmt::format(", DP {}", info.data_parallel_size);
    return out + ", " + plural(s.replicas, "replica", "replicas");
}

/// "6 block tables of 1,024-token windows (16 tokens a block) and 1 of full attention (16 tokens a block)".
std::string tables_text(const EngineArgs& engine) {
    std::string out;
    for (std::size_t g = 0; g < engine.kv_groups.size(); ++g) {
        const BlockGroup& group = engine.kv_groups[g];
        const std::string tables = plural(group.tables, "block table", "block tables");
        out += g == 0 ? tables : (g + 1 < engine.kv_groups.size() ? ", " : " and ") + count_text(group.tables);
        switch (group.rule) {
            case BlockGroup::Rule::full:
                out += fmt::format(" of full attention ({} tokens a block)", count_text(group.block_size));
                break;
            case BlockGroup::Rule::sliding:
                out += fmt::format(" of {}-token windows ({} tokens a block)", count_text(group.window),
                                   count_text(group.block_size));
                break;
            case BlockGroup::Rule::chunked:
                out += fmt::format(" of {}-token chunks ({} tokens a block)", count_text(group.window),
                                   count_text(group.block_size));
                break;
            case BlockGroup::Rule::state:
                out += fmt::format(" of recurrent state ({} a request)", plural(group.state_blocks, "block", "blocks"));
                break;
        }
    }
    return out;
}

std::string kv_text(const RunInfo& info, const Outcome& o, const Summary& s) {
    std::string out = plural(s.num_gpu_blocks, "block", "blocks");
    if (o.usable_blocks != s.num_gpu_blocks) out += fmt::format(" ({} usable)", count_text(o.usable_blocks));
    if (!info.engine.kv_groups.empty()) {
        out += " shared by " + tables_text(info.engine);
        if (s.replicas > 1) out += ", per replica";
        if (s.kv_bytes_per_token) {
            out += fmt::format("; {} per token and rank if all its layers keep it", bytes_text(*s.kv_bytes_per_token));
        }
        return out + "; " + info.kv_policy;
    }
    const std::int64_t tokens = o.usable_blocks * s.block_size;
    out += fmt::format(" x {} tokens = {} live tokens", s.block_size, count_text(tokens));
    if (s.replicas > 1) out += " per replica";
    if (s.max_model_len > 0)
        out += fmt::format(" ({} x max_model_len)", figure(static_cast<double>(tokens) / static_cast<double>(s.max_model_len)));
    if (s.kv_bytes_per_token) out += fmt::format("; {} per token and rank", bytes_text(*s.kv_bytes_per_token));
    return out + "; " + info.kv_policy;
}

std::string lengths_text(const Distribution& d) {
    return d.count ? fmt::format("{} mean, {} p50, {} p99", figure(d.mean), figure(d.p50), figure(d.p99)) : std::string(absent);
}

std::string workload_text(const RunInfo& info, const Summary& s) {
    std::string out = plural(s.requests, "measured request", "measured requests");
    if (s.client.num_prompts != s.requests) out += fmt::format(" of {}", count_text(s.client.num_prompts));
    if (info.request_rate)
        out +=
            std::isfinite(*info.request_rate) ? fmt::format(" at {} req/s", decimals(*info.request_rate, 6)) : ", all at once";
    if (info.max_concurrency) out += fmt::format(", max_concurrency {}", *info.max_concurrency);
    return out;
}

Facts dimensions(const RunInfo& info, const Outcome& o, const Summary& s) {
    Facts facts;
    facts.emplace_back("Model", s.model.empty() ? std::string(absent) : s.model);
    facts.emplace_back("Hardware", hardware_text(info, s));
    facts.emplace_back("Engine",
                       fmt::format("preset {}: max_num_seqs {}, max_num_batched_tokens {}, max_model_len {}, {}, {}", s.preset,
                                   s.max_num_seqs, s.max_num_batched_tokens, s.max_model_len, s.scheduling_policy,
                                   s.preemption == "none" ? "no preemption" : fmt::format("preemption by {}", s.preemption)));
    if (!info.modelled_from.empty())
        facts.emplace_back("", "modelled from documentation, without recorded decisions: " + info.modelled_from);
    facts.emplace_back("  deviates", info.deviations.empty() ? "nowhere from the preset" : join(info.deviations, "; "));
    facts.emplace_back("KV cache", kv_text(info, o, s));
    for (const std::string& line : info.derivation) facts.emplace_back("", line);
    facts.emplace_back("Step time", info.step_time_description.empty() ? s.step_time_model : info.step_time_description);
    facts.emplace_back("Workload", workload_text(info, s));
    facts.emplace_back("  prompt", lengths_text(s.prompt_tokens) + " tokens");
    facts.emplace_back("  output", lengths_text(s.output_tokens) + " tokens");
    if (info.slo.any()) facts.emplace_back("SLO", join(slo_limits(info.slo), ", "));
    for (const auto& [name, slo] : info.class_slos) {
        if (slo.any()) facts.emplace_back("  " + name, join(slo_limits(slo), ", "));
    }
    return facts;
}

Facts outcome_facts(const Summary& s) {
    Facts facts;
    std::string verdict = s.verdict;
    if (s.load) verdict += fmt::format(" at load {:.2f}", *s.load);
    if (s.offered_rate_req_s && s.capacity_req_s)
        verdict += fmt::format(" (offered {} of {} req/s)", figure(s.offered_rate_req_s), figure(s.capacity_req_s));
    else if (s.offered_rate_req_s)
        verdict += fmt::format(" (offered {} req/s)", figure(s.offered_rate_req_s));
    if (s.served_rate_req_s) verdict += fmt::format("; served {} req/s while they arrived", figure(s.served_rate_req_s));
    if (s.lost * 100 > s.client.num_prompts)
        verdict += fmt::format("; {} of the requests not served",
                               percent(static_cast<double>(s.lost) / static_cast<double>(s.client.num_prompts)));
    facts.emplace_back("Verdict", verdict);
    if (s.drift)
        facts.emplace_back("Steady state",
                           fmt::format("{}: E2E of the later half {:+.1f}% against the earlier, trend p {:.3f} (Mann-Kendall)",
                                       s.drift->drifting ? "no" : "no drift seen", s.drift->change * 100, s.drift->p));
    std::string requests = fmt::format("{} completed", count_text(s.completed));
    requests += fmt::format(", {} rejected", count_text(s.rejected));
    if (s.queue_full > 0) requests += " (queue full)";
    requests += fmt::format(", {} timed out", count_text(s.timed_out));
    if (s.cancelled > 0) requests += fmt::format(", {} cancelled", count_text(s.cancelled));
    if (s.failed > 0) requests += fmt::format(", {} failed", count_text(s.failed));
    if (s.retries > 0) requests += fmt::format(", {} of all sent again", count_text(s.retries));
    const std::int64_t others = s.requests - s.completed - s.rejected - s.timed_out - s.cancelled - s.failed;
    if (others > 0) requests += fmt::format(", {} not finished", count_text(others));
    facts.emplace_back("Requests", requests + fmt::format("; {} s", figure(s.duration_s)));
    facts.emplace_back("Throughput",
                       fmt::format("{} req/s, {} output tok/s, {} total tok/s", figure(s.request_throughput_req_s),
                                   figure(s.output_throughput_tok_s), figure(s.total_token_throughput_tok_s)));
    if (s.wasted_tokens > 0)
        facts.emplace_back("Wasted", fmt::format("{} tokens computed, {} received, for requests whose clients gave up",
                                                 count_text(s.wasted_tokens), count_text(s.wasted_output_tokens)));
    if (s.wasted_tokens > 0 && s.classes.size() > 1) {
        for (const ClassSummary& c : s.classes) {
            if (c.wasted_tokens > 0)
                facts.emplace_back("  " + c.name, fmt::format("{} tokens computed, {} received", count_text(c.wasted_tokens),
                                                              count_text(c.wasted_output_tokens)));
        }
    }
    if (s.client_queue.count > 0)
        facts.emplace_back("At client", fmt::format("{} ms mean, {} ms p99 before they were sent", figure(s.client_queue.mean),
                                                    figure(s.client_queue.p99)));
    if (s.slo_attainment || s.goodput_req_s)
        facts.emplace_back("Goodput", fmt::format("{} req/s; {} of the requests met the SLO", figure(s.goodput_req_s),
                                                  percent(s.slo_attainment)));
    return facts;
}

Facts engine_facts(const Summary& s) {
    Facts facts;
    std::string kv = fmt::format("{} mean, {} peak", percent(s.kv_usage_mean), percent(s.kv_usage_peak));
    if (s.kv_token_share)
        kv += fmt::format("; while running: {} tokens, {} reserved, {} internal, {} unheld", percent(s.kv_token_share),
                          percent(s.kv_reserved_share), percent(s.kv_internal_share), percent(s.kv_external_share));
    facts.emplace_back("KV use", kv);
    if (s.kv_sharing_saved)
        facts.emplace_back("KV shared",
                           fmt::format("{} of the blocks saved that unshared outputs would hold", percent(s.kv_sharing_saved)));
    std::string preemption = count_text(s.preemptions);
    if (s.preemptions > 0) {
        preemption += fmt::format(
            " on {} ({} per measured request); {} tokens recomputed", plural(s.preempted_requests, "request", "requests"),
            figure(static_cast<double>(s.preemptions) / static_cast<double>(s.requests)), count_text(s.recomputed_tokens));
        if (s.swapped_tokens > 0) preemption += fmt::format(", {} tokens swapped", count_text(s.swapped_tokens));
        preemption += fmt::format(", {} of step time", percent(s.recompute_time_share));
    }
    facts.emplace_back("Preemptions", preemption);
    std::string hits = "prefix caching off";
    if (s.prefix_hit_rate) {
        hits = fmt::format("{} of prompt tokens at first admission", percent(s.prefix_hit_rate));
        if (s.resume_hit_rate) hits += fmt::format(", {} of the tokens of resumes", percent(s.resume_hit_rate));
    }
    facts.emplace_back("Prefix hits", hits);
    facts.emplace_back("Batch", fmt::format("{} sequences and {} tokens a step on average; {}", figure(s.batch_size_mean),
                                            figure(s.batch_tokens_mean), plural(s.steps, "step", "steps")));
    facts.emplace_back("Bound by", fmt::format("seats {}, token budget {}, KV blocks {}, nothing waiting {} of the time",
                                               percent(s.bound_seats), percent(s.bound_token_budget),
                                               percent(s.bound_kv_blocks), percent(s.bound_no_waiting)));
    return facts;
}

// ---- table -----------------------------------------------------------------------------------------------------------

// Breaks at spaces so that lines stay within the page; continuation lines start at `indent`.
void add_wrapped(std::string& out, std::string first, std::size_t indent, std::string_view text) {
    std::string line = std::move(first);
    bool empty = true;  // nothing after the label yet
    std::size_t at = 0;
    while (at < text.size()) {
        const std::size_t end = std::min(text.find(' ', at), text.size());
        const std::string_view word = text.substr(at, end - at);
        if (!empty && line.size() + 1 + word.size() > page_width) {
            out += line + "\n";
            line.assign(indent, ' ');
            empty = true;
        }
        if (!empty) line += ' ';
        line += word;
        empty = false;
        at = end + 1;
    }
    out += line + "\n";
}

constexpr std::size_t label_width = 13;

void add_facts(std::string& out, const Facts& facts) {
    for (const auto& [label, text] : facts) {
        // A line without a label is preformatted, as the derivation is.
        if (label.empty())
            out += std::string(label_width, ' ') + text + "\n";
        else
            add_wrapped(out, fmt::format("{:<{}}", label, label_width), label_width, text);
    }
}

/// Per class: how its requests fared.
constexpr std::array class_columns{"class",    "requests", "done",     "failed",  "offered/s", "served/s",
                                   "TTFT p50", "TTFT p99", "TPOT p99", "E2E p50", "E2E p99",   "SLO met"};

std::vector<std::string> class_cells(const ClassSummary& c) {
    const auto at = [](const Distribution& d, double Distribution::*statistic) {
        return d.count > 0 ? figure(d.*statistic) : std::string(absent);
    };
    return {c.name.empty() ? std::string(absent) : c.name,
            count_text(c.requests),
            count_text(c.completed),
            count_text(c.rejected + c.timed_out + c.cancelled + c.failed),
            figure(c.offered_rate_req_s),
            figure(c.served_rate_req_s),
            at(c.ttft, &Distribution::p50),
            at(c.ttft, &Distribution::p99),
            at(c.tpot, &Distribution::p99),
            at(c.e2e, &Distribution::p50),
            at(c.e2e, &Distribution::p99),
            c.attainment.all ? percent(c.attainment.all) : std::string(absent)};
}

/// "chat: TTFT 99.0%, TPOT 87.1%".
std::string attainment_text(const Attainment& a) {
    std::vector<std::string> parts;
    const auto add = [&](std::string_view name, const std::optional<double>& share) {
        if (share) parts.push_back(fmt::format("{} {}", name, percent(share)));
    };
    add("TTFT", a.ttft);
    add("TPOT", a.tpot);
    add("ITL p99", a.itl_p99);
    add("E2E", a.e2e);
    add("queue", a.queue);
    return join(parts, ", ");
}

Facts attainment_facts(const Summary& s) {
    Facts facts;
    const std::string all = attainment_text(s.attainment);
    if (!all.empty()) facts.emplace_back("SLO met", all);
    for (const ClassSummary& c : s.classes) {
        const std::string own = attainment_text(c.attainment);
        if (!own.empty() && s.classes.size() > 1) facts.emplace_back("  " + c.name, own);
    }
    return facts;
}

std::string table(const RunInfo& info, const Outcome& outcome, const Summary& s, bool colour) {
    const std::string_view bold = colour ? "\x1b[1m" : "";
    const std::string_view alarm = colour ? "\x1b[33m" : "";
    const std::string_view off = colour ? "\x1b[0m" : "";
    std::string out = fmt::format("{}{}{}  kvsim {}, seed {}, scenario hash {}\n\n", bold, s.scenario, off, s.kvsim_version,
                                  s.seed, s.scenario_hash);
    add_facts(out, dimensions(info, outcome, s));
    out += "\n";
    add_facts(out, outcome_facts(s));
    out += fmt::format("\n{}{:<13}{:>12}{:>12}{:>12}{:>12}{:>12}{}\n", bold, "Latency (ms)", "mean", "p50", "p90", "p95", "p99",
                       off);
    for (const LatencyRow& row : latency_rows(s)) {
        out += fmt::format("  {:<11}", row.name);
        const Distribution& d = *row.d;
        for (const double value : {d.mean, d.p50, d.p90, d.p95, d.p99})
            out += fmt::format("{:>12}", d.count > 0 ? figure(value) : std::string(absent));
        out += "\n";
        if (!row.ci95->mean) continue;
        out += fmt::format("  {:<11}", "  +- 95 %");
        for (const Half& half : half_widths(*row.ci95)) out += fmt::format("{:>12}", figure(half));
        out += "\n";
    }
    if (!s.classes.empty()) {
        std::size_t width = 11;
        for (const ClassSummary& c : s.classes) width = std::max(width, c.name.size());
        out += fmt::format("\n{}{:<{}}", bold, "Class (ms)", width + 2);
        for (std::size_t i = 1; i < class_columns.size(); ++i) out += fmt::format("{:>10}", class_columns[i]);
        out += fmt::format("{}\n", off);
        for (const ClassSummary& c : s.classes) {
            const std::vector<std::string> cells = class_cells(c);
            out += fmt::format("  {:<{}}", cells[0], width);
            for (std::size_t i = 1; i < cells.size(); ++i) out += fmt::format("{:>10}", cells[i]);
            out += "\n";
        }
    }
    out += "\n";
    add_facts(out, attainment_facts(s));
    add_facts(out, engine_facts(s));
    if (!s.warnings.empty()) {
        out += fmt::format("\n{}Warnings{}\n", alarm, off);
        for (const std::string& warning : s.warnings) add_wrapped(out, "  - ", 4, warning);
    }
    if (!outcome.stall_report.empty()) {
        out += "\n" + outcome.stall_report;
        if (!out.ends_with('\n')) out += '\n';
    }
    return out;
}

// ---- markdown --------------------------------------------------------------------------------------------------------

// Pipes would end a cell.
std::string markdown_cell(std::string_view text) {
    std::string out;
    for (const char c : text) {
        if (c == '|') out += '\\';
        out += c == '\n' ? ' ' : c;
    }
    return out;
}

void add_markdown_facts(std::string& out, const Facts& facts) {
    for (const auto& [label, text] : facts) {
        const std::size_t start = std::min(label.find_first_not_of(' '), label.size());
        out += fmt::format("| {} | {} |\n", label.substr(start), markdown_cell(text));
    }
}

std::string markdown(const RunInfo& info, const Outcome& outcome, const Summary& s) {
    std::string out = fmt::format("### {}\n\nkvsim {}, seed {}, scenario hash `{}`\n\n| | |\n|---|---|\n", s.scenario,
                                  s.kvsim_version, s.seed, s.scenario_hash);
    add_markdown_facts(out, dimensions(info, outcome, s));
    add_markdown_facts(out, outcome_facts(s));
    add_markdown_facts(out, engine_facts(s));
    out += "\n| Latency (ms) | mean | p50 | p90 | p95 | p99 |\n|---|---:|---:|---:|---:|---:|\n";
    for (const LatencyRow& row : latency_rows(s)) {
        out += fmt::format("| {} |", row.name);
        const Distribution& d = *row.d;
        for (const double value : {d.mean, d.p50, d.p90, d.p95, d.p99})
            out += fmt::format(" {} |", d.count > 0 ? figure(value) : std::string(absent));
        out += "\n";
        if (!row.ci95->mean) continue;
        out += "| ± 95 % |";
        for (const Half& half : half_widths(*row.ci95)) out += fmt::format(" {} |", figure(half));
        out += "\n";
    }
    if (!s.classes.empty()) {
        out += "\n|";
        for (const char* const name : class_columns) out += fmt::format(" {} |", name);
        out += "\n|---|";
        for (std::size_t i = 1; i < class_columns.size(); ++i) out += "---:|";
        out += "\n";
        for (const ClassSummary& c : s.classes) {
            out += "|";
            for (const std::string& cell : class_cells(c)) out += fmt::format(" {} |", markdown_cell(cell));
            out += "\n";
        }
    }
    if (!s.warnings.empty()) {
        out += "\n";
        for (const std::string& warning : s.warnings) out += fmt::format("- warning: {}\n", markdown_cell(warning));
    }
    return out;
}

// ---- vllm ------------------------------------------------------------------------------------------------------------

// The formats are those of vllm bench serve: 50 columns, label {:<40}, values {:<10} and {:<10.2f}.
std::string console_block(const RunInfo& info, const Summary& s, bool e2el) {
    const ClientFigures& c = s.client;
    std::string out;
    const auto whole = [&](std::string_view label, std::int64_t value) { out += fmt::format("{:<40} {:<10}\n", label, value); };
    const auto real = [&](std::string_view label, double value) { out += fmt::format("{:<40} {:<10.2f}\n", label, value); };
    out += fmt::format("{:=^50}\n", " Serving Benchmark Result ");
    whole("Successful requests:", c.completed);
    whole("Failed requests:", c.failed);
    if (info.max_concurrency) whole("Maximum request concurrency:", *info.max_concurrency);
    const double rate = info.request_rate.value_or(s.offered_rate_req_s.value_or(std::numeric_limits<double>::infinity()));
    if (std::isfinite(rate)) real("Request rate configured (RPS):", rate);
    real("Benchmark duration (s):", c.duration_s);
    whole("Total input tokens:", c.total_input_tokens);
    whole("Total generated tokens:", c.total_output_tokens);
    real("Request throughput (req/s):", c.request_throughput);
    if (c.request_goodput) real("Request goodput (req/s):", *c.request_goodput);
    real("Output token throughput (tok/s):", c.output_throughput);
    real("Peak output token throughput (tok/s):", static_cast<double>(c.max_output_tokens_per_s));
    real("Peak concurrent requests:", static_cast<double>(c.max_concurrent_requests));
    real("Total token throughput (tok/s):", c.total_token_throughput);
    const auto section = [&](std::string_view title, std::string_view name, const Distribution& d) {
        out += fmt::format("{:-^50}\n", title);
        real(fmt::format("Mean {} (ms):", name), d.mean);
        real(fmt::format("Median {} (ms):", name), d.p50);
        real(fmt::format("P99 {} (ms):", name), d.p99);
    };
    section("Time to First Token", "TTFT", c.ttft);
    section("Time per Output Token (excl. 1st token)", "TPOT", c.tpot);
    section("Inter-token Latency", "ITL", c.itl);
    if (e2el) section("End-to-end Latency", "E2EL", c.e2el);
    out += fmt::format("{:=^50}\n", "");
    return out;
}

struct NamedFormat {
    std::string_view name;
    Format format;
};
constexpr std::array<NamedFormat, 5> formats{{{"table", Format::table},
                                              {"vllm", Format::vllm},
                                              {"json", Format::json},
                                              {"csv", Format::csv},
                                              {"markdown", Format::markdown}}};

}  // namespace

Format parse_format(std::string_view name) {
    std::vector<std::string_view> names;
    for (const NamedFormat& f : formats) {
        if (f.name == name) return f.format;
        names.push_back(f.name);
    }
    const std::string_view near = nearest(name, names);
    throw UserError("unknown format '" + std::string(name) + "'" +
                    (near.empty() ? "" : "; did you mean '" + std::string(near) + "'?") +
                    " (one of: table, vllm, json, csv, markdown)");
}

std::string render(Format format, const RunInfo& info, const Outcome& outcome, const Summary& summary,
                   const RenderOptions& options) {
    switch (format) {
        case Format::table:
            return table(info, outcome, summary, options.colour);
        case Format::vllm:
            return console_block(info, summary, options.e2el);
        case Format::json:
            return summary_json(info, outcome, summary) + "\n";
        case Format::csv:
            return summary_csv({&summary, 1});
        case Format::markdown:
            return markdown(info, outcome, summary);
    }
    KVSIM_CHECK(false, "format out of range");
}

}  // namespace kvsim
