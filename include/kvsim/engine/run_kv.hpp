#pragma once
// The paged KV of sim/kv_managers/paged.cpp without block ids: the same free counts, hits and evictions, at a cost per run of
// blocks instead of per block. Ids decide nothing unless they are logged.
//
// What makes runs exact:
//  * A request's blocks are a path in a radix tree of shared content (nodes are runs of blocks, cut where paths part), then
//    blocks of its own that nobody else can hit.
//  * Users never grow along a path, and a release appends tail first. So a node's blocks are all held or all idle, an idle
//    node is one contiguous run of the free list with its last block in front, and no block outlives its predecessor there.
//  * Takes come from the front: they shorten the front run, which evicts a node's last blocks first.
//
// With keep_ids() every block has its id besides: the runs decide, and the ids follow, at a cost per block.

#include <cstdint>
#include <optional>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/block_ids.hpp"
#include "kvsim/engine/kv_manager.hpp"
#include "kvsim/model/workload.hpp"

namespace kvsim {

class RunKv {
public:
    static constexpr std::uint32_t none = 0xffffffff;
    static constexpr bool counts_only = false;

    /// A request's part. All zero when it holds nothing; `content` lives with the request.
    struct Holding {
        std::uint32_t node = 0;           ///< deepest node of its path; 0 is the root
        std::uint32_t leftover = none;    ///< run in the free list of the own blocks it lost by preemption
        std::uint32_t twin = none;        ///< its own copy of a block that was already registered
        std::int32_t path_blocks = 0;     ///< held through the tree
        std::int32_t own_blocks = 0;      ///< held besides
        std::int32_t registered_own = 0;  ///< of the lost own blocks, this many leading ones can be hit by itself
        std::int32_t shareable = 0;       ///< leading full blocks of content others may have too
        const std::vector<TokenRun>* content = nullptr;
        /// Where ids are kept: its blocks in order; lives with the request. After a release what it lost, for its return.
        std::vector<BlockId>* table = nullptr;
    };

    RunKv(std::int64_t usable, std::int64_t block_size, bool prefix_caching);

    [[nodiscard]] std::int64_t usable() const { return usable_; }
    [[nodiscard]] std::int64_t free() const { return free_; }
    [[nodiscard]] bool caching() const { return caching_; }

    /// From the start: every holding has a table.
    void keep_ids() { ids_.emplace(usable_); }
    [[nodiscard]] bool keeps_ids() const { return ids_.has_value(); }

    /// Leading blocks of `content` that others may have: full blocks before the first private token.
    [[nodiscard]] std::int32_t shareable_blocks(const std::vector<TokenRun>& content) const;

