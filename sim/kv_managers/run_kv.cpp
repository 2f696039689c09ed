#include "kvsim/engine/run_kv.hpp"

#include <algorithm>
#include <utility>

#include "kvsim/base/check.hpp"
#include "kvsim/base/mix.hpp"
#include "kvsim/base/units.hpp"

namespace kvsim {
namespace {

constexpr std::uint64_t private_bit = std::uint64_t{1} << 63;

}  // namespace

RunKv::RunKv(std::int64_t usable, std::int64_t block_size, bool prefix_caching)
    : usable_(usable), block_size_(block_size), caching_(prefix_caching), free_(usable), never_used_(usable), nodes_(1) {}

std::int32_t RunKv::shareable_blocks(const std::vector<TokenRun>& content) const {
    if (!caching_) return 0;
    std::int64_t tokens = 0;
    for (const TokenRun& run : content) {
        if (run.first & private_bit) break;
        tokens += run.count;
    }
    return static_cast<std::int32_t>(tokens / block_size_);
}

PrefixHit RunKv::lookup_shared(const Holding& holding, std::int64_t tokens) {
    PrefixHit hit;
    path_.clear();
    const std::int64_t most = (tokens - 1) / block_size_;
    const std::int64_t shared = std::min<std::int64_t>(most, holding.shareable);
    std::uint32_t at = 0;
    while (hit.blocks < shared) {
        const std::uint32_t child = find_child(edge_key(at, *holding.content, hit.blocks));
        if (child == 0) break;
        const Node& node = nodes_[child];
        const std::int64_t same = common_blocks(node, *holding.content, hit.blocks, shared - hit.blocks);
        if (same == 0) break;
        path_.push_back({child, static_cast<std::int32_t>(same)});
        if (node.users == 0) hit.idle += same;
        hit.blocks += same;
        if (same < node.length) break;
        at = child;
    }
    if (hit.blocks == holding.shareable && holding.leftover != none) {
        const std::int64_t own =
            std::min<std::int64_t>({runs_[holding.leftover].count, holding.registered_own, most - hit.blocks});
        hit.blocks += own;
        hit.idle += own;
    }
    return hit;
}

void RunKv::take_hit(Holding& holding, PrefixHit hit) {
    for (const Step& step : path_) {
        if (step.blocks < nodes_[step.node].length) split(step.node, step.blocks);
        hold(step.node);
        holding.node = step.node;
        holding.path_blocks += step.blocks;
    }
    holding.own_blocks = static_cast<std::int32_t>(hit.blocks) - holding.path_blocks;
    if (holding.leftover != none) {
        // Its leading blocks come back; the rest can be hit by nobody: this request will write them anew.
        Run& run = runs_[holding.leftover];
        free_ -= holding.own_blocks;
        run.count -= holding.own_blocks;
        run.kind = Run::Kind::anonymous;
        run.holding = nullptr;
        if (run.count == 0) remove_run(holding.leftover);
        holding.leftover = none;
    }
    if (ids_) hold_ids(holding, hit);
}

void RunKv::name(const Holding& holding, std::int64_t blocks) {
    for (; blocks > 0; --blocks) holding.table->push_back(ids_->take());
}

/// Its own blocks are hit behind the whole path only, as when it lost them, so they stand in the table where they stood.
void RunKv::hold_ids(const Holding& holding, PrefixHit hit) {
    std::vector<BlockId>& table = *holding.table;
    table.resize(static_cast<std::size_t>(hit.blocks));
    std::size_t at = 0;
    for (const Step& step : path_) {
        for (const BlockId id : nodes_[step.node].ids) table[at++] = id;
    }
    for (const BlockId id : table) ids_->hold(id);
}

void RunKv::drop_ids(const Holding& holding) {
    std::vector<BlockId>& table = *holding.table;
    for (std::size_t i = table.size(); i-- > 0;) ids_->drop(table[i]);
    if (!caching_) table.clear();
}

void RunKv::take_in_order(std::int64_t blocks) {
    const std::int64_t unused = std::min(blocks, never_used_);
    never_used_ -= unused;
    if (blocks > unused) shrink_front(blocks - unused);
}

void RunKv::shrink_front(std::int64_t blocks) {
    while (blocks > 0) {
        const std::uint32_t at = front_;
        Run& run = runs_[at];
        const auto n = static_cast<std::int32_t>(std::min<std::int64_t>(blocks, run.count));
        run.count -= n;
        blocks -= n;
        const bool empty = run.count == 0;
        if (run.kind == Run::Kind::node) {
            Node& node = nodes_[run.ref];
            node.length -= n;
            if (ids_) node.ids.resize(static_cast<std::size_t>(node.length));
            const std::uint32_t ref = run.ref;
            if (empty) {
                remove_run(at);
                drop_node(ref);
            }
        } else if (empty) {
            if (run.kind == Run::Kind::leftover) run.holding->leftover = none;
            if (run.kind == Run::Kind::twin) {
                const std::uint32_t twin = run.ref;
                auto& twins = nodes_[twins_[twin].node].twins;
                twins.erase(std::find(twins.begin(), twins.end(), twin));
                spare_twins_.push_back(twin);
            }
            remove_run(at);
        }
    }
}

void RunKv::publish_shared(Holding& holding, std::int64_t upto) {
    const std::int64_t full = std::min<std::int64_t>(upto / block_size_, holding.shareable);
    const auto blocks = static_cast<std::int32_t>(full - holding.path_blocks);
    if (blocks <= 0 || holding.twin != none) return;
    const std::uint64_t edge = edge_key(holding.node, *holding.content, holding.path_blocks);
    if (const std::uint32_t first = find_child(edge); first != 0) {
        // The block is registered already: a prompt of whole blocks that was hit completely computes its last block again.
        KVSIM_CHECK(blocks == 1, "only the last block of a full hit is computed again");
        std::uint32_t twin = static_cast<std::uint32_t>(twins_.size());
        if (spare_twins_.empty()) {
            twins_.emplace_back();
        } else {
            twin = spare_twins_.back();
            spare_twins_.pop_back();
        }
        const auto place = static_cast<std::size_t>(holding.path_blocks);
        twins_[twin] = {first, ids_ ? (*holding.table)[place] : no_block, &holding, none};
        nodes_[first].twins.push_back(twin);
        holding.twin = twin;
        return;
    }
    const std::uint32_t node = new_node(holding.node, blocks, cut(*holding.content, holding.path_blocks, blocks));
    nodes_[node].users = 1;
    if (ids_) {
        const auto from = holding.table->begin() + holding.path_blocks;
        nodes_[node].ids.assign(from, from + blocks);
    }
    holding.node = node;
    holding.path_blocks += blocks;
    holding.own_blocks -= blocks;
}

void RunKv::release_in_order(Holding& holding, std::int64_t registered_tokens) {
    std::int32_t own = holding.own_blocks;
    if (holding.twin != none) --own;
    if (own > 0) {
        const std::int64_t before = holding.path_blocks + (holding.twin != none ? 1 : 0);
        const std::int64_t registered = registered_tokens < 0 ? 0 : registered_tokens / block_size_ - before;
        if (registered > 0 && before == holding.shareable) {
            holding.registered_own = static_cast<std::int32_t>(registered);
            holding.leftover = append_run(Run::Kind::leftover, own, none, &holding);
        } else {
            append_run(Run::Kind::anonymous, own, none, nullptr);
        }
    }
    if (holding.twin != none) {
        Twin& twin = twins_[holding.twin];
        twin.holder = nullptr;
        twin.run = append_run(Run::Kind::twin, 1, holding.twin, nullptr);
        holding.twin = none;
    }
    for (std::uint32_t at = holding.node; at != 0; at = nodes_[at].parent) unhold(at);
    holding.node = 0;
    holding.path_blocks = 0;
}

void RunKv::forget(Holding& holding) {
    if (holding.leftover == none) return;
    runs_[holding.leftover].kind = Run::Kind::anonymous;
    runs_[holding.leftover].holding = nullptr;
    holding.leftover = none;
}

// ---- the tree

void RunKv::hold(std::uint32_t at) {
    Node& node = nodes_[at];
    if (node.users++ > 0) return;
    free_ -= node.length;
    remove_run(node.run);
    node.run = none;
}

void RunKv::unhold(std::uint32_t at) {
    Node& node = nodes_[at];
    if (--node.users > 0) return;
    free_ += node.length;
    node.run = append_run(Run::Kind::node, node.length, at, nullptr);
}

std::uint32_t RunKv::new_node(std::uint32_t parent, std::int32_t length, const std::vector<TokenRun>& content) {
    auto at = static_cast<std::uint32_t>(nodes_.size());
    if (spare_nodes_.empty()) {
        nodes_.emplace_back();
    } else {
        at = spare_nodes_.back();
        spare_nodes_.pop_back();
    }
    Node& node = nodes_[at];
    node.parent = parent;
    node.length = length;
    node.users = 0;
    node.run = none;
    node.content = content;  // into what it held in an earlier life
    node.edge = edge_key(parent, node.content, 0);
    insert_child(node.edge, at);
    return at;
}

/// The node keeps its place and its first `at` blocks; the rest becomes its only child.
void RunKv::split(std::uint32_t upper, std::int32_t at) {
    // Children hang on the node's end, so they must follow the lower half: it takes over the node's index, the upper half a new
    // one.
    const std::uint32_t lower = upper;
    Node& old = nodes_[lower];
    const std::uint32_t parent = old.parent;
    erase_child(old.edge);
    const std::uint32_t top = new_node(parent, at, cut(old.content, 0, at));
    Node& low = nodes_[lower];
    Node& high = nodes_[top];
    high.users = low.users;
    high.twins = std::move(low.twins);
    low.twins.clear();
    if (ids_) {
        const auto middle = low.ids.begin() + at;
        high.ids.assign(low.ids.begin(), middle);
        low.ids.erase(low.ids.begin(), middle);
    }
    for (const std::uint32_t twin : high.twins) twins_[twin].node = top;
    low.parent = top;
    low.length -= at;
    low.content = cut(low.content, at, low.length);
    low.edge = edge_key(top, low.content, 0);
    insert_child(low.edge, lower);
    if (low.users == 0) {
        // One run becomes two: the lower half stays in front.
        Run& run = runs_[low.run];
        run.count = low.length;
        std::uint32_t made = static_cast<std::uint32_t>(runs_.size());
        if (spare_runs_.empty()) {
            runs_.emplace_back();
        } else {
            made = spare_runs_.back();
            spare_runs_.pop_back();
        }
        Run& before = runs_[nodes_[lower].run];
        Run& behind = runs_[made];
        behind = {nodes_[lower].run, before.next, at, Run::Kind::node, top, nullptr};
        (before.next == none ? back_ : runs_[before.next].previous) = made;
        before.next = made;
        nodes_[top].run = made;
    }
    for (Step& step : path_) {
        if (step.node == lower) step.node = top;
    }
}

/// All blocks of the node are gone. If a later copy of its first block is still registered, that one takes its place.
void RunKv::drop_node(std::uint32_t at) {
    Node& node = nodes_[at];
    if (node.twins.empty()) {
        erase_child(node.edge);
        node.content.clear();
        spare_nodes_.push_back(at);
        return;
    }
    const std::uint32_t id = node.twins.front();
    node.twins.erase(node.twins.begin());
    const Twin twin = twins_[id];
    spare_twins_.push_back(id);
    node.length = 1;
    if (ids_) node.ids.assign(1, twin.id);
    node.content = cut(node.content, 0, 1);
    if (twin.holder) {
        node.users = 1;
        node.run = none;
        twin.holder->twin = none;
        twin.holder->node = at;
        twin.holder->path_blocks += 1;
        twin.holder->own_blocks -= 1;
    } else {
        node.users = 0;
        node.run = twin.run;
        runs_[twin.run].kind = Run::Kind::node;
        runs_[twin.run].ref = at;
    }
}

// ---- content

const std::vector<TokenRun>& RunKv::cut(const std::vector<TokenRun>& content, std::int64_t from_block, std::int64_t blocks) {
    std::int64_t skip = from_block * block_size_;
    std::int64_t left = blocks * block_size_;
    std::vector<TokenRun>& out = cut_;
    out.clear();
    for (const TokenRun& run : content) {
        if (skip >= run.count) {
            skip -= run.count;
            continue;
        }
        const std::int64_t n = std::min(run.count - skip, left);
        const std::uint64_t first = run.first + static_cast<std::uint64_t>(skip);
        if (!out.empty() && out.back().first + static_cast<std::uint64_t>(out.back().count) == first) {
            out.back().count += n;
        } else {
            out.push_back({first, n});
        }
        skip = 0;
        left -= n;
        if (left == 0) break;
    }
    return out;
}

/// Identity of the child whose first block is block `block` of `content`; a 64-bit hash over maximal runs of consecutive ids.
std::uint64_t RunKv::edge_key(std::uint32_t parent, const std::vector<TokenRun>& content, std::int64_t block) const {
    std::int64_t skip = block * block_size_;
    std::int64_t left = block_size_;
    std::uint64_t key = mix(parent + 0x9e3779b97f4a7c15ULL);
    std::uint64_t first = 0;
    std::int64_t length = 0;
    for (const TokenRun& run : content) {
        if (skip >= run.count) {
            skip -= run.count;
            continue;
        }
        const std::int64_t n = std::min(run.count - skip, left);
        const std::uint64_t start = run.first + static_cast<std::uint64_t>(skip);
        if (length > 0 && first + static_cast<std::uint64_t>(length) == start) {
            length += n;
        } else {
            if (length > 0) key = mix(key ^ mix(first) ^ static_cast<std::uint64_t>(length));
            first = start;
            length = n;
        }
        skip = 0;
        left -= n;
        if (left == 0) break;
    }
    return mix(key ^ mix(first) ^ static_cast<std::uint64_t>(length));
}

std::int64_t RunKv::common_blocks(const Node& node, const std::vector<TokenRun>& content, std::int64_t from_block,
                                  std::int64_t most) const {
    const std::int64_t limit = std::min<std::int64_t>(most, node.length) * block_size_;
    std::size_t i = 0;
    std::int64_t skip = from_block * block_size_;
    while (i < content.size() && skip >= content[i].count) skip -= content[i++].count;
    std::size_t j = 0;
    std::int64_t offset = 0;
    std::int64_t same = 0;
    while (same < limit && i < content.size() && j < node.content.size()) {
        if (content[i].first + static_cast<std::uint64_t>(skip) != node.content[j].first + static_cast<std::uint64_t>(offset))
            break;
        const std::int64_t n = std::min({content[i].count - skip, node.content[j].count - offset, limit - same});
        same += n;
        skip += n;
        offset += n;
        if (skip == content[i].count) ++i, skip = 0;
        if (offset == node.content[j].count) ++j, offset = 0;
    }
    return same / block_size_;
}

// ---- the free list

std::uint32_t RunKv::append_run(Run::Kind kind, std::int32_t count, std::uint32_t ref, Holding* holding) {
    if (kind == Run::Kind::anonymous && back_ != none && runs_[back_].kind == Run::Kind::anonymous) {
        runs_[back_].count += count;
        return back_;
    }
    auto at = static_cast<std::uint32_t>(runs_.size());
    if (spare_runs_.empty()) {
        runs_.emplace_back();
    } else {
        at = spare_runs_.back();
        spare_runs_.pop_back();
    }
    runs_[at] = {back_, none, count, kind, ref, holding};
    (back_ == none ? front_ : runs_[back_].next) = at;
    back_ = at;
    return at;
}

void RunKv::remove_run(std::uint32_t at) {
    const Run& run = runs_[at];
    (run.previous == none ? front_ : runs_[run.previous].next) = run.next;
    (run.next == none ? back_ : runs_[run.next].previous) = run.previous;
    spare_runs_.push_back(at);
}

// ---- children_

std::uint32_t RunKv::find_child(std::uint64_t edge) const {
    if (children_.empty()) return 0;
    const std::size_t mask = children_.size() - 1;
    for (std::size_t i = edge & mask;; i = (i + 1) & mask) {
        if (children_[i].node == 0) return 0;
        if (children_[i].key == edge) return children_[i].node;
    }
}

void RunKv::insert_child(std::uint64_t edge, std::uint32_t node) {
    if ((children_used_ + 1) * 2 > children_.size()) {
        std::vector<Edge> old(children_.empty() ? 256 : children_.size() * 2);
        old.swap(children_);
        children_used_ = 0;
        for (const Edge& e : old) {
            if (e.node != 0) insert_child(e.key, e.node);
        }
    }
    const std::size_t mask = children_.size() - 1;
    std::size_t i = edge & mask;
    while (children_[i].node != 0) {
        KVSIM_CHECK(children_[i].key != edge, "two children with the same first block");
        i = (i + 1) & mask;
    }
    children_[i] = {edge, node};
    ++children_used_;
}

void RunKv::erase_child(std::uint64_t edge) {
    const std::size_t mask = children_.size() - 1;
    std::size_t i = edge & mask;
    while (children_[i].key != edge || children_[i].node == 0) i = (i + 1) & mask;
    for (std::size_t j = (i + 1) & mask; children_[j].node != 0; j = (j + 1) & mask) {
        const std::size_t home = children_[j].key & mask;
        if (((j - home) & mask) >= ((j - i) & mask)) {
            children_[i] = children_[j];
            i = j;
        }
    }
    children_[i].node = 0;
    --children_used_;
}

}  // namespace kvsim
