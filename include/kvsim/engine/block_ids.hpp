#pragma once
// The blocks of a pool by id, each with its number of holders, and vLLM V1's free list over them: ids ascending at first, taken
// from the front, given back at the end.
//
// The list is kept as two parts whose concatenation is the engine's: the ids never used so far, ascending (only their first is
// stored), then the released blocks, linked. Released blocks go to the end and takes come from the front, so no never-used
// block can ever stand behind a released one.

#include <cstdint>
#include <vector>

#include "kvsim/base/check.hpp"

namespace kvsim {

using BlockId = std::int32_t;
inline constexpr BlockId no_block = 0;  // block 0 is the engine's null block and never given out

class BlockIds {
public:
    explicit BlockIds(std::int64_t usable) : usable_(usable), links_(1) {}

    [[nodiscard]] bool idle(BlockId block) const { return links_[static_cast<std::size_t>(block)].users == 0; }
    /// The front of the list, which must not be empty; it has one holder then.
    BlockId take() {
        BlockId block = at(no_block).next;
        if (static_cast<std::int64_t>(links_.size()) <= usable_) {
            KVSIM_CHECK(links_.size() < 0x7fffffff, "more than 2^31 blocks in use");
            block = static_cast<BlockId>(links_.size());
            links_.emplace_back();
        } else {
            KVSIM_DCHECK(block != no_block, "a block is only taken when one is free");
            unlink(block);
        }
        at(block).users = 1;
        return block;
    }
    /// One holder more; an idle block leaves the list. Whether it was idle.
    bool hold(BlockId block) {
        if (at(block).users++ > 0) return false;
        unlink(block);
        return true;
    }
    /// One holder less; the last one's block goes to the end of the list. Whether it was the last.
    bool drop(BlockId block) {
        if (--at(block).users > 0) return false;
        append(block);
        return true;
    }

private:
    struct Link {
        std::int32_t users = 0;
        BlockId previous = no_block;  // in the list; number 0 is its end on both sides
        BlockId next = no_block;
    };
    [[nodiscard]] Link& at(BlockId block) { return links_[static_cast<std::size_t>(block)]; }
    void append(BlockId block) {
        const BlockId last = at(no_block).previous;
        at(block).previous = last;
        at(block).next = no_block;
        at(last).next = block;
        at(no_block).previous = block;
    }
    void unlink(BlockId block) {
        const Link link = at(block);
        at(link.previous).next = link.next;
        at(link.next).previous = link.previous;
    }

    std::int64_t usable_;
    std::vector<Link> links_;  // by id; grows as never-used blocks are first taken
};

}  // namespace kvsim
