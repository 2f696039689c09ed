#pragma once
// Who holds which KV blocks. Called a few times per scheduled request, never per token.

#include <cstdint>
#include <memory>

#include "kvsim/engine/request.hpp"

namespace kvsim {

/// Leading blocks of a request that are cached; `idle` of them are held by nobody and would leave the free list.
struct PrefixHit {
    std::int64_t blocks = 0;
    std::int64_t idle = 0;
};

class KvManager {
public:
    virtual ~KvManager() = default;
    [[nodiscard]] virtual std::int64_t usable() const = 0;
    /// Blocks held by nobody, cached or not.
    [[nodiscard]] virtual std::int64_t free() const = 0;
    /// The longest cached prefix of a waiting request, at most floor((tokens - 1) / block_size) blocks: one token is always
    /// computed.
    [[nodiscard]] virtual PrefixHit lookup(LiveRequest& request) = 0;
    /// Gives a request without blocks its hit and as many new ones as make `total` in all; needs total - hit.blocks + hit.idle
    /// <= free().
    virtual void admit(LiveRequest& request, PrefixHit hit, std::int64_t total) = 0;
    /// Appends `need` <= free() blocks.
    virtual void extend(LiveRequest& request, std::int64_t need) = 0;
    /// Makes every full block below `upto` tokens findable by lookup().
    virtual void publish(LiveRequest& request, std::int64_t upto) = 0;
    /// Gives all blocks back, tail first.
    virtual void release(LiveRequest& request) = 0;
};

/// Paged KV with vLLM V1's free list (spec: ids ascending at first, taken from the front, given back at the end) and, when
/// `prefix_caching`, chained block hashes over it.
std::unique_ptr<KvManager> make_paged_kv(std::int64_t usable, std::int64_t block_size, bool prefix_caching);

}  // namespace kvsim
