#include "naive_policies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <list>
#include <set>
#include <tuple>
#include <utility>

#include "kvsim/base/check.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"

namespace kvsim::oracle {

// ---- parameters as written

std::string NaivePolicy::Piece::text(const std::string& key, const std::string& otherwise) const {
    const auto found = params.find(key);
    return found == params.end() ? otherwise : found->second;
}
std::int64_t NaivePolicy::Piece::whole(const std::string& key, std::int64_t otherwise) const {
    const auto found = params.find(key);
    return found == params.end() ? otherwise : std::stoll(found->second);
}
double NaivePolicy::Piece::number(const std::string& key, double otherwise) const {
    const auto found = params.find(key);
    return found == params.end() ? otherwise : std::stod(found->second);
}
std::int64_t NaivePolicy::Piece::ns(const std::string& key, std::int64_t otherwise) const {
    const auto found = params.find(key);
    if (found == params.end()) return otherwise;
    std::size_t end = 0;
    const std::int64_t value = std::stoll(found->second, &end);
    return found->second.substr(end) == "ns" ? value : value * 1'000'000'000;
}
std::vector<std::int64_t> NaivePolicy::Piece::list(const std::string& key, std::vector<std::int64_t> otherwise) const {
    const auto found = params.find(key);
    if (found == params.end()) return otherwise;
    std::vector<std::int64_t> out;
    std::string number;
    for (const char c : found->second) {
        if (c >= '0' && c <= '9') {
            number += c;
        } else if (!number.empty()) {
            out.push_back(std::stoll(number));
            number.clear();
        }
    }
    return out;
}

std::string NaivePolicy::describe() const {
    const auto piece = [](const Piece& p) {
        std::string out = p.name.empty() ? "-" : p.name;
        for (const auto& [key, value] : p.params) out += fmt::format(" {}={}", key, value);
        return out;
    };
    std::string out = fmt::format(
        "style {}, order {}, victim {}, admission {}, predictor {}, kv {}, preemption {}, requeue {}, chunking {}, live {}, "
        "max_new {}, seed {}",
        style, piece(order), piece(victim), piece(admission), piece(predictor), piece(kv), preemption, requeue,
        context_chunking, max_live_tokens, max_new_tokens, seed);
    const auto ns = [](const std::optional<SimDuration>& d) { return d ? d->count() : -1; };
    for (const auto& [name, slo] : slos) {
        out += fmt::format("; slo of '{}': ttft {} tpot {} e2e {}", name, ns(slo.ttft), ns(slo.tpot), ns(slo.e2e));
    }
    return out;
}

namespace {

using Int = std::int64_t;
using Ids = std::vector<RequestId>;

std::size_t at(Int index) {
    KVSIM_CHECK(index >= 0, "negative index");
    return static_cast<std::size_t>(index);
}
Int length(const auto& container) {
    return static_cast<Int>(container.size());
}

/// A request with what only these policies know of it.
struct Request : NaiveRequest {
    Int limit = 0;                         ///< M: outputs it will have
    Int predicted = 0;                     ///< outputs
    Int place = 0;                         ///< in the queue, under fcfs
    Int swapped = 0;                       ///< blocks on the CPU
    Int range_first = 0, range_count = 0;  ///< contiguous KV
    bool admitted_before = false;
    Int level = 0, level_joined = 0, level_used = 0;  // mlfq
    SimTime last_served{};
    bool lost_this_step = false;
    bool stubborn = false;  ///< PolicyMutation::believed_is_predicted

