#include "v0_pool.hpp"

#include <algorithm>
#include <tuple>

#include "kvsim/engine/scheduler.hpp"

namespace kvsim {

V0Pool::V0Pool(std::int64_t blocks, bool caching, VllmV0Args::Release release)
    : KvPool(blocks), caching_(caching), release_(release) {}

BlockId V0Pool::take() {
    BlockId block = none;
    if (!released_.empty()) {
        block = released_.back();
        released_.pop_back();
    } else if (static_cast<std::int64_t>(nodes_.size()) < usable_) {
        KVSIM_CHECK(nodes_.size() < 0x7ffffffe, "more than 2^31 blocks in use");
        block = static_cast<BlockId>(nodes_.size());
        nodes_.emplace_back();
    } else if (idle_ > 0) {
        block = evict();
    } else {
        throw EngineCrash("a block is needed and none is free (NoFreeBlocksError)");
    }
    --free_;
    ++holders_;
    Node& taken = node(block);
    taken.users = 1;
    taken.registered = taken.computed = false;
    taken.access = never_used;
    return block;
}

void V0Pool::drop(BlockId block) {
    --holders_;
    if (--node(block).users > 0) return;
    ++free_;
    if (node(block).registered) {
        become_idle(block);
    } else {
        released_.push_back(block);
    }
}

BlockId V0Pool::own(BlockId block) {
    if (node(block).users == 1) return block;
    --node(block).users;
    --holders_;
    return take();
}

BlockId V0Pool::place(const BlockKey& key, std::int64_t depth) {
    if (const BlockId there = find(key); there != none) {
        revive(there);
        return there;
    }
    return fill(take(), key, depth);
}

BlockId V0Pool::fill(BlockId block, const BlockKey& key, std::int64_t depth) {
    BlockId& entry = index_.at(key);
    if (entry == no_block) {
        entry = block + 1;
        Node& filled = node(block);
        filled.registered = true;
        filled.key = key;
        filled.depth = depth;
        touched_.push_back(block);
        return block;
    }
    const BlockId there = entry - 1;
    drop(block);
    revive(there);
    return there;
}

bool V0Pool::hit(const BlockKey& key) const {
    const BlockId block = find(key);
    return block != none && (node(block).users == 0 || node(block).computed);
}

bool V0Pool::in_use(const BlockKey& key) const {
    const BlockId block = find(key);
    return block != none && node(block).users > 0;
}

void V0Pool::all_computed() {
    for (const BlockId block : touched_) {
        if (node(block).users > 0) node(block).computed = true;
    }
    touched_.clear();
}

void V0Pool::revive(BlockId block) {
    ++holders_;
    if (node(block).users++ > 0) return;
    leave_idle(block);
    --free_;
    node(block).computed = true;
    node(block).access = never_used;
}

void V0Pool::become_idle(BlockId block) {
    ++idle_;
    Node& idle = node(block);
    if (release_ == VllmV0Args::Release::v0_6_3) {
        idle.previous = idle_back_;
        idle.next = none;
        (idle_back_ == none ? idle_front_ : node(idle_back_).next) = block;
        idle_back_ = block;
        return;
    }
    heap_.push_back({idle.access, idle.depth, block, idle.key});
    std::push_heap(heap_.begin(), heap_.end());
    // The engine throws stale entries away as rarely as this, and until then one may win.
    if (static_cast<std::int64_t>(heap_.size()) > 50 * idle_) rebuild_heap();
}

void V0Pool::leave_idle(BlockId block) {
    --idle_;
    if (release_ != VllmV0Args::Release::v0_6_3) return;
    const Node& idle = node(block);
    (idle.previous == none ? idle_front_ : node(idle.previous).next) = idle.next;
    (idle.next == none ? idle_back_ : node(idle.next).previous) = idle.previous;
}

BlockId V0Pool::evict() {
    if (release_ == VllmV0Args::Release::v0_6_3) return evict_oldest_first();
    while (true) {
        KVSIM_CHECK(!heap_.empty(), "every idle block is in the heap");
        std::pop_heap(heap_.begin(), heap_.end());
        const Candidate first = heap_.back();
        heap_.pop_back();
        const Node& idle = node(first.block);
        if (idle.users > 0 || !idle.registered || idle.access != first.access) continue;
        if (!(idle.key == first.key)) {
            // Of two entries of a block that differ in nothing but the content the engine takes the smaller hash value of
            // Python, which is random; the current one is as good.
            if (idle.depth == first.depth) continue;
            throw EngineCrash(
                "the evictor picks a block by what it held earlier, which the engine's assertion on its cached blocks refuses");
        }
        index_.erase(first.key);
        --idle_;
        node(first.block).registered = false;
        return first.block;
    }
}

/// The first that became idle and those behind it that were not used later than the best so far; the deepest of them.
BlockId V0Pool::evict_oldest_first() {
    BlockId best = idle_front_;
    for (BlockId at = node(best).next; at != none && !(node(best).access < node(at).access); at = node(at).next) {
        if (node(best).depth < node(at).depth) best = at;
    }
    leave_idle(best);
    index_.erase(node(best).key);
    node(best).registered = false;
    return best;
}

void V0Pool::rebuild_heap() {
    heap_.clear();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        const Node& n = nodes_[i];
        if (n.users == 0 && n.registered) heap_.push_back({n.access, n.depth, static_cast<BlockId>(i), n.key});
    }
    std::make_heap(heap_.begin(), heap_.end());
}

bool V0Pool::Candidate::operator<(const Candidate& other) const {
    return std::tuple(access, -depth, block) > std::tuple(other.access, -other.depth, other.block);
}

}  // namespace kvsim
