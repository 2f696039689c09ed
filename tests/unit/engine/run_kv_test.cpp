// RunKv against PagedKv, driven directly: whoever is admitted, grown, preempted or finished, both have the same free blocks and
// the same hits.

#include "kvsim/engine/run_kv.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "kvsim/base/units.hpp"
#include "kvsim/engine/kv_manager.hpp"
#include "kvsim/model/token_ids.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"

using namespace kvsim;

namespace {

/// One request in both managers.
struct Twin {
    LiveRequest paged;
    RunKv::Holding run;
    std::vector<BlockId> table;
    bool prefilling = false;
};

class Pair {
public:
    Pair(std::uint64_t seed, std::int64_t usable, std::int64_t block_size, bool caching)
        : random_(seed, "run_kv_test"),
          block_size_(block_size),
          paged_(make_paged_kv(usable, block_size, caching)),
          run_(usable, block_size, caching) {
        run_.keep_ids();
    }

    void step() {
        const std::int64_t what = between(0, 9);
        if (what <= 1) arrive();
        if (what >= 2 && what <= 3) admit();
        if (what >= 4 && what <= 7) grow();
        if (what == 8) preempt();
        if (what == 9) finish();
        compare();
    }
    void drain() {
        while (!running_.empty()) finish();
        CHECK(paged_->free() == paged_->usable());
        CHECK(run_.free() == run_.usable());
    }

    std::int64_t hits = 0;
    std::int64_t resumed_hits = 0;
    std::int64_t refused = 0;  // for want of free blocks

private:
    std::int64_t between(std::int64_t low, std::int64_t high) { return uniform_int(random_.uniform(), low, high); }

    // One of a few system prompts, perhaps cut short, perhaps one of a few second parts, and perhaps a tail of its own.
    void arrive() {
        if (waiting_.size() > 4) return;
        all_.push_back(std::make_unique<Twin>());
        Twin* const twin = all_.back().get();
        LiveRequest& r = twin->paged;
        r.id = next_id_++;
        const auto add = [&r](std::uint64_t first, std::int64_t count) {
            if (count > 0) r.content.push_back({first, count});
            r.prompt += count;
        };
        if (between(0, 3) > 0) {
            const std::int64_t group = between(0, 2);
            const std::int64_t whole = 10 * (group + 1);
            add(prefix_base(group), between(0, 2) == 0 ? between(1, whole) : whole);
            if (between(0, 1) == 0) add(prefix_base(10 + between(0, 2)), between(1, 12));
        }
        if (r.prompt == 0 || between(0, 2) > 0) add(own_prompt_base(r.id), between(1, 20));
        r.max_tokens = 1000;
        r.output_base = own_output_base(r.id);
        twin->run.table = &twin->table;
        twin->run.content = &r.content;
        twin->run.shareable = run_.shareable_blocks(r.content);
        waiting_.push_back(twin);
    }

    [[nodiscard]] bool prefilling() const { return !running_.empty() && running_.back()->prefilling; }

    void admit() {
        if (waiting_.empty() || prefilling()) return;
        Twin& head = *waiting_.front();
        LiveRequest& r = head.paged;
        const PrefixHit paged = paged_->lookup(r);
        const PrefixHit run = run_.lookup(head.run, r.tokens());
        CHECK(paged.blocks == run.blocks);
        CHECK(paged.idle == run.idle);
        const std::int64_t cached = paged.blocks * block_size_;
        const std::int64_t n = between(1, r.tokens() - cached);
        const std::int64_t total = ceil_div(cached + n, block_size_);
        if (total - paged.blocks + paged.idle > paged_->free()) {
            ++refused;
            return;
        }
        hits += paged.blocks;
        if (r.admitted_before) resumed_hits += paged.blocks;
        paged_->admit(r, paged, cached + n);
        run_.admit(head.run, run, total - run.blocks);
        r.admitted_before = true;
        running_.push_back(&head);
        waiting_.pop_front();
        r.computed = cached;
        compute(head, n);
    }

    /// `n` more tokens have their blocks.
    void compute(Twin& twin, std::int64_t n) {
        LiveRequest& r = twin.paged;
        const bool prompt = r.computed < r.prompt || r.computed + n < r.tokens();
        r.computed += n;
        paged_->publish(r, r.computed);
        if (prompt) run_.publish(twin.run, r.computed);
        twin.prefilling = r.computed < r.tokens();
        if (!twin.prefilling) ++r.outputs;
    }

    void grow() {
        if (running_.empty()) return;
        // The one that prefills is the last; decoding requests in any order.
        Twin& twin = prefilling() && between(0, 1) == 0
                         ? *running_.back()
                         : *running_[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(running_.size()) - 1))];
        LiveRequest& r = twin.paged;
        const std::int64_t n = between(1, r.tokens() - r.computed);
        const std::int64_t need = ceil_div(r.computed + n, block_size_) - static_cast<std::int64_t>(r.table.size());
        if (need > paged_->free()) {
            ++refused;
            return;
        }
        paged_->extend(r, r.computed + n, need);
        run_.extend(twin.run, need);
        compute(twin, n);
    }

    void preempt() {
        if (running_.empty()) return;
        Twin& twin = *running_.back();
        run_.release(twin.run, twin.run.path_blocks + twin.run.own_blocks, twin.paged.computed);
        paged_->release(twin.paged);
        twin.paged.computed = 0;
        twin.prefilling = false;
        waiting_.push_front(&twin);
        running_.pop_back();
    }

    void finish() {
        if (running_.empty()) return;
        const auto at = running_.begin() + between(0, static_cast<std::int64_t>(running_.size()) - 1);
        run_.release((*at)->run, (*at)->run.path_blocks + (*at)->run.own_blocks, -1);
        paged_->release((*at)->paged);
        running_.erase(at);
    }

    void compare() {
        CHECK(paged_->free() == run_.free());
        for (const Twin* twin : running_) CHECK(twin->paged.table == twin->table);
        for (Twin* twin : waiting_) {
            const PrefixHit paged = paged_->lookup(twin->paged);
            const PrefixHit run = run_.lookup(twin->run, twin->paged.tokens());
            CHECK(paged.blocks == run.blocks);
            CHECK(paged.idle == run.idle);
        }
    }

    Stream random_;
    std::int64_t block_size_;
    std::unique_ptr<KvManager> paged_;
    RunKv run_;
    std::vector<std::unique_ptr<Twin>> all_;
    std::deque<Twin*> waiting_;
    std::vector<Twin*> running_;  // in admission order; only the last may be prefilling
    RequestId next_id_ = 0;
};

}  // namespace

TEST_CASE("RunKv equals PagedKv on random request sequences") {
    std::int64_t hits = 0;
    std::int64_t resumed_hits = 0;
    std::int64_t refused = 0;
    std::uint64_t seed = 0;
    for (const std::int64_t block_size : {1, 2, 4, 7, 16}) {
        for (const std::int64_t tokens : {60, 150, 600}) {
            for (const bool caching : {true, true, true, false}) {
                ++seed;
                CAPTURE(seed);
                CAPTURE(block_size);
                CAPTURE(tokens);
                Pair pair(seed, std::max<std::int64_t>(2, tokens / block_size), block_size, caching);
                for (int i = 0; i < 1'500; ++i) pair.step();
                pair.drain();
                if (!caching) CHECK(pair.hits == 0);
                hits += pair.hits;
                resumed_hits += pair.resumed_hits;
                refused += pair.refused;
            }
        }
    }
    CHECK(hits > 10'000);
    CHECK(resumed_hits > 1'000);
    CHECK(refused > 1'000);
}
