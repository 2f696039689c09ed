// `vllm bench serve --dataset-name custom`: JSON lines with prompt and, perhaps, output_tokens. The prompt's tokens are its
// characters over characters_per_token, rounded up, or a count that the entry holds (prompt_tokens_field); prompts that begin
// alike share their prefix, block by block of 16 tokens. `arrivals` says when they come.

#include <array>
#include <optional>
#include <utility>

#include "content.hpp"
#include "json_rows.hpp"
#include "kvsim/model/token_ids.hpp"
#include "text_format.hpp"

namespace kvsim {

namespace {

enum Key : std::size_t { prompt, output_tokens };
constexpr std::array<std::string_view, 2> key_names{"prompt", "output_tokens"};

class VllmCustom final : public JsonRows {
public:
    VllmCustom(std::unique_ptr<LineReader> given, const TraceOptions& options)
        : JsonRows(std::move(given), "vllm_custom", key_names, 1U << prompt),
          options_(options),
          block_size_(options.trace_block_size.value_or(text_block_size)) {
        if (!options.prompt_tokens_field.empty()) prompt_field_ = require_name(options.prompt_tokens_field);
        if (!options.output_tokens_field.empty()) output_field_ = require_name(options.output_tokens_field);
    }
    [[nodiscard]] TraceTimes times() const override { return TraceTimes::none; }

protected:
    void value(std::size_t k, TraceRow& row) override {
        JsonParser& p = parser();
        const char* const mark = p.here();
        if (k == prompt) {
            if (p.peek() != '"') p.fail(mark, "prompt must be text, not " + p.found());
            text_tokens_ = text_blocks(p.string(scratch()), options_.characters_per_token, block_size_, row.hash_ids);
            if (text_tokens_ < 1 || text_tokens_ > max_request_tokens) p.fail(mark, "the prompt must not be empty");
            return;
        }
        const std::int64_t tokens = p.integer(k == output_tokens ? "output_tokens" : "the token count", 1, max_request_tokens);
        if (k == output_tokens && !output_field_) row.output_length = tokens;
        if (prompt_field_ == k) field_tokens_ = tokens;
        if (output_field_ == k) row.output_length = tokens;
    }
    bool finish(std::uint32_t seen, TraceRow& row) override {
        if (!output_field_ && (seen & (1U << output_tokens)) == 0) row.output_length = options_.custom_output_len;
        row.input_length = prompt_field_ ? field_tokens_ : text_tokens_;
        row.block_size = block_size_;
        keep_full_blocks(row);
        row.time = {};
        return true;
    }

private:
    TraceOptions options_;
    std::int64_t block_size_;
    std::optional<std::size_t> prompt_field_;
    std::optional<std::size_t> output_field_;
    std::int64_t text_tokens_ = 0;
    std::int64_t field_tokens_ = 0;
};

}  // namespace

bool matches_vllm_custom(const TraceHead& head) {
    return head.json && head.has("prompt") && !head.has("timestamp");
}

std::vector<config::FieldDoc> vllm_custom_docs() {
    std::vector<config::FieldDoc> docs = text_format_docs();
    struct Params {
        std::int64_t custom_output_len = 256;
    };
    static const config::Schema<Params> table{config::field("custom_output_len", &Params::custom_output_len,
                                                            "output of a row without output_tokens", config::at_least_one)
                                                  .by_default("256")};
    docs.push_back(table.docs().front());
    return docs;
}

std::unique_ptr<TraceReader> open_vllm_custom(std::unique_ptr<LineReader> lines, const TraceOptions& options) {
    return std::make_unique<VllmCustom>(std::move(lines), options);
}

}  // namespace kvsim
