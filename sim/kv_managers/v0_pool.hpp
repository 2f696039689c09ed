#pragma once
// The blocks of one device as vLLM V0's block allocators keep them: a free list used as a stack and, with prefix caching, full
// blocks found by their content, which stay findable while nobody uses them until they are evicted.

#include <cstdint>
#include <vector>

#include "block_pool.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/engine/kv_manager.hpp"
#include "kvsim/model/vllm_v0_args.hpp"

namespace kvsim {

class V0Pool final : public KvPool {
public:
    V0Pool(std::int64_t blocks, bool caching, VllmV0Args::Release release);

    /// Unused blocks whose content can be found; they are evicted only when no other block is free.
    [[nodiscard]] std::int64_t idle() const { return idle_; }
    /// A block for one user, evicting an idle one when the free list is empty.
    BlockId take();
    /// One user less of `block`; unused it goes to the front of the free list, or becomes idle when its content can be found.
    void drop(BlockId block);
    /// One user more of a block in use.
    void share(BlockId block) {
        ++node(block).users;
        ++holders_;
    }
    /// The block to write to in place of `block`: itself, or a new one when others use it too.
    BlockId own(BlockId block);

    // ---- with prefix caching
    /// A full block of that content, `depth` tokens up to its end: the one there is, or a new one.
    BlockId place(const BlockKey& key, std::int64_t depth);
    /// `block` has been filled up: itself, findable from now on, or the one there is of the same content in its place.
    BlockId fill(BlockId block, const BlockKey& key, std::int64_t depth);
    /// Content that is there and computed.
    [[nodiscard]] bool hit(const BlockKey& key) const;
    /// Content in a block that somebody uses.
    [[nodiscard]] bool in_use(const BlockKey& key) const;
    [[nodiscard]] bool computed(BlockId block) const { return node(block).computed; }
    void set_access(BlockId block, double at) { node(block).access = at; }
    /// The step's model run computes all that was registered in it.
    void all_computed();

private:
    static constexpr double never_used = -1;

    struct Node {
        std::int32_t users = 0;
        bool registered = false;
        bool computed = false;
        std::int64_t depth = 0;
        double access = never_used;
        BlockKey key;
        BlockId previous = none;  // among the idle ones, in the order of becoming idle (0.6.3)
        BlockId next = none;
    };
    static constexpr BlockId none = -1;

    /// An idle block in the heap of 0.8.5; a stale one if the block is in use again, or idle since another access.
    struct Candidate {
        double access;
        std::int64_t depth;
        BlockId block;
        BlockKey key;
        bool operator<(const Candidate& other) const;  // for a heap with the first to evict in front
    };

    [[nodiscard]] Node& node(BlockId block) { return nodes_[static_cast<std::size_t>(block)]; }
    [[nodiscard]] const Node& node(BlockId block) const { return nodes_[static_cast<std::size_t>(block)]; }
    [[nodiscard]] BlockId find(const BlockKey& key) const { return index_.find(key) - 1; }
    void revive(BlockId block);
    void become_idle(BlockId block);
    void leave_idle(BlockId block);
    BlockId evict();
    BlockId evict_oldest_first();
    void rebuild_heap();

    bool caching_;
    VllmV0Args::Release release_;
    std::vector<Node> nodes_;        // by block id; grows as never-used blocks are first taken
    std::vector<BlockId> released_;  // the free list's front is its end; behind it the never-used ids, ascending
    KeyTable index_;                 // content -> block + 1
    std::vector<BlockId> touched_;   // registered in this step
    std::int64_t idle_ = 0;
    std::vector<Candidate> heap_;
    BlockId idle_front_ = none;
    BlockId idle_back_ = none;
};

}  // namespace kvsim
