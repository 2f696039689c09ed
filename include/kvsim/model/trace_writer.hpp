#pragma once
// Requests as a trace in kvsim's own format (mooncake), so that a replay is the same run.

#include <cstdint>
#include <memory>
#include <string>

#include "kvsim/model/workload.hpp"

namespace kvsim {

/// Times are milliseconds with as many decimals as they need, so they read back to the nanosecond. Prompts become hash ids, one
/// per `block_size` tokens: equal ids where, and only where, those tokens are equal; left out when none of them can be another
/// request's. So a replay finds the same prefixes on every engine whose block size is a multiple of it.
class TraceWriter {
public:
    /// `block_size` in tokens, >= 1. `timeouts`, `branches`: some request may have one, or several
    /// outputs, which the first line announces to readers.
    explicit TraceWriter(std::int64_t block_size, bool timeouts = false, bool branches = false);
    TraceWriter(const TraceWriter&) = delete;
    TraceWriter& operator=(const TraceWriter&) = delete;
    ~TraceWriter();
    /// What the format has no key for in this request: a limit on the first token, a cancellation, a tenant, an earlier
    /// attempt; empty: nothing.
    static std::string left_out(const Arrival& arrival);
    /// Appends the line of the next request (RequestId 0, 1, ...) of a workload whose outputs are private.
    void append(const Arrival& arrival, std::string& out);

private:
    struct Ids;
    std::int64_t block_size_;
    bool timeouts_;
    bool branches_;
    RequestId next_ = 0;
    std::unique_ptr<Ids> ids_;
};

}  // namespace kvsim