    [[nodiscard]] Int pending() const { return size() + in_flight - computed; }
    [[nodiscard]] Int believed() const { return std::max(predicted, stubborn ? 1 : outputs() + 1); }
    [[nodiscard]] Int to_come() const { return believed() - outputs(); }
    [[nodiscard]] Int believed_end() const { return prompt_tokens + believed() - 1; }
};

// ---- KV

struct Hit {
    Int tokens = 0;
    Int blocks = 0;
    Int idle = 0;
};

class Kv {
public:
    virtual ~Kv() = default;
    [[nodiscard]] virtual Int free() const = 0;
    [[nodiscard]] virtual Int usable() const = 0;
    [[nodiscard]] virtual Hit lookup(const Request& r) = 0;
    /// Blocks that must be free for the request to start with `upto` tokens; nothing: it cannot, however many are.
    [[nodiscard]] virtual Int need_at_start(const Request& r, const Hit& hit, Int upto) const = 0;
    virtual void start(Request& r, const Hit& hit, Int upto) = 0;
    /// Blocks it lacks for `upto` tokens.
    [[nodiscard]] virtual Int lacks(const Request& r, Int upto) const = 0;
    virtual void grow(Request& r, Int upto) = 0;
    virtual void publish(Request& r, Int upto) = 0;
    virtual void release(Request& r) = 0;
    [[nodiscard]] virtual Int held(const Request& r) const = 0;
    /// What a row shows: all it holds, or what lies behind the `held` blocks it had; `grown`: it got something.
    [[nodiscard]] virtual std::vector<Int> shown(const Request& r, Int held, bool grown) const = 0;
    virtual void check(const std::map<RequestId, Request>& requests, const Ids& running) const = 0;
};

/// Blocks in any table, found by the tokens in them and before them.
class Blocks final : public Kv {
public:
    Blocks(const EngineArgs& args, const NaivePolicy::Piece& piece, const SimTime& now, NaiveTrail& trail, PolicyMutation wrong)
        : trail_(trail),
          size_(args.block_size),
          caching_(args.enable_prefix_caching),
          tree_(piece.name == "radix"),
          eviction_(piece.text("eviction", "lru")),
          ttl_(piece.ns("ttl", 60'000'000'000)),
          now_(now),
          first_(args.null_blocks) {
        free_list_ = !tree_ && eviction_ == "lru";
        if (wrong == PolicyMutation::evicts_least_recently_used) eviction_ = "lru";
        blocks_.resize(at(args.num_gpu_blocks));
        for (Int b = first_; b < args.num_gpu_blocks; ++b) free_.push_back(b);
    }
    [[nodiscard]] Int free() const override { return length(free_); }
    [[nodiscard]] Int usable() const override { return length(blocks_) - first_; }
    [[nodiscard]] Hit lookup(const Request& r) override {
        expire();
        Hit hit;
        while (caching_ && (hit.blocks + 1) * size_ <= r.size() - 1) {
            const Int block = find(key(r, hit.blocks));
            if (block == none) break;
            hit.idle += blocks_[at(block)].users == 0 ? 1 : 0;
            ++hit.blocks;
        }
        hit.tokens = hit.blocks * size_;
        return hit;
    }
    [[nodiscard]] Int need_at_start(const Request&, const Hit& hit, Int upto) const override {
        return ceil_div(upto, size_) - hit.blocks + hit.idle;
    }
    void start(Request& r, const Hit& hit, Int upto) override {
        r.tables.assign(1, {});
        for (Int j = 0; j < hit.blocks; ++j) {
            const Int block = find(key(r, j));
            hold(block);
            ++blocks_[at(block)].hits;
            r.tables[0].push_back(block);
        }
        r.registered = hit.tokens;
        grow(r, upto);
    }
    [[nodiscard]] Int lacks(const Request& r, Int upto) const override {
        return std::max<Int>(0, ceil_div(upto, size_) - length(r.tables[0]));
    }
    void grow(Request& r, Int upto) override {
        for (Int n = lacks(r, upto); n > 0; --n) r.tables[0].push_back(take());
    }
    void publish(Request& r, Int upto) override {
        if (!caching_) return;
        for (Int j = r.registered / size_; (j + 1) * size_ <= upto; ++j) {
            expire();
            const Int block = r.tables[0].at(at(j));
            const Int same = find(key(r, j));
            if (free_list_ || same == none) {
                Block& b = blocks_[at(block)];
                b.key = key(r, j);
                b.cached = true;
                b.cached_at = ++events_;
                b.hits = 0;
            } else if (tree_) {
                ++trail_.times["given back for a cached one"];
                hold(same);
                drop(block);
                r.tables[0][at(j)] = same;
            }
        }
        r.registered = std::max(r.registered, upto / size_ * size_);
    }
    void release(Request& r) override {
        for (Int j = length(r.tables.at(0)); j-- > 0;) drop(r.tables[0][at(j)]);
        r.tables.clear();
        r.registered = 0;
    }
    [[nodiscard]] Int held(const Request& r) const override { return length(r.tables.at(0)); }
    [[nodiscard]] std::vector<Int> shown(const Request& r, Int held, bool) const override {
        return {r.tables.at(0).begin() + held, r.tables.at(0).end()};
    }
    void check(const std::map<RequestId, Request>& requests, const Ids& running) const override {
        std::vector<Int> users(blocks_.size(), 0);
        for (const auto& [id, r] : requests) {
            const bool runs = std::find(running.begin(), running.end(), id) != running.end();
            KVSIM_CHECK(runs == !r.tables.empty(), "who runs has a table, and nobody else");
            if (!runs) continue;
            KVSIM_CHECK(r.computed <= length(r.tables[0]) * size_, "computed beyond the table");
            for (const Int block : r.tables[0]) ++users[at(block)];
        }
        std::vector<Int> times_free(blocks_.size(), 0);
        for (const Int block : free_) ++times_free[at(block)];
        for (Int b = first_; b < length(blocks_); ++b) {
            KVSIM_CHECK(blocks_[at(b)].users == users[at(b)], "users are the tables that name the block");
            KVSIM_CHECK(times_free[at(b)] == (users[at(b)] == 0 ? 1 : 0), "a block is free exactly when nobody holds it");
        }
    }

private:
    static constexpr Int none = -1;
    using Key = std::vector<std::uint64_t>;  ///< all tokens up to the block's last
    struct Block {
        Int users = 0;
        bool cached = false;
        Key key;
        Int cached_at = 0;  ///< events are numbered
        Int used_at = 0;    ///< when its last user left it
        SimTime used{};
        Int hits = 0;  ///< since it is cached
    };
    [[nodiscard]] Key key(const Request& r, Int j) const { return {r.tokens.begin(), r.tokens.begin() + (j + 1) * size_}; }
    /// Nobody has used it for longer than its time to live.
    [[nodiscard]] bool expired(const Block& b) const {
        return eviction_ == "session-ttl" && b.cached && b.users == 0 && (now_ - b.used).count() > ttl_;
    }
    /// The block that was cached first of those with this content.
    [[nodiscard]] Int find(const Key& wanted) const {
        Int found = none;
        for (Int b = first_; b < length(blocks_); ++b) {
            const Block& block = blocks_[at(b)];
            if (!block.cached || expired(block) || block.key != wanted) continue;
            if (found == none || block.cached_at < blocks_[at(found)].cached_at) found = b;
        }
        return found;
    }
    [[nodiscard]] bool has_children(const Block& parent) const {
        return std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& b) {
            return b.cached && length(b.key) == length(parent.key) + size_ &&
                   std::equal(parent.key.begin(), parent.key.end(), b.key.begin());
        });
    }
    void hold(Int block) {
        if (blocks_[at(block)].users++ == 0) free_.remove(block);
    }
    void drop(Int block) {
        Block& b = blocks_[at(block)];
        if (--b.users > 0) return;
        b.used_at = ++events_;
        b.used = now_;
        free_.push_back(block);
    }
    /// Under plain LRU the one that is free for longest. Else one without cached content that is free for longest (never used
    /// ones first, which are), else the cached one that goes first.
    [[nodiscard]] Int next() const {
        if (free_list_) return free_.front();
        Int best = none;
        for (const Int block : free_) {
            const Block& b = blocks_[at(block)];
            if (!b.cached) return block;
            if (tree_ && has_children(b)) continue;
            if (best == none || rank(block) < rank(best)) best = block;
        }
        return best;
    }
    [[nodiscard]] std::vector<Int> rank(Int block) const {
        const Block& b = blocks_[at(block)];
        if (eviction_ == "lfu") return {b.hits, b.used_at, block};
        if (eviction_ == "fifo") return {b.cached_at, block};
        return {b.used_at, block};
    }
    /// At a look-up, a taking or a caching what has expired becomes free like any other, in the order of its last use.
    void expire() {
        std::vector<Int> over;
        for (const Int block : free_) {
            if (expired(blocks_[at(block)])) over.push_back(block);
        }
        for (const Int block : over) {
            ++trail_.times["expired"];
            blocks_[at(block)].cached = false;
            free_.remove(block);
            free_.push_back(block);
        }
    }
    Int take() {
        expire();
        const Int block = next();
        KVSIM_CHECK(block != none, "a block is taken only when one is free");
        if (blocks_[at(block)].cached) {
            ++trail_.times["evicted"];
            const auto earlier = [&](Int other) { return blocks_[at(other)].used_at < blocks_[at(block)].used_at; };
            if (std::any_of(free_.begin(), free_.end(), earlier))
                ++trail_.times["evicted before others that were used earlier"];
        }
        free_.remove(block);
        blocks_[at(block)].cached = false;
        blocks_[at(block)].users = 1;
        return block;
    }

