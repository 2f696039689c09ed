#pragma once
// SGLang's radix tree over token sequences: prefixes in whole pages, locks from a node up to the root, the oldest unlocked leaf
// leaves first. Sequences are runs of consecutive token ids, so a walk costs their runs, not their tokens.

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "block_pool.hpp"

namespace kvsim {

/// Prompt runs, then outputs with consecutive ids.
struct TokenView {
    std::span<const TokenRun> prompt;
    std::uint64_t output_base = 0;
};

class RadixTree {
public:
    using Node = std::int32_t;
    static constexpr Node root = 0;

    explicit RadixTree(std::int64_t page) : page_(page), nodes_(1) {}

    struct Match {
        std::int64_t length = 0;
        Node node = root;
    };
    /// The longest prefix of the whole pages of the first `tokens` tokens. What is touched becomes young; a node matched in
    /// part is split.
    Match lookup(const TokenView& key, std::int64_t tokens);
    /// Stores the whole pages of the first `tokens` tokens; returns how many of them were there already.
    std::int64_t insert(const TokenView& key, std::int64_t tokens);
    /// A lock keeps a node and all above it.
    void lock(Node node);
    void unlock(Node node);
    /// Drops the oldest unlocked leaves, whole, until at least `tokens` are freed or none is left; returns how many were.
    std::int64_t evict(std::int64_t tokens);
    /// Tokens in nodes without a lock.
    [[nodiscard]] std::int64_t evictable() const { return evictable_; }

    [[nodiscard]] Node parent(Node node) const { return at(node).parent; }
    /// Orders siblings by their first insertion; a split keeps the place.
    [[nodiscard]] std::uint64_t order(Node node) const { return at(node).order; }

private:
    struct Entry {
        std::vector<TokenRun> runs;
        std::int64_t length = 0;
        Node parent = root;
        std::int32_t children = 0;
        std::int64_t locks = 0;
        std::uint64_t time = 0;
        std::uint64_t order = 0;
        BlockKey key;  // of its first page below its parent, in children_
        bool listed = false;
    };
    struct Walk {
        Match match;
        std::int64_t whole = 0;  // tokens in whole pages
    };

    [[nodiscard]] Entry& at(Node node) { return nodes_[static_cast<std::size_t>(node)]; }
    [[nodiscard]] const Entry& at(Node node) const { return nodes_[static_cast<std::size_t>(node)]; }
    Walk walk(const TokenView& key, std::int64_t tokens);
    [[nodiscard]] std::int64_t matched(const Entry& entry, const TokenView& key, std::int64_t from, std::int64_t to) const;
    [[nodiscard]] BlockKey first_page(Node parent, const TokenView& key, std::int64_t from) const;
    Node split(Node node, std::int64_t length);
    Node make(Node parent);
    void touch(Node node);
    void list(Node node);

    std::int64_t page_;
    std::vector<Entry> nodes_;
    std::vector<Node> unused_;
    KeyTable children_;
    std::set<std::pair<std::uint64_t, Node>> leaves_;  // unlocked, by time
    std::int64_t evictable_ = 0;
    std::uint64_t clock_ = 0;
    std::uint64_t now_ = 0;  // of the walk in progress
    std::uint64_t orders_ = 0;
};

}  // namespace kvsim
