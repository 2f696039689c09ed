#pragma once
// One step's batch of the per-request engine: what schedule() decided and what update() will receive.

#include <cstdint>
#include <vector>

#include "kvsim/engine/outcome.hpp"
#include "kvsim/engine/request.hpp"
#include "kvsim/engine/step_record.hpp"
#include "kvsim/model/step_time.hpp"

namespace kvsim {

struct BatchRow {
    Slot slot = 0;
    std::int64_t tokens = 0;
    std::int64_t computed = 0;  ///< before the step
    ScheduledRow::Kind kind = ScheduledRow::Kind::running;
    std::int64_t blocks_from = 0;  ///< the row's new blocks start here in the table
    bool samples = false;          ///< it will yield a token
    RequestId id = 0;              ///< its slot may have another request by the time the results arrive
};

struct Batch {
    std::int64_t step = 0;
    std::vector<BatchRow> rows;
    std::vector<RequestId> preempted;
    bool again = false;  ///< without rows: what was decided made room, the next step follows at once
    Bound bound = Bound::no_waiting;
    StepShape shape;
    std::vector<PrefillChunk> chunks;
    std::vector<WindowContext> windows;
    std::int64_t recomputed_tokens = 0;
    SimDuration duration{};

    [[nodiscard]] bool empty() const { return shape.sequences == 0; }
    void clear() {
        rows.clear();
        preempted.clear();
        chunks.clear();
        for (WindowContext& window : windows) window.context = 0;
        again = false;
        bound = Bound::no_waiting;
        shape = {};
        recomputed_tokens = 0;
        duration = {};
    }
};

}  // namespace kvsim