    NaiveTrail& trail_;
    Int size_;
    bool caching_;
    bool tree_;
    std::string eviction_;
    Int ttl_;
    const SimTime& now_;
    Int first_;
    bool free_list_ = true;
    std::vector<Block> blocks_;
    std::list<Int> free_;
    Int events_ = 0;
};

/// One range of slots per request.
class Ranges final : public Kv {
public:
    Ranges(const EngineArgs& args, const NaivePolicy::Piece& piece, NaiveTrail& trail, PolicyMutation wrong)
        : trail_(trail),
          policy_(piece.name),
          buddy_(piece.text("placement", piece.name == "contiguous-max" ? "first-fit" : "buddy") == "buddy"),
          taken_(at(args.num_gpu_blocks), false),
          longest_(std::min(args.max_model_len, args.num_gpu_blocks)),
          wrong_(wrong) {
        KVSIM_CHECK(args.block_size == 1 && args.null_blocks == 0, "contiguous KV counts slots");
        for (Int power = 1; buddy_ && power <= args.num_gpu_blocks; power *= 2) longest_ = std::min(args.max_model_len, power);
    }
    [[nodiscard]] Int free() const override { return length(taken_) - held_; }
    [[nodiscard]] Int usable() const override { return length(taken_); }
    [[nodiscard]] Hit lookup(const Request&) override { return {}; }
    [[nodiscard]] Int need_at_start(const Request& r, const Hit&, Int upto) const override { return need(reserved(r, upto)); }
    void start(Request& r, const Hit&, Int upto) override { take(r, reserved(r, upto)); }
    [[nodiscard]] Int lacks(const Request& r, Int upto) const override {
        return upto <= r.range_count ? 0 : need(larger(r, upto));
    }
    void grow(Request& r, Int upto) override {
        if (upto <= r.range_count) return;
        ++trail_.times["moved to a longer range"];
        const Int first = r.range_first;
        const Int count = r.range_count;
        take(r, larger(r, upto));  // it is copied, so both are there for a moment
        give(first, count);
    }
    void publish(Request&, Int) override {}
    void release(Request& r) override {
        give(r.range_first, r.range_count);
        r.range_first = r.range_count = 0;
    }
    [[nodiscard]] Int held(const Request& r) const override { return r.range_count; }
    [[nodiscard]] std::vector<Int> shown(const Request& r, Int held, bool grown) const override {
        if (held == 0 || grown) return {r.range_first, r.range_count};
        return {};
    }
    void check(const std::map<RequestId, Request>& requests, const Ids& running) const override {
        std::vector<Int> users(taken_.size(), 0);
        Int held = 0;
        for (const RequestId id : running) {
            const Request& r = requests.at(id);
            KVSIM_CHECK(r.range_count >= r.computed && r.range_count > 0, "computed beyond the range");
            held += r.range_count;
            for (Int slot = r.range_first; slot < r.range_first + r.range_count; ++slot) {
                KVSIM_CHECK(++users.at(at(slot)) == 1, "ranges do not overlap");
                KVSIM_CHECK(taken_[at(slot)], "a range's slots are taken");
            }
        }
        KVSIM_CHECK(held == held_, "what is held is in somebody's range");
    }

private:
    [[nodiscard]] Int chunk(Int count) const {
        Int size = 1;
        while (size < count) size *= 2;
        return buddy_ ? size : count;
    }
    /// Where a range would go; -1: nowhere. Buddy: free chunks are those of the largest size at a multiple of it that are
    /// wholly free; the smallest that is large enough, the first of equal ones.
    [[nodiscard]] Int place(Int count) const {
        const Int wanted = chunk(count);
        Int best = -1;
        Int best_size = 0;
        for (Int slot = 0; slot < length(taken_);) {
            if (taken_[at(slot)]) {
                ++slot;
                continue;
            }
            Int size = 1;
            if (buddy_) {
                const bool aligned = !is_unaligned();
                while ((!aligned || slot % (2 * size) == 0) && all_free(slot, 2 * size)) size *= 2;
            } else {
                while (all_free(slot, size + 1)) ++size;
            }
            const bool better = best == -1 || ((buddy_ || wrong_ == PolicyMutation::best_fit) && size < best_size);
            if (size >= wanted && better) {
                best = slot;
                best_size = size;
            }
            slot += size;
        }
        return best;
    }
    [[nodiscard]] bool is_unaligned() const { return wrong_ == PolicyMutation::buddy_unaligned; }
    [[nodiscard]] bool all_free(Int first, Int count) const {
        if (first + count > length(taken_)) return false;
        for (Int slot = first; slot < first + count; ++slot) {
            if (taken_[at(slot)]) return false;
        }
        return true;
    }
    [[nodiscard]] Int need(Int count) const {
        if (place(count) >= 0) return count;
        if (count <= free()) ++trail_.times["no range, though enough is free"];
        return usable() + 1;
    }
    [[nodiscard]] Int reserved(const Request& r, Int upto) const {
        Int count = longest_;
        if (policy_ == "contiguous-exact") count = r.believed_end();
        if (policy_ == "contiguous-pow2") {
            Int outputs = 1;
            while (outputs < r.believed()) outputs *= 2;
            count = r.prompt_tokens + (wrong_ == PolicyMutation::range_not_rounded ? r.believed() : outputs);
        }
        return std::max(std::min(count, longest_), upto);
    }
    [[nodiscard]] Int larger(const Request& r, Int upto) const { return std::max(std::min(2 * r.range_count, longest_), upto); }
    void take(Request& r, Int count) {
        r.range_first = place(count);
        r.range_count = count;
        KVSIM_CHECK(r.range_first >= 0, "a range is taken only where it fits");
        mark(r.range_first, count, true);
        held_ += count;
    }
    void give(Int first, Int count) {
        mark(first, count, false);
        held_ -= count;
    }
    /// What a range leaves of its chunk is nobody's.
    void mark(Int first, Int count, bool taken) {
        for (Int slot = first; slot < first + chunk(count); ++slot) taken_.at(at(slot)) = taken;
    }

    NaiveTrail& trail_;
    std::string policy_;
    bool buddy_;
    std::vector<bool> taken_;
    Int longest_;
    Int held_ = 0;
    PolicyMutation wrong_;
};

// ---- the engine

class NaivePolicies final : public NaiveMachine {
public:
    NaivePolicies(const EngineArgs& args, const NaivePolicy& policy, const StepTimeModel& step_time, NaiveTrail& trail,
                  PolicyMutation wrong)
        : args_(args), policy_(policy), step_time_(step_time), trail_(trail), wrong_(wrong), cpu_free_(args.v0.num_cpu_blocks) {
        if (policy_.kv.name == "paged" || policy_.kv.name == "radix") {
            kv_ = std::make_unique<Blocks>(args_, policy_.kv, now_, trail_, wrong_);
        } else {
            kv_ = std::make_unique<Ranges>(args_, policy_.kv, trail_, wrong_);
        }
    }

    void add(NaiveRequest request) override {
        Request r;
        static_cast<NaiveRequest&>(r) = std::move(request);
        r.limit = std::min(r.max_tokens, args_.max_model_len - r.prompt_tokens);
        r.predicted = std::clamp<Int>(predict(r), 1, args_.max_model_len - r.prompt_tokens);
        r.stubborn = is(PolicyMutation::believed_is_predicted);
        r.place = ++last_place_;
        joins(r);
        requests_.emplace(r.id, r);
        waiting_.push_back(r.id);
    }

    NaiveBatch schedule(Int step, SimTime now) override {
        now_ = now;
        batch_ = {};
        batch_.record.step = step;
        batch_.transfer_overlaps = args_.v0.swap_overlaps;
        budget_ = args_.max_num_batched_tokens;
        stopped_by_blocks_ = stopped_by_budget_ = shortage_ = batch_runs_ = sorted_ = false;
        for (auto& [id, r] : requests_) r.lost_this_step = false;
        back_from_cpu_.clear();
        promote();

        if (policy_.style == "vllm-v1") {
            step_of_vllm_v1();
        } else if (policy_.style == "static") {
            step_of_static();
        } else if (policy_.style == "iteration") {
            step_of_iteration();
        } else if (policy_.style == "past-future") {
            step_of_past_future();
        } else {
            step_of_decode_first();
        }

        for (ScheduledRow& row : batch_.record.scheduled) {
            Request& r = requests_.at(row.id);
            row.blocks = kv_->shown(r, held_before_.at(row.id).first, held_before_.at(row.id).second);
            batch_.record.total_tokens += row.tokens;
            // Who comes back from the CPU was not looked up in the cache.
            batch_.tokens_present.push_back(back_from_cpu_.count(row.id) > 0 ? 0 : r.size());
            batch_.recomputed.push_back(std::max<Int>(0, std::min(row.computed + row.tokens, r.most_computed) - row.computed));
            r.computed = row.computed + row.tokens;
            r.scheduled += row.tokens;
            served(r, row.tokens);
            r.most_computed = std::max(r.most_computed, r.computed);
            const bool samples = r.computed >= r.size() + r.in_flight;
            batch_.samples.push_back(samples);
            if (samples && args_.async_scheduling) ++r.in_flight;
        }
        batch_.record.free_after_schedule = free_blocks();
        batch_.record.total_tokens += length(batch_.idle_contexts);
        if (batch_runs_) {
            batch_.bound = waiting_.empty() ? Bound::no_waiting : closed_by_;
        } else if (shortage_ || stopped_by_blocks_) {
            batch_.bound = Bound::kv_blocks;
        } else if (!waiting_.empty() && length(running_) == args_.max_num_seqs) {
            batch_.bound = Bound::seats;
        } else if (budget_ == 0 || stopped_by_budget_) {
            batch_.bound = Bound::token_budget;
        }
        // What a step without rows moves is paid for by the next one.
        if (!batch_.empty()) {
            batch_.transfer =
                SimDuration(std::llround(static_cast<double>(std::exchange(moved_blocks_, 0)) * args_.v0.swap_ns_per_block));
        }
        check_batch();
        return batch_;
    }

