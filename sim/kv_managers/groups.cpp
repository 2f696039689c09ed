// One pool under several block tables per request: hybrid models (vLLM V1's HybridKVCacheCoordinator and its single-type
// managers, main of 2026-05-29).
//
//  * Every table of a group has the same length and the same blocks outside the window (0, the null block).
//  * A request with `computed` tokens attends from token skipped(computed) on; whole blocks before it are given back when it is
//    next served, before its need is counted. They keep their keys and go to the end of FREE, the latest first.
//  * A hit of h tokens is good for a table when the blocks from skipped(h) to h are cached. The hit of a request is the longest
//    that is good for all tables, in whole blocks of every group.
//  * Hits of all tables are held before any block is taken; blocks are taken and given back table by table.

#include <algorithm>
#include <limits>
#include <numeric>

#include "block_pool.hpp"
#include "kvsim/engine/engine.hpp"

namespace kvsim {
namespace {

using Rule = BlockGroup::Rule;

std::int64_t align_of(const EngineArgs& args) {
    std::int64_t align = args.block_size;
    for (const BlockGroup& group : args.kv_groups) {
        if (group.rule != Rule::state) align = std::lcm(align, group.block_size);
    }
    return align;
}

/// Blocks of one table that a request of `tokens` tokens has when nothing is given back, or the most that admission counts.
std::int64_t admission_blocks(const BlockGroup& group, const EngineArgs& args, std::int64_t tokens) {
    const std::int64_t all = ceil_div(tokens, group.block_size);
    const std::int64_t in_flight = args.max_num_batched_tokens;
    switch (group.rule) {
        case Rule::full:
            return all;
        case Rule::sliding:
            return std::min(all, ceil_div(std::min(group.window - 1 + in_flight, args.max_model_len), group.block_size) + 1);
        case Rule::chunked:
            return std::min(all, ceil_div(std::min(group.window + in_flight, args.max_model_len), group.block_size));
        case Rule::state:
            return group.state_blocks;
    }
    KVSIM_CHECK(false, "block rule out of range");
}

class GroupKv final : public PooledKv {
public:
    explicit GroupKv(const EngineArgs& args)
        : PooledKv(args.usable_blocks(), args.block_size, table_count(args)),
          args_(args),
          caching_(args.enable_prefix_caching),
          align_(align_of(args)) {
        std::size_t first = 0;
        for (const BlockGroup& spec : args.kv_groups) {
            const bool state = spec.rule == Rule::state;
            KVSIM_CHECK(spec.tables >= 1 && spec.block_size >= 1 && spec.block_size % args.block_size == 0 &&
                            (spec.window >= 1 || spec.rule == Rule::full || state) && !(caching_ && state),
                        "block groups were checked");
            Group group{spec, first, first + static_cast<std::size_t>(spec.tables)};
            group.ratio = spec.block_size / args.block_size;
            group.slots = state ? 0 : align_ / spec.block_size * spec.tables;
            first = group.end;
            // Full attention bounds the hit most cheaply, so it is looked up first.
            lookup_order_.insert(spec.rule == Rule::full ? lookup_order_.begin() : lookup_order_.end(), groups_.size());
            groups_.push_back(group);
        }
        tables_ = first;
    }

    PrefixHit lookup(LiveRequest& request) override {
        PrefixHit hit;
        if (!caching_) return hit;
        std::int64_t tokens = request.tokens() - 1;
        make_keys(request, tokens / args_.block_size);
        for (std::int64_t before = -1; tokens != before;) {
            const bool again = before >= 0;
            before = tokens;
            for (const std::size_t g : lookup_order_) {
                // All prefixes of a hit of full attention are hits.
                if (again && groups_[g].spec.rule == Rule::full) continue;
                tokens = longest(groups_[g], request.keys, tokens);
            }
        }
        hit.blocks = tokens / args_.block_size;
        for (const Group& group : groups_) {
            for (std::int64_t j = skipped(group, tokens); j < tokens / group.spec.block_size; ++j) {
                for (std::size_t t = group.begin; t < group.end; ++t) hit.idle += idle(find(t, key_of(group, request.keys, j)));
            }
        }
        return hit;
    }

