#include "kvsim/report/step_log.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvsim/base/check.hpp"
#include "number_text.hpp"

namespace kvsim {
namespace {

/// Names with their quotes, made once each: a name is written in every step of its request.
class QuotedNames {
public:
    explicit QuotedNames(const RequestNames& names) : names_(names) {}
    const std::string& operator()(RequestId id) {
        if (id >= quoted_.size()) quoted_.resize(std::size_t{id} + 1 + quoted_.size() / 2);
        std::string& text = quoted_[id];
        if (text.empty()) append_json_string(text, names_(id));
        return text;
    }

private:
    const RequestNames& names_;
    std::vector<std::string> quoted_;
};
/// For single records and lines, whose ids may be few and large.
class NamesOnce {
public:
    explicit NamesOnce(const RequestNames& names) : names_(names) {}
    const std::string& operator()(RequestId id) {
        text_.clear();
        append_json_string(text_, names_(id));
        return text_;
    }

private:
    const RequestNames& names_;
    std::string text_;
};

/// Writes into a text from `used` on, without its bookkeeping: room() first, then pieces that fit into it. The text is longer
/// than what is used, so that a buffer that serves again is not cleared each time.
class Pen {
public:
    Pen(std::string& out, std::size_t used) : out_(out), used_(used) {}
    Pen(const Pen&) = delete;
    Pen& operator=(const Pen&) = delete;
    [[nodiscard]] std::size_t used() const { return used_; }

    void room(std::size_t bytes) {
        if (out_.size() - used_ < bytes) out_.resize(used_ + bytes + out_.size());
    }
    template <std::size_t n>
    void put(const char (&text)[n]) {
        std::memcpy(out_.data() + used_, text, n - 1);
        used_ += n - 1;
    }
    void put(std::string_view text) {
        std::memcpy(out_.data() + used_, text.data(), text.size());
        used_ += text.size();
    }
    void put(std::int64_t value) {
        char* const at = out_.data() + used_;
        used_ += static_cast<std::size_t>(put_integer(at, value) - at);
    }
    template <std::size_t n>
    void member(const char (&key)[n], std::int64_t value) {
        room(n + number_room);
        put(key);
        put(value);
    }

private:
    std::string& out_;
    std::size_t used_;
};

template <std::size_t n, class Quoted>
void put_ids(Pen& pen, const char (&key)[n], std::span<const RequestId> ids, Quoted& quoted) {
    pen.room(n + 2);
    pen.put(key);
    pen.put("[");
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const std::string& name = quoted(ids[i]);
        pen.room(name.size() + 3);
        if (i > 0) pen.put(",");
        pen.put(name);
    }
    pen.put("]");
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
template <class Quoted>
void put_record(Pen& pen, const StepRecord& r, Quoted& quoted, bool with_time) {
    pen.member("{\"step\":", r.step);
    pen.room(16);
    pen.put(",\"sched\":[");
    for (std::size_t i = 0; i < r.scheduled.size(); ++i) {
        const ScheduledRow& row = r.scheduled[i];
        const std::string& name = quoted(row.id);
        pen.room(64 + name.size() + 4 * (row.tables.size() + 1) + (row.blocks.size() + 2) * number_room);
        if (i > 0) pen.put(",");
        pen.put("{\"id\":");
        pen.put(name);
        pen.put(",\"n\":");
        pen.put(row.tokens);
        pen.put(",\"c\":");
        pen.put(row.computed);
        pen.put(",\"k\":\"");
        pen.put(kind_name(row.kind));
        pen.put("\",\"b\":");
        // One list, or a list of lists when there are several tables.
        const std::size_t tables = std::max<std::size_t>(1, row.tables.size());
        if (!row.tables.empty()) pen.put("[");
        for (std::size_t t = 0, b = 0; t < tables; ++t) {
            if (t > 0) pen.put(",");
            pen.put("[");
            const std::size_t end = row.tables.empty() ? row.blocks.size() : b + static_cast<std::size_t>(row.tables[t]);
            for (const std::size_t begin = b; b < end; ++b) {
                if (b > begin) pen.put(",");
                pen.put(row.blocks[b]);
            }
            pen.put("]");
        }
        if (!row.tables.empty()) pen.put("]");
        pen.put("}");
    }
    pen.member("],\"total\":", r.total_tokens);
    put_ids(pen, ",\"preempted\":", r.preempted, quoted);
    pen.member(",\"free_sched\":", r.free_after_schedule);
    if (r.updated_step == StepRecord::none) {
        pen.room(16);
        pen.put(",\"upd\":null");
    } else {
        pen.member(",\"upd\":", r.updated_step);
    }
    put_ids(pen, ",\"tok\":", r.received, quoted);
    put_ids(pen, ",\"finished\":", r.finished, quoted);
    pen.member(",\"free\":", r.free_after_update);
    pen.member(",\"running\":", static_cast<std::int64_t>(r.running.size()));
    pen.member(",\"waiting\":", static_cast<std::int64_t>(r.waiting.size()));
    put_ids(pen, ",\"running_ids\":", r.running, quoted);
    put_ids(pen, ",\"waiting_ids\":", r.waiting, quoted);
    if (with_time) {
        pen.member(",\"t_ns\":", r.start.time_since_epoch().count());
        pen.member(",\"duration_ns\":", r.duration.count());
    }
}

}  // namespace

/// A log's names and its buffer, kept from record to record.
struct StepLog::Text {
    explicit Text(const RequestNames& names) : quoted(names) {}
    QuotedNames quoted;
    std::string line;
};

std::string to_json(const StepRecord& record, const RequestNames& names, bool with_time) {
    std::string out;
    Pen pen(out, 0);
    NamesOnce quoted(names);
    put_record(pen, record, quoted, with_time);
    out.resize(pen.used());
    return out + "}";
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
    Pen pen(out, out.size());
    NamesOnce quoted(names);
    pen.member(",\"steps\":", s.steps);
    pen.member(",\"last_step\":", s.last_step);
    pen.member(",\"preemptions\":", s.preemptions);
    pen.member(",\"finished\":", s.finished);
    pen.member(",\"scheduled_tokens\":", s.scheduled_tokens);
    pen.member(",\"hit_tokens\":", s.hit_tokens);
    pen.member(",\"free\":", s.free);
    put_ids(pen, ",\"unfinished\":", unfinished, quoted);
    out.resize(pen.used());
    return out + "}";
}

StepLog::StepLog(const std::filesystem::path& path, RequestNames names, std::int64_t replicas, std::int64_t usable_blocks)
    : file_(path),
      names_(std::move(names)),
      summaries_(static_cast<std::size_t>(replicas)),
      text_(std::make_unique<Text>(names_)) {
    for (StepLogSummary& summary : summaries_) summary.free = usable_blocks;
}
StepLog::~StepLog() = default;

void StepLog::add(std::int64_t replica, const StepRecord& record) {
    Pen pen(text_->line, 0);
    put_record(pen, record, text_->quoted, true);
    if (summaries_.size() > 1) pen.member(",\"replica\":", replica);
    pen.room(2);
    pen.put("}\n");
    file_.write(std::string_view(text_->line).substr(0, pen.used()));
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
