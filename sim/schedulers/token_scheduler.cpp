// What the styles share that count a token as computed when it is scheduled.

#include <algorithm>
#include <cmath>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/scheduler.hpp"

namespace kvsim {

TokenScheduler::TokenScheduler(Engine& engine)
    : Scheduler(engine),
      args_(engine.args()),
      waiting_(make_waiting_queue(engine)),
      kv_(make_kv_manager(engine)),
      victim_(args_.policy.victim ? args_.policy.victim.make(engine) : nullptr),
      admission_(args_.policy.admission ? args_.policy.admission.make(engine) : nullptr),
      watermark_blocks_(static_cast<std::int64_t>(std::floor(args_.watermark * static_cast<double>(args_.num_gpu_blocks)))) {}

void TokenScheduler::plan(Batch& batch) {
    plan_rows(batch);
    batch.again = !batch.preempted.empty();
    advance(batch);
}

HeldSlots TokenScheduler::unfilled(const LiveRequest& request) const {
    if (!request.tables.empty()) return kv_->unfilled(request);
    const std::int64_t slots = static_cast<std::int64_t>(request.table.size()) * args_.block_size;
    const std::int64_t final = request.final_computed();
    KVSIM_DCHECK(slots >= request.computed, "computed tokens have a slot");
    return {std::max<std::int64_t>(0, std::min(slots, final) - request.computed),
            std::max<std::int64_t>(0, slots - std::max(final, request.computed))};
}

/// The rows are final: their tokens count as computed from here on, before the model has run.
void TokenScheduler::advance(Batch& batch) {
    for (BatchRow& row : batch.rows) {
        LiveRequest& request = engine_.request(row.slot);
        KVSIM_DCHECK(row.computed == request.computed, "a row continues where its request stands");
        request.row = -1;
        request.computed += row.tokens;
        row.id = request.id;
        row.samples = request.computed >= request.tokens() + request.in_flight;
        if (row.samples && args_.async_scheduling) ++request.in_flight;
        engine_.book(batch, row);
        engine_.account(request, unfilled(request));
    }
}

TokenScheduler::Start TokenScheduler::start_of(LiveRequest& request) {
    Start start;
    start.hit = kv_->lookup(request);
    start.computed = start.hit.blocks * args_.block_size;
    return start;
}

bool TokenScheduler::may_admit(const LiveRequest& head, const Start& start, std::int64_t tokens) const {
    const std::int64_t free = kv_->free() - watermark_blocks_;
    const AdmissionNeed need =
        kv_->admission_need(head, start.hit, start.computed + tokens, std::min(head.tokens(), args_.max_model_len));
    if (need.now > free) return false;
    if (admission_ == nullptr) return !args_.scheduler_reserve_full_isl || need.whole <= free;
    return admission_->admits(head, {engine_, *kv_, running_, free, start.computed, need});
}

void TokenScheduler::admit(Batch& batch, const Start& start, std::int64_t tokens) {
    const PrefixHit& hit = start.hit;
    const Slot slot = waiting_->head();
    waiting_->pop_head();
    LiveRequest& request = engine_.request(slot);
    KVSIM_DCHECK(request.computed == 0 && request.in_flight == 0, "a waiting request starts from nothing");
    const auto kind = request.state == RequestState::preempted ? ScheduledRow::Kind::resumed : ScheduledRow::Kind::fresh;
    engine_.admitted(slot, start.computed);
    kv_->admit(request, hit, request.computed + tokens);
    kv_->publish(request, request.computed + tokens);
    running_.push_back(slot);
    request.row = static_cast<std::int64_t>(batch.rows.size());
    batch.rows.push_back({slot, tokens, request.computed, kind, 0, false});
}

void TokenScheduler::extend(Batch& batch, Slot slot, std::int64_t tokens, std::int64_t new_blocks) {
    LiveRequest& request = engine_.request(slot);
    const auto held = static_cast<std::int64_t>(request.table.size());
    kv_->extend(request, request.computed + tokens, new_blocks);
    if (args_.enable_prefix_caching) kv_->publish(request, std::min(request.computed + tokens, request.tokens()));
    request.row = static_cast<std::int64_t>(batch.rows.size());
    batch.rows.push_back({slot, tokens, request.computed, ScheduledRow::Kind::running, held, false});
}

std::int64_t TokenScheduler::preempt(Batch& batch, std::size_t index) {
    const Slot slot = running_[index];
    LiveRequest& request = engine_.request(slot);
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
    std::int64_t given_back = 0;
    if (request.row >= 0) {
        const auto at = static_cast<std::size_t>(request.row);
        given_back = batch.rows[at].tokens;
        batch.rows.erase(batch.rows.begin() + request.row);
        for (std::size_t i = at; i < batch.rows.size(); ++i)
            engine_.request(batch.rows[i].slot).row = static_cast<std::int64_t>(i);
        request.row = -1;
    }
    kv_->release(request);
    engine_.preempted(batch, slot);
    waiting_->push_preempted(slot);
    return given_back;
}

std::size_t TokenScheduler::pick_victim() const {
    if (victim_ != nullptr) return victim_->pick(engine_, running_);
    if (args_.scheduling_policy != QueueOrder::priority || args_.policy.order) return running_.size() - 1;
    std::size_t worst = 0;
    for (std::size_t i = 1; i < running_.size(); ++i) {
        const LiveRequest& a = engine_.request(running_[worst]);
        const LiveRequest& b = engine_.request(running_[i]);
        if (std::pair(b.priority, b.arrival_rank) > std::pair(a.priority, a.arrival_rank)) worst = i;
    }
    return worst;
}

bool TokenScheduler::make_room(Batch& batch, std::int64_t need, std::size_t& index, std::int64_t& budget) {
    while (need > kv_->free()) {
        const std::size_t victim = pick_victim();
        const bool itself = victim == index;
        budget += preempt(batch, victim);
        if (itself) return false;
        if (victim < index) --index;
    }
    return true;
}

void TokenScheduler::receive(const Batch& batch, SimTime now) {
    for (const BatchRow& row : batch.rows) {
        if (!row.samples) continue;
        LiveRequest& request = engine_.request(row.slot);
        if (request.id != row.id) continue;  // aborted meanwhile
        const bool last = engine_.credit(row.slot, now);
        if (args_.async_scheduling) {
            --request.in_flight;
            if (args_.enable_prefix_caching && request.state == RequestState::running)
                kv_->publish(request, request.computed - request.in_flight);
        }
        if (last) engine_.finish(row.slot, now);
    }
}

void TokenScheduler::remove(Slot slot) {
    LiveRequest& request = engine_.request(slot);
    if (request.state == RequestState::running) {
        kv_->release(request);
        running_.erase(std::find(running_.begin(), running_.end(), slot));
    } else {
        waiting_->remove(slot);  // aborted, or preempted with its last token in flight
    }
}

void TokenScheduler::record(const BatchRow& row, ScheduledRow& out) const {
    const LiveRequest& request = engine_.request(row.slot);
    if (request.tables.empty()) {
        out.blocks.assign(request.table.begin() + row.blocks_from, request.table.end());
    } else {
        record_tables(args_, request, row.kind == ScheduledRow::Kind::running ? row.computed : 0, out);
    }
}

std::string TokenScheduler::describe_head() const {
    if (waiting_->empty()) return "";
    const LiveRequest& head = engine_.request(waiting_->head());
    return kvsim::describe_head(head.tie_id, head.prompt, head.outputs, head.max_tokens, args_, watermark_blocks_);
}

}  // namespace kvsim