    AdmissionNeed admission_need(const LiveRequest& /*request*/, PrefixHit hit, std::int64_t upto,
                                 std::int64_t whole) const override {
        AdmissionNeed need{hit.idle, hit.idle};
        const std::int64_t tokens = hit.blocks * args_.block_size;
        for (const Group& group : groups_) {
            const std::int64_t cached = group.spec.rule == Rule::state ? 0 : tokens / group.spec.block_size;
            const std::int64_t most = admission_blocks(group.spec, args_, whole);
            need.now += group.spec.tables * (blocks_for(group, upto) - cached);
            need.whole += group.spec.tables * std::max<std::int64_t>(0, most - cached);
        }
        return need;
    }

    void admit(LiveRequest& request, PrefixHit hit, std::int64_t upto) override {
        KVSIM_DCHECK(request.tables.empty(), "an admitted request holds no blocks");
        request.tables.resize(tables_);
        const std::int64_t tokens = hit.blocks * args_.block_size;
        for (const Group& group : groups_) {
            if (tokens == 0) break;
            const std::int64_t from = skipped(group, tokens);
            for (std::size_t t = group.begin; t < group.end; ++t) {
                std::vector<BlockId>& table = request.tables[t];
                table.assign(static_cast<std::size_t>(from), no_block);
                for (std::int64_t j = from; j < tokens / group.spec.block_size; ++j) {
                    const BlockId block = find(t, key_of(group, request.keys, j));
                    hold(block);
                    ++references_;
                    table.push_back(block);
                }
            }
        }
        request.registered = tokens;
        request.next_drop = next_drop(tokens);
        std::int64_t fresh = 0;
        for (const Group& group : groups_) fresh += lacking(group, request, upto);
        extend(request, upto, fresh);
    }

    std::int64_t need(LiveRequest& request, std::int64_t upto) override {
        if (request.computed >= request.next_drop) drop_skipped(request);
        if (upto <= request.room) return 0;
        std::int64_t need = 0;
        for (const Group& group : groups_) need += lacking(group, request, upto);
        return need;
    }

    /// At most: a window's tables never hold more than admission_blocks() counts for them.
    [[nodiscard]] std::int64_t lacking(const LiveRequest& request, std::int64_t upto) const override {
        std::int64_t blocks = 0;
        for (const Group& group : groups_) {
            const std::int64_t most = admission_blocks(group.spec, args_, upto);
            for (std::size_t t = group.begin; t < group.end; ++t) {
                const std::vector<BlockId>& table = request.tables[t];
                blocks += std::max<std::int64_t>(
                    0, most - static_cast<std::int64_t>(table.size()) + std::count(table.begin(), table.end(), no_block));
            }
        }
        return blocks;
    }

    void extend(LiveRequest& request, std::int64_t upto, std::int64_t need) override {
        if (upto <= request.room) return;
        KVSIM_CHECK(need <= free_, "blocks are only taken when they are free");
        std::int64_t room = std::numeric_limits<std::int64_t>::max();
        for (const Group& group : groups_) {
            const auto blocks = static_cast<std::size_t>(blocks_for(group, upto));
            for (std::size_t t = group.begin; t < group.end; ++t) {
                std::vector<BlockId>& table = request.tables[t];
                for (; table.size() < blocks; ++references_, --need) table.push_back(take());
            }
            if (group.spec.rule == Rule::state) continue;
            room = std::min(room, static_cast<std::int64_t>(request.tables[group.begin].size()) * group.spec.block_size);
        }
        KVSIM_CHECK(need == 0, "as many blocks are taken as were counted");
        request.room = room;
    }

    /// `registered` counts tokens here.
    void publish(LiveRequest& request, std::int64_t upto) override {
        if (!caching_) return;
        const std::int64_t tokens = std::min(upto, request.room) / align_ * align_;
        if (tokens <= request.registered) return;
        make_keys(request, tokens / args_.block_size);
        for (const Group& group : groups_) {
            for (std::size_t t = group.begin; t < group.end; ++t) {
                for (std::int64_t j = request.registered / group.spec.block_size; j < tokens / group.spec.block_size; ++j) {
                    const BlockId block = request.tables[t][static_cast<std::size_t>(j)];
                    if (block != no_block) register_block(block, t, key_of(group, request.keys, j));
                }
            }
        }
        request.registered = tokens;
    }

