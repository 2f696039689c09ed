#pragma once
// Who holds which KV blocks. Called a few times per scheduled request, never per token.

#include <cstdint>
#include <memory>

#include "kvsim/engine/request.hpp"
#include "kvsim/engine/step_record.hpp"
#include "kvsim/model/engine_args.hpp"

namespace kvsim {

class Engine;

/// Leading blocks (of EngineArgs::block_size tokens) of a request that are cached; `idle` pool blocks that serve them are held
/// by nobody and would leave the free list.
struct PrefixHit {
    std::int64_t blocks = 0;
    std::int64_t idle = 0;
};

/// Free blocks an admission needs.
struct AdmissionNeed {
    std::int64_t now = 0;    ///< for the tokens of its first step
    std::int64_t whole = 0;  ///< for all its tokens, as the full-sequence gate counts them
};

/// Slots that are held without holding a computed token, summed over running requests.
struct HeldSlots {
    std::int64_t reserved = 0;  ///< will be filled by their request
    std::int64_t internal = 0;  ///< never filled
};

/// How much KV there is, in blocks.
class KvPool {
public:
    explicit KvPool(std::int64_t usable) : usable_(usable), free_(usable) {}
    virtual ~KvPool() = default;
    [[nodiscard]] std::int64_t usable() const { return usable_; }
    /// Blocks held by nobody, cached or not.
    [[nodiscard]] std::int64_t free() const { return free_; }
    /// Blocks that would be held beside the used ones if none was shared. Not of SGLang's pool.
    [[nodiscard]] std::int64_t saved() const { return holders_ - (usable_ - free_); }

protected:
    std::int64_t usable_;
    std::int64_t free_;
    std::int64_t holders_ = 0;  ///< of each block, summed
};

/// Blocks taken as requests grow, findable by their content: what the token-counting schedulers work on.
class KvManager : public KvPool {
public:
    using KvPool::KvPool;
    /// The longest cached prefix of a waiting request, below tokens - 1: one token is always computed.
    [[nodiscard]] virtual PrefixHit lookup(LiveRequest& request) = 0;
    /// What admitting a request with that hit takes: room for `upto` tokens now, for `whole` in the end.
    [[nodiscard]] virtual AdmissionNeed admission_need(const LiveRequest& request, PrefixHit hit, std::int64_t upto,
                                                       std::int64_t whole) const = 0;
    /// Gives a request without blocks its hit and room for `upto` tokens; needs admission_need(...).now <= free().
    virtual void admit(LiveRequest& request, PrefixHit hit, std::int64_t upto) = 0;
    /// Blocks a running request lacks to have room for `upto` tokens; <= 0: none. Blocks that its next token does not attend
    /// to are given back first.
    [[nodiscard]] virtual std::int64_t need(LiveRequest& request, std::int64_t upto) = 0;
    /// Blocks a running request will take until it has room for `upto` tokens in the end; 0 where it has got all it ever gets.
    [[nodiscard]] virtual std::int64_t lacking(const LiveRequest& request, std::int64_t upto) const {
        static_cast<void>(request);
        static_cast<void>(upto);
        return 0;
    }
    /// What the last need() told, which was `need`, now that others have given blocks back: where it matters which blocks are
    /// free, it may be less.
    [[nodiscard]] virtual std::int64_t need_again(std::int64_t need) { return need; }
    /// Takes the `need` <= free() blocks that need(request, upto) told.
    virtual void extend(LiveRequest& request, std::int64_t upto, std::int64_t need) = 0;
    /// Makes every full block below `upto` tokens findable by lookup().
    virtual void publish(LiveRequest& request, std::int64_t upto) = 0;
    /// Gives all blocks back, tail first.
    virtual void release(LiveRequest& request) = 0;
    /// Blocks the request holds, shared ones included.
    [[nodiscard]] virtual std::int64_t held(const LiveRequest& request) const {
        std::size_t blocks = request.table.size();
        for (const auto& table : request.tables) blocks += table.size();
        return static_cast<std::int64_t>(blocks);
    }
    /// Of a request without LiveRequest::table, in units of slots_per_block().
    [[nodiscard]] virtual HeldSlots unfilled(const LiveRequest&) const { return {}; }
    /// The same request's part of a step record: all it holds, or what it got for a row that began at `computed` tokens.
    virtual void record(const LiveRequest& request, bool all, std::int64_t computed, ScheduledRow& out) const {
        static_cast<void>(request);
        static_cast<void>(all);
        static_cast<void>(computed);
        static_cast<void>(out);
    }
};

/// Paged KV with vLLM V1's free list (spec: ids ascending at first, taken from the front, given back at the end) and, when
/// `prefix_caching`, chained block hashes over it.
std::unique_ptr<KvManager> make_paged_kv(std::int64_t usable, std::int64_t block_size, bool prefix_caching);

/// The same pool under several block tables per request (EngineArgs::kv_groups, not empty). Prefix caching and state groups
/// exclude each other.
std::unique_ptr<KvManager> make_group_kv(const EngineArgs& args);

/// PolicyArgs::kv, else the one of the two that the model needs.
std::unique_ptr<KvManager> make_kv_manager(Engine& engine);

/// Slots one block of the pool counts for in the waste shares: its tokens; with groups of several block sizes their least
/// common multiple, so that a token of each is a whole number of slots.
std::int64_t slots_per_block(const EngineArgs& args);

/// Blocks a request of `tokens` tokens needs to be admitted to an empty pool. A window's table counts at most
/// ceil(min(window - 1 + max_num_batched_tokens, max_model_len) / block_size) + 1 blocks, a chunk's at most
/// ceil(min(window + max_num_batched_tokens, max_model_len) / block_size) (vLLM: max_admission_blocks_per_request).
std::int64_t admission_blocks(const EngineArgs& args, std::int64_t tokens);

}  // namespace kvsim
