// By what is cached: longest cached prefix first, or a depth-first walk of the tree of cached prefixes (SGLang's cache-aware
// schedule policies). The queue is sorted once a step, when its first head is chosen.

#include <algorithm>
#include <deque>
#include <map>

#include "keyed_queue.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

/// Above so many SGLang leaves the order of arrival alone.
constexpr std::size_t lpm_limit = 128;

class PrefixQueue final : public WaitingQueue {
public:
    PrefixQueue(Engine& engine, bool depth_first) : engine_(engine), depth_first_(depth_first) {}

    void attach(KvManager& kv) override { kv_ = &kv; }
    void begin_step() override { sorted_ = false; }
    [[nodiscard]] std::size_t size() const override { return queue_.size(); }
    [[nodiscard]] Slot head() const override {
        if (!sorted_) sort();
        return queue_.front();
    }
    void push_new(Slot slot) override { queue_.push_back(slot); }
    void push_preempted(Slot slot) override { queue_.push_back(slot); }
    void pop_head() override { queue_.pop_front(); }
    void remove(Slot slot) override {
        const auto at = std::find(queue_.begin(), queue_.end(), slot);
        KVSIM_CHECK(at != queue_.end(), "a waiting request stands in its queue");
        queue_.erase(at);
    }
    [[nodiscard]] bool follows_steps() const override { return true; }
    [[nodiscard]] std::vector<Slot> in_order() const override { return {queue_.begin(), queue_.end()}; }

private:
    struct Found {
        Slot slot;
        std::int64_t blocks;  ///< cached
    };

    void sort() const {
        sorted_ = true;
        std::vector<Found> found;
        found.reserve(queue_.size());
        const bool by_cache = depth_first_ || queue_.size() <= lpm_limit;
        for (const Slot slot : queue_) found.push_back({slot, by_cache ? kv_->lookup(engine_.request(slot)).blocks : 0});
        std::sort(found.begin(), found.end(), [this](const Found& a, const Found& b) {
            if (!depth_first_ && a.blocks != b.blocks) return a.blocks > b.blocks;
            return came_before(engine_.request(a.slot), engine_.request(b.slot));
        });
        queue_.clear();
        if (depth_first_) {
            walk(std::move(found), 0);
        } else {
            for (const Found& f : found) queue_.push_back(f.slot);
        }
    }

    /// Appends requests (in order of arrival) whose cached prefixes agree in their first `depth` blocks: those of the heaviest
    /// branch first, those whose prefix ends here last.
    void walk(std::vector<Found> found, std::int64_t depth) const {
        const auto key = [&](const Found& f) { return engine_.request(f.slot).keys[static_cast<std::size_t>(depth)]; };
        // A stretch without branches is one node.
        const auto goes_on = [&](const Found& f) { return f.blocks > depth && key(f) == key(found.front()); };
        while (!found.empty() && found.front().blocks > depth && std::all_of(found.begin(), found.end(), goes_on)) ++depth;
        std::vector<std::vector<Found>> branches;  // in order of their first arrivals
        const auto less = [](const BlockKey& a, const BlockKey& b) {
            return std::tie(a.high, a.low) < std::tie(b.high, b.low);
        };
        std::map<BlockKey, std::size_t, decltype(less)> branch_of(less);
        std::vector<Slot> own;
        for (const Found& f : found) {
            if (f.blocks <= depth) {
                own.push_back(f.slot);
                continue;
            }
            const auto [at, fresh] = branch_of.try_emplace(key(f), branches.size());
            if (fresh) branches.emplace_back();
            branches[at->second].push_back(f);
        }
        std::stable_sort(branches.begin(), branches.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
        found = {};
        for (std::vector<Found>& branch : branches) walk(std::move(branch), depth + 1);
        queue_.insert(queue_.end(), own.begin(), own.end());
    }

    Engine& engine_;
    bool depth_first_;
    KvManager* kv_ = nullptr;
    mutable std::deque<Slot> queue_;  // sorted when a head is asked for
    mutable bool sorted_ = false;
};

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read(const PieceSource& source, bool depth_first,
                                                           config::Diagnostics& diagnostics) {
    NoParams params;
    if (!read_params(no_params(), source, params, diagnostics)) return nullptr;
    if (!source.deployment.engine.enable_prefix_caching)
        return refuse(source, "it goes by cached prefixes, and there are none: engine.enable_prefix_caching is false",
                      diagnostics);
    return [depth_first](Engine& engine) { return std::make_unique<PrefixQueue>(engine, depth_first); };
}

}  // namespace

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_lpm_order(const PieceSource& source,
                                                                     config::Diagnostics& diagnostics) {
    return read(source, false, diagnostics);
}

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_dfs_weight_order(const PieceSource& source,
                                                                            config::Diagnostics& diagnostics) {
    return read(source, true, diagnostics);
}

}  // namespace kvsim