    void release(LiveRequest& request) override {
        for (const std::vector<BlockId>& table : request.tables) {
            for (std::size_t j = table.size(); j-- > 0 && table[j] != no_block;) give_back(table[j]);
        }
        request.tables.clear();
        request.registered = 0;
        request.room = 0;
        const std::int64_t used = usable_ - free_;
        KVSIM_CHECK(caching_ ? references_ >= used : references_ == used, "a block is used exactly when a table names it");
    }

    void record(const LiveRequest& request, bool all, std::int64_t computed, ScheduledRow& out) const override {
        std::size_t t = 0;
        for (const BlockGroup& group : args_.kv_groups) {
            for (std::int64_t i = 0; i < group.tables; ++i, ++t) {
                const std::vector<std::int32_t>& table = request.tables[t];
                // A running request's tables end at its computed tokens before each step.
                std::size_t from = 0;
                if (!all && computed > 0) {
                    from = group.rule == Rule::state ? table.size()
                                                     : static_cast<std::size_t>(ceil_div(computed, group.block_size));
                }
                out.blocks.insert(out.blocks.end(), table.begin() + static_cast<std::ptrdiff_t>(from), table.end());
                out.tables.push_back(static_cast<std::int64_t>(table.size() - from));
            }
        }
    }

    [[nodiscard]] HeldSlots unfilled(const LiveRequest& request) const override {
        HeldSlots held;
        const std::int64_t final = request.final_computed();
        for (const Group& group : groups_) {
            if (group.slots == 0) continue;  // a state fills its blocks
            const std::int64_t slots = static_cast<std::int64_t>(request.tables[group.begin].size()) * group.spec.block_size;
            held.reserved += group.slots * std::max<std::int64_t>(0, std::min(slots, final) - request.computed);
            held.internal += group.slots * std::max<std::int64_t>(0, slots - std::max(final, request.computed));
        }
        return held;
    }

private:
    struct Group {
        BlockGroup spec;
        std::size_t begin;  ///< its tables
        std::size_t end;
        std::int64_t ratio = 1;  ///< key blocks per block
        std::int64_t slots = 0;  ///< that one token of a request takes in all its tables
    };

    static std::size_t table_count(const EngineArgs& args) {
        std::int64_t tables = 0;
        for (const BlockGroup& group : args.kv_groups) tables += group.tables;
        KVSIM_CHECK(tables >= 1 && tables <= 65536, "block groups were checked");
        return static_cast<std::size_t>(tables);
    }

    [[nodiscard]] static const BlockKey& key_of(const Group& group, const std::vector<BlockKey>& keys, std::int64_t block) {
        return keys[static_cast<std::size_t>((block + 1) * group.ratio - 1)];
    }

    [[nodiscard]] bool cached(const Group& group, const std::vector<BlockKey>& keys, std::int64_t block) const {
        const BlockKey& key = key_of(group, keys, block);
        for (std::size_t t = group.begin; t < group.end; ++t) {
            if (find(t, key) == no_block) return false;
        }
        return true;
    }

    /// Leading blocks that the next token of a request with `computed` tokens does not attend to.
    [[nodiscard]] static std::int64_t skipped(const Group& group, std::int64_t computed) {
        switch (group.spec.rule) {
            case Rule::sliding:
                return std::max<std::int64_t>(0, computed - group.spec.window + 1) / group.spec.block_size;
            case Rule::chunked:
                return computed / group.spec.window * group.spec.window / group.spec.block_size;
            default:
                return 0;
        }
    }