    void update(const NaiveBatch& batch, StepRecord& record, SimTime now) override {
        now_ = now;
        for (std::size_t row = 0; row < batch.record.scheduled.size(); ++row) {
            Request& r = requests_.at(batch.record.scheduled[row].id);
            if (r.aborted || !batch.samples[row]) continue;
            KVSIM_CHECK(!r.finished, "a token for a request that has finished");
            r.tokens.push_back(r.output_base + static_cast<std::uint64_t>(r.outputs()));
            record.received.push_back(r.id);
            const bool runs = std::count(running_.begin(), running_.end(), r.id) > 0;
            if (args_.async_scheduling) {
                --r.in_flight;
                if (runs) kv_->publish(r, r.computed - r.in_flight);
            }
            got_output(r);
            if (r.outputs() < r.limit) continue;
            record.finished.push_back(r.id);
            finished_.push_back({r.request_class, r.outputs()});
            leave(r);
        }
    }

    void abort(RequestId id) override {
        requests_.at(id).aborted = true;
        leave(requests_.at(id));
    }

    [[nodiscard]] const Ids& running() const override { return running_; }
    [[nodiscard]] Ids waiting() const override {
        if (by_cache()) return waiting_;
        Ids sorted = waiting_;
        std::sort(sorted.begin(), sorted.end(), [this](RequestId a, RequestId b) {
            return std::pair(key(a), request(a).name) < std::pair(key(b), request(b).name);
        });
        return sorted;
    }
    [[nodiscard]] const NaiveRequest& request(RequestId id) const override { return requests_.at(id); }
    [[nodiscard]] Int free_blocks() const override { return kv_->free(); }
    [[nodiscard]] Int usable_blocks() const override { return kv_->usable(); }
    [[nodiscard]] Int used_blocks() const override { return kv_->usable() - kv_->free(); }
    [[nodiscard]] bool can_ever_fit(Int tokens) const override { return blocks(tokens) <= kv_->usable(); }
    [[nodiscard]] bool starts_alone(Int prompt) const override {
        if (is(PolicyMutation::watermark_refuses_nobody)) return true;
        Int first = prompt;
        if (args_.enable_chunked_prefill && admission_name() != "full-input") {
            first = std::min(threshold(prompt), args_.max_num_batched_tokens);
            if (policy_.context_chunking == "equal_progress") first = std::min(first, args_.block_size);
        }
        if (blocks(first) <= kv_->usable() - watermark()) return true;
        note("kept out by the watermark");
        return false;
    }
    [[nodiscard]] bool can_ever_end(Int prompt, Int outputs) const override {
        if (policy_.style != "no-evict" && policy_.preemption != "none") return true;
        const Int limit = std::max(std::min(outputs, args_.max_model_len - prompt), policy_.max_new_tokens);
        return blocks(std::min(prompt + limit - 1, args_.max_model_len)) <= kv_->usable() - watermark();
    }
    [[nodiscard]] Int slots_per_block() const override { return args_.block_size; }
    [[nodiscard]] std::pair<Int, Int> unfilled(const NaiveRequest& request, Int last) const override {
        const Request& r = requests_.at(request.id);
        std::pair<Int, Int> slots{0, 0};
        for (Int slot = r.computed; slot < kv_->held(r) * args_.block_size; ++slot)
            ++(slot < last ? slots.first : slots.second);
        return slots;
    }
    void check_invariants() const override {
        Int on_cpu = 0;
        for (const auto& [id, r] : requests_) {
            const auto runs = std::count(running_.begin(), running_.end(), id);
            const auto waits = std::count(waiting_.begin(), waiting_.end(), id);
            KVSIM_CHECK(runs + waits + r.finished == 1, "a request is in exactly one place");
            KVSIM_CHECK(r.swapped == 0 || waits == 1, "only those that wait are on the CPU");
            KVSIM_CHECK(r.computed <= r.size() + r.in_flight, "nothing is computed before it is there");
            on_cpu += r.swapped;
        }
        KVSIM_CHECK(on_cpu + cpu_free_ == args_.v0.num_cpu_blocks, "the CPU's blocks are those of swapped requests");
        KVSIM_CHECK(length(running_) <= args_.max_num_seqs || is(PolicyMutation::one_seat_more), "seats are never exceeded");
        kv_->check(requests_, running_);
    }

private:
    static constexpr Int unlimited = Int{1} << 40;
    [[nodiscard]] bool is(PolicyMutation m) const { return wrong_ == m; }
    [[nodiscard]] Int blocks(Int tokens) const { return ceil_div(tokens, args_.block_size); }
    Request& get(RequestId id) { return requests_.at(id); }
    void note(const std::string& what) const { ++trail_.times[what]; }

    // ---- what every style has

    [[nodiscard]] Int watermark() const {
        if (is(PolicyMutation::no_watermark)) return 0;
        return static_cast<Int>(std::floor(args_.watermark * static_cast<double>(args_.num_gpu_blocks)));
    }

    [[nodiscard]] Hit start_of(const Request& r) const {
        if (r.swapped == 0) return kv_->lookup(r);
        Hit hit;
        hit.tokens = r.computed;
        return hit;
    }

    [[nodiscard]] bool may_admit(const Request& head, Int n) {
        const Hit start = start_of(head);
        const Int free = kv_->free() - watermark();
        const Hit found = head.swapped > 0 ? Hit{} : start;
        if (kv_->need_at_start(head, found, start.tokens + n) > free) return false;
        if (policy_.max_live_tokens > 0 && !running_.empty() && !is(PolicyMutation::live_tokens_unbounded)) {
            Int live = is(PolicyMutation::live_tokens_without_head) ? 0 : head.size();
            for (const RequestId id : running_) live += get(id).size();
            if (live > policy_.max_live_tokens) {
                note("max_live_tokens");
                return false;
            }
        }
        const bool by_rule = rule_admits(head, found, free);
        if (!by_rule) note("refused by " + admission_name());
        return by_rule;
    }

    [[nodiscard]] std::string admission_name() const {
        if (!policy_.admission.name.empty()) return policy_.admission.name;
        return args_.scheduler_reserve_full_isl ? "full-input" : "optimistic";
    }
    /// Of no-evict: its end, if it goes on to what its client asks for.
    [[nodiscard]] Int end_of(const Request& r) const {
        const Int asked = is(PolicyMutation::no_evict_ignores_what_is_asked_for) ? 0 : policy_.max_new_tokens;
        if (asked > r.limit) note("more is asked for");
        return std::min(r.prompt_tokens + std::max(r.limit, asked) - 1, args_.max_model_len);
    }
    [[nodiscard]] Int believed_end(const Request& r) const { return std::min(r.believed_end(), args_.max_model_len); }

    [[nodiscard]] bool rule_admits(const Request& head, const Hit& hit, Int free) {
        const std::string rule = admission_name();
        const Int whole = kv_->need_at_start(head, hit, std::min(head.size(), args_.max_model_len));
        if (policy_.style == "no-evict" && !is(PolicyMutation::no_evict_without_guarantee)) {
            Int need = kv_->need_at_start(head, hit, end_of(head));
            for (const RequestId id : running_) {
                const Request& r = get(id);
                need += std::max<Int>(0, blocks(end_of(r)) - (is(PolicyMutation::no_evict_forgets_held) ? 0 : kv_->held(r)));
            }
            if (need > free) {
                note("refused by no-evict");
                return false;
            }
        }
        if (is(PolicyMutation::admission_optimistic)) return true;
        if (rule == "full-input") return whole <= free;
        if ((rule == "expected" || rule == "past-future") && running_.empty()) return true;  // its first step has room
        if (rule == "expected") {
            Int need = kv_->need_at_start(head, hit, believed_end(head));
            for (const RequestId id : running_) {
                const Request& r = get(id);
                if (is(PolicyMutation::expected_ignores_running)) continue;
                need += std::max<Int>(0, blocks(believed_end(r)) - kv_->held(r));
            }
            return need <= free;
        }
        if (rule == "past-future") {
            std::vector<std::pair<Int, Int>> by_rest;  // tokens to come, tokens so far
            if (!is(PolicyMutation::past_future_ignores_head)) by_rest.emplace_back(head.to_come(), head.size());
            for (const RequestId id : running_) by_rest.emplace_back(get(id).to_come(), get(id).size());
            std::sort(by_rest.rbegin(), by_rest.rend());
            Int peak = 0;
            Int sum = 0;
            for (std::size_t i = 0; i < by_rest.size(); ++i) {
                sum += by_rest[i].second;
                peak = std::max(peak, sum + static_cast<Int>(i + 1) * by_rest[i].first);
            }
            return blocks(peak) <= kv_->usable() - watermark();
        }
        return true;
    }

