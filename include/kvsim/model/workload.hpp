#pragma once
// What the clients send: a stream of requests sorted by arrival time.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvsim/base/units.hpp"

namespace kvsim {

/// Request i of the workload, i = 0, 1, ... in arrival order; the same request under every policy.
using RequestId = std::uint32_t;

/// `count` tokens with the consecutive ids first, first + 1, ... Equal ids are equal tokens; prefix caching compares nothing
/// else.
struct TokenRun {
    std::uint64_t first = 0;
    std::int64_t count = 0;
    bool operator==(const TokenRun&) const = default;
};

/// First of the 2^31 token ids that only request `id` has: the ids with the top bit set. Workloads keep out of them.
constexpr std::uint64_t private_tokens(RequestId id) {
    return (std::uint64_t{1} << 63) | (static_cast<std::uint64_t>(id) << 31);
}

/// How a request left; unfinished while it has not. A full waiting queue is told to the workload as queue_full, because such a
/// request may be sent again; its record says rejected.
enum class FinishReason : std::uint8_t { unfinished, length, stop, rejected, timed_out, cancelled, failed, queue_full };

/// One request as the client sends it.
struct Arrival {
    SimTime time{};                  ///< intended arrival; earlier than next_time() if it waited at the client
    std::int64_t prompt_tokens = 0;  ///< >= 1
    std::int64_t output_tokens = 0;  ///< >= 1, of each output; the engine cuts it to max_model_len - prompt_tokens
    std::int64_t n = 1;              ///< outputs asked for, of output_tokens each, from the one prompt
    std::uint64_t beam_seed = 0;     ///< not 0: the n outputs are the beams of one search, which draws from this
    std::int64_t priority = 0;       ///< lower is more urgent
    std::uint64_t output_base = 0;   ///< id of the k-th output token is output_base + k
    std::vector<TokenRun> prompt;    ///< covers prompt_tokens; empty when the workload shares nothing and ids do not matter:
                                     ///< then the prompt is one run nobody else has
    std::string external_id;         ///< the trace's request_id; empty: the index
    std::string request_class;       ///< empty: no class
    std::string session_id;          ///< empty: no session
    std::string tenant;              ///< empty: none named
    // When the client gives up, counted from `time`; zero: never.
    SimDuration timeout{};       ///< without the last token: timed out
    SimDuration ttft_timeout{};  ///< without the first token: timed out
    SimDuration cancel_after{};  ///< without the last token: cancelled, nobody wants the answer any more
    std::int32_t attempt = 0;    ///< how many times it was sent before (retries)

    /// Whether any of the names or `attempt` is set.
    [[nodiscard]] bool is_marked() const {
        return (external_id.size() | request_class.size() | session_id.size() | tenant.size()) != 0 || attempt != 0;
    }
};

/// A request of which there is no more to tell: one output, no name, no timeout; its prompt and its output (from
/// own_output_base() on, model/token_ids.hpp) are tokens nobody else has.
struct PlainArrival {
    SimTime time{};
    std::int64_t prompt_tokens = 0;
    std::int64_t output_tokens = 0;
};

class Workload {
public:
    virtual ~Workload() = default;
    /// When the next request is sent, or nullopt when there is none (a closed loop may get one by finished()). Never earlier
    /// than the last popped one's.
    [[nodiscard]] virtual std::optional<SimTime> next_time() = 0;
    /// Takes the next request into `out`, a new Arrival or the one of the last pop(), of which only `prompt` may have changed;
    /// only after next_time() gave a time. Reading a trace may throw UserError.
    virtual void pop(Arrival& out) = 0;
    /// Takes the next requests, instead of pop(), as many as are ready, where all that ever come are plain; they are there
    /// until the next call of next_time(), pop() or take_plain(). Empty: next_time() tells whether there are more.
    [[nodiscard]] virtual std::span<const PlainArrival> take_plain() { return {}; }
    /// Tells who listens that request `id` left the system at `now` with `outputs` received tokens. Called in the order of
    /// leaving; a request that timed out at the client before it was sent leaves when its turn would have come.
    virtual void finished(RequestId id, SimTime now, FinishReason reason, std::int64_t outputs) {
        static_cast<void>(id);
        static_cast<void>(now);
        static_cast<void>(reason);
        static_cast<void>(outputs);
    }
    /// Whether a request may have a timeout or be cancelled.
    [[nodiscard]] virtual bool may_cancel() const { return false; }
    /// Whether a request may ask for several outputs.
    [[nodiscard]] virtual bool may_branch() const { return false; }
    /// Whether finished() may bring arrivals forward (a closed loop).
    [[nodiscard]] virtual bool closed_loop() const { return true; }
    /// Whether finished() is to be called.
    [[nodiscard]] virtual bool listens() const { return closed_loop(); }
    /// Whether no request's output tokens ever occur in another request's prompt or outputs (a preempted request looks up its
    /// outputs too).
    [[nodiscard]] virtual bool outputs_are_private() const { return false; }
    /// What was left out or changed of the requests given so far, with counts, a sentence each.
    [[nodiscard]] virtual std::vector<std::string> notes() const { return {}; }
    /// Requests in total when that is known beforehand (to reserve memory and show progress).
    [[nodiscard]] virtual std::optional<std::int64_t> size_hint() const { return std::nullopt; }
};

}  // namespace kvsim
