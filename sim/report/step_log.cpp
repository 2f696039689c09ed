#include "kvsim/report/step_log.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kvsim/base/check.hpp"
#include "number_text.hpp"

namespace kvsim {
namespace {

constexpr std::size_t written_at_once = std::size_t{1} << 17;

/// Names with their quotes, made once each: a name is written in every step of its request. So is the row of a decoding
/// request, in which only the count of computed tokens changes, by one a step: it is kept as text.
class QuotedNames {
    // All rows but few are copied at this length, whatever theirs is.
    static constexpr std::size_t copied = 48;
    static constexpr std::string_view before = R"({"id":)";
    static constexpr std::string_view middle = R"(,"n":1,"c":)";
    static constexpr std::string_view after = R"(,"k":"running","b":[]},)";
    static constexpr std::size_t longest_name = copied - before.size() - middle.size() - 10;

public:
    explicit QuotedNames(const RequestNames& names) : names_(names) {}
    std::string_view operator()(RequestId id) {
        const Entry& entry = this->entry(id);
        if (entry.name_size > longest_name) return long_names_[static_cast<std::size_t>(entry.computed)];
        return {entry.row + before.size(), entry.name_size};
    }

    // ---- where text is written with room to spare
    static constexpr std::size_t room = copied + 32;
    /// ids[i], ... with a comma behind each, up to the end or to a long name, whose index it returns.
    std::size_t put_names(char*& to, std::span<const RequestId> ids, std::size_t i) {
        make_all(ids);
        const Entry* const entries = entries_.data();
        char* at = to;
        for (; i < ids.size(); ++i) {
            const Entry& entry = entries[ids[i]];
            if (entry.name_size > longest_name) break;
            std::memcpy(at, entry.row + before.size(), (longest_name + 7) / 8 * 8);
            at += entry.name_size;
            *at++ = ',';
        }
        to = at;
        return i;
    }
    /// rows[i], ... with a comma behind each, up to the end or to one that says more than that somebody decodes, whose index it
    /// returns.
    std::size_t put_decode_rows(char*& to, std::span<const ScheduledRow> rows, std::size_t i) {
        char* at = to;
        for (; i < rows.size(); ++i) {
            const ScheduledRow& row = rows[i];
            if (row.kind != ScheduledRow::Kind::running || row.tokens != 1 || !row.blocks.empty() || !row.tables.empty()) break;
            Entry& entry = this->entry(row.id);
            if (entry.name_size > longest_name || row.computed > 9'999'999'999) break;
            char& last_digit = entry.row[entry.row_size - 1];
            if (row.computed == entry.computed + 1 && last_digit != '9') {
                ++last_digit;
            } else if (row.computed != entry.computed) {
                char digits[number_room];
                const char* const end = put_integer(digits, row.computed);
                char* const to_digits = entry.row + before.size() + entry.name_size + middle.size();
                entry.row_size =
                    static_cast<std::uint32_t>(std::copy(static_cast<const char*>(digits), end, to_digits) - entry.row);
            }
            entry.computed = row.computed;
            std::memcpy(at, entry.row, copied);
            at += entry.row_size;
            std::memcpy(at, after.data(), after.size());
            at += after.size();
        }
        to = at;
        return i;
    }

private:
    struct Entry {
        char row[copied];             // without what follows the digits
        std::int64_t computed = -2;   // the digits
        std::uint32_t row_size = 0;   // up to their end
        std::uint32_t name_size = 0;  // 0: not made; more than longest_name: in long_names_[computed]
    };
    Entry& entry(RequestId id) {
        if (id >= entries_.size() || entries_[id].name_size == 0) make(id);
        return entries_[id];
    }
    void make_all(std::span<const RequestId> ids) {
        for (const RequestId id : ids) static_cast<void>(entry(id));
    }
    [[gnu::noinline]] void make(RequestId id) {
        if (id >= entries_.size()) entries_.resize(std::size_t{id} + 1 + entries_.size() / 2);
        Entry& entry = entries_[id];
        std::string name;
        append_json_string(name, names_(id));
        if (name.size() > longest_name) {
            entry.name_size = longest_name + 1;
            entry.computed = static_cast<std::int64_t>(long_names_.size());
            long_names_.push_back(std::move(name));
            return;
        }
        entry.name_size = static_cast<std::uint32_t>(name.size());
        char* to = std::copy(before.begin(), before.end(), entry.row);
        to = std::copy(name.begin(), name.end(), to);
        to = std::copy(middle.begin(), middle.end(), to);
        entry.row_size = static_cast<std::uint32_t>(to - entry.row);
    }

    const RequestNames& names_;
    std::vector<Entry> entries_;
    std::vector<std::string> long_names_;
};
/// For single records and lines, whose ids may be few and large.
class NamesOnce {
public:
    explicit NamesOnce(const RequestNames& names) : names_(names) {}
    std::string_view operator()(RequestId id) {
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
    /// Where text that fits into it may be written from outside, up to what end_at() tells.
    char* room(std::size_t bytes) {
        if (out_.size() - used_ < bytes) out_.resize(used_ + bytes + out_.size());
        return out_.data() + used_;
    }
    void end_at(const char* end) { used_ = static_cast<std::size_t>(end - out_.data()); }
    /// Behind the comma of the last item, or behind the opening bracket; fits into the room of either.
    void close_list() {
        if (out_[used_ - 1] == ',') --used_;
        put("]");
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
        if constexpr (std::is_same_v<Quoted, QuotedNames>) {
            char* to = pen.room((ids.size() - i + 1) * QuotedNames::room);
            i = quoted.put_names(to, ids, i);
            pen.end_at(to);
            if (i == ids.size()) break;
        }
        const std::string_view name = quoted(ids[i]);
        pen.room(name.size() + 3);
        pen.put(name);
        pen.put(",");
    }
    pen.close_list();
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

void put_row(Pen& pen, const ScheduledRow& row, std::string_view name) {
    pen.room(64 + name.size() + 4 * (row.tables.size() + 1) + (row.blocks.size() + 2) * number_room);
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
    pen.put("},");
}

// Without the closing brace.
template <class Quoted>
void put_record(Pen& pen, const StepRecord& r, Quoted& quoted, bool with_time) {
    pen.member("{\"step\":", r.step);
    pen.room(16);
    pen.put(",\"sched\":[");
    for (std::size_t i = 0; i < r.scheduled.size(); ++i) {
        if constexpr (std::is_same_v<Quoted, QuotedNames>) {
            char* to = pen.room((r.scheduled.size() - i + 1) * QuotedNames::room);
            i = quoted.put_decode_rows(to, r.scheduled, i);
            pen.end_at(to);
            if (i == r.scheduled.size()) break;
        }
        put_row(pen, r.scheduled[i], quoted(r.scheduled[i].id));
    }
    pen.close_list();
    pen.member(",\"total\":", r.total_tokens);
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
    std::string lines;     // not written yet
    std::size_t used = 0;  // of it
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
    Pen pen(text_->lines, text_->used);
    put_record(pen, record, text_->quoted, true);
    if (summaries_.size() > 1) pen.member(",\"replica\":", replica);
    pen.room(2);
    pen.put("}\n");
    text_->used = pen.used();
    if (text_->used >= written_at_once) write_lines();
    summaries_.at(static_cast<std::size_t>(replica)).add(record);
}

void StepLog::write_lines() {
    file_.write(std::string_view(text_->lines).substr(0, text_->used));
    text_->used = 0;
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
    write_lines();
    file_.write(to_json(all, end, unfinished, names_) + "\n");
    file_.commit();
}

}  // namespace kvsim
