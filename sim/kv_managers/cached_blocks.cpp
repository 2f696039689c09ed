// Paged KV whose cached blocks that nobody uses are evicted in another order than vLLM's, or from the leaves of the tree their
// contents make (RadixAttention).

#include <algorithm>
#include <deque>
#include <set>
#include <tuple>

#include "block_pool.hpp"
#include "kvsim/engine/engine.hpp"

namespace kvsim {
namespace {

enum class Eviction { lru, lfu, fifo, session_ttl };

struct Params {
    std::string policy;
    std::string eviction = "lru";
    SimDuration ttl = std::chrono::seconds(60);
};

config::Field<Params> eviction_field() {
    return config::field("eviction", &Params::eviction,
                         "which cached block without a user is evicted first: the least recently used, the least often hit, "
                         "the one cached first; session-ttl: the least recently used, and none is found ttl after its last use")
        .one_of({"lru", "lfu", "fifo", "session-ttl"})
        .by_default("lru");
}

const config::Schema<Params>& schema() {
    static const config::Schema<Params> table{
        config::field("policy", &Params::policy, "paged or radix"), eviction_field(),
        config::field("ttl", &Params::ttl, "session-ttl: how long a block without a user stays", config::positive)
            .by_default("60s")};
    return table;
}

/// A request's cached blocks are the nodes of a tree: a block's parent is the one before it in the prefix. `tree`: only blocks
/// without cached children are evicted, and a request whose block has cached content gives its own back for that one.
class CachedBlocks final : public KvManager {
public:
    CachedBlocks(Engine& engine, Eviction eviction, SimDuration ttl, bool tree)
        : KvManager(engine.args().usable_blocks()),
          engine_(engine),
          block_size_(engine.args().block_size),
          caching_(engine.args().enable_prefix_caching),
          eviction_(eviction),
          ttl_(ttl),
          tree_(tree),
          nodes_(1) {}

    PrefixHit lookup(LiveRequest& request) override {
        PrefixHit hit;
        if (!caching_) return hit;
        expire();
        const std::int64_t most = (request.tokens() - 1) / block_size_;
        make_keys(request, most, block_size_);
        for (; hit.blocks < most; ++hit.blocks) {
            const BlockId block = index_.find(request.keys[static_cast<std::size_t>(hit.blocks)]);
            if (block == no_block) break;
            if (node(block).users == 0) ++hit.idle;
        }
        return hit;
    }

    AdmissionNeed admission_need(const LiveRequest& /*request*/, PrefixHit hit, std::int64_t upto,
                                 std::int64_t whole) const override {
        return {ceil_div(upto, block_size_) - hit.blocks + hit.idle, ceil_div(whole, block_size_) - hit.blocks + hit.idle};
    }

    void admit(LiveRequest& request, PrefixHit hit, std::int64_t upto) override {
        KVSIM_DCHECK(request.table.empty(), "an admitted request holds no blocks");
        for (std::int64_t j = 0; j < hit.blocks; ++j) {
            const BlockId block = index_.find(request.keys[static_cast<std::size_t>(j)]);
            hold(block);
            ++node(block).hits;
            request.table.push_back(block);
        }
        request.registered = hit.blocks;
        extend(request, upto, ceil_div(upto, block_size_) - hit.blocks);
    }

    std::int64_t need(LiveRequest& request, std::int64_t upto) override {
        return ceil_div(upto, block_size_) - static_cast<std::int64_t>(request.table.size());
    }

    void extend(LiveRequest& request, std::int64_t /*upto*/, std::int64_t need) override {
        KVSIM_CHECK(need <= free_, "blocks are only taken when they are free");
        for (; need > 0; --need) request.table.push_back(take());
    }

    void publish(LiveRequest& request, std::int64_t upto) override {
        if (!caching_) return;
        const std::int64_t full = std::min(upto / block_size_, static_cast<std::int64_t>(request.table.size()));
        if (full <= request.registered) return;
        expire();
        make_keys(request, full, block_size_);
        for (; request.registered < full; ++request.registered) {
            const auto j = static_cast<std::size_t>(request.registered);
            const BlockId block = request.table[j];
            BlockId& there = index_.at(request.keys[j]);
            if (there == no_block) {
                there = block;
                cache(block, request.keys[j], j == 0 ? no_block : index_.find(request.keys[j - 1]));
            } else if (tree_) {
                const BlockId shared = there;
                hold(shared);
                drop(block);
                request.table[j] = shared;
            }
        }
    }

    void release(LiveRequest& request) override {
        for (std::size_t j = request.table.size(); j-- > 0;) drop(request.table[j]);
        request.table.clear();
        request.registered = 0;
    }

private:
    struct Node {
        std::int32_t users = 0;
        bool cached = false;
        BlockId parent = no_block;    // with tree_: the cached block before it
        std::int64_t children = 0;    // cached blocks with this parent
        std::int64_t hits = 0;        // since it was cached
        std::uint64_t cached_at = 0;  // both in an order of events
        std::uint64_t used_at = 0;
        SimTime used{};
        BlockKey key;
    };
    using Rank = std::tuple<std::int64_t, std::uint64_t, BlockId>;

    [[nodiscard]] Node& node(BlockId block) { return nodes_[static_cast<std::size_t>(block)]; }
    [[nodiscard]] const Node& node(BlockId block) const { return nodes_[static_cast<std::size_t>(block)]; }