    /// The head of the queue starts with n tokens.
    void admit(Int n) {
        Request& r = get(head());
        const Hit start = start_of(r);
        std::erase(waiting_, r.id);
        const auto kind = r.was_preempted ? ScheduledRow::Kind::resumed : ScheduledRow::Kind::fresh;
        kv_->start(r, r.swapped > 0 ? Hit{} : start, start.tokens + n);
        const bool comes_back = r.swapped > 0;
        if (comes_back) {
            back_from_cpu_.insert(r.id);
            note("swapped in");
            move(r.swapped);
            cpu_free_ += r.swapped;
            r.swapped = 0;
        }
        if (start.blocks > 0) note("prefix hit");
        r.computed = start.tokens;
        kv_->publish(r, start.tokens + n);
        running_.push_back(r.id);
        started(r);
        r.admitted_before = true;
        batch_.record.scheduled.push_back({r.id, n, start.tokens, kind, {}, {}});
        batch_.hit_tokens.push_back(comes_back ? 0 : start.tokens);
        held_before_[r.id] = {0, true};
        budget_ -= n;
    }

    void move(Int moved) { moved_blocks_ += is(PolicyMutation::swap_is_free) ? 0 : moved; }

    /// It loses its blocks and its row.
    void preempt(RequestId id) {
        Request& r = get(id);
        std::erase(running_, id);
        std::vector<ScheduledRow>& rows = batch_.record.scheduled;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            if (rows[i].id != id) continue;
            note("row dropped");
            if (!is(PolicyMutation::preempted_row_stays_paid)) budget_ += rows[i].tokens;
            rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(i));
            batch_.hit_tokens.erase(batch_.hit_tokens.begin() + static_cast<std::ptrdiff_t>(i));
            break;
        }
        // What only the dropped row would have filled holds nothing to move.
        const Int held = blocks(r.computed);
        kv_->release(r);
        if (swaps(r, held)) {
            note("swapped out");
            r.swapped = held;
            cpu_free_ -= held;
            batch_.swapped_tokens += r.computed;
            move(held);
        } else {
            if (r.computed > 0) note("recompute");
            r.computed = 0;
        }
        r.was_preempted = true;
        r.lost_this_step = true;
        ++r.preemptions;
        batch_.record.preempted.push_back(id);
        const bool back = policy_.requeue == "back" && !is(PolicyMutation::requeue_front);
        r.place = back ? ++last_place_ : --first_place_;
        waiting_.push_back(id);
    }

    [[nodiscard]] bool swaps(const Request& r, Int held) {
        if (policy_.preemption == "recompute" || policy_.preemption == "none" || held == 0) return false;
        if (held > cpu_free_) {
            note("CPU full");
            if (!is(PolicyMutation::swap_has_all_room)) return false;
        }
        if (is(PolicyMutation::swap_loses_computed)) return false;
        if (policy_.preemption == "swap") return true;
        if (is(PolicyMutation::never_cheaper)) return true;
        StepShape shape;
        const std::vector<PrefillChunk> chunks{{r.computed, 0}};
        shape.tokens = r.computed;
        shape.sequences = shape.sampled = 1;
        if (r.computed == 1) {
            shape.decode_rows = shape.decode_context = 1;
        } else {
            shape.chunks = chunks;
        }
        const bool swap = 2 * static_cast<double>(held) * args_.v0.swap_ns_per_block <
                          static_cast<double>(step_time_.duration(shape).count());
        note(swap ? "swap is cheaper" : "recompute is cheaper");
        return swap;
    }

    /// Makes room for n tokens more; false: it was preempted itself.
    bool make_room(Request& r, Int n) {
        while (kv_->lacks(r, r.computed + n) > kv_->free()) {
            const RequestId victim = pick_victim();
            shortage_ = true;
            note("shortage");
            preempt(victim);
            if (victim == r.id) return false;
        }
        return true;
    }

    void row_for(Request& r, Int n) {
        held_before_[r.id] = {kv_->held(r), kv_->lacks(r, r.computed + n) > 0};
        kv_->grow(r, r.computed + n);
        kv_->publish(r, std::min(r.computed + n, r.size()));
        batch_.record.scheduled.push_back({r.id, n, r.computed, ScheduledRow::Kind::running, {}, {}});
        batch_.hit_tokens.push_back(0);
        budget_ -= n;
    }

    [[nodiscard]] bool last_token_in_flight(const Request& r) const {
        return r.in_flight > 0 && r.outputs() + r.in_flight >= r.limit;
    }

    [[nodiscard]] Int threshold(Int n) const {
        return args_.long_prefill_token_threshold > 0 ? std::min(n, args_.long_prefill_token_threshold) : n;
    }

    [[nodiscard]] bool seat_free() const {
        return length(running_) < args_.max_num_seqs + (is(PolicyMutation::one_seat_more) ? 1 : 0);
    }

    /// Whether the step may still admit: nobody lost its blocks to a shortage.
    [[nodiscard]] bool admits() const { return !shortage_ || is(PolicyMutation::admits_after_preemption); }

    /// New tokens of the head's first row within the budget; nothing: it waits for more of it.
    [[nodiscard]] std::optional<Int> first_row(const Request& head) {
        Int n = threshold(head.size() - start_of(head).tokens);
        if (!args_.enable_chunked_prefill && n > budget_) return std::nullopt;
        return std::min(n, budget_);
    }

    void admit_queue() {
        const bool whole = policy_.style == "static" || policy_.style == "iteration";
        while (admits() && !waiting_.empty() && budget_ > 0 && admit_head(whole, unlimited)) {}
    }

    /// The head starts, with at most `most` tokens, or somebody makes place for it; false: it does not.
    bool admit_head(bool whole, Int most) {
        // Where nobody displaces, nobody looks at the queue of a full house.
        if (!seat_free() && (policy_.style == "static" || policy_.style == "no-evict")) return false;
        const Request& next = get(head());
        if (!seat_free()) return displace();
        if (next.lost_this_step) {
            note("the displaced stands at the head");
            stopped_by_blocks_ = true;
            return false;
        }
        Int n = next.size() - start_of(next).tokens;
        if (!whole) {
            n = threshold(n);
            if (!args_.enable_chunked_prefill && n > budget_) {
                note("a whole prompt waits for the budget");
                stopped_by_budget_ = true;
                return false;
            }
            n = std::min({n, budget_, most});
        }
        if (is(PolicyMutation::iteration_has_a_budget) && n > budget_) return false;
        if (!may_admit(next, n)) {
            if (displace()) return true;
            stopped_by_blocks_ = true;
            return false;
        }
        admit(n);
        return true;
    }

