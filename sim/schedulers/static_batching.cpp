// Request-level batching, as FasterTransformer does it and Orca (OSDI 2022, section 3) describes it: nobody joins or leaves
// while a batch runs.

#include <algorithm>

#include "style.hpp"

namespace kvsim {
namespace {

class StaticBatching final : public Style {
public:
    using Style::Style;

private:
    [[nodiscard]] bool may_displace() const override { return false; }
    [[nodiscard]] std::int64_t queue_budget(std::int64_t /*decodes*/) const override { return no_budget; }
    [[nodiscard]] std::optional<Bound> closed() override { return waiting_->empty() ? Bound::no_waiting : closed_by_; }

    /// Who lacks one token alone gets no row, so the last of the steps is none for the shortest.
    Steady steady_steps(std::vector<Slot>& rows) override {
        if (idled_) return {};  // one that has left since is in the step's shape, though not among its rows
        Steady steady = Style::steady_steps(rows);
        steady.steps = std::max<std::int64_t>(0, steady.steps - 1);
        return steady;
    }

    [[nodiscard]] std::int64_t left(Slot slot) const {
        const LiveRequest& request = engine_.request(slot);
        return request.max_tokens - request.outputs;
    }
    /// The most tokens that one of the batch lacks.
    [[nodiscard]] std::int64_t longest() const {
        std::int64_t most = 0;
        for (const Slot slot : running_) most = std::max(most, left(slot));
        return most;
    }

    void idle(Batch& batch, Slot slot) {
        engine_.idle(batch, slot);
        idled_ = true;
    }

    void plan_rows(Batch& batch) override {
        budget_ = no_budget;
        idled_ = false;
        if (running_.empty()) {
            start(batch);
        } else {
            go_on(batch);
        }
    }

    void start(Batch& batch) {
        admit_queue(batch);
        // The batch waits for its longest: who lacks one token alone does not get it here.
        if (longest() > 1) {
            for (std::size_t i = 0; i < batch.rows.size();) {
                BatchRow& row = batch.rows[i];
                if (left(row.slot) > 1 || --row.tokens > 0) {
                    ++i;
                    continue;
                }
                const Slot slot = row.slot;
                idle(batch, slot);
                drop_row(batch, i);
                engine_.account(slot);
            }
        }
        closed_by_ = batch.bound == Bound::kv_blocks ? Bound::kv_blocks : Bound::seats;
        name_bound(batch);
    }

    void go_on(Batch& batch) {
        const bool last = longest() == 1;
        for (std::size_t i = 0; i < running_.size();) {
            if ((!last && left(running_[i]) == 1) || grow(batch, i, 1)) ++i;
        }
        for (const Slot slot : running_) {
            if (engine_.request(slot).row < 0) idle(batch, slot);
        }
        if (!batch.preempted.empty()) closed_by_ = Bound::kv_blocks;
        if (!waiting_->empty()) batch.bound = closed_by_;
    }

    bool idled_ = false;              // the last step had idle rows
    Bound closed_by_ = Bound::seats;  // what ended the admission to this batch; who comes later finds it closed
};

}  // namespace

std::unique_ptr<Scheduler> make_static_batching(Engine& engine) {
    return std::make_unique<StaticBatching>(engine);
}

}  // namespace kvsim
