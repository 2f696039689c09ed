#pragma once
// The composable pieces of a batch policy: queue order x victim x admission x length prediction x KV policy x preemption. A
// piece's own file reads its parameters; what comes out makes the piece for each engine.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "kvsim/config/scenario.hpp"
#include "kvsim/model/registry.hpp"

namespace kvsim {

class Engine;
class WaitingQueue;
class VictimRule;
class AdmissionRule;
class LengthPredictor;
class KvManager;
struct Deployment;

/// A piece as chosen: `make` gives each engine its own.
template <class Piece>
struct Maker {
    std::string name;  ///< as the scenario names it, with its parameters; empty: the batching style's own
    std::function<std::unique_ptr<Piece>(Engine&)> make;
    [[nodiscard]] explicit operator bool() const { return make != nullptr; }
    bool operator==(const Maker& other) const { return name == other.name; }
};

/// What a piece reads its parameters from. `deployment` has the engine's limits; its memory is not derived yet.
struct PieceSource {
    const config::Choice& choice;
    const config::Scenario& scenario;
    const Deployment& deployment;
};

/// Null after reporting errors.
template <class Piece>
using ReadPiece = std::function<std::unique_ptr<Piece>(Engine&)> (*)(const PieceSource&, config::Diagnostics&);

std::span<const Entry<ReadPiece<WaitingQueue>>> queue_orders();
std::span<const Entry<ReadPiece<VictimRule>>> victim_rules();
std::span<const Entry<ReadPiece<AdmissionRule>>> admission_rules();
std::span<const Entry<ReadPiece<LengthPredictor>>> length_predictors();
std::span<const Entry<ReadPiece<KvManager>>> kv_policies();

struct PolicyArgs {
    /// What becomes of a request that loses its blocks: computed again; moved to the CPU and back (recomputed when the CPU is
    /// full); whichever takes less time; it never loses them.
    enum class Preemption : std::uint8_t { recompute, swap, cheaper, none };
    enum class Requeue : std::uint8_t { front, back };

    Maker<WaitingQueue> order;         ///< unset: EngineArgs::scheduling_policy
    Maker<VictimRule> victim;          ///< unset: the style's own
    Maker<AdmissionRule> admission;    ///< unset: the style's own
    Maker<LengthPredictor> predictor;  ///< unset: the true length
    Maker<KvManager> kv;               ///< unset: paged
    Preemption preemption = Preemption::recompute;
    Requeue requeue = Requeue::front;  ///< where a preempted request waits, in queues that have places
    bool equal_progress = false;       ///< of prompts in chunks, instead of one after the other
    std::int64_t decodes_between = 0;  ///< steps of decodes that separate two of prompts (past-future)
    std::int64_t max_live_tokens = 0;  ///< tokens that running requests may hold when another is admitted; 0: no bound
    bool operator==(const PolicyArgs&) const = default;

    /// KV in ranges of slots instead of blocks: the pool then counts slots (EngineArgs::block_size 1).
    [[nodiscard]] bool contiguous() const { return kv.name.starts_with("contiguous-"); }
    /// Any of them differs from what every style has.
    [[nodiscard]] bool any() const { return !(*this == PolicyArgs{}); }
};

/// The longest range of `slots` slots that contiguous KV of that policy can give.
std::int64_t longest_range(const PolicyArgs& policy, std::int64_t slots);

}  // namespace kvsim