    /// The worst running request gives way to the head.
    bool displace() {
        if (!preempts() || is(PolicyMutation::displaces_never) || running_.empty()) return false;
        const Request& next = get(head());
        if (next.lost_this_step) return false;
        RequestId worst = running_.front();
        for (const RequestId id : running_) {
            const bool larger = rank(id) > rank(worst);
            if (larger || (rank(id) == rank(worst) && !is(PolicyMutation::displaces_first_of_ties))) worst = id;
        }
        const bool strictly = rank(next.id) < rank(worst);
        if (!strictly && !(is(PolicyMutation::displaces_equals) && rank(next.id) == rank(worst))) return false;
        note("displaced");
        preempt(worst);
        return true;
    }

    void check_batch() const {
        Int tokens = 0;
        for (const ScheduledRow& row : batch_.record.scheduled) {
            const auto n = std::count_if(batch_.record.scheduled.begin(), batch_.record.scheduled.end(),
                                         [&](const ScheduledRow& other) { return other.id == row.id; });
            KVSIM_CHECK(n == 1, "a request has one row");
            KVSIM_CHECK(row.tokens > 0, "a row has tokens");
            tokens += row.tokens;
        }
        const bool budgeted = policy_.style != "static" && policy_.style != "iteration";
        KVSIM_CHECK(!budgeted || tokens <= args_.max_num_batched_tokens || is(PolicyMutation::preempted_row_stays_paid),
                    "the token budget is never exceeded");
        KVSIM_CHECK(
            !budgeted || tokens + budget_ == args_.max_num_batched_tokens || is(PolicyMutation::preempted_row_stays_paid),
            "what is left of the budget and the rows make all of it");
    }

    /// Who is admitted next. By what is cached the queue is sorted once a step, when its first head is chosen.
    [[nodiscard]] RequestId head() {
        if (by_cache() && !sorted_) {
            sorted_ = true;
            std::sort(waiting_.begin(), waiting_.end(), [this](RequestId a, RequestId b) {
                return std::pair(request(a).arrival_time, request(a).name) <
                       std::pair(request(b).arrival_time, request(b).name);
            });
            if (policy_.order.name == "dfs-weight" && !is(PolicyMutation::dfs_in_order_of_arrival)) {
                waiting_ = walk(waiting_, 0);
            } else if (policy_.order.name == "lpm" && length(waiting_) <= 128 && !is(PolicyMutation::lpm_in_order_of_arrival)) {
                std::stable_sort(waiting_.begin(), waiting_.end(), [this](RequestId a, RequestId b) {
                    return kv_->lookup(get(a)).blocks > kv_->lookup(get(b)).blocks;
                });
            }
        }
        return waiting().front();
    }
    [[nodiscard]] bool by_cache() const { return policy_.order.name == "lpm" || policy_.order.name == "dfs-weight"; }

    /// Of requests (in order of arrival) whose cached prefixes agree in `depth` blocks: those of the heaviest branch first, of
    /// equal ones that with the earliest arrival; those whose prefix ends here last.
    [[nodiscard]] Ids walk(const Ids& ids, Int depth) {
        std::vector<Ids> branches;
        Ids ended;
        for (const RequestId id : ids) {
            const Request& r = get(id);
            if (kv_->lookup(r).blocks <= depth) {
                ended.push_back(id);
                continue;
            }
            const Int end = (depth + 1) * args_.block_size;
            const auto same = [&](const Ids& branch) {
                const Request& other = get(branch.front());
                return std::equal(r.tokens.begin(), r.tokens.begin() + end, other.tokens.begin());
            };
            const auto branch = std::find_if(branches.begin(), branches.end(), same);
            if (branch == branches.end()) {
                branches.push_back({id});
            } else {
                branch->push_back(id);
            }
        }
        std::stable_sort(branches.begin(), branches.end(), [](const Ids& a, const Ids& b) { return a.size() > b.size(); });
        if (branches.size() > 1) note("branches of the prefix tree");
        Ids out;
        for (const Ids& branch : branches) {
            const Ids below = walk(branch, depth + 1);
            out.insert(out.end(), below.begin(), below.end());
        }
        out.insert(out.end(), ended.begin(), ended.end());
        return out;
    }

    // ---- styles

    void step_of_vllm_v1() {
        Int i = 0;
        while (i < length(running_) && budget_ > 0) {
            Request& r = get(running_[at(i)]);
            Int n = std::min({threshold(r.pending()), budget_, args_.max_model_len - 1 - r.computed});
            if (last_token_in_flight(r) || n <= 0) {
                ++i;
                continue;
            }
            while (kv_->lacks(r, r.computed + n) > kv_->free()) {
                const RequestId victim = pick_victim();
                const Int rows = length(batch_.record.scheduled);
                shortage_ = true;
                note("shortage");
                preempt(victim);
                if (length(batch_.record.scheduled) < rows) --i;  // vLLM looks at the row, not at the place in the list
                if (victim == r.id) {
                    admit_queue();
                    return;
                }
            }
            row_for(r, n);
            ++i;
        }
        admit_queue();
    }

    void give_rows(const Ids& to, bool decodes, Int most = unlimited) {
        for (const RequestId id : to) {
            if (std::count(running_.begin(), running_.end(), id) == 0) continue;  // it was preempted meanwhile
            Request& r = get(id);
            if (last_token_in_flight(r) || (r.pending() == 1) != decodes) continue;
            const Int n = std::min({threshold(r.pending()), budget_, args_.max_model_len - 1 - r.computed, most});
            if (n <= 0) continue;
            if (make_room(r, n)) row_for(r, n);
        }
    }

    /// Each prompt in turn gets a block.
    void equal_progress(const Ids& prompts) {
        give_rows(prompts, false, args_.block_size);
        while (admits() && !waiting_.empty() && budget_ > 0 && admit_head(false, args_.block_size)) {}
        for (bool some = true; some;) {
            some = false;
            for (ScheduledRow& row : batch_.record.scheduled) {
                Request& r = get(row.id);
                const Int all = threshold(r.size() + r.in_flight - row.computed);
                const Int n = std::min({all - row.tokens, args_.block_size, budget_});
                if (n <= 0) continue;
                const Int end = row.computed + row.tokens + n;
                if (kv_->lacks(r, end) > kv_->free()) {
                    note("equal progress lacks blocks");
                    continue;
                }
                note("equal progress");
                kv_->grow(r, end);
                kv_->publish(r, std::min(end, r.size()));
                row.tokens += n;
                budget_ -= n;
                some = true;
            }
        }
    }

    void step_of_decode_first() {
        Ids prompts;
        Ids decodes;
        for (const RequestId id : running_) (get(id).pending() == 1 ? decodes : prompts).push_back(id);
        if (is(PolicyMutation::prompts_before_decodes)) give_rows(prompts, false);
        give_rows(decodes, true);
        if (policy_.context_chunking == "equal_progress" && !is(PolicyMutation::chunks_one_after_the_other)) {
            equal_progress(prompts);
            return;
        }
        if (!is(PolicyMutation::prompts_before_decodes)) give_rows(prompts, false);
        admit_queue();
    }

    void step_of_past_future() {
        const auto& rows = batch_.record.scheduled;
        const auto decode = [this] {
            budget_ = args_.max_num_batched_tokens;
            const Ids before = running_;
            give_rows(before, true);
            if (!batch_.record.scheduled.empty()) ++decode_steps_;
        };
        const bool turn_of_decodes = decode_steps_ < policy_.wait_tokens && !is(PolicyMutation::prompts_do_not_wait);
        if (turn_of_decodes) decode();
        if (!rows.empty()) {
            note("prompts wait for decodes");
            stopped_by_budget_ = !waiting_.empty();
            return;
        }
        budget_ = args_.max_num_batched_tokens;
        const Ids before = running_;
        give_rows(before, false);
        admit_queue();
        if (!rows.empty()) {
            note("prompt step");
            decode_steps_ = 0;
            if (is(PolicyMutation::past_future_decodes_beside)) give_rows(before, true);
        } else if (!turn_of_decodes) {
            decode();
        }
    }

