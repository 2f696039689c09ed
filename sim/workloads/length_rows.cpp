#include "length_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kvsim/model/token_ids.hpp"

namespace kvsim {

namespace {

enum Key : std::size_t {
    timestamp,
    input_length,
    output_length,
    hash_ids,
    request_id,
    priority,
    request_class,
    session_id,
    tenant,
    think_ms,
    n,
    timeout_ms,
    output_hash_id,
    order,
    trace_block_size,
    usual_keys,
    prompt_tokens = usual_keys,
    output_tokens,
    prompt_tokens_count,
    output_tokens_count,
    all_keys
};
constexpr std::array<std::string_view, all_keys> key_names{"timestamp",
                                                           "input_length",
                                                           "output_length",
                                                           "hash_ids",
                                                           "request_id",
                                                           "priority",
                                                           "class",
                                                           "session_id",
                                                           "tenant",
                                                           "think_ms",
                                                           "n",
                                                           "timeout_ms",
                                                           "output_hash_id",
                                                           "order",
                                                           "trace_block_size",
                                                           "prompt_tokens",
                                                           "output_tokens",
                                                           "prompt_tokens_count",
                                                           "output_tokens_count"};

/// Where a trace must show whether it has think times, timeouts and several outputs: a run prepares for them.
constexpr std::size_t head_bytes = std::size_t{1} << 18;
constexpr std::string_view late = " must first occur within the first 256 KiB of the trace; null will do";

constexpr std::uint32_t bit(Key k) {
    return std::uint32_t{1} << k;
}

class LengthRows final : public JsonRows {
public:
    LengthRows(std::unique_ptr<LineReader> given, const TraceOptions& options, const LengthFormat& format, double multiplier)
        : JsonRows(std::move(given), format.name, std::span(key_names).first(format.guidellm_names ? all_keys : usual_keys),
                   bit(timestamp) | (format.guidellm_names ? 0 : bit(input_length) | bit(output_length))),
          format_(format),
          multiplier_(multiplier),
          block_size_(options.trace_block_size.value_or(format.block_size)),
          block_size_told_(options.trace_block_size.has_value()),
          paced_(head_has("\"think_ms\"")),
          times_out_(head_has("\"timeout_ms\"")),
          branches_(head_has("\"n\"")),
          outputs_recur_(head_has("\"output_hash_id\"")) {}

    [[nodiscard]] bool paced_by_completions() const override { return paced_; }
    [[nodiscard]] bool may_time_out() const override { return times_out_; }
    [[nodiscard]] bool may_branch() const override { return branches_; }
    [[nodiscard]] bool outputs_may_recur() const override { return outputs_recur_; }

protected:
    void value(std::size_t k, TraceRow& row) override {
        JsonParser& p = parser();
        const char* const mark = p.here();
        if (k > hash_ids && k < usual_keys && p.peek() == 'n') {
            p.word("null");
            return;
        }
        switch (static_cast<Key>(k)) {
            case timestamp:
                time_mark_ = mark;
                time_ns_ = p.time("timestamp", format_.unit, format_.exponent);
                return;
            case input_length:
            case prompt_tokens:
            case prompt_tokens_count:
                row.input_length = p.integer(key_names[k], 1, max_request_tokens);
                return;
            case output_length:
            case output_tokens:
            case output_tokens_count:
                row.output_length = p.integer(key_names[k], 1, max_request_tokens);
                return;
            case hash_ids:
                hash_mark_ = mark;
                p.ids("hash_ids", "hash id", row.hash_ids, highest_id(block_size_));
                return;
            case request_id:
                p.name("request_id", row.request_id, scratch());
                return;
            case priority:
                row.priority = p.integer("priority", INT64_MIN + 1, INT64_MAX);
                return;
            case request_class:
                p.name("class", row.request_class, scratch());
                return;
            case session_id:
                p.name("session_id", row.session_id, scratch());
                return;
            case tenant:
                p.name("tenant", row.tenant, scratch());
                return;
            case think_ms:
                think_mark_ = mark;
                if (!paced_) p.fail(mark, "think_ms" + std::string(late));
                row.think = SimDuration(p.time("think_ms", "milliseconds", 6));
                return;
            case n:
                n_mark_ = mark;
                row.n = p.integer("n", 1, max_branches);
                if (row.n > 1 && !branches_) p.fail(mark, "an n above 1" + std::string(late));
                return;
            case timeout_ms:
                if (!times_out_) p.fail(mark, "timeout_ms" + std::string(late));
                row.timeout = SimDuration(p.time("timeout_ms", "milliseconds", 6));
                return;
            case output_hash_id:
                output_mark_ = mark;
                if (!outputs_recur_) p.fail(mark, "output_hash_id" + std::string(late));
                row.output_hash_id = static_cast<std::uint64_t>(p.integer("output_hash_id", 0, INT64_MAX));
                return;
            case order:
                row.order = p.integer("order", 0, INT64_MAX);
                return;
            case trace_block_size:
                size_mark_ = mark;
                row_block_size_ = p.integer("trace_block_size", 1, max_request_tokens);
                return;
            case all_keys:
                return;
        }
    }

