// LLMServingSim: JSON lines, either one request {input_toks, output_toks, arrival_time_ns} or a session {session_id,
// arrival_time_ns, sub_requests: [{input_toks, output_toks, tool_duration_ns}, ...]}, whose requests follow one another: each
// is sent when the tool call behind the one before has ended. Where input_tok_ids says what the prompts are, equal beginnings
// are shared, block by block of 16 tokens.

#include <array>
#include <deque>
#include <utility>

#include "content.hpp"
#include "json_rows.hpp"
#include "kvsim/model/token_ids.hpp"
#include "text_format.hpp"

namespace kvsim {

namespace {

enum Key : std::size_t { arrival_time_ns, input_toks, output_toks, input_tok_ids, session_id, sub_requests };
constexpr std::array<std::string_view, 6> key_names{"arrival_time_ns", "input_toks", "output_toks",
                                                    "input_tok_ids",   "session_id", "sub_requests"};
enum SubKey : std::size_t { sub_input, sub_output, sub_ids, tool_duration_ns };
constexpr std::array<std::string_view, 4> sub_names{"input_toks", "output_toks", "input_tok_ids", "tool_duration_ns"};

/// Where a trace must show whether it has sessions.
constexpr std::size_t head_bytes = std::size_t{1} << 18;

class LlmServingSim final : public JsonRows {
public:
    LlmServingSim(std::unique_ptr<LineReader> given, const TraceOptions& options)
        : JsonRows(std::move(given), "llmservingsim", key_names, 1U << arrival_time_ns),
          block_size_(options.trace_block_size.value_or(text_block_size)),
          paced_(lines().head(head_bytes).find("\"sub_requests\"") != std::string_view::npos) {}

    [[nodiscard]] bool paced_by_completions() const override { return paced_; }

protected:
    void value(std::size_t k, TraceRow& row) override {
        JsonParser& p = parser();
        switch (static_cast<Key>(k)) {
            case arrival_time_ns:
                time_mark_ = p.here();
                row.time = SimTime(SimDuration(p.time("arrival_time_ns", "nanoseconds", 0)));
                return;
            case input_toks:
                row.input_length = p.integer("input_toks", 1, max_request_tokens);
                return;
            case output_toks:
                row.output_length = p.integer("output_toks", 1, max_request_tokens);
                return;
            case input_tok_ids:
                content(row);
                return;
            case session_id:
                p.name("session_id", row.session_id, scratch());
                return;
            case sub_requests:
                if (!paced_) p.fail(p.here(), "sub_requests must first occur within the first 256 KiB of the trace");
                subs_.clear();
                p.list("sub_requests", [&] { sub_request(); });
                if (subs_.empty()) p.fail(p.here(), "a session without sub_requests");
                return;
        }
    }

    bool finish(std::uint32_t seen, TraceRow& row) override {
        const auto has = [&](Key k) { return (seen >> k & 1U) != 0; };
        if (has(sub_requests)) {
            if (has(input_toks) || has(output_toks)) lines().fail(1, "a session with input_toks or output_toks of its own");
            std::string session = row.session_id;
            if (session.empty()) session = "session " + std::to_string(lines().line_number());
            for (TraceRow& sub : subs_) {
                sub.time = row.time;
                sub.session_id = session;
            }
            check_sorted(row, time_mark_);
            pending_.swap(subs_);
            return more(row);
        }
        for (const Key k : {input_toks, output_toks}) {
            if (!has(k)) lines().fail(1, "missing key '" + std::string(key_names[k]) + "'");
        }
        row.block_size = block_size_;
        keep_full_blocks(row);
        check_sorted(row, time_mark_);
        return true;
    }

    bool more(TraceRow& row) override {
        if (pending_.empty()) return false;
        row = std::move(pending_.front());
        pending_.pop_front();
        return true;
    }

private:
    void content(TraceRow& row) {
        tokens_.clear();
        parser().ids("input_tok_ids", "token id", tokens_, std::int64_t{1} << 32);
        token_blocks(tokens_, block_size_, row.hash_ids);
    }

    void sub_request() {
        JsonParser& p = parser();
        TraceRow row;
        std::int64_t tool_ns = 0;
        const char* const mark = p.here();
        const std::uint32_t seen = p.object(
            sub_names, scratch(),
            [&](std::size_t k) {
                switch (static_cast<SubKey>(k)) {
                    case sub_input:
                        row.input_length = p.integer("input_toks", 1, max_request_tokens);
                        return;
                    case sub_output:
                        row.output_length = p.integer("output_toks", 1, max_request_tokens);
                        return;
                    case sub_ids:
                        content(row);
                        return;
                    case tool_duration_ns:
                        tool_ns = p.time("tool_duration_ns", "nanoseconds", 0);
                        return;
                }
            },
            [](std::string_view, const char*) {});
        for (const SubKey k : {sub_input, sub_output}) {
            if ((seen >> k & 1U) == 0) p.fail(mark, "missing key '" + std::string(sub_names[k]) + "'");
        }
        row.block_size = block_size_;
        keep_full_blocks(row);
        if (!subs_.empty()) row.think = tool_;
        tool_ = SimDuration(tool_ns);
        subs_.push_back(std::move(row));
    }

    std::int64_t block_size_;
    bool paced_;
    const char* time_mark_ = nullptr;
    std::vector<std::uint64_t> tokens_;
    std::deque<TraceRow> subs_;     ///< of the line being read
    SimDuration tool_{};            ///< behind the last of them
    std::deque<TraceRow> pending_;  ///< of the line that was read
};

}  // namespace

bool matches_llmservingsim(const TraceHead& head) {
    return head.json && (head.has("input_toks") || head.has("sub_requests"));
}

std::vector<config::FieldDoc> llmservingsim_docs() {
    struct Params {
        std::int64_t trace_block_size = text_block_size;
    };
    static const config::Schema<Params> table{
        config::field("trace_block_size", &Params::trace_block_size, "tokens of a shared block", config::at_least_one)
            .by_default("16")};
    return table.docs();
}

std::unique_ptr<TraceReader> open_llmservingsim(std::unique_ptr<LineReader> lines, const TraceOptions& options) {
    return std::make_unique<LlmServingSim>(std::move(lines), options);
}

}  // namespace kvsim
