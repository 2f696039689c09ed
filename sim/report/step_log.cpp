#include "kvsim/report/step_log.hpp"

#include <algorithm>
#include <utility>

#include "kvsim/base/check.hpp"
#include "number_text.hpp"

namespace kvsim {
namespace {

void append_ids(std::string& out, std::string_view key, std::span<const RequestId> ids, const RequestNames& names) {
    out += key;
    out += '[';
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (i > 0) out += ',';
        append_json_string(out, names(ids[i]));
    }
    out += ']';
}

void append_member(std::string& out, std::string_view key, std::int64_t value) {
    out += key;
    append_integer(out, value);
}

std::string_view kind_name(ScheduledRow::Kind kind) {
    switch (kind) {
        case ScheduledRow::Kind::fresh:
            return "new";
        case ScheduledRow::Kind::resumed:
            return "resumed";
        case ScheduledRow::Kind::running:
            return "running";
    }
    KVSIM_CHECK(false, "row kind out of range");
}

// Without the closing brace.
std::string open_record(const StepRecord& r, const RequestNames& names, bool with_time) {
    std::string out;
    append_member(out, "{\"step\":", r.step);
    out += ",\"sched\":[";
    for (std::size_t i = 0; i < r.scheduled.size(); ++i) {
        const ScheduledRow& row = r.scheduled[i];
        out += i > 0 ? ",{\"id\":" : "{\"id\":";
        append_json_string(out, names(row.id));
        append_member(out, ",\"n\":", row.tokens);
        append_member(out, ",\"c\":", row.computed);
        out += ",\"k\":\"";
        out += kind_name(row.kind);
        out += "\",\"b\":";
        // One list, or a list of lists when there are several tables.
        const std::size_t tables = std::max<std::size_t>(1, row.tables.size());
        if (!row.tables.empty()) out += '[';
        for (std::size_t t = 0, b = 0; t < tables; ++t) {
            out += t > 0 ? ",[" : "[";
            const std::size_t end = row.tables.empty() ? row.blocks.size() : b + static_cast<std::size_t>(row.tables[t]);
            for (const std::size_t begin = b; b < end; ++b) {
                if (b > begin) out += ',';
                append_integer(out, row.blocks[b]);
            }
            out += ']';
        }
        if (!row.tables.empty()) out += ']';
        out += '}';
    }
    append_member(out, "],\"total\":", r.total_tokens);
    append_ids(out, ",\"preempted\":", r.preempted, names);
    append_member(out, ",\"free_sched\":", r.free_after_schedule);
    if (r.updated_step == StepRecord::none)
        out += ",\"upd\":null";
    else
        append_member(out, ",\"upd\":", r.updated_step);
    append_ids(out, ",\"tok\":", r.received, names);
    append_ids(out, ",\"finished\":", r.finished, names);
    append_member(out, ",\"free\":", r.free_after_update);
    append_member(out, ",\"running\":", static_cast<std::int64_t>(r.running.size()));
    append_member(out, ",\"waiting\":", static_cast<std::int64_t>(r.waiting.size()));
    append_ids(out, ",\"running_ids\":", r.running, names);
    append_ids(out, ",\"waiting_ids\":", r.waiting, names);
    if (with_time) {
        append_member(out, ",\"t_ns\":", r.start.time_since_epoch().count());
        append_member(out, ",\"duration_ns\":", r.duration.count());
    }
    return out;
}

}  // namespace

std::string to_json(const StepRecord& record, const RequestNames& names, bool with_time) {
    return open_record(record, names, with_time) + "}";
}

void StepLogSummary::add(const StepRecord& record) {
    ++steps;
    last_step = record.step;
    preemptions += static_cast<std::int64_t>(record.preempted.size());
    finished += static_cast<std::int64_t>(record.finished.size());
    scheduled_tokens += record.total_tokens;
    for (const ScheduledRow& row : record.scheduled) {
        if (row.kind != ScheduledRow::Kind::running) hit_tokens += row.computed;
    }
    free = record.free_after_update;
}

std::string to_json(const StepLogSummary& s, std::string_view end, std::span<const RequestId> unfinished,
                    const RequestNames& names) {
    std::string out = "{\"end\":";
    append_json_string(out, end);
    append_member(out, ",\"steps\":", s.steps);
    append_member(out, ",\"last_step\":", s.last_step);
    append_member(out, ",\"preemptions\":", s.preemptions);
    append_member(out, ",\"finished\":", s.finished);
    append_member(out, ",\"scheduled_tokens\":", s.scheduled_tokens);
    append_member(out, ",\"hit_tokens\":", s.hit_tokens);
    append_member(out, ",\"free\":", s.free);
    append_ids(out, ",\"unfinished\":", unfinished, names);
    return out + "}";
}

StepLog::StepLog(const std::filesystem::path& path, RequestNames names, std::int64_t replicas, std::int64_t usable_blocks)
    : file_(path), names_(std::move(names)), summaries_(static_cast<std::size_t>(replicas)) {
    for (StepLogSummary& summary : summaries_) summary.free = usable_blocks;
}

void StepLog::add(std::int64_t replica, const StepRecord& record) {
    std::string line = open_record(record, names_, true);
    if (summaries_.size() > 1) append_member(line, ",\"replica\":", replica);
    line += "}\n";
    file_.write(line);
    summaries_.at(static_cast<std::size_t>(replica)).add(record);
}

void StepLog::finish(std::string_view end, std::span<const RequestId> unfinished) {
    StepLogSummary all;
    for (const StepLogSummary& s : summaries_) {
        all.steps += s.steps;
        all.last_step = std::max(all.last_step, s.last_step);
        all.preemptions += s.preemptions;
        all.finished += s.finished;
        all.scheduled_tokens += s.scheduled_tokens;
        all.hit_tokens += s.hit_tokens;
        all.free += s.free;
    }
    file_.write(to_json(all, end, unfinished, names_) + "\n");
    file_.commit();
}

}  // namespace kvsim
