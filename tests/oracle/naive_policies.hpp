#pragma once
// Every composed batch policy of docs/policies.md, written down sentence by sentence: the queue is sorted anew whenever a head
// is chosen, the pool is asked block by block, every sum is summed. Shares no code with the schedulers it is compared with.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvsim/model/step_time.hpp"
#include "naive_engine.hpp"

namespace kvsim::oracle {

/// Deliberate mistakes; the comparison must notice every one.
enum class PolicyMutation : std::uint8_t {
    none,
    // Rules of every style.
    admits_after_preemption,
    no_watermark,
    live_tokens_unbounded,
    live_tokens_without_head,
    watermark_refuses_nobody,
    preempted_row_stays_paid,
    one_seat_more,
    // Styles.
    static_admits_while_running,
    static_ends_one_by_one,
    iteration_has_a_budget,
    prompts_before_decodes,
    no_evict_without_guarantee,
    no_evict_forgets_held,
    no_evict_ignores_what_is_asked_for,
    past_future_decodes_beside,
    chunks_one_after_the_other,
    prompts_do_not_wait,
    // Orders.
    order_is_arrival,
    ties_latest_first,
    requeue_front,
    no_aging,
    prediction_is_true,
    srpt_ignores_computed,
    deadline_of_scenario,
    deadline_stays_first_token,
    slack_is_deadline,
    mlfq_stays,
    mlfq_never_promotes,
    mlfq_all_join_first,
    vtc_no_lift,
    vtc_no_weights,
    vtc_outputs_free,
    vtc_prompts_free,
    displaces_equals,
    displaces_never,
    displaces_first_of_ties,
    lpm_in_order_of_arrival,
    dfs_in_order_of_arrival,
    // Victims.
    victim_is_last,
    victim_ties_first,
    // Admission.
    admission_optimistic,
    expected_ignores_running,
    past_future_ignores_head,
    // Predictors.
    believed_is_predicted,
    class_mean_of_all,
    outputs_draw_apart,
    // Preemption.
    swap_loses_computed,
    swap_is_free,
    swap_has_all_room,
    never_cheaper,
    // KV.
    best_fit,
    buddy_unaligned,
    range_not_rounded,
    evicts_least_recently_used,
    count
};

struct NaivePolicy {
    /// A piece and its parameters as a scenario writes them.
    struct Piece {
        std::string name;
        std::map<std::string, std::string> params;
        [[nodiscard]] std::string text(const std::string& key, const std::string& otherwise) const;
        [[nodiscard]] std::int64_t whole(const std::string& key, std::int64_t otherwise) const;
        [[nodiscard]] double number(const std::string& key, double otherwise) const;
        [[nodiscard]] std::int64_t ns(const std::string& key, std::int64_t otherwise) const;  ///< a duration "5ns", "3s"
        [[nodiscard]] std::vector<std::int64_t> list(const std::string& key, std::vector<std::int64_t> otherwise) const;
    };
    struct Slo {
        std::optional<SimDuration> ttft, tpot, e2e;
    };

    std::string style = "vllm-v1";
    Piece order{"fcfs", {}};
    Piece victim;     ///< without a name: the style's own
    Piece admission;  ///< likewise
    Piece predictor{"oracle", {}};
    Piece kv{"paged", {}};
    std::string preemption = "recompute";
    std::string requeue = "front";
    std::string context_chunking = "first_come_first_served";
    std::int64_t max_live_tokens = 0;
    std::int64_t max_new_tokens = 0;  ///< 0: what a request gets
    std::int64_t wait_tokens = 0;     ///< router_max_wait_tokens
    std::uint64_t seed = 1;
    std::map<std::string, Slo> slos;  ///< by class; "": of the scenario

    [[nodiscard]] std::string describe() const;
};

/// What a run went through, to see that the scenarios reach it.
struct NaiveTrail {
    std::map<std::string, std::int64_t> times;
};

/// `step_time` prices recomputation under `preemption: cheaper`.
std::unique_ptr<NaiveMachine> make_naive_policies(const EngineArgs& args, const NaivePolicy& policy,
                                                  const StepTimeModel& step_time, NaiveTrail& trail,
                                                  PolicyMutation mutation = PolicyMutation::none);

}  // namespace kvsim::oracle
