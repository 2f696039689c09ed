// `vllm bench serve --dataset-name timed_trace`: Mooncake's keys with timestamps in seconds (times sec_multiplier, vLLM's
// --timed-trace-sec-multiplier) and 16 tokens per hash id (--timed-trace-chunk-hash-size). The Qwen-Bailian traces are such
// files; their chat_id tells them from Mooncake's.

#include <array>
#include <utility>

#include "length_rows.hpp"

namespace kvsim {

bool matches_timed_trace(const TraceHead& head) {
    return head.has("timestamp") && head.has("input_length") && (head.has("chat_id") || head.has("parent_chat_id"));
}

std::vector<config::FieldDoc> timed_trace_docs() {
    struct Params {
        std::int64_t trace_block_size = 16;
        double sec_multiplier = 1;
    };
    static const config::Schema<Params> table{
        config::field("trace_block_size", &Params::trace_block_size, "tokens per hash id", config::at_least_one)
            .by_default("16"),
        config::field("sec_multiplier", &Params::sec_multiplier, "seconds per unit of a timestamp", config::positive)
            .by_default("1")};
    return table.docs();
}

std::unique_ptr<TraceReader> open_timed_trace(std::unique_ptr<LineReader> lines, const TraceOptions& options) {
    LengthFormat format;
    format.name = "timed_trace";
    format.unit = "seconds";
    format.exponent = 9;
    format.may_omit_tail = true;
    format.block_size = 16;
    double multiplier = options.sec_multiplier;
    // A power of ten shifts the decimal point, exactly.
    for (const auto& [factor, exponent] : {std::pair{1e-3, 6}, std::pair{1e-6, 3}, std::pair{1e-9, 0}}) {
        if (multiplier == factor) {
            format.exponent = exponent;
            multiplier = 1;
            break;
        }
    }
    return open_length_rows(std::move(lines), options, format, multiplier);
}

}  // namespace kvsim
