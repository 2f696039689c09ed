#pragma once
// What every manager of a block pool shares: vLLM V1's free list (block_ids.hpp), and hash-chained prefix keys over its blocks.

#include <algorithm>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/base/mix.hpp"
#include "kvsim/engine/block_ids.hpp"
#include "kvsim/engine/kv_manager.hpp"

namespace kvsim {

/// Appends one run of consecutive tokens to the chain.
inline void chain(BlockKey& key, std::uint64_t first, std::int64_t count) {
    const auto n = static_cast<std::uint64_t>(count);
    key.high = mix(key.high ^ mix(first + 0x9e3779b97f4a7c15ULL) ^ (n << 1));
    key.low = mix(key.low + mix(first * 0xbf58476d1ce4e5b9ULL + n) + key.high);
}

/// Walks a request's tokens (prompt runs, then outputs) as maximal runs of consecutive ids, so that equal tokens give equal
/// keys however their runs were cut.
class TokenCursor {
public:
    TokenCursor(const LiveRequest& request, std::int64_t position)
        // Without content the prompt is a run of its own that the outputs continue.
        : TokenCursor(request.content,
                      request.content.empty() ? TokenRun{private_tokens(request.id), request.prompt + request.max_tokens}
                                              : TokenRun{request.output_base, request.max_tokens},
                      position) {}
    TokenCursor(const std::vector<TokenRun>& content, TokenRun outputs, std::int64_t position)
        : content_(content), outputs_(outputs) {
        std::int64_t at = position;
        while (run_ < runs() && at >= run(run_).count) at -= run(run_++).count;
        offset_ = at;
    }
    /// Chains the next `count` tokens into `key`.
    void take(std::int64_t count, BlockKey& key) {
        while (count > 0) {
            const std::uint64_t first = run(run_).first + static_cast<std::uint64_t>(offset_);
            std::int64_t length = 0;
            while (count > 0 && run_ < runs() &&
                   run(run_).first + static_cast<std::uint64_t>(offset_) == first + static_cast<std::uint64_t>(length)) {
                const std::int64_t n = std::min(count, run(run_).count - offset_);
                length += n;
                count -= n;
                offset_ += n;
                if (offset_ == run(run_).count) {
                    ++run_;
                    offset_ = 0;
                }
            }
            chain(key, first, length);
        }
    }

private:
    [[nodiscard]] std::size_t runs() const { return content_.size() + 1; }
    [[nodiscard]] TokenRun run(std::size_t i) const { return i < content_.size() ? content_[i] : outputs_; }
    const std::vector<TokenRun>& content_;
    TokenRun outputs_;
    std::size_t run_ = 0;
    std::int64_t offset_ = 0;
};

/// The keys of the first `count` blocks of `block` tokens; outputs enter with their ids before they are received, which is
/// harmless because nobody asks for a key beyond the received tokens.
inline void make_keys(LiveRequest& request, std::int64_t count, std::int64_t block) {
    auto have = static_cast<std::int64_t>(request.keys.size());
    if (have >= count) return;
    BlockKey key = have > 0 ? request.keys.back() : BlockKey{};
    TokenCursor cursor(request, have * block);
    for (; have < count; ++have) {
        cursor.take(block, key);
        request.keys.push_back(key);
    }
}

/// Open-addressing map from key to the earliest registered block of that key.
class KeyTable {
public:
    [[nodiscard]] BlockId find(const BlockKey& key) const {
        if (slots_.empty()) return no_block;
        for (std::size_t i = home(key);; i = next(i)) {
            if (slots_[i].block == no_block) return no_block;
            if (slots_[i].key == key) return slots_[i].block;
        }
    }
    /// The entry of `key`, made with no_block if it is new; valid until the next call.
    BlockId& at(const BlockKey& key) {
        if ((used_ + 1) * 2 > slots_.size()) grow();
        std::size_t i = home(key);
        while (slots_[i].block != no_block && !(slots_[i].key == key)) i = next(i);
        if (slots_[i].block == no_block) {
            slots_[i].key = key;
            ++used_;
        }
        return slots_[i].block;
    }
    void erase(const BlockKey& key) {
        std::size_t i = home(key);
        while (!(slots_[i].key == key)) i = next(i);
        // Backward-shift deletion: no tombstones, so a long run does not slow look-ups down.
        for (std::size_t j = next(i);; j = next(j)) {
            if (slots_[j].block == no_block) break;
            const std::size_t h = home(slots_[j].key);
            if (((j - h) & mask()) >= ((j - i) & mask())) {
                slots_[i] = slots_[j];
                i = j;
            }
        }
        slots_[i].block = no_block;
        --used_;
    }

private:
    struct Entry {
        BlockKey key;
        BlockId block = no_block;
    };
    [[nodiscard]] std::size_t mask() const { return slots_.size() - 1; }
    [[nodiscard]] std::size_t home(const BlockKey& key) const { return key.low & mask(); }
    [[nodiscard]] std::size_t next(std::size_t i) const { return (i + 1) & mask(); }
    void grow() {
        std::vector<Entry> old(slots_.empty() ? 1024 : slots_.size() * 2);
        old.swap(slots_);
        used_ = 0;
        for (const Entry& entry : old) {
            if (entry.block != no_block) at(entry.key) = entry.block;
        }
    }
    std::vector<Entry> slots_;
    std::size_t used_ = 0;
};

/// `tables` key tables: blocks of different tables never serve each other's hits.
class PooledKv : public KvManager {
protected:
    PooledKv(std::int64_t usable, std::int64_t key_block, std::size_t tables)
        : KvManager(usable), key_block_(key_block), ids_(usable), nodes_(1), keys_(tables) {}