    bool finish(std::uint32_t seen, TraceRow& row) override {
        JsonParser& p = parser();
        if (format_.guidellm_names) one_of_each(seen);
        std::int64_t size = block_size_;
        if ((seen & bit(trace_block_size)) != 0 && row_block_size_ != size) {
            if (block_size_told_)
                p.fail(size_mark_, "trace_block_size " + std::to_string(row_block_size_) + " is not the " +
                                       std::to_string(block_size_) + " of the rows before or of the scenario");
            size = row_block_size_;
            if (std::any_of(row.hash_ids.begin(), row.hash_ids.end(),
                            [&](std::uint64_t id) { return id > static_cast<std::uint64_t>(highest_id(size)); }))
                p.fail(hash_mark_, "a hash id is above " + std::to_string(highest_id(size)));
        }
        if ((seen & bit(hash_ids)) != 0) check_hash_ids(row, size);
        if (row.output_hash_id) check_output(row, size);
        if (row.think && row.session_id.empty()) p.fail(think_mark_, "think_ms needs a session_id");
        if (row.n > 1 && row.output_length > max_request_tokens / row.n)
            p.fail(n_mark_, "n outputs of " + std::to_string(row.output_length) + " tokens are more than 2^30 - 1 tokens");
        row.block_size = size;
        if (multiplier_ != 1) {
            const double scaled = static_cast<double>(time_ns_) * multiplier_;
            if (!(scaled < 0x1p62)) p.fail(time_mark_, "timestamp is too large");
            time_ns_ = static_cast<std::int64_t>(std::floor(scaled + 0.5));
        }
        if (format_.from_first) {
            if (!first_) first_ = time_ns_;
            time_ns_ -= *first_;
        }
        row.time = SimTime(SimDuration(time_ns_));
        check_sorted(row, time_mark_);
        if ((seen & bit(trace_block_size)) != 0) {
            block_size_ = size;
            block_size_told_ = true;
        }
        return true;
    }

private:
    bool head_has(std::string_view key) { return lines().head(head_bytes).find(key) != std::string_view::npos; }
    static std::int64_t highest_id(std::int64_t block_size) {
        return static_cast<std::int64_t>(trace_ids_end / static_cast<std::uint64_t>(block_size)) - 1;
    }

    void check_hash_ids(const TraceRow& row, std::int64_t size) {
        const std::int64_t blocks = ceil_div(row.input_length, size);
        const auto given = static_cast<std::int64_t>(row.hash_ids.size());
        if (given == blocks || (format_.may_omit_tail && given == row.input_length / size)) return;
        parser().fail(hash_mark_, std::to_string(given) + " hash_ids for an input_length of " +
                                      std::to_string(row.input_length) + "; trace_block_size " + std::to_string(size) +
                                      " makes " + std::to_string(blocks));
    }

    void check_output(const TraceRow& row, std::int64_t size) {
        const std::int64_t in_block = row.input_length % size;
        if (in_block != 0 && static_cast<std::int64_t>(row.hash_ids.size()) > row.input_length / size &&
            row.hash_ids.back() != *row.output_hash_id)
            parser().fail(output_mark_, "the prompt ends inside a block, so output_hash_id must be its last hash id, " +
                                            std::to_string(row.hash_ids.back()));
        const std::int64_t blocks = ceil_div(in_block + row.output_length, size);
        if (static_cast<std::int64_t>(*row.output_hash_id) > highest_id(size) + 1 - blocks)
            parser().fail(output_mark_, "a hash id of the outputs is above " + std::to_string(highest_id(size)));
    }

    void one_of_each(std::uint32_t seen) {
        for (const auto& [names, what] :
             {std::pair{bit(input_length) | bit(prompt_tokens) | bit(prompt_tokens_count), input_length},
              std::pair{bit(output_length) | bit(output_tokens) | bit(output_tokens_count), output_length}}) {
            const std::uint32_t given = seen & names;
            if (given == 0) lines().fail(1, "missing key '" + std::string(key_names[what]) + "'");
            if ((given & (given - 1)) != 0) lines().fail(1, "more than one key for the " + std::string(key_names[what]));
        }
    }

    LengthFormat format_;
    double multiplier_;
    std::int64_t block_size_;
    bool block_size_told_;  ///< by the scenario or a row: it stays
    bool paced_;
    bool times_out_;
    bool branches_;
    bool outputs_recur_;
    std::optional<std::int64_t> first_;
    // Of the current row.
    std::int64_t time_ns_ = 0;
    std::int64_t row_block_size_ = 0;
    const char* time_mark_ = nullptr;
    const char* hash_mark_ = nullptr;
    const char* think_mark_ = nullptr;
    const char* output_mark_ = nullptr;
    const char* size_mark_ = nullptr;
    const char* n_mark_ = nullptr;
};

}  // namespace

std::unique_ptr<TraceReader> open_length_rows(std::unique_ptr<LineReader> lines, const TraceOptions& options,
                                              const LengthFormat& format, double multiplier) {
    return std::make_unique<LengthRows>(std::move(lines), options, format, multiplier);
}

}  // namespace kvsim
