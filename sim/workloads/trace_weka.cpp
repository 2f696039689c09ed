// WEKA-style session traces: one JSON object per session (a file each, an array, or lines) with block_size 64 and requests of
// {t (s since the session's start), in, out, hash_ids}; an entry may nest further requests, on the same clock and in the same
// hash ids. Hash ids cover the full blocks only (floor rule; a partial one behind them is dropped), are local to the session
// unless hash_id_scope is "global", and the tail nobody shares. Sessions start at 0, or when `arrivals` says.

#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "json_parser.hpp"
#include "kvsim/model/token_ids.hpp"
#include "kvsim/model/trace.hpp"

namespace kvsim {

namespace {

enum Key : std::size_t { id, block_size, hash_id_scope, requests };
constexpr std::array<std::string_view, 4> key_names{"id", "block_size", "hash_id_scope", "requests"};
enum RequestKey : std::size_t { t, in, out, hash_ids, type, nested };
constexpr std::array<std::string_view, 6> request_names{"t", "in", "out", "hash_ids", "type", "requests"};

constexpr int deepest_nesting = 16;
constexpr std::int64_t local_ids = std::int64_t{1} << 32;
constexpr std::int64_t most_sessions = std::int64_t{1} << 20;

class Weka final : public TraceReader {
public:
    Weka(std::unique_ptr<LineReader> lines, const TraceOptions& options)
        : lines_(std::move(lines)), parser_(*lines_), options_(options) {}

    [[nodiscard]] std::string_view format() const override { return "weka"; }
    [[nodiscard]] TraceTimes times() const override { return TraceTimes::per_session; }
    [[nodiscard]] std::vector<std::string> notes() const override {
        if (silent_ == 0) return {};
        return {std::to_string(silent_) + " requests without output are taken as having one token of it"};
    }

    bool next(TraceRow& row) override {
        std::string_view text;
        while (rows_.empty()) {
            if (!lines_->next_value(text)) {
                if (!any_session_) lines_->fail_trace(1, "the trace has no rows");
                return false;
            }
            session(text);
            any_session_ = true;
        }
        row = std::move(rows_.front());
        rows_.pop_front();
        return true;
    }

private:
    void session(std::string_view text) {
        std::int64_t size = 64;
        std::string name;
        bool global = false;
        std::deque<TraceRow> rows;
        marks_.clear();
        parser_.start(text);
        parser_.skip_space();
        const std::uint32_t seen = parser_.object(
            key_names, scratch_,
            [&](std::size_t k) {
                switch (static_cast<Key>(k)) {
                    case id:
                        parser_.name("id", name, scratch_);
                        return;
                    case block_size:
                        size = parser_.integer("block_size", 1, 1 << 20);
                        return;
                    case hash_id_scope: {
                        const char* const mark = parser_.here();
                        std::string scope;
                        parser_.name("hash_id_scope", scope, scratch_);
                        if (scope != "local" && scope != "global") parser_.fail(mark, "hash_id_scope must be local or global");
                        global = scope == "global";
                        return;
                    }
                    case requests:
                        parser_.list("requests", [&] { request(rows, 0); });
                        return;
                }
            },
            [](std::string_view, const char*) {});
        parser_.skip_space();
        if (!parser_.at_end()) parser_.fail(parser_.here(), "text after the object");
        if ((seen >> requests & 1U) == 0) lines_->fail(1, "missing key 'requests'");
        if (options_.trace_block_size) size = *options_.trace_block_size;
        // Both kinds of scope in one trace must not meet: global ids take the first name space, session k the one behind k.
        if (lines_->value_index() >= most_sessions) lines_->fail_trace(1, "more than 1,048,576 sessions");
        const std::uint64_t space = global ? 0 : static_cast<std::uint64_t>(lines_->value_index() + 1) << 32;
        if (static_cast<std::uint64_t>(size) > trace_ids_end / (static_cast<std::uint64_t>(most_sessions + 1) << 32))
            lines_->fail(1, "block_size " + std::to_string(size) + " is above 1023");
        if (name.empty()) name = "session " + std::to_string(lines_->value_index());
        for (std::size_t i = 0; i < rows.size(); ++i) {
            TraceRow& row = rows[i];
            const auto full = static_cast<std::size_t>(row.input_length / size);
            const auto partial = static_cast<std::size_t>(ceil_div(row.input_length, size));
            if (!row.hash_ids.empty() && row.hash_ids.size() != full && row.hash_ids.size() != partial)
                parser_.fail(marks_[i], std::to_string(row.hash_ids.size()) + " hash_ids for " +
                                            std::to_string(row.input_length) + " tokens; block_size " + std::to_string(size) +
                                            " makes " + std::to_string(full));
            row.hash_ids.resize(std::min(full, row.hash_ids.size()));
            for (std::uint64_t& h : row.hash_ids) h |= space;
            row.block_size = size;
            row.session_id = name;
        }
        // Nested requests run beside those of the session that started them.
        std::stable_sort(rows.begin(), rows.end(), [](const TraceRow& a, const TraceRow& b) { return a.time < b.time; });
        if (!rows.empty()) rows.front().starts_session = true;
        rows_.swap(rows);
    }

    void request(std::deque<TraceRow>& rows, int depth) {
        const char* const mark = parser_.here();
        if (depth > deepest_nesting) parser_.fail(mark, "requests nested too deeply");
        TraceRow row;
        const std::uint32_t seen = parser_.object(
            request_names, scratch_,
            [&](std::size_t k) {
                switch (static_cast<RequestKey>(k)) {
                    case t:
                        row.time = SimTime(SimDuration(parser_.time("t", "seconds", 9)));
                        return;
                    case in:
                        row.input_length = parser_.integer("in", 1, max_request_tokens);
                        return;
                    case out:
                        row.output_length = parser_.integer("out", 0, max_request_tokens);
                        return;
                    case hash_ids:
                        parser_.ids("hash_ids", "hash id", row.hash_ids, local_ids - 1);
                        return;
                    case type:
                        parser_.skip_value(scratch_);
                        return;
                    case nested:
                        parser_.list("requests", [&] { request(rows, depth + 1); });
                        return;
                }
            },
            [](std::string_view, const char*) {});
        const auto has = [&](RequestKey k) { return (seen >> k & 1U) != 0; };
        if (has(nested) && !has(in)) return;
        for (const RequestKey k : {t, in, out}) {
            if (!has(k)) parser_.fail(mark, "missing key '" + std::string(request_names[k]) + "'");
        }
        if (row.output_length == 0) {
            row.output_length = 1;
            ++silent_;
        }
        rows.push_back(std::move(row));
        marks_.push_back(mark);
    }

    std::unique_ptr<LineReader> lines_;
    JsonParser parser_;
    TraceOptions options_;
    std::string scratch_;
    std::deque<TraceRow> rows_;       ///< of the session that was read
    std::vector<const char*> marks_;  ///< where the requests of the one being read stand
    bool any_session_ = false;
    std::int64_t silent_ = 0;
};

}  // namespace

bool matches_weka(const TraceHead& head) {
    return head.json && head.has("requests");
}

std::vector<config::FieldDoc> weka_docs() {
    struct Params {
        std::int64_t trace_block_size = 64;
    };
    static const config::Schema<Params> table{
        config::field("trace_block_size", &Params::trace_block_size, "tokens per hash id", config::at_least_one)
            .by_default("the session's block_size, else 64")};
    return table.docs();
}

std::unique_ptr<TraceReader> open_weka(std::unique_ptr<LineReader> lines, const TraceOptions& options) {
    return std::make_unique<Weka>(std::move(lines), options);
}

}  // namespace kvsim
