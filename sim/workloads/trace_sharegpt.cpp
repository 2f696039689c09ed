// ShareGPT: a JSON array (or lines) of {"id", "conversations": [{"from", "value"}, ...]}. As `vllm bench serve` does, the first
// two turns of an entry are one request: prompt and output. Their tokens are characters over characters_per_token, rounded up,
// or counts that the turn or the entry holds (prompt_tokens_field, output_tokens_field). Entries with fewer than two turns or
// with an empty one are left out; vLLM's further filters (at least 4 tokens, prompt at most 1,024, both at most 2,048) are not
// applied. Prompts that begin alike share their prefix, block by block of 16 tokens. `arrivals` says when they come.

#include <array>
#include <optional>
#include <utility>

#include "content.hpp"
#include "json_parser.hpp"
#include "json_rows.hpp"
#include "kvsim/model/token_ids.hpp"
#include "text_format.hpp"

namespace kvsim {

namespace {

class ShareGpt final : public TraceReader {
public:
    ShareGpt(std::unique_ptr<LineReader> lines, const TraceOptions& options)
        : lines_(std::move(lines)),
          parser_(*lines_),
          options_(options),
          block_size_(options.trace_block_size.value_or(text_block_size)),
          entry_names_{"id", "conversations", "conversation"},
          turn_names_{"value", "content"} {
        add_field(options_.prompt_tokens_field, 0);
        add_field(options_.output_tokens_field, 1);
    }

    [[nodiscard]] std::string_view format() const override { return "sharegpt"; }
    [[nodiscard]] TraceTimes times() const override { return TraceTimes::none; }
    [[nodiscard]] std::vector<std::string> notes() const override {
        if (left_out_ == 0) return {};
        return {std::to_string(left_out_) + " entries without two turns of text are left out"};
    }

    bool next(TraceRow& row) override {
        std::string_view text;
        while (lines_->next_value(text)) {
            row.reset();
            turns_ = 0;
            counts_ = {};
            text_tokens_ = {};
            parser_.start(text);
            parser_.skip_space();
            bool listed = false;
            parser_.object(
                entry_names_, scratch_,
                [&](std::size_t k) {
                    if (k == 0) {
                        id(row);
                    } else if (k <= 2) {
                        if (listed) parser_.fail(parser_.here(), "conversations twice");
                        listed = true;
                        parser_.list("conversations", [&] { turn(row); });
                    } else {
                        count(fields_[k - 3], true);
                    }
                },
                [](std::string_view, const char*) {});
            parser_.skip_space();
            if (!parser_.at_end()) parser_.fail(parser_.here(), "text after the object");
            if (!listed) lines_->fail(1, "missing key 'conversations'");
            if (turns_ < 2 || !lengths(row)) {
                ++left_out_;
                continue;
            }
            row.block_size = block_size_;
            keep_full_blocks(row);
            row.time = {};
            any_row_ = true;
            return true;
        }
        if (!any_row_) lines_->fail_trace(1, "the trace has no rows");
        return false;
    }

private:
    /// `what`: 0 the prompt's count, 1 the output's; one name may be both.
    void add_field(const std::string& name, std::size_t what) {
        if (name.empty()) return;
        if (fields_.empty() || entry_names_.back() != name) {
            entry_names_.push_back(name);
            turn_names_.push_back(name);
            fields_.emplace_back();
        }
        fields_.back()[what] = true;
    }
    void id(TraceRow& row) {
        if (parser_.peek() == '"' || parser_.peek() == '-' || is_digit(parser_.peek())) {
            parser_.name("id", row.request_id, scratch_);
        } else {
            parser_.skip_value(scratch_);
        }
    }
    void count(const std::array<bool, 2>& counts, bool of_entry) {
        const std::int64_t tokens = parser_.integer("the token count", 0, max_request_tokens);
        for (std::size_t i = 0; i < 2; ++i) {
            // A turn's count is of that turn, and better than the entry's.
            if (counts[i] && (of_entry ? !counts_[i] : turns_ == i)) counts_[i] = tokens;
        }
    }
    void turn(TraceRow& row) {
        const std::size_t index = turns_;
        parser_.object(
            turn_names_, scratch_,
            [&](std::size_t k) {
                if (k >= 2) {
                    count(fields_[k - 2], false);
                } else if (parser_.peek() != '"') {
                    parser_.fail(parser_.here(), "a turn's value must be text, not " + parser_.found());
                } else {
                    const std::string_view text = parser_.string(scratch_);
                    unused_.clear();
                    if (index < 2) {
                        text_tokens_[index] =
                            text_blocks(text, options_.characters_per_token, block_size_, index == 0 ? row.hash_ids : unused_);
                    }
                }
            },
            [](std::string_view, const char*) {});
        ++turns_;
    }
    bool lengths(TraceRow& row) {
        const auto pick = [&](std::size_t i, const std::string& field) {
            if (field.empty()) return std::min(text_tokens_[i], max_request_tokens);
            if (!counts_[i]) lines_->fail(1, "missing key '" + field + "'");
            return *counts_[i];
        };
        row.input_length = pick(0, options_.prompt_tokens_field);
        row.output_length = pick(1, options_.output_tokens_field);
        return row.input_length > 0 && row.output_length > 0;
    }

    std::unique_ptr<LineReader> lines_;
    JsonParser parser_;
    TraceOptions options_;
    std::int64_t block_size_;
    std::vector<std::string_view> entry_names_;
    std::vector<std::string_view> turn_names_;
    std::vector<std::array<bool, 2>> fields_;  ///< which counts the names behind the first give
    std::string scratch_;
    std::size_t turns_ = 0;
    std::array<std::int64_t, 2> text_tokens_{};
    std::array<std::optional<std::int64_t>, 2> counts_{};
    std::vector<std::uint64_t> unused_;
    bool any_row_ = false;
    std::int64_t left_out_ = 0;
};

}  // namespace

std::vector<config::FieldDoc> text_format_docs() {
    struct Params {
        double characters_per_token = 4;
        std::string prompt_tokens_field;
        std::string output_tokens_field;
        std::int64_t trace_block_size = text_block_size;
    };
    static const config::Schema<Params> table{
        config::field("characters_per_token", &Params::characters_per_token, "tokens = characters / this, rounded up",
                      config::positive)
            .by_default("4"),
        config::field("prompt_tokens_field", &Params::prompt_tokens_field,
                      "name of the field with the prompt's tokens, instead of counting characters"),
        config::field("output_tokens_field", &Params::output_tokens_field, "likewise of the output's"),
        config::field("trace_block_size", &Params::trace_block_size, "tokens of a shared block", config::at_least_one)
            .by_default("16")};
    return table.docs();
}

bool matches_sharegpt(const TraceHead& head) {
    return head.json && (head.has("conversations") || head.has("conversation"));
}

std::vector<config::FieldDoc> sharegpt_docs() {
    return text_format_docs();
}

std::unique_ptr<TraceReader> open_sharegpt(std::unique_ptr<LineReader> lines, const TraceOptions& options) {
    return std::make_unique<ShareGpt>(std::move(lines), options);
}

}  // namespace kvsim
