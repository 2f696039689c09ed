#include "kvsim/report/writers.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>

#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/assertion.hpp"
#include "number_text.hpp"

namespace kvsim {
namespace {

// ---- JSON ------------------------------------------------------------------------------------------------------------

// Writes objects as Python's json.dump does without indent: ", " and ": ", floats with a point or exponent.
class Json {
public:
    explicit Json(std::string& out) : out_(out) {}

    void key(std::string_view name) {
        separate();
        append_json_string(out_, name);
        out_ += ": ";
        first_ = true;
    }
    void open(char bracket) {
        separate();
        out_ += bracket;
        first_ = true;
    }
    void close(char bracket) {
        out_ += bracket;
        first_ = false;
    }
    void text(std::string_view value) {
        separate();
        append_json_string(out_, value);
    }
    void integer(std::int64_t value) {
        separate();
        append_integer(out_, value);
    }
    void number(double value) { number_text(shortest(value)); }
    void number_text(std::string_view text) {
        separate();
        out_ += text;
        if (text.find_first_of(".e") == std::string::npos) out_ += ".0";
    }
    void null() {
        separate();
        out_ += "null";
    }
    void boolean(bool value) {
        separate();
        out_ += value ? "true" : "false";
    }
    void texts(std::string_view name, const std::vector<std::string>& values) {
        key(name);
        open('[');
        for (const std::string& value : values) text(value);
        close(']');
    }
    void member(std::string_view name, std::string_view value) {
        key(name);
        text(value);
    }
    void member(std::string_view name, std::int64_t value) {
        key(name);
        integer(value);
    }
    void member(std::string_view name, double value) {
        key(name);
        number(value);
    }
    void cell(const Cell& value, Unit unit) {
        if (const auto* words = std::get_if<std::string>(&value)) return text(*words);
        if (const auto* whole = std::get_if<std::int64_t>(&value)) return integer(*whole);
        if (std::holds_alternative<double>(value)) return number_text(cell_text(value, unit));
        null();
    }

private:
    void separate() {
        if (!first_) out_ += ", ";
        first_ = false;
    }
    std::string& out_;
    bool first_ = true;
};

// SOURCE_DATE_EPOCH in vLLM's "%Y%m%d-%H%M%S", UTC.
std::string result_date() {
    const char* epoch = std::getenv("SOURCE_DATE_EPOCH");
    std::int64_t seconds = 0;
    if (epoch != nullptr && *epoch != '\0') {
        const char* end = epoch + std::strlen(epoch);
        const auto read = std::from_chars(epoch, end, seconds);
        constexpr std::int64_t year_10000 = 253402300800;
        if (read.ec != std::errc{} || read.ptr != end || seconds < 0 || seconds >= year_10000)
            throw UserError(std::string("SOURCE_DATE_EPOCH must be whole seconds since 1970, not '") + epoch + "'");
    }
    const std::chrono::sys_seconds at{std::chrono::seconds(seconds)};
    const auto day = std::chrono::floor<std::chrono::days>(at);
    const std::chrono::year_month_day date{day};
    const std::chrono::hh_mm_ss time{at - day};
    const auto padded = [](std::int64_t value, std::size_t width) {
        const std::string digits = std::to_string(value);
        return std::string(width - std::min(width, digits.size()), '0') + digits;
    };
    return padded(int{date.year()}, 4) + padded(unsigned{date.month()}, 2) + padded(unsigned{date.day()}, 2) + "-" +
           padded(time.hours().count(), 2) + padded(time.minutes().count(), 2) + padded(time.seconds().count(), 2);
}

void add_client_keys(Json& json, const RunInfo& info, const Summary& s) {
    const ClientFigures& c = s.client;
    json.member("date", result_date());
    json.member("endpoint_type", "kvsim");
    json.member("backend", "kvsim");
    json.key("label");
    json.null();
    json.member("model_id", info.model);
    json.member("tokenizer_id", info.model);
    json.member("num_prompts", c.num_prompts);
    const double rate = info.request_rate.value_or(s.offered_rate_req_s.value_or(std::numeric_limits<double>::infinity()));
    json.key("request_rate");
    if (std::isfinite(rate))
        json.number(rate);
    else
        json.text("inf");
    json.key("burstiness");
    if (std::isfinite(info.burstiness))
        json.number(info.burstiness);
    else
        json.text("inf");
    json.key("max_concurrency");
    if (info.max_concurrency)
        json.integer(*info.max_concurrency);
    else
        json.null();
    json.member("duration", c.duration_s);
    json.member("completed", c.completed);
    json.member("failed", c.failed);
    json.member("total_input_tokens", c.total_input_tokens);
    json.member("total_output_tokens", c.total_output_tokens);
    json.member("request_throughput", c.request_throughput);
    json.key("request_goodput");
    if (c.request_goodput)
        json.number(*c.request_goodput);
    else
        json.null();
    json.member("output_throughput", c.output_throughput);
    json.member("total_token_throughput", c.total_token_throughput);
    json.member("max_output_tokens_per_s", static_cast<double>(c.max_output_tokens_per_s));
    json.member("max_concurrent_requests", c.max_concurrent_requests);
    json.member("rtfx", 0.0);  // audio only
    const auto metric = [&](const std::string& name, const Distribution& d) {
        json.member("mean_" + name + "_ms", d.mean);
        json.member("median_" + name + "_ms", d.p50);
        json.member("std_" + name + "_ms", d.standard_deviation);
        json.member("p99_" + name + "_ms", d.p99);
    };
    metric("ttft", c.ttft);
    metric("tpot", c.tpot);
    metric("itl", c.itl);
    metric("e2el", c.e2el);
}

void add_attainment(Json& json, const Attainment& a) {
    json.key("attainment");
    json.open('{');
    const auto share = [&](std::string_view name, const std::optional<double>& value) {
        if (value) json.member(name, *value);
    };
    share("all", a.all);
    share("ttft", a.ttft);
    share("tpot", a.tpot);
    share("itl_p99", a.itl_p99);
    share("e2e", a.e2e);
    share("queue", a.queue);
    json.close('}');
}

void add_class(Json& json, const ClassSummary& c) {
    json.open('{');
    json.member("class", c.name);
    json.member("requests", c.requests);
    json.member("completed", c.completed);
    json.member("rejected", c.rejected);
    json.member("timed_out", c.timed_out);
    json.member("cancelled", c.cancelled);
    json.member("failed", c.failed);
    json.key("offered_rate_req_s");
    json.cell(c.offered_rate_req_s ? Cell{*c.offered_rate_req_s} : Cell{}, Unit::per_second);
    json.key("served_rate_req_s");
    json.cell(c.served_rate_req_s ? Cell{*c.served_rate_req_s} : Cell{}, Unit::per_second);
    json.member("wasted_tokens", c.wasted_tokens);
    json.member("wasted_output_tokens", c.wasted_output_tokens);
    json.member("preemptions", c.preemptions);
    json.member("preempted_requests", c.preempted_requests);
    json.member("recomputed_tokens", c.recomputed_tokens);
    json.member("prompt_tokens_mean", c.prompt_tokens.mean);
    json.member("output_tokens_mean", c.output_tokens.mean);
    for (const auto& [name, d] :
         {std::pair{"ttft", &c.ttft}, std::pair{"tpot", &c.tpot}, std::pair{"e2e", &c.e2e}, std::pair{"queue", &c.queue}}) {
        if (d->count == 0) continue;
        for (const auto& [statistic, value] : {std::pair{"mean", d->mean}, std::pair{"p50", d->p50}, std::pair{"p90", d->p90},
                                               std::pair{"p95", d->p95}, std::pair{"p99", d->p99}}) {
            json.member(std::string(name) + "_" + statistic + "_ms", value);
        }
    }
    if (c.itl_mean_ms) json.member("itl_mean_ms", *c.itl_mean_ms);
    json.key("goodput_req_s");
    json.cell(c.goodput_req_s ? Cell{*c.goodput_req_s} : Cell{}, Unit::per_second);
    add_attainment(json, c.attainment);
    json.close('}');
}

// Without its closing brace.
void add_kvsim_object(Json& json, const RunInfo& info, const Outcome& outcome, const Summary& s) {
    json.key("kvsim");
    json.open('{');
    for (const Column& column : summary_columns()) {
        if (column.name == "deviations") continue;  // a list, below
        json.key(column.name);
        json.cell(column.get(s), column.unit);
    }
    json.member("pipeline_parallel_size", info.pipeline_parallel_size);
    json.member("data_parallel_size", info.data_parallel_size);
    json.member("usable_blocks", outcome.usable_blocks);
    json.key("gpu_memory_utilization");
    if (info.gpu_memory_utilization > 0)
        json.number(info.gpu_memory_utilization);
    else
        json.null();
    json.key("enable_prefix_caching");
    json.boolean(info.engine.enable_prefix_caching);
    json.key("enable_chunked_prefill");
    json.boolean(info.engine.enable_chunked_prefill);
    json.key("async_scheduling");
    json.boolean(info.engine.async_scheduling);
    json.key("scheduler_reserve_full_isl");
    json.boolean(info.engine.scheduler_reserve_full_isl);
    json.member("long_prefill_token_threshold", info.engine.long_prefill_token_threshold);
    json.key("max_queued_requests");
    if (info.engine.max_queued_requests >= 0)
        json.integer(info.engine.max_queued_requests);
    else
        json.null();
    json.member("watermark", info.engine.watermark);
    json.member("step_time_description", info.step_time_description);
    json.key("slo");
    json.open('{');
    const auto limit = [&](std::string_view name, const std::optional<SimDuration>& value) {
        if (value) json.member(name, static_cast<double>(value->count()) / 1e6);
    };
    limit("ttft_ms", info.slo.ttft);
    limit("tpot_ms", info.slo.tpot);
    limit("itl_p99_ms", info.slo.itl_p99);
    limit("e2e_ms", info.slo.e2e);
    limit("queue_ms", info.slo.queue);
    json.close('}');
    add_attainment(json, s.attainment);
    if (!s.classes.empty()) {
        json.key("classes");
        json.open('[');
        for (const ClassSummary& c : s.classes) add_class(json, c);
        json.close(']');
    }
    json.key("confidence");
    json.open('{');
    json.member("level", 0.95);
    json.member("method",
                "batch means in order of arrival, widened by their lag-1 autocorrelation; quantiles by the share at or below; "
                "*_ci95 is half of the width");
    struct Named {
        const char* name;
        const DistributionInterval* of;
    };
    for (const Named q : {Named{"ttft", &s.ttft_ci95}, Named{"tpot", &s.tpot_ci95}, Named{"itl", &s.itl_ci95},
                          Named{"e2e", &s.e2e_ci95}, Named{"queue", &s.queue_ci95}}) {
        const auto interval = [&](const char* statistic, const std::optional<Interval>& i) {
            if (!i) return;
            json.key(std::string(q.name) + "_" + statistic + "_ms");
            json.open('[');
            json.number_text(decimals(i->low, 6));
            json.number_text(decimals(i->high, 6));
            json.close(']');
        };
        interval("mean", q.of->mean);
        interval("p50", q.of->p50);
        interval("p90", q.of->p90);
        interval("p95", q.of->p95);
        interval("p99", q.of->p99);
    }
    json.texts("correlated", s.correlated);
    json.close('}');
    json.key("drift");
    if (s.drift) {
        json.open('{');
        json.member("series", "e2e of the measured requests in order of arrival, 20 batch means");
        json.member("mann_kendall_tau", s.drift->tau);
        json.member("p", s.drift->p);
        json.member("second_half_over_first", 1 + s.drift->change);
        json.close('}');
    } else {
        json.null();
    }
    json.texts("deviations", info.deviations);
    json.member("decisions", info.modelled_from.empty() ? "as recorded from the engine"
                                                        : "modelled from documentation: " + info.modelled_from);
    json.texts("derivation", info.derivation);
    json.texts("warnings", s.warnings);
    if (!outcome.stall_report.empty()) json.member("stall_report", outcome.stall_report);
    json.key("definitions");
    json.open('{');
    json.member("percentile", "linear interpolation between order statistics at rank (n - 1) * q, as numpy.percentile");
    json.member("percentile_method", info.exact_percentiles ? "exact; itl from a log-linear histogram, within 0.049 %"
                                                            : "log-linear histograms, within 0.049 %");
    json.member("std", "population (ddof 0)");
    json.member("ttft", "arrival to first output token");
    json.member("tpot", "(e2e - ttft) / (output tokens - 1); requests with one output token left out");
    json.member("itl", "gaps between consecutive output tokens, all requests pooled");
    json.member("e2e", "arrival to last output token; e2el in the keys of vllm bench serve");
    json.member("queue", "joining the waiting queue to first being scheduled; later waits after preemption not counted");
    json.member("scope", "keys outside kvsim: all completed requests; inside: measured requests, engine figures the whole run");
    json.close('}');
}

// ---- fast rows -------------------------------------------------------------------------------------------------------

// A row is put together in a fixed buffer and handed to the file in large pieces.
class Rows {
public:
    explicit Rows(AtomicFile& file) : file_(file), buffer_(capacity), at_(buffer_.data()) {}

