// Iteration-level batching with selective batching: Orca (OSDI 2022).

#include "style.hpp"

namespace kvsim {
namespace {

class IterationBatching final : public Style {
public:
    using Style::Style;

private:
    [[nodiscard]] std::int64_t queue_budget(std::int64_t /*decodes*/) const override { return no_budget; }

    void plan_rows(Batch& batch) override {
        budget_ = no_budget;
        for (std::size_t i = 0; i < running_.size();) {
            const std::int64_t n = due(engine_.request(running_[i]));
            if (n < 1 || grow(batch, i, n)) ++i;
        }
        admit_queue(batch);
        name_bound(batch);
    }
};

}  // namespace

std::unique_ptr<Scheduler> make_iteration_batching(Engine& engine) {
    return std::make_unique<IterationBatching>(engine);
}

}  // namespace kvsim
