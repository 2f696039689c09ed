#pragma once
// The rules a batch policy is composed of; each is chosen by name (model/policy_args.hpp). docs/policies.md states them.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kvsim/engine/kv_manager.hpp"
#include "kvsim/engine/request.hpp"

namespace kvsim {

class Engine;

/// Who loses its KV when blocks run short.
class VictimRule {
public:
    virtual ~VictimRule() = default;
    /// Index into `running` (in admission order, not empty).
    [[nodiscard]] virtual std::size_t pick(const Engine& engine, std::span<const Slot> running) = 0;
};

/// What an admission is decided on.
struct AdmissionView {
    const Engine& engine;
    const KvManager& kv;
    std::span<const Slot> running;  ///< in admission order
    std::int64_t free = 0;          ///< blocks, less the watermark
    std::int64_t cached = 0;        ///< tokens of the head that need no computation: a prefix hit, or what is swapped in
    AdmissionNeed need;             ///< of the head
    PrefixHit hit;                  ///< of the head

    using FinalOf = std::function<std::int64_t(const LiveRequest&)>;
    /// Blocks that the head and all that run still take until each has room for the tokens `final_of` says, at most
    /// max_model_len.
    [[nodiscard]] std::int64_t lacking(const LiveRequest& head, const FinalOf& final_of) const;
};

/// Whether the head of the queue may start. That its first step has room was checked before.
class AdmissionRule {
public:
    virtual ~AdmissionRule() = default;
    [[nodiscard]] virtual bool admits(const LiveRequest& head, const AdmissionView& view) const = 0;
    /// Who was refused stays refused while all that run get their next tokens and nobody comes or goes.
    [[nodiscard]] virtual bool stays_shut() const { return false; }
};

/// Guesses how many output tokens a request will have, when it arrives.
class LengthPredictor {
public:
    virtual ~LengthPredictor() = default;
    /// `request` has all it came with, its true length too. The engine keeps what comes out between 1 and what max_model_len
    /// leaves.
    [[nodiscard]] virtual std::int64_t predict(const LiveRequest& request) = 0;
    /// It has finished with this many outputs.
    virtual void finished(const LiveRequest& request) { static_cast<void>(request); }
};

/// Output tokens it is believed to have in the end: the prediction, and one more than it has once it is past that.
std::int64_t believed_outputs(const LiveRequest& request);
/// Tokens whose KV it is believed to hold at its end.
std::int64_t believed_final(const LiveRequest& request);

}  // namespace kvsim
