#pragma once
// Clients that do more than send independent requests: mixes of classes, closed loops of users, sessions (chats, tool-calling
// runs), shared documents, patience and retries.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/config/scenario.hpp"
#include "kvsim/model/registry.hpp"
#include "kvsim/model/workload_pieces.hpp"

namespace kvsim {

/// A law of durations >= 0 ns: think times, tool calls.
class TimeLaw {
public:
    virtual ~TimeLaw() = default;
    /// Nanoseconds at probability u in (0, 1); non-decreasing in u, at most max_law_time.
    [[nodiscard]] virtual SimDuration sample(double u) const = 0;
};

/// A year; nobody thinks longer, and sums stay far from the end of time.
inline constexpr SimDuration max_law_time = std::chrono::hours(24 * 366);

using MakeTimeLaw = std::unique_ptr<TimeLaw> (*)(const config::Value& params, std::string_view where, config::Diagnostics&);
std::span<const Entry<MakeTimeLaw>> time_distributions();

/// A bare duration is a constant; otherwise a map whose `distribution` names the law.
std::unique_ptr<TimeLaw> make_time_law(const config::Value&, std::string_view where, config::Diagnostics&);

/// Shared documents (RAG): each prompt holds `per_request` different ones of `count`, in the order they were drawn, between the
/// prefix and the request's own tokens.
struct DocumentLaw {
    std::int64_t count = 1;
    std::unique_ptr<LengthLaw> tokens;  ///< drawn once per document
    std::unique_ptr<LengthLaw> per_request;
    double zipf = 0;  ///< popularity of the k-th: k^-zipf; 0: equal
};

/// One node of a session: a request, or several that follow from it.
struct StepLaw {
    std::string name;
    std::vector<std::size_t> after;            ///< steps that must be done before, all of lower index
    std::optional<std::size_t> context;        ///< the step whose conversation it continues; unset: a new one
    std::unique_ptr<LengthLaw> prompt_tokens;  ///< new tokens of the request
    std::unique_ptr<LengthLaw> output_tokens;
    std::unique_ptr<LengthLaw> reasoning_tokens;  ///< null: none
    std::unique_ptr<TimeLaw> delay;               ///< from the last answer it waits for to sending (tool, reading)
    std::unique_ptr<LengthLaw> repeat;            ///< how often, each continuing the one before; null: once
    std::unique_ptr<LengthLaw> copies;            ///< how many side by side (side tasks); null: one
};

struct SessionLaw {
    std::vector<StepLaw> steps;
    std::optional<std::int64_t> count;        ///< no further sessions after so many
    std::optional<std::int64_t> max_context;  ///< tokens; the session ends before a longer prompt
};

struct UserLaw {
    std::int64_t count = 1;
    std::unique_ptr<TimeLaw> think_time;  ///< from an answer (a session's end) to the next request (session)
    SimDuration ramp_up{};                ///< user u of n starts at ramp_up x u / n
};

struct RetryLaw {
    std::int64_t max_retries = 2;
    SimDuration backoff = std::chrono::milliseconds(500);  ///< before the first retry
    double multiplier = 2;
    SimDuration max_backoff = std::chrono::seconds(8);
    double jitter = 0.25;  ///< share of the wait that is taken off at random
};

/// One class of clients; either `arrivals`, `users` or `replay` sends.
struct ClientLaws {
    std::string name;  ///< empty: the only class
    std::uint64_t seed = 1;
    std::unique_ptr<ArrivalProcess> arrivals;
    std::optional<UserLaw> users;
    std::unique_ptr<Workload> replay;
    std::unique_ptr<LengthLaw> prompt_tokens;
    std::unique_ptr<LengthLaw> output_tokens;
    std::unique_ptr<LengthLaw> reasoning_tokens;  ///< null: none
    std::optional<PrefixLaw> prefix;
    double prefix_zipf = 0;
    std::int64_t prefix_group = 0;    ///< id of its first shared prefix
    std::int64_t document_group = 0;  ///< id of its first document, among the same ids
    std::optional<DocumentLaw> documents;
    std::optional<SessionLaw> sessions;
    std::optional<std::int64_t> requests;
    std::optional<SimDuration> duration;
    std::optional<std::int64_t> max_concurrency;
    SimDuration jitter{};
    std::int64_t n = 1;
    bool beam_search = false;  ///< its n > 1 outputs are beams
    std::int64_t priority = 0;
    std::string tenant;
    SimDuration timeout{};       ///< 0: none
    SimDuration ttft_timeout{};  ///< 0: none
    double cancel_share = 0;
    std::unique_ptr<TimeLaw> cancel_after;
    std::optional<RetryLaw> retry;
};

/// Request i of a class (in a session: request k of session s; of users: the i-th that any of them sends) has the same lengths
/// and content whatever the policy. What the only class draws without sessions is what make_synthetic() draws.
std::unique_ptr<Workload> make_clients(std::vector<ClientLaws> classes, std::optional<std::int64_t> requests);

/// Why requests of this workload that wait for others cannot be said by a session_id and a think time each; empty: they can, or
/// none waits.
std::string beyond_think_times(const Workload&);
/// Of a workload that is nothing but users who never think, start together and are patient: how many they are. The same
/// requests offered at once under such a max_concurrency are the same run.
std::optional<std::int64_t> never_thinking_users(const Workload&);

/// Whether make_synthetic() or make_replay() alone cannot do what is asked.
bool needs_clients(const config::WorkloadConfig&);
/// From a scenario; null after reporting. `replay`: the trace, if there is one.
std::unique_ptr<Workload> clients_of(const config::WorkloadConfig&, std::unique_ptr<Workload> replay, std::uint64_t seed,
                                     config::Diagnostics&);

/// Sections of the schema: {"workload.users", docs}, ...
std::vector<std::pair<std::string, std::vector<config::FieldDoc>>> client_docs();

}  // namespace kvsim
