#pragma once
// Requests as a trace in kvsim's own format (mooncake), so that a replay is the same run.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "kvsim/model/workload.hpp"

namespace kvsim {

/// A request that was sent in a run, where others may have waited for it.
struct TraceTurn {
    RequestId id = 0;
    SimTime time{};                      ///< of the row: its arrival, or its session's first one's if it has `think`
    std::optional<SimDuration> think{};  ///< from the end of its session's previous request to its arrival
};

/// Keys that some request may need; the first line announces to readers those they must be prepared for.
struct TraceKeys {
    bool timeouts = false;
    bool branches = false;  ///< several outputs
    bool think_times = false;
    bool outputs_recur = false;  ///< prompts hold outputs of earlier requests, so outputs get hash ids too
};

/// Times are milliseconds with as many decimals as they need, so they read back to the nanosecond. Prompts become hash ids, one
/// per `block_size` tokens: equal ids where, and only where, those tokens are equal; left out when none of them can be another
/// request's. So a replay finds the same prefixes on every engine whose block size is a multiple of it.
class TraceWriter {
public:
    /// `block_size` in tokens, >= 1.
    explicit TraceWriter(std::int64_t block_size, const TraceKeys& keys = {});
    TraceWriter(const TraceWriter&) = delete;
    TraceWriter& operator=(const TraceWriter&) = delete;
    ~TraceWriter();
    /// What the format has no key for in this request: a limit on the first token, a cancellation, an earlier attempt;
    /// empty: nothing.
    static std::string left_out(const Arrival& arrival);
    /// Appends the line of the next request (RequestId 0, 1, ...) of a workload whose outputs are private.
    void append(const Arrival& arrival, std::string& out);
    /// The same of any request, after those whose outputs its prompt holds.
    void append(const Arrival& arrival, const TraceTurn& turn, std::string& out);

private:
    struct Ids;
    void append_shared(const Arrival& arrival, RequestId id, std::string& out);
    void append_recurring(const Arrival& arrival, RequestId id, std::string& out);

    std::int64_t block_size_;
    TraceKeys keys_;
    RequestId next_ = 0;
    std::unique_ptr<Ids> ids_;
};

}  // namespace kvsim
