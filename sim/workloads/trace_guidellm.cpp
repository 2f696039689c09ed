// guidellm's trace files (kind=trace_synthetic, kind=mooncake): JSON lines with timestamp (s; the first row arrives at 0) and
// the prompt's and output's tokens under input_length, prompt_tokens or prompt_tokens_count and their like.

#include <utility>

#include "length_rows.hpp"

namespace kvsim {

bool matches_guidellm(const TraceHead& head) {
    return head.has("timestamp") && (head.has("prompt_tokens") || head.has("prompt_tokens_count"));
}

std::vector<config::FieldDoc> guidellm_docs() {
    struct Params {
        std::int64_t trace_block_size = 512;
    };
    static const config::Schema<Params> table{
        config::field("trace_block_size", &Params::trace_block_size, "tokens per hash id", config::at_least_one)
            .by_default("512")};
    return table.docs();
}

std::unique_ptr<TraceReader> open_guidellm(std::unique_ptr<LineReader> lines, const TraceOptions& options) {
    LengthFormat format;
    format.name = "guidellm";
    format.unit = "seconds";
    format.exponent = 9;
    format.from_first = true;
    format.may_omit_tail = true;
    format.guidellm_names = true;
    return open_length_rows(std::move(lines), options, format);
}

}  // namespace kvsim