    [[nodiscard]] BlockId find(std::size_t table, const BlockKey& key) const { return keys_[table].find(key); }
    [[nodiscard]] bool idle(BlockId block) const { return ids_.idle(block); }
    /// One user more; an idle block leaves FREE.
    void hold(BlockId block) {
        ++holders_;
        if (ids_.hold(block)) --free_;
    }
    /// One user less; the last one's block goes to the end of FREE.
    void drop(BlockId block) {
        --holders_;
        if (ids_.drop(block)) ++free_;
    }

    /// The front of FREE, which must not be empty.
    BlockId take() {
        const BlockId block = ids_.take();
        ++holders_;
        --free_;
        if (static_cast<std::size_t>(block) == nodes_.size()) {
            nodes_.emplace_back();
        } else if (node(block).registered) {
            unregister(block);
        }
        return block;
    }

    /// `key` finds this block from now on, unless it already finds an earlier one.
    void register_block(BlockId block, std::size_t table, const BlockKey& key) {
        node(block).registered = true;
        node(block).table = static_cast<std::uint16_t>(table);
        node(block).key = key;
        BlockId& first = keys_[table].at(key);
        if (first == no_block) first = block;
        const BlockId last = first == block ? block : node(first).twin_previous;
        node(block).twin_next = first;
        node(block).twin_previous = last;
        node(last).twin_next = block;
        node(first).twin_previous = block;
    }

    void make_keys(LiveRequest& request, std::int64_t count) const { kvsim::make_keys(request, count, key_block_); }

private:
    struct Node {
        bool registered = false;
        std::uint16_t table = 0;  // whose key table has it
        // Registered blocks of one key form a ring in order of registration; the key table points at the first.
        BlockId twin_next = no_block;
        BlockId twin_previous = no_block;
        BlockKey key;
    };

    [[nodiscard]] Node& node(BlockId block) { return nodes_[static_cast<std::size_t>(block)]; }

    void unregister(BlockId block) {
        KeyTable& table = keys_[node(block).table];
        const BlockId next = node(block).twin_next;
        if (next == block) {
            table.erase(node(block).key);
        } else {
            BlockId& first = table.at(node(block).key);
            if (first == block) first = next;
            node(next).twin_previous = node(block).twin_previous;
            node(node(block).twin_previous).twin_next = next;
        }
        node(block).registered = false;
    }

    std::int64_t key_block_;
    BlockIds ids_;
    std::vector<Node> nodes_;  // by block id; grows with it
    std::vector<KeyTable> keys_;
};

}  // namespace kvsim
