// Paged KV blocks of one table per request, with vLLM V1's hash-chained prefix cache.

#include <algorithm>

#include "block_pool.hpp"

namespace kvsim {
namespace {

class PagedKv final : public PooledKv {
public:
    PagedKv(std::int64_t usable, std::int64_t block_size, bool prefix_caching)
        : PooledKv(usable, block_size, 1), block_size_(block_size), caching_(prefix_caching) {}

    PrefixHit lookup(LiveRequest& request) override {
        PrefixHit hit;
        if (!caching_) return hit;
        const std::int64_t most = (request.tokens() - 1) / block_size_;
        make_keys(request, most);
        for (; hit.blocks < most; ++hit.blocks) {
            const BlockId block = find(0, request.keys[static_cast<std::size_t>(hit.blocks)]);
            if (block == no_block) break;
            if (idle(block)) ++hit.idle;
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
            const BlockId block = find(0, request.keys[static_cast<std::size_t>(j)]);
            hold(block);
            request.table.push_back(block);
        }
        request.registered = hit.blocks;
        extend(request, upto, ceil_div(upto, block_size_) - hit.blocks);
    }

    std::int64_t need(LiveRequest& request, std::int64_t upto) override {
        return ceil_div(upto, block_size_) - static_cast<std::int64_t>(request.table.size());
    }

    [[nodiscard]] std::int64_t lacking(const LiveRequest& request, std::int64_t upto) const override {
        return std::max<std::int64_t>(0, ceil_div(upto, block_size_) - static_cast<std::int64_t>(request.table.size()));
    }

    void extend(LiveRequest& request, std::int64_t /*upto*/, std::int64_t need) override {
        KVSIM_CHECK(need <= free_, "blocks are only taken when they are free");
        for (; need > 0; --need) request.table.push_back(take());
    }

    void publish(LiveRequest& request, std::int64_t upto) override {
        if (!caching_) return;
        const std::int64_t full = std::min(upto / block_size_, static_cast<std::int64_t>(request.table.size()));
        if (full <= request.registered) return;
        make_keys(request, full);
        for (; request.registered < full; ++request.registered) {
            const auto j = static_cast<std::size_t>(request.registered);
            register_block(request.table[j], 0, request.keys[j]);
        }
    }

    void release(LiveRequest& request) override {
        for (std::size_t j = request.table.size(); j-- > 0;) drop(request.table[j]);
        request.table.clear();
        request.registered = 0;
    }

private:
    std::int64_t block_size_;
    bool caching_;
};

}  // namespace

std::unique_ptr<KvManager> make_paged_kv(std::int64_t usable, std::int64_t block_size, bool prefix_caching) {
    return std::make_unique<PagedKv>(usable, block_size, prefix_caching);
}

}  // namespace kvsim