    /// The smallest `computed` above which skipped() grows in some group.
    [[nodiscard]] std::int64_t next_drop(std::int64_t computed) const {
        std::int64_t next = std::numeric_limits<std::int64_t>::max();
        for (const Group& group : groups_) {
            const std::int64_t first = (skipped(group, computed) + 1) * group.spec.block_size;  // token behind that block
            if (group.spec.rule == Rule::sliding) next = std::min(next, first + group.spec.window - 1);
            if (group.spec.rule == Rule::chunked) next = std::min(next, ceil_div(first, group.spec.window) * group.spec.window);
        }
        return next;
    }

    [[nodiscard]] static std::int64_t blocks_for(const Group& group, std::int64_t tokens) {
        return group.spec.rule == Rule::state ? group.spec.state_blocks : ceil_div(tokens, group.spec.block_size);
    }
    [[nodiscard]] static std::int64_t lacking(const Group& group, const LiveRequest& request, std::int64_t upto) {
        const auto held = static_cast<std::int64_t>(request.tables[group.begin].size());
        return group.spec.tables * std::max<std::int64_t>(0, blocks_for(group, upto) - held);
    }

    /// The longest hit of at most `tokens` tokens that is good for the group's tables.
    [[nodiscard]] std::int64_t longest(const Group& group, const std::vector<BlockKey>& keys, std::int64_t tokens) const {
        const std::int64_t size = group.spec.block_size;
        const std::int64_t most = tokens / size;
        std::int64_t blocks = 0;
        if (group.spec.rule == Rule::sliding) {
            // From the right: a run of blocks that covers the window before the next token, or one that reaches the start.
            const std::int64_t wanted = std::max<std::int64_t>(1, ceil_div(group.spec.window - 1, size));
            std::int64_t run = 0;
            for (std::int64_t j = most; j-- > 0 && run < wanted;) {
                if (!cached(group, keys, j)) {
                    run = 0;
                } else if (run > 0 || (j + 1) * size % align_ == 0) {
                    ++run;
                    blocks = j + run;
                }
            }
            return run > 0 ? blocks * size : 0;
        }
        blocks = skipped(group, tokens);
        while (blocks < most && cached(group, keys, blocks)) ++blocks;
        return blocks * size / align_ * align_;
    }

    void drop_skipped(LiveRequest& request) {
        for (const Group& group : groups_) {
            const std::int64_t blocks = skipped(group, request.computed);
            for (std::size_t t = group.begin; t < group.end; ++t) {
                std::vector<BlockId>& table = request.tables[t];
                const auto end = static_cast<std::ptrdiff_t>(std::min(blocks, static_cast<std::int64_t>(table.size())));
                for (auto j = end; j-- > 0;) {
                    BlockId& block = table[static_cast<std::size_t>(j)];
                    if (block == no_block) break;  // those before it went earlier
                    give_back(block);
                    block = no_block;
                }
            }
        }
        request.next_drop = next_drop(request.computed);
    }

    void give_back(BlockId block) {
        drop(block);
        --references_;
    }

    EngineArgs args_;
    bool caching_;
    std::int64_t align_;  // tokens: a hit is a multiple
    std::vector<Group> groups_;
    std::vector<std::size_t> lookup_order_;
    std::size_t tables_ = 0;
    std::int64_t references_ = 0;  // table entries that name a block
};

}  // namespace

std::unique_ptr<KvManager> make_kv_manager(Engine& engine) {
    const EngineArgs& args = engine.args();
    if (args.policy.kv) return args.policy.kv.make(engine);
    return args.kv_groups.empty() ? make_paged_kv(args.usable_blocks(), args.block_size, args.enable_prefix_caching)
                                  : make_group_kv(args);
}

std::unique_ptr<KvManager> make_group_kv(const EngineArgs& args) {
    return std::make_unique<GroupKv>(args);
}

std::int64_t slots_per_block(const EngineArgs& args) {
    return align_of(args);
}

std::int64_t admission_blocks(const EngineArgs& args, std::int64_t tokens) {
    if (args.kv_groups.empty()) return ceil_div(tokens, args.block_size);
    std::int64_t blocks = 0;
    for (const BlockGroup& group : args.kv_groups) blocks += group.tables * admission_blocks(group, args, tokens);
    return blocks;
}

}  // namespace kvsim