    void step_of_iteration() {
        budget_ = is(PolicyMutation::iteration_has_a_budget) ? args_.max_num_batched_tokens : unlimited;
        const Ids before = running_;
        for (const RequestId id : before) {
            if (std::count(running_.begin(), running_.end(), id) == 0) continue;
            Request& r = get(id);
            const Int n = std::min(r.pending(), args_.max_model_len - 1 - r.computed);
            if (last_token_in_flight(r) || n <= 0) continue;
            if (make_room(r, n)) row_for(r, n);
        }
        admit_queue();
    }

    void step_of_static() {
        budget_ = unlimited;
        if (running_.empty() || is(PolicyMutation::static_admits_while_running)) {
            admit_queue();
            if (longest_left() > 1) {
                // Who lacks one token alone gets it with the others.
                std::vector<ScheduledRow>& rows = batch_.record.scheduled;
                for (std::size_t i = 0; i < rows.size();) {
                    if (left(get(rows[i].id)) > 1 || --rows[i].tokens > 0) {
                        ++i;
                        continue;
                    }
                    idle(get(rows[i].id));
                    const Request& r = get(rows[i].id);
                    const Int present = back_from_cpu_.count(r.id) > 0 ? 0 : r.size();
                    batch_.started_idle.push_back({r.id, rows[i].kind, batch_.hit_tokens[i], present});
                    rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(i));
                    batch_.hit_tokens.erase(batch_.hit_tokens.begin() + static_cast<std::ptrdiff_t>(i));
                }
            }
            closed_by_ = stopped_by_blocks_ ? Bound::kv_blocks : Bound::seats;
            return;
        }
        const bool last = longest_left() <= 1;
        const Ids before = running_;
        for (const RequestId id : before) {
            if (std::count(running_.begin(), running_.end(), id) == 0) continue;
            Request& r = get(id);
            if (left(r) == 1 && !last && !is(PolicyMutation::static_ends_one_by_one)) continue;
            if (make_room(r, 1)) row_for(r, 1);
        }
        for (const RequestId id : running_) {
            const auto same = [id](const ScheduledRow& row) { return row.id == id; };
            if (std::none_of(batch_.record.scheduled.begin(), batch_.record.scheduled.end(), same)) idle(get(id));
        }
        if (shortage_) closed_by_ = Bound::kv_blocks;
        batch_runs_ = true;
    }

    [[nodiscard]] static Int left(const Request& r) { return r.limit - r.outputs() - r.in_flight; }
    [[nodiscard]] Int longest_left() const {
        Int most = 0;
        for (const RequestId id : running_) most = std::max(most, left(requests_.at(id)));
        return most;
    }
    void idle(Request& r) {
        note("idle row");
        batch_.idle_contexts.push_back(r.computed + 1);
        ++r.scheduled;
    }

    // ---- orders

    [[nodiscard]] bool preempts() const {
        const std::string& order = policy_.order.name;
        return (order == "srpt" || order == "mlfq") && policy_.style != "static" && policy_.style != "no-evict";
    }

    /// What the order goes by, the smallest first; ties follow by arrival.
    [[nodiscard]] std::vector<double> rank(RequestId id) const {
        const Request& r = requests_.at(id);
        const NaivePolicy::Piece& order = policy_.order;
        const auto arrived = static_cast<double>(r.arrival.time_since_epoch().count());
        if (is(PolicyMutation::order_is_arrival)) return {};
        if (order.name == "fcfs") return {static_cast<double>(r.place)};
        if (order.name == "priority") {
            const auto aging = static_cast<double>(order.ns("aging", 0));
            const auto priority = static_cast<double>(r.priority);
            if (aging == 0 || is(PolicyMutation::no_aging)) return {priority};
            return {priority * aging + arrived};
        }
        if (order.name == "sjf" || order.name == "ljf") {
            const std::string by = order.text("by", "total");
            const Int outputs = is(PolicyMutation::prediction_is_true) ? r.limit : r.predicted;
            const Int size = (by == "output" ? 0 : r.prompt_tokens) + (by == "prompt" ? 0 : outputs);
            return {static_cast<double>(order.name == "sjf" ? size : -size)};
        }
        if (order.name == "srpt") {
            return {static_cast<double>(r.believed_end() - (is(PolicyMutation::srpt_ignores_computed) ? 0 : r.computed))};
        }
        if (order.name == "edf" || order.name == "slo-slack") return {deadline(r, order.name == "slo-slack")};
        if (order.name == "mlfq") return {static_cast<double>(r.level)};
        if (order.name == "vtc") return {counters_.count(payer(r)) > 0 ? counters_.at(payer(r)) : 0};
        if (order.name == "random")
            return {static_cast<double>(StreamKey(policy_.seed, "scheduling_policy").first_u64(r.number))};
        return {};
    }

    [[nodiscard]] std::vector<double> key(RequestId id) const {
        const Request& r = requests_.at(id);
        std::vector<double> k = rank(id);
        if (policy_.order.name == "mlfq") k.push_back(static_cast<double>(r.level_joined));
        k.push_back(static_cast<double>(is(PolicyMutation::ties_latest_first) ? -r.arrival_time : r.arrival_time));
        return k;
    }

    [[nodiscard]] double deadline(const Request& r, bool slack) const {
        const auto own = policy_.slos.find(is(PolicyMutation::deadline_of_scenario) ? "" : r.request_class);
        const auto all = policy_.slos.find("");
        const NaivePolicy::Slo slo = own != policy_.slos.end()   ? own->second
                                     : all != policy_.slos.end() ? all->second
                                                                 : NaivePolicy::Slo{};
        const auto arrived = static_cast<double>(r.arrival.time_since_epoch().count());
        if (!slo.ttft && !slo.e2e) return HUGE_VAL;
        const bool first = slo.ttft && (!slo.e2e || r.outputs() == 0 || is(PolicyMutation::deadline_stays_first_token));
        double due = arrived + static_cast<double>(first ? slo.ttft->count() : slo.e2e->count());
        if (slack && slo.tpot && !first && !is(PolicyMutation::slack_is_deadline)) {
            due -= static_cast<double>(r.to_come()) * static_cast<double>(slo.tpot->count());
        }
        return due;
    }

    // What orders that go by service see.
    [[nodiscard]] Int quantum(Int level) const { return policy_.order.whole("quantum", 256) << level; }
    [[nodiscard]] Int levels() const { return policy_.order.whole("levels", 6); }
    void join_level(Request& r, Int level) {
        r.level = level;
        r.level_joined = ++last_joined_;
        r.level_used = 0;
    }
    [[nodiscard]] static std::string payer(const Request& r) { return r.tenant.empty() ? r.request_class : r.tenant; }

    void joins(Request& r) {
        if (policy_.order.name == "mlfq") {
            Int level = 0;
            while (level + 1 < levels() && quantum(level) < r.prompt_tokens && !is(PolicyMutation::mlfq_all_join_first))
                ++level;
            join_level(r, level);
            r.last_served = r.arrival;
        }
        if (policy_.order.name != "vtc" || is(PolicyMutation::vtc_no_lift)) return;
        // A tenant of whom nobody waits is lifted to the least counter of those of whom somebody does; when nobody waits at
        // all, to that of the tenant whose request left the queue last.
        std::optional<double> least;
        for (const RequestId id : waiting_) {
            if (payer(get(id)) == payer(r)) return;
            const double counter = counters_[payer(get(id))];
            if (!least || counter < *least) least = counter;
        }
        if (!least && last_out_) least = counters_[*last_out_];
        if (least && *least > counters_[payer(r)]) {
            note("counter lifted");
            counters_[payer(r)] = *least;
        }
    }
    void started(Request& r) {
        last_out_ = payer(r);
        if (policy_.order.name != "vtc" || r.admitted_before || is(PolicyMutation::vtc_prompts_free)) return;
        counters_[payer(r)] +=
            policy_.order.number("input_weight", 1) * static_cast<double>(r.prompt_tokens) / weight(payer(r));
    }
    /// Its row is final.
    void served(Request& r, Int tokens) {
        if (policy_.order.name != "mlfq") return;
        r.last_served = now_;
        r.level_used += tokens;
        if (r.level_used < quantum(r.level) || r.level + 1 >= levels() || is(PolicyMutation::mlfq_stays)) return;
        note("a level down");
        join_level(r, r.level + 1);
    }
    /// Before a step: who has waited for too long goes up, the one that was served first before others.
    void promote() {
        if (policy_.order.name != "mlfq" || is(PolicyMutation::mlfq_never_promotes)) return;
        std::vector<std::tuple<SimTime, Int, Int, RequestId>> due;
        for (const RequestId id : waiting_) {
            const Request& r = get(id);
            if (r.level > 0 && (now_ - r.last_served).count() >= policy_.order.ns("promote", 10'000'000'000))
                due.emplace_back(r.last_served, r.level, r.level_joined, id);
        }
        std::sort(due.begin(), due.end());
        for (const auto& place : due) {
            note("promoted");
            join_level(get(std::get<RequestId>(place)), 0);
        }
    }
    void got_output(Request& r) {
        if (policy_.order.name != "vtc" || is(PolicyMutation::vtc_outputs_free)) return;
        counters_[payer(r)] += policy_.order.number("output_weight", 2) / weight(payer(r));
    }
    /// Of "{a: 2}", which names one tenant.
    [[nodiscard]] double weight(const std::string& tenant) const {
        const std::string weights = policy_.order.text("weights", "");
        if (is(PolicyMutation::vtc_no_weights) || tenant.empty() || !weights.starts_with("{" + tenant + ":")) return 1;
        return std::stod(weights.substr(weights.find(':') + 1));
    }

    // ---- predictors

    [[nodiscard]] Int predict(const Request& r) {
        const NaivePolicy::Piece& p = policy_.predictor;
        const RequestId number = is(PolicyMutation::outputs_draw_apart) ? r.id : r.number;
        if (p.name == "constant") return p.whole("tokens", 1);
        if (p.name == "max") return args_.max_model_len - r.prompt_tokens;
        if (p.name == "class-mean") {
            Int sum = 0;
            Int count = 0;
            for (const auto& [name, outputs] : finished_) {
                if (name != r.request_class && !is(PolicyMutation::class_mean_of_all)) continue;
                sum += outputs;
                ++count;
            }
            if (count == 0) return p.whole("initial", 256);
            note("class mean");
            return (2 * sum + count) / (2 * count);
        }
        const StreamKey draws(policy_.seed, "length_predictor");
        if (p.name == "noisy") {
            const double factor = std::exp(p.number("sd", 0) * normal_quantile(draws.first_uniform(number)));
            return static_cast<Int>(std::floor(std::min(static_cast<double>(r.limit) * factor, 1e15) + 0.5));
        }
        if (p.name == "bucket") {
            const std::vector<Int> bounds = p.list("bounds", {64, 256, 1024, 4096});
            std::vector<Int> values = bounds;
            values.push_back(2 * bounds.back());
            std::size_t right = 0;
            while (right < bounds.size() && r.limit > bounds[right]) ++right;
            Stream stream(draws, number);
            if (stream.uniform() < p.number("accuracy", 1)) return values[right];
            values.erase(values.begin() + static_cast<std::ptrdiff_t>(right));
            note("wrong bucket");
            return values[at(uniform_int(stream.uniform(), 0, length(values) - 1))];
        }
        if (p.name == "history") {
            const Int window = std::min(p.whole("window", 1000), length(finished_));
            if (window == 0) return p.whole("initial", 256);
            note("history");
            return finished_[at(length(finished_) - window + uniform_int(draws.first_uniform(number), 0, window - 1))].second;
        }
        return r.limit;
    }

    // ---- victims

    [[nodiscard]] RequestId pick_victim() {
        std::string rule = policy_.victim.name;
        if (rule.empty()) rule = policy_.order.name == "priority" ? "lowest-priority" : "last";
        if (is(PolicyMutation::victim_is_last)) rule = "last";
        note("victim by " + rule);
        if (rule == "random") {
            const double u = StreamKey(policy_.seed, "victim").first_uniform(victims_++);
            return running_[at(uniform_int(u, 0, length(running_) - 1))];
        }
        const bool first_of_ties =
            policy_.victim.name.empty() && policy_.order.name == "priority" && policy_.order.params.empty();  // as vLLM
        RequestId victim = running_.front();
        for (const RequestId id : running_) {
            const std::vector<double> a = worth_losing(id, rule);
            const std::vector<double> b = worth_losing(victim, rule);
            if (a > b || (a == b && !first_of_ties && !is(PolicyMutation::victim_ties_first))) victim = id;
        }
        return victim;
    }

    /// The largest is the victim.
    [[nodiscard]] std::vector<double> worth_losing(RequestId id, const std::string& rule) const {
        const Request& r = requests_.at(id);
        if (rule == "lowest-priority") return {static_cast<double>(r.priority), static_cast<double>(r.arrival_time)};
        if (rule == "latest-deadline") return {deadline(r, false)};
        if (rule == "most-blocks") return {static_cast<double>(kv_->held(r))};
        if (rule == "least-progress") return {-static_cast<double>(r.computed)};
        if (rule == "longest-remaining") return {static_cast<double>(r.to_come())};
        return {};
    }

    void leave(Request& r) {
        if (std::erase(running_, r.id) > 0) kv_->release(r);
        if (std::erase(waiting_, r.id) > 0) last_out_ = payer(r);
        cpu_free_ += std::exchange(r.swapped, 0);
        r.finished = true;
        r.computed = 0;
    }

    EngineArgs args_;
    NaivePolicy policy_;
    const StepTimeModel& step_time_;
    NaiveTrail& trail_;
    PolicyMutation wrong_;
    std::unique_ptr<Kv> kv_;
    std::map<RequestId, Request> requests_;
    Ids running_;
    Ids waiting_;
    Int last_place_ = 0;
    Int first_place_ = 0;
    Int last_joined_ = 0;
    Int cpu_free_;
    std::uint64_t victims_ = 0;  ///< drawn
    std::map<std::string, double> counters_;
    std::optional<std::string> last_out_;                ///< whose request left the queue last
    std::vector<std::pair<std::string, Int>> finished_;  ///< class and outputs, in order
    // The step being decided.
    SimTime now_{};
    NaiveBatch batch_;
    Int budget_ = 0;
    Int moved_blocks_ = 0;
    bool stopped_by_blocks_ = false;
    bool stopped_by_budget_ = false;
    bool shortage_ = false;
    Bound closed_by_ = Bound::seats;  ///< what ended the admission to the static batch
    bool batch_runs_ = false;
    bool sorted_ = false;
    Int decode_steps_ = unlimited;  ///< since the last step of prompts
    std::set<RequestId> back_from_cpu_;
    std::map<RequestId, std::pair<Int, bool>> held_before_;  ///< blocks before its row, and whether the row got some
};

}  // namespace

std::unique_ptr<NaiveMachine> make_naive_policies(const EngineArgs& args, const NaivePolicy& policy,
                                                  const StepTimeModel& step_time, NaiveTrail& trail, PolicyMutation mutation) {
    return std::make_unique<NaivePolicies>(args, policy, step_time, trail, mutation);
}

}  // namespace kvsim::oracle