    /// As KvManager::lookup; remembers the path until the next call.
    PrefixHit lookup(const Holding& holding, std::int64_t tokens) {
        return caching_ ? lookup_shared(holding, tokens) : PrefixHit{};
    }
    /// Right after lookup(holding): takes the hit, then `fresh` more blocks.
    void admit(Holding& holding, PrefixHit hit, std::int64_t fresh) {
        if (caching_) take_hit(holding, hit);
        extend(holding, fresh);
    }
    void extend(Holding& holding, std::int64_t blocks) {
        take(blocks);
        holding.own_blocks += static_cast<std::int32_t>(blocks);
        if (ids_) name(holding, blocks);
    }
    /// For blocks whose holder is only counted (decoding requests): like extend() without the holding, which is name()d where
    /// ids are kept.
    void take(std::int64_t blocks) {
        KVSIM_DCHECK(blocks <= free_, "blocks are only taken when they are free");
        free_ -= blocks;
        if (caching_) take_in_order(blocks);  // else nothing can be hit, so the order of the free list decides nothing
    }
    /// The ids of the last `blocks` taken are those of `holding`; in the order of the takes.
    void name(const Holding& holding, std::int64_t blocks);
    /// Shareable full blocks below `upto` tokens become findable by others.
    void publish(Holding& holding, std::int64_t upto) {
        if (caching_) publish_shared(holding, upto);
    }
    /// Gives back everything, tail first: `held` blocks, those that were only counted among them. With `registered_tokens` >= 0
    /// the request may come back and hit its own blocks below that.
    void release(Holding& holding, std::int64_t held, std::int64_t registered_tokens) {
        holding.own_blocks = static_cast<std::int32_t>(held) - holding.path_blocks;
        free_ += holding.own_blocks;
        if (ids_) drop_ids(holding);
        if (caching_) release_in_order(holding, registered_tokens);
        holding.own_blocks = 0;
    }
    /// The request will not come back: what it left in the free list cannot be hit any more.
    void forget(Holding& holding);

private:
    // A maximal stretch of the free list with one meaning, its block to be taken first at the front.
    struct Run {
        enum class Kind : std::uint8_t { anonymous, leftover, node, twin };
        std::uint32_t previous = none;
        std::uint32_t next = none;
        std::int32_t count = 0;
        Kind kind = Kind::anonymous;
        std::uint32_t ref = none;    // node or twin
        Holding* holding = nullptr;  // leftover: whose
    };
    struct Node {
        std::uint32_t parent = 0;
        std::int32_t length = 0;  // blocks; those evicted are cut off
        std::int32_t users = 0;
        std::uint32_t run = none;  // in the free list while users == 0
        std::uint64_t edge = 0;    // key in children_
        std::vector<TokenRun> content;
        std::vector<std::uint32_t> twins;  // later copies of its first block, in order of registration
        std::vector<BlockId> ids;          // where they are kept
    };
    struct Twin {
        std::uint32_t node = 0;
        BlockId id = no_block;
        Holding* holder = nullptr;  // while held
        std::uint32_t run = none;   // while in the free list
    };
    struct Step {
        std::uint32_t node;
        std::int32_t blocks;  // of this node
    };

    PrefixHit lookup_shared(const Holding& holding, std::int64_t tokens);
    void take_hit(Holding& holding, PrefixHit hit);
    void take_in_order(std::int64_t blocks);
    void publish_shared(Holding& holding, std::int64_t upto);
    void release_in_order(Holding& holding, std::int64_t registered_tokens);
    void hold_ids(const Holding& holding, PrefixHit hit);
    void drop_ids(const Holding& holding);

    /// Holds until the next call.
    [[nodiscard]] const std::vector<TokenRun>& cut(const std::vector<TokenRun>& content, std::int64_t from_block,
                                                   std::int64_t blocks);
    [[nodiscard]] std::uint64_t edge_key(std::uint32_t parent, const std::vector<TokenRun>& content, std::int64_t block) const;
    [[nodiscard]] std::int64_t common_blocks(const Node& node, const std::vector<TokenRun>& content, std::int64_t from_block,
                                             std::int64_t most) const;
    std::uint32_t new_node(std::uint32_t parent, std::int32_t length, const std::vector<TokenRun>& content);
    void split(std::uint32_t node, std::int32_t at);
    void drop_node(std::uint32_t node);
    void hold(std::uint32_t node);
    void unhold(std::uint32_t node);

    std::uint32_t append_run(Run::Kind kind, std::int32_t count, std::uint32_t ref, Holding* holding);
    void remove_run(std::uint32_t run);
    void shrink_front(std::int64_t blocks);

    [[nodiscard]] std::uint32_t find_child(std::uint64_t edge) const;
    void insert_child(std::uint64_t edge, std::uint32_t node);
    void erase_child(std::uint64_t edge);

    std::int64_t usable_;
    std::int64_t block_size_;
    bool caching_;
    std::int64_t free_;
    std::int64_t never_used_;

    std::vector<Run> runs_;
    std::vector<std::uint32_t> spare_runs_;
    std::uint32_t front_ = none;
    std::uint32_t back_ = none;

    std::vector<Node> nodes_;
    std::vector<std::uint32_t> spare_nodes_;
    std::vector<Twin> twins_;
    std::vector<std::uint32_t> spare_twins_;
    std::vector<Step> path_;     // of the last lookup
    std::vector<TokenRun> cut_;  // of the last cut()
    std::optional<BlockIds> ids_;

    struct Edge {
        std::uint64_t key = 0;
        std::uint32_t node = 0;  // 0: empty
    };
    std::vector<Edge> children_;  // open addressing, backward-shift deletion
    std::size_t children_used_ = 0;
};

}  // namespace kvsim