    /// The smallest is evicted first.
    [[nodiscard]] Rank rank(BlockId block) const {
        const Node& n = node(block);
        switch (eviction_) {
            case Eviction::lfu:
                return {n.hits, n.used_at, block};
            case Eviction::fifo:
                return {0, n.cached_at, block};
            default:
                return {0, n.used_at, block};
        }
    }
    [[nodiscard]] bool evictable(BlockId block) const {
        const Node& n = node(block);
        return n.cached && n.users == 0 && (!tree_ || n.children == 0);
    }
    void list(BlockId block) {
        if (!evictable(block)) return;
        idle_.insert(rank(block));
    }
    void unlist(BlockId block) {
        if (evictable(block)) idle_.erase(rank(block));
    }

    void hold(BlockId block) {
        unlist(block);
        if (eviction_ == Eviction::session_ttl && node(block).users == 0) ages_.erase({node(block).used_at, block});
        ++holders_;
        if (node(block).users++ == 0) --free_;
    }
    void drop(BlockId block) {
        Node& n = node(block);
        --holders_;
        if (--n.users > 0) return;
        ++free_;
        if (!n.cached) {
            plain_.push_back(block);
            return;
        }
        n.used_at = ++clock_;
        n.used = engine_.now();
        if (eviction_ == Eviction::session_ttl) ages_.insert({n.used_at, block});
        list(block);
    }

    void cache(BlockId block, const BlockKey& key, BlockId parent) {
        Node& n = node(block);
        n.cached = true;
        n.key = key;
        n.hits = 0;
        n.cached_at = ++clock_;
        n.parent = parent;
        if (!tree_ || parent == no_block) return;
        unlist(parent);
        ++node(parent).children;
    }

    /// A block that holds nothing findable, free for longest; else one that is evicted.
    BlockId take() {
        expire();
        BlockId block = no_block;
        if (static_cast<std::int64_t>(nodes_.size()) <= usable_) {
            KVSIM_CHECK(nodes_.size() < 0x7fffffff, "more than 2^31 blocks in use");
            block = static_cast<BlockId>(nodes_.size());
            nodes_.emplace_back();
        } else if (!plain_.empty()) {
            block = plain_.front();
            plain_.pop_front();
        } else {
            KVSIM_CHECK(!idle_.empty(), "a block is only taken when one is free");
            block = std::get<BlockId>(*idle_.begin());
            evict(block);
        }
        node(block).users = 1;
        ++holders_;
        --free_;
        return block;
    }

    void evict(BlockId block) {
        Node& n = node(block);
        KVSIM_DCHECK(n.children == 0, "who uses a block uses those before it, so a child is never younger");
        unlist(block);
        if (eviction_ == Eviction::session_ttl) ages_.erase({n.used_at, block});
        index_.erase(n.key);
        n.cached = false;
        if (!tree_ || n.parent == no_block) return;
        --node(n.parent).children;
        list(n.parent);
    }

    /// Those nobody has used for the time to live hold nothing findable any more.
    void expire() {
        if (eviction_ != Eviction::session_ttl) return;
        while (!ages_.empty()) {
            const BlockId block = ages_.begin()->second;
            if (engine_.now() - node(block).used <= ttl_) return;
            evict(block);
            plain_.push_back(block);
        }
    }

    Engine& engine_;
    std::int64_t block_size_;
    bool caching_;
    Eviction eviction_;
    SimDuration ttl_;
    bool tree_;
    std::vector<Node> nodes_;                           // by block id; grows as never-used blocks are first taken
    KeyTable index_;                                    // content -> block
    std::deque<BlockId> plain_;                         // free, nothing cached; in the order they became free
    std::set<Rank> idle_;                               // cached, without a user, evictable
    std::set<std::pair<std::uint64_t, BlockId>> ages_;  // cached, without a user, by last use; with session-ttl
    std::uint64_t clock_ = 0;
};

std::function<std::unique_ptr<KvManager>(Engine&)> read(const PieceSource& source, bool tree,
                                                        config::Diagnostics& diagnostics) {
    Params params;
    if (source.choice.params.is_map()) schema().read(source.choice.params, params, "engine.kv_policy", diagnostics);
    const Eviction eviction = params.eviction == "lfu"           ? Eviction::lfu
                              : params.eviction == "fifo"        ? Eviction::fifo
                              : params.eviction == "session-ttl" ? Eviction::session_ttl
                                                                 : Eviction::lru;
    if (eviction != Eviction::session_ttl && source.choice.params.find("ttl") != nullptr)
        diagnostics.error(source.choice.params.find("ttl")->mark, "engine.kv_policy.ttl goes with eviction: session-ttl");
    return [eviction, ttl = params.ttl, tree](Engine& engine) -> std::unique_ptr<KvManager> {
        const EngineArgs& args = engine.args();
        if (!tree && eviction == Eviction::lru)
            return make_paged_kv(args.usable_blocks(), args.block_size, args.enable_prefix_caching);
        return std::make_unique<CachedBlocks>(engine, eviction, ttl, tree);
    };
}

}  // namespace

std::vector<config::FieldDoc> paged_kv_docs() {
    return schema().docs();
}
std::vector<config::FieldDoc> radix_kv_docs() {
    return schema().docs();
}
std::function<std::unique_ptr<KvManager>(Engine&)> read_paged_kv(const PieceSource& source, config::Diagnostics& diagnostics) {
    return read(source, false, diagnostics);
}
std::function<std::unique_ptr<KvManager>(Engine&)> read_radix_kv(const PieceSource& source, config::Diagnostics& diagnostics) {
    return read(source, true, diagnostics);
}

}  // namespace kvsim
