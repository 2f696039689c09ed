#pragma once
// Recorded requests, read row by row: a file is never held as a whole.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/base/units.hpp"
#include "kvsim/model/registry.hpp"

namespace kvsim {

struct TraceRow {
    SimTime time{};
    std::int64_t input_length = 0;        ///< tokens, [1, max_request_tokens]
    std::int64_t output_length = 0;       ///< tokens, [1, max_request_tokens]
    std::vector<std::uint64_t> hash_ids;  ///< one per block of the prompt, the last one perhaps partial; what they do not cover
                                          ///< nobody shares
    std::int64_t block_size = 0;          ///< tokens per hash id
    std::int64_t priority = 0;
    std::int64_t n = 1;                  ///< outputs asked for
    std::optional<SimDuration> think;    ///< arrives so long after its session's previous request left, not before `time`
    std::optional<SimDuration> timeout;  ///< the client gives up so long after the arrival
    std::optional<std::uint64_t> output_hash_id;  ///< id of the block the first output token stands in; the blocks behind it
                                                  ///< have the ids behind it. Unset: nobody repeats the outputs
    std::optional<std::int64_t> order;            ///< among rows due at the same time; unset: the row's number
    std::string request_id;
    std::string request_class;
    std::string session_id;
    std::string tenant;
    bool starts_session = false;  ///< with TraceTimes::per_session: the first row of its session
    bool operator==(const TraceRow&) const = default;

    /// As new, storage kept.
    void reset() {
        hash_ids.clear();
        priority = 0;
        n = 1;
        think.reset();
        timeout.reset();
        output_hash_id.reset();
        order.reset();
        request_id.clear();
        request_class.clear();
        session_id.clear();
        tenant.clear();
        starts_session = false;
    }
};

struct TraceOptions {
    std::optional<std::int64_t> trace_block_size{};  ///< tokens per hash id, independent of the engine's; unset: the format's
    double characters_per_token = 4;                 ///< of formats that hold text: tokens = characters / this, rounded up
    std::int64_t custom_output_len = 256;            ///< output of a vllm_custom row that says none
    double sec_multiplier = 1;                       ///< timed_trace: seconds per unit of its timestamps
    std::string prompt_tokens_field{};               ///< sharegpt, vllm_custom: the entry's field with the prompt's tokens
    std::string output_tokens_field{};
};

/// What a format's times mean.
enum class TraceTimes {
    recorded,    ///< since the start of the run, sorted
    none,        ///< there are none: `arrivals` gives them
    per_session  ///< since the start of the row's session; rows come session by session, each sorted
};

class TraceReader {
public:
    virtual ~TraceReader() = default;
    /// The next row into `row` (reusing its storage), false at the end. Recorded times never decrease. Whatever is wrong with
    /// the file throws UserError `path:line:column: error: ...`; after a RowError (sim/workloads/line_reader.hpp) the next row
    /// can be read.
    virtual bool next(TraceRow& row) = 0;
    [[nodiscard]] virtual std::string_view format() const = 0;
    [[nodiscard]] virtual TraceTimes times() const { return TraceTimes::recorded; }
    /// Rows may have `think`, so that arrivals depend on completions. Known before the first row.
    [[nodiscard]] virtual bool paced_by_completions() const { return false; }
    /// Rows may have `timeout`. Known before the first row.
    [[nodiscard]] virtual bool may_time_out() const { return false; }
    /// Rows may have an `n` above 1. Known before the first row.
    [[nodiscard]] virtual bool may_branch() const { return false; }
    /// Rows may have `output_hash_id`: prompts may repeat outputs. Known before the first row.
    [[nodiscard]] virtual bool outputs_may_recur() const { return false; }
    /// Keys the format does not know, met so far; they are ignored.
    [[nodiscard]] virtual std::vector<std::string> unknown_keys() const { return {}; }
    /// What was left out or changed so far, with counts, a sentence each.
    [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
};

class LineReader;  // sim/workloads/line_reader.hpp

/// The beginning of a file, for telling its format: the column names of a CSV header in lower case, or the top-level keys of
/// the first object of a JSON text.
struct TraceHead {
    std::string_view text;  ///< the first bytes
    bool json = false;
    std::vector<std::string> names;
    [[nodiscard]] bool has(std::string_view name) const;
};

struct TraceFormat {
    bool (*matches)(const TraceHead&);
    std::unique_ptr<TraceReader> (*open)(std::unique_ptr<LineReader>, const TraceOptions&);
};
/// The first one that matches is taken.
std::span<const Entry<TraceFormat>> trace_formats();

/// `format` empty: found by content. A folder is every .json, .jsonl, .json.gz and .jsonl.gz file in it, by name (formats of
/// one session per file). gzip is found by content. An unknown format or an unreadable file throws UserError.
std::unique_ptr<TraceReader> open_trace(const std::filesystem::path& path, std::string_view format, const TraceOptions&);
/// The same over bytes in memory; `name` stands for the path in messages.
std::unique_ptr<TraceReader> open_trace_text(std::string name, std::string text, std::string_view format, const TraceOptions&);

}  // namespace kvsim