    /// Once per row, before its cells: at most `row_room` bytes follow, texts apart.
    void start() {
        if (buffer_.data() + capacity - at_ < row_room) flush();
    }
    void integer(std::int64_t value) { at_ = put_integer(at_, value); }
    void scaled(std::int64_t value, int digits) { at_ = put_scaled(at_, value, digits); }
    /// ms with up to 6 decimals; negative: empty.
    void ms(SimDuration d) {
        if (d.count() >= 0) scaled(d.count(), 6);
    }
    void number(double value) {
        const std::string text = shortest(value);
        at_ = std::copy(text.begin(), text.end(), at_);
    }
    void literal(std::string_view text) { at_ = std::copy(text.begin(), text.end(), at_); }
    void field(std::string_view value) {
        quoted_.clear();
        append_csv_field(quoted_, value);
        const auto size = static_cast<std::ptrdiff_t>(quoted_.size());
        if (buffer_.data() + capacity - at_ < row_room + size) flush();
        if (size > capacity - row_room) return file_.write(quoted_);
        at_ = std::copy(quoted_.begin(), quoted_.end(), at_);
    }
    void comma() { *at_++ = ','; }
    void end() { *at_++ = '\n'; }
    void flush() {
        file_.write({buffer_.data(), static_cast<std::size_t>(at_ - buffer_.data())});
        at_ = buffer_.data();
    }

private:
    static constexpr std::ptrdiff_t capacity = 1 << 16;
    static constexpr std::ptrdiff_t row_room = 1024;
    AtomicFile& file_;
    std::vector<char> buffer_;
    char* at_;
    std::string quoted_;
};

void write_file(const std::filesystem::path& path, std::string_view content) {
    AtomicFile file(path);
    file.write(content);
    file.commit();
}

}  // namespace

void append_csv_field(std::string& out, std::string_view field) {
    if (field.find_first_of(",\"\r\n") == std::string_view::npos) {
        out += field;
        return;
    }
    out += '"';
    for (const char c : field) {
        if (c == '"') out += '"';
        out += c;
    }
    out += '"';
}

std::string summary_csv_header() {
    std::string out;
    for (const Column& column : summary_columns()) {
        if (!out.empty()) out += ',';
        out += column.name;
    }
    return out + "\n";
}

std::string summary_csv_row(const Summary& summary) {
    std::string out;
    bool first = true;
    for (const Column& column : summary_columns()) {
        if (!first) out += ',';
        first = false;
        append_csv_field(out, cell_text(column.get(summary), column.unit));
    }
    return out + "\n";
}

std::string summary_csv(std::span<const Summary> summaries) {
    std::string out = summary_csv_header();
    for (const Summary& summary : summaries) out += summary_csv_row(summary);
    return out;
}

std::string classes_csv_header(std::string_view before) {
    std::string out(before);
    out += "scenario,scenario_hash,kvsim_version,seed,class";
    for (const ClassColumn& column : class_columns()) {
        out += ',';
        out += column.name;
    }
    return out + "\n";
}

std::string classes_csv_rows(const Summary& summary, std::string_view before) {
    std::string out;
    for (const ClassSummary& c : summary.classes) {
        out += before;
        append_csv_field(out, summary.scenario);
        out += ',' + summary.scenario_hash + ',' + summary.kvsim_version + ',';
        append_integer(out, summary.seed);
        out += ',';
        append_csv_field(out, c.name);
        for (const ClassColumn& column : class_columns()) {
            out += ',';
            append_csv_field(out, cell_text(column.get(summary, c), column.unit));
        }
        out += '\n';
    }
    return out;
}

std::string summary_json(const RunInfo& info, const Outcome& outcome, const Summary& summary, std::string_view extra) {
    std::string out;
    Json json(out);
    json.open('{');
    add_client_keys(json, info, summary);
    add_kvsim_object(json, info, outcome, summary);
    if (!extra.empty()) {
        out += ", ";
        out += extra;
    }
    out += '}';  // of kvsim
    json.close('}');
    return out;
}

std::string_view finish_reason_name(FinishReason reason) {
    switch (reason) {
        case FinishReason::unfinished:
            return "";
        case FinishReason::length:
            return "length";
        case FinishReason::stop:
            return "stop";
        case FinishReason::rejected:
        case FinishReason::queue_full:
            return "rejected";
        case FinishReason::timed_out:
            return "timed_out";
        case FinishReason::cancelled:
            return "cancelled";
        case FinishReason::failed:
            return "failed";
    }
    KVSIM_CHECK(false, "finish reason out of range");
}

void write_requests_csv(AtomicFile& file, const Outcome& outcome, const config::SloConfig& slo,
                        const std::map<std::string, config::SloConfig>& class_slos) {
    const Slos slos(outcome, slo, class_slos);
    DurationColumn::Reader client_queue(outcome.client_queue);
    file.write(
        "request_id,class,session_id,replica,arrival_s,prompt_tokens,output_tokens,cached_prompt_tokens,queue_ms,ttft_ms,tpot_"
        "ms,"
        "e2e_ms,preemptions,recomputed_tokens,finish_reason,slo_met,"
        "client_queue_ms,tenant,attempt,gave_up_after_ms,measured\n");
    Rows rows(file);
    const auto name = [&rows](const NameColumn& names, std::size_t row) {
        if (const std::string_view text = names[row]; !text.empty()) rows.field(text);
    };
    for (std::size_t i = 0; i < outcome.requests.size(); ++i) {
        const RequestRecord& r = outcome.requests[i];
        const auto id = static_cast<RequestId>(i);
        rows.start();
        if (outcome.external_ids.number(i) == NameColumn::nameless) rows.integer(id);
        name(outcome.external_ids, i);
        rows.comma();
        name(outcome.classes, i);
        rows.comma();
        name(outcome.sessions, i);
        rows.comma();
        rows.integer(r.replica);
        rows.comma();
        rows.scaled(r.arrival.time_since_epoch().count(), 9);
        rows.comma();
        rows.integer(r.prompt_tokens);
        rows.comma();
        rows.integer(r.output_tokens);
        rows.comma();
        rows.integer(outcome.cached_prompt_tokens[i]);
        rows.comma();
        rows.ms(r.queue);
        rows.comma();
        rows.ms(r.ttft);
        rows.comma();
        rows.ms(time_per_output_token(r).value_or(SimDuration(-1)));
        rows.comma();
        rows.ms(r.e2e);
        rows.comma();
        rows.integer(r.preemptions);
        rows.comma();
        rows.integer(outcome.recomputed_tokens[i]);
        rows.comma();
        rows.literal(finish_reason_name(r.finish));
        rows.comma();
        if (const auto met = slos.met(id)) rows.literal(*met ? "1" : "0");
        rows.comma();
        if (const SimDuration waited = client_queue.of(id); waited > SimDuration::zero()) rows.ms(waited);
        rows.comma();
        name(outcome.tenants, i);
        rows.comma();
        if (!outcome.attempts.empty()) rows.integer(outcome.attempts[i]);
        rows.comma();
        if (!outcome.unfinished_after.empty()) {
            const auto left = outcome.unfinished_after.find(id);
            if (left != outcome.unfinished_after.end()) rows.ms(left->second);
        }
        rows.literal(r.measured ? ",1" : ",0");
        rows.end();
    }
    rows.flush();
}

void write_requests_csv(const std::filesystem::path& path, const Outcome& outcome, const config::SloConfig& slo) {
    AtomicFile file(path);
    write_requests_csv(file, outcome, slo, {});
    file.commit();
}

void write_timeline_csv(AtomicFile& file, const Outcome& outcome) {
    file.write(
        "t_s,replica,running,waiting,kv_blocks_used,kv_usage,step_ms,batch_tokens,prefill_tokens,decode_tokens,preemptions,"
        "kv_token_share,kv_reserved_share,kv_internal_share,kv_external_share\n");
    Rows rows(file);
    for (const TimelineSample& sample : outcome.timeline) {
        rows.start();
        rows.scaled(sample.at.time_since_epoch().count(), 9);
        rows.comma();
        rows.integer(sample.replica);
        rows.comma();
        rows.integer(sample.running);
        rows.comma();
        rows.integer(sample.waiting);
        rows.comma();
        rows.integer(sample.kv_blocks_used);
        rows.comma();
        if (outcome.usable_blocks > 0)
            rows.number(static_cast<double>(sample.kv_blocks_used) / static_cast<double>(outcome.usable_blocks));
        rows.comma();
        rows.ms(sample.step);
        rows.comma();
        rows.integer(sample.batch_tokens);
        rows.comma();
        rows.integer(sample.prefill_tokens);
        rows.comma();
        rows.integer(sample.decode_tokens);
        rows.comma();
        rows.integer(sample.preemptions);
        const std::int64_t held = sample.kv_blocks_used * outcome.slots_per_block;
        const std::int64_t all = outcome.usable_blocks * outcome.slots_per_block;
        for (const std::int64_t slots :
             {held - sample.reserved_slots - sample.internal_slots, sample.reserved_slots, sample.internal_slots, all - held}) {
            rows.comma();
            if (all > 0) rows.number(static_cast<double>(slots) / static_cast<double>(all));
        }
        rows.end();
    }
    rows.flush();
}

void write_timeline_csv(const std::filesystem::path& path, const Outcome& outcome) {
    AtomicFile file(path);
    write_timeline_csv(file, outcome);
    file.commit();
}

void write_summary_csv(const std::filesystem::path& path, std::span<const Summary> summaries) {
    write_file(path, summary_csv(summaries));
}

void write_summary_json(const std::filesystem::path& path, const RunInfo& info, const Outcome& outcome,
                        const Summary& summary) {
    write_file(path, summary_json(info, outcome, summary));
}

}  // namespace kvsim
