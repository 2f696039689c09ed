#include "radix_tree.hpp"

#include <algorithm>
#include <limits>

namespace kvsim {
namespace {

/// A position in a sequence, moved forward run by run.
class Cursor {
public:
    Cursor(const TokenView& key, std::int64_t position) : key_(key) {
        while (run_ < key.prompt.size() && position >= key.prompt[run_].count) position -= key.prompt[run_++].count;
        offset_ = position;
    }
    /// What is left of the run.
    [[nodiscard]] TokenRun rest() const {
        if (run_ == key_.prompt.size())
            return {key_.output_base + static_cast<std::uint64_t>(offset_), std::numeric_limits<std::int64_t>::max()};
        const TokenRun& run = key_.prompt[run_];
        return {run.first + static_cast<std::uint64_t>(offset_), run.count - offset_};
    }
    void skip(std::int64_t count) {
        offset_ += count;
        while (run_ < key_.prompt.size() && offset_ >= key_.prompt[run_].count) offset_ -= key_.prompt[run_++].count;
    }

private:
    const TokenView& key_;
    std::size_t run_ = 0;
    std::int64_t offset_ = 0;
};

std::uint64_t end_of(const TokenRun& run) {
    return run.first + static_cast<std::uint64_t>(run.count);
}

/// Joins consecutive runs, so that equal tokens give equal runs however they were cut.
void append(std::vector<TokenRun>& runs, TokenRun run) {
    if (!runs.empty() && end_of(runs.back()) == run.first) {
        runs.back().count += run.count;
    } else {
        runs.push_back(run);
    }
}

std::vector<TokenRun> slice(const TokenView& key, std::int64_t from, std::int64_t to) {
    std::vector<TokenRun> out;
    Cursor cursor(key, from);
    while (from < to) {
        TokenRun run = cursor.rest();
        run.count = std::min(run.count, to - from);
        append(out, run);
        cursor.skip(run.count);
        from += run.count;
    }
    return out;
}

}  // namespace

/// A page that differs only in its parent gets another key: the table holds the children of all nodes.
BlockKey RadixTree::first_page(Node parent, const TokenView& key, std::int64_t from) const {
    BlockKey out;
    chain(out, static_cast<std::uint64_t>(parent), 0);
    Cursor cursor(key, from);
    TokenRun joined{};
    for (std::int64_t left = page_; left > 0;) {
        TokenRun run = cursor.rest();
        run.count = std::min(run.count, left);
        if (joined.count > 0 && end_of(joined) == run.first) {
            joined.count += run.count;
        } else {
            if (joined.count > 0) chain(out, joined.first, joined.count);
            joined = run;
        }
        cursor.skip(run.count);
        left -= run.count;
    }
    chain(out, joined.first, joined.count);
    return out;
}

/// Tokens of the node that agree with those of the key from `from` on, in whole pages.
std::int64_t RadixTree::matched(const Entry& entry, const TokenView& key, std::int64_t from, std::int64_t to) const {
    Cursor cursor(key, from);
    std::int64_t n = 0;
    const std::int64_t most = to - from;
    for (const TokenRun& run : entry.runs) {
        for (std::int64_t in = 0; in < run.count;) {
            const TokenRun rest = cursor.rest();
            if (n == most || rest.first != run.first + static_cast<std::uint64_t>(in)) return n / page_ * page_;
            const std::int64_t same = std::min({run.count - in, rest.count, most - n});
            in += same;
            n += same;
            cursor.skip(same);
        }
    }
    return n;
}

RadixTree::Node RadixTree::make(Node parent) {
    Node node = static_cast<Node>(nodes_.size());
    if (unused_.empty()) {
        KVSIM_CHECK(nodes_.size() < 0x7fffffff, "more than 2^31 nodes in the radix tree");
        nodes_.emplace_back();
    } else {
        node = unused_.back();
        unused_.pop_back();
        at(node) = {};
    }
    at(node).parent = parent;
    at(node).time = ++clock_;
    return node;
}

/// Only an unlocked leaf can be evicted.
void RadixTree::list(Node node) {
    Entry& entry = at(node);
    const bool now = node != root && entry.children == 0 && entry.locks == 0;
    if (now == entry.listed) return;
    entry.listed = now;
    if (now) {
        leaves_.emplace(entry.time, node);
    } else {
        leaves_.erase({entry.time, node});
    }
}

void RadixTree::touch(Node node) {
    Entry& entry = at(node);
    if (entry.listed) {
        leaves_.erase({entry.time, node});
        leaves_.emplace(now_, node);
    }
    entry.time = now_;
}

/// The first `length` tokens of the node become a node above it; whoever holds the node holds all of it as before.
RadixTree::Node RadixTree::split(Node node, std::int64_t length) {
    const Node upper = make(at(node).parent);
    Entry& top = at(upper);
    Entry& rest = at(node);
    const std::vector<TokenRun> whole = std::move(rest.runs);
    const TokenView view{whole, 0};
    top.runs = slice(view, 0, length);
    rest.runs = slice(view, length, rest.length);
    top.length = length;
    rest.length -= length;
    top.locks = rest.locks;
    top.order = rest.order;
    top.children = 1;
    top.key = rest.key;
    children_.at(top.key) = upper;
    rest.parent = upper;
    rest.key = first_page(upper, {rest.runs, 0}, 0);
    children_.at(rest.key) = node;
    return upper;
}

RadixTree::Walk RadixTree::walk(const TokenView& key, std::int64_t tokens) {
    Walk out;
    out.whole = tokens / page_ * page_;
    now_ = ++clock_;
    while (out.match.length < out.whole) {
        const Node child = children_.find(first_page(out.match.node, key, out.match.length));
        if (child == no_block) break;
        touch(child);
        const std::int64_t same = matched(at(child), key, out.match.length, out.whole);
        out.match.length += same;
        if (same < at(child).length) {
            out.match.node = split(child, same);
            break;
        }
        out.match.node = child;
    }
    return out;
}

RadixTree::Match RadixTree::lookup(const TokenView& key, std::int64_t tokens) {
    return walk(key, tokens).match;
}

std::int64_t RadixTree::insert(const TokenView& key, std::int64_t tokens) {
    const Walk found = walk(key, tokens);
    if (found.match.length < found.whole) {
        const Node parent = found.match.node;
        const Node leaf = make(parent);
        Entry& entry = at(leaf);
        entry.runs = slice(key, found.match.length, found.whole);
        entry.length = found.whole - found.match.length;
        entry.order = ++orders_;
        entry.key = first_page(parent, key, found.match.length);
        children_.at(entry.key) = leaf;
        ++at(parent).children;
        evictable_ += entry.length;
        list(parent);
        list(leaf);
    }
    return found.match.length;
}

void RadixTree::lock(Node node) {
    for (; node != root; node = at(node).parent) {
        Entry& entry = at(node);
        if (entry.locks++ > 0) continue;
        evictable_ -= entry.length;
        list(node);
    }
}

void RadixTree::unlock(Node node) {
    for (; node != root; node = at(node).parent) {
        Entry& entry = at(node);
        KVSIM_DCHECK(entry.locks > 0, "only what is locked is unlocked");
        if (--entry.locks > 0) continue;
        evictable_ += entry.length;
        list(node);
    }
}

std::int64_t RadixTree::evict(std::int64_t tokens) {
    std::int64_t freed = 0;
    while (freed < tokens && !leaves_.empty()) {
        const Node leaf = leaves_.begin()->second;
        leaves_.erase(leaves_.begin());
        Entry& entry = at(leaf);
        freed += entry.length;
        evictable_ -= entry.length;
        children_.erase(entry.key);
        unused_.push_back(leaf);
        const Node parent = entry.parent;
        entry = {};
        --at(parent).children;
        list(parent);
    }
    return freed;
}

}  // namespace kvsim
