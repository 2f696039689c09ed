// Mooncake JSON lines, kvsim's own trace format: one object per line with timestamp (ms since the start of the run, whole or
// fractional), input_length, output_length, hash_ids (one per block of 512 tokens, the last one partial), and optionally
// request_id, priority, class, session_id, tenant, think_ms, n, timeout_ms, output_hash_id, order, trace_block_size
// (docs/traces.md).

#include <utility>

#include "length_rows.hpp"

namespace kvsim {

bool matches_mooncake(const TraceHead& head) {
    return head.has("timestamp") && head.has("input_length");
}

std::vector<config::FieldDoc> mooncake_docs() {
    struct Params {
        std::int64_t trace_block_size = 512;
    };
    static const config::Schema<Params> table{
        config::field("trace_block_size", &Params::trace_block_size, "tokens per hash id", config::at_least_one)
            .by_default("the rows' trace_block_size, else 512")};
    return table.docs();
}

std::unique_ptr<TraceReader> open_mooncake(std::unique_ptr<LineReader> lines, const TraceOptions& options) {
    LengthFormat format;
    format.name = "mooncake";
    format.unit = "milliseconds";
    return open_length_rows(std::move(lines), options, format);
}

}  // namespace kvsim
