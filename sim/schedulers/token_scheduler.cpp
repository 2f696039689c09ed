// What the styles share that count a token as computed when it is scheduled.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

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
      watermark_blocks_(static_cast<std::int64_t>(std::floor(args_.watermark * static_cast<double>(args_.num_gpu_blocks)))),
      cpu_free_(args_.v0.num_cpu_blocks) {
    waiting_->attach(*kv_);
}

void TokenScheduler::plan(Batch& batch) {
    displaced_ = 0;
    lost_.clear();
    waiting_->begin_step();
    plan_rows(batch);
    batch.again = !batch.preempted.empty();
    advance(batch);
    before_rows_.swap(last_rows_);
    last_rows_.clear();
    for (const BatchRow& row : batch.rows) last_rows_.push_back(row.slot);
    // What a step without rows moves is paid for by the next one.
    batch.transfer_overlaps = args_.v0.swap_overlaps;
    if (moved_blocks_ == 0 || batch.empty()) return;
    batch.transfer = SimDuration(std::llround(static_cast<double>(moved_blocks_) * args_.v0.swap_ns_per_block));
    moved_blocks_ = 0;
}

HeldSlots TokenScheduler::unfilled(const LiveRequest& request) const {
    if (request.table.empty()) return kv_->unfilled(request);
    const std::int64_t slots = static_cast<std::int64_t>(request.table.size()) * args_.block_size;
    const std::int64_t final = request.final_computed();
    KVSIM_DCHECK(slots >= request.computed, "computed tokens have a slot");
    return {std::max<std::int64_t>(0, std::min(slots, final) - request.computed),
            std::max<std::int64_t>(0, slots - std::max(final, request.computed))};
}

/// The rows are final: their tokens count as computed from here on, before the model has run.
void TokenScheduler::advance(Batch& batch) {
    const bool told = static_cast<bool>(args_.policy.order);  // the engines' own orders go by nothing that happens
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
        if (told) waiting_->served(row.slot, row.tokens);
    }
}

TokenScheduler::Start TokenScheduler::start_of(LiveRequest& request) {
    Start start;
    if (request.swapped_blocks > 0) {
        start.computed = request.computed;
        start.swapped = true;
        return start;
    }
    start.hit = kv_->lookup(request);
    start.computed = start.hit.blocks * args_.block_size;
    return start;
}

bool TokenScheduler::may_admit(const LiveRequest& head, const Start& start, std::int64_t tokens) const {
    const std::int64_t free = kv_->free() - watermark_blocks_;
    const AdmissionNeed need =
        kv_->admission_need(head, start.hit, start.computed + tokens, std::min(head.tokens(), args_.max_model_len));
    if (need.now > free) return false;
    if (const std::int64_t most = args_.policy.max_live_tokens; most > 0 && !running_.empty()) {
        std::int64_t live = head.tokens();
        for (const Slot slot : running_) live += engine_.request(slot).tokens();
        if (live > most) return false;
    }
    const AdmissionView view{engine_, *kv_, running_, free, start.computed, need, start.hit};
    if (admission_ != nullptr ? !admission_->admits(head, view) : args_.scheduler_reserve_full_isl && need.whole > free)
        return false;
    return style_admits(head, view);
}

void TokenScheduler::admit(Batch& batch, const Start& start, std::int64_t tokens) {
    const PrefixHit& hit = start.hit;
    const Slot slot = waiting_->head();
    waiting_->pop_head();
    LiveRequest& request = engine_.request(slot);
    KVSIM_DCHECK(request.in_flight == 0, "all tokens of a request that starts are known");
    const auto kind = request.state == RequestState::preempted ? ScheduledRow::Kind::resumed : ScheduledRow::Kind::fresh;
    if (start.swapped) {
        engine_.swapped_in(slot);
        cpu_free_ += request.swapped_blocks;
        moved_blocks_ += std::exchange(request.swapped_blocks, 0);
    } else {
        KVSIM_DCHECK(request.computed == 0, "a waiting request starts from nothing");
        engine_.admitted(slot, start.computed);
    }
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
        drop_row(batch, at);
    }
    // Blocks that only the dropped row would have filled hold nothing to move.
    const std::int64_t blocks = ceil_div(request.computed, args_.block_size);
    const bool swapped = swaps(request, blocks);
    kv_->release(request);
    if (swapped) {
        request.swapped_blocks = blocks;
        cpu_free_ -= blocks;
        moved_blocks_ += blocks;
        batch.swapped_tokens += request.computed;
        engine_.swapped_out(batch, slot);
    } else {
        engine_.preempted(batch, slot);
    }
    lost_.push_back(slot);
    waiting_->push_preempted(slot);
    return given_back;
}

void TokenScheduler::drop_row(Batch& batch, std::size_t at) {
    engine_.request(batch.rows[at].slot).row = -1;
    batch.rows.erase(batch.rows.begin() + static_cast<std::ptrdiff_t>(at));
    for (std::size_t i = at; i < batch.rows.size(); ++i) engine_.request(batch.rows[i].slot).row = static_cast<std::int64_t>(i);
}

bool TokenScheduler::swaps(const LiveRequest& request, std::int64_t blocks) const {
    using Preemption = PolicyArgs::Preemption;
    const Preemption mode = args_.policy.preemption;
    KVSIM_CHECK(mode != Preemption::none, "nobody is preempted where admission leaves room for all");
    if (mode == Preemption::recompute || blocks == 0 || blocks > cpu_free_) return false;
    if (mode == Preemption::swap) return true;
    const double there_and_back = 2 * static_cast<double>(blocks) * args_.v0.swap_ns_per_block;
    return there_and_back < static_cast<double>(engine_.price_of_prompt(request.computed).count());
}

bool TokenScheduler::displace(Batch& batch, std::int64_t& budget) {
    if (running_.empty() || !may_displace() || head_was_displaced()) return false;
    std::size_t worst = running_.size() - 1;  // of equal ones the last admitted
    for (std::size_t i = worst; i-- > 0;) {
        if (waiting_->displaces(running_[worst], running_[i])) worst = i;
    }
    if (!waiting_->displaces(waiting_->head(), running_[worst])) return false;
    budget += preempt(batch, worst);
    ++displaced_;
    return true;
}

bool TokenScheduler::head_was_displaced() const {
    return displaced_ > 0 && std::find(lost_.begin(), lost_.end(), waiting_->head()) != lost_.end();
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
        need = kv_->need_again(need);
    }
    return true;
}

void TokenScheduler::receive(const Batch& batch, SimTime now) {
    const bool told = static_cast<bool>(args_.policy.order);
    for (const BatchRow& row : batch.rows) {
        if (!row.samples) continue;
        LiveRequest& request = engine_.request(row.slot);
        if (request.id != row.id) continue;  // aborted meanwhile
        const bool last = engine_.credit(row.slot, now);
        if (told) waiting_->credited(row.slot);
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
        cpu_free_ += std::exchange(request.swapped_blocks, 0);
    }
}

void TokenScheduler::record(const BatchRow& row, ScheduledRow& out) const {
    const LiveRequest& request = engine_.request(row.slot);
    if (request.table.empty()) return kv_->record(request, row.kind != ScheduledRow::Kind::running, row.computed, out);
    out.blocks.assign(request.table.begin() + row.blocks_from, request.table.end());
}

// ---- many steps

std::optional<Bound> TokenScheduler::closed() {
    if (waiting_->empty()) return Bound::no_waiting;
    if (running_count() == args_.max_num_seqs) return Bound::seats;
    // Who was refused for blocks stays refused while others take more, unless the cache finds more of him, or a predicted peak
    // passes.
    if (args_.enable_prefix_caching || (admission_ != nullptr && !admission_->stays_shut())) return std::nullopt;
    LiveRequest& head = engine_.request(waiting_->head());
    const Start start = start_of(head);
    const std::int64_t budget = queue_budget(running_count());
    const std::int64_t wanted = chunk(head.tokens() - start.computed);
    if (!args_.enable_chunked_prefill && wanted > budget) return Bound::token_budget;
    const std::int64_t most = args_.policy.equal_progress ? args_.block_size : wanted;  // it starts with one block then
    if (may_admit(head, start, std::min({wanted, budget, most}))) return std::nullopt;
    return Bound::kv_blocks;
}

Scheduler::Steady TokenScheduler::steady_steps(std::vector<Slot>& rows) {
    if (running_.empty() || args_.policy.order || args_.policy.kv || !args_.kv_groups.empty()) return {};
    const std::int64_t ahead = args_.async_scheduling ? 1 : 0;
    if (last_rows_ != running_ || (ahead == 1 && before_rows_ != running_) || queue_budget(running_count()) <= 0) return {};
    std::int64_t steps = INT64_MAX;
    for (const Slot slot : running_) {
        const LiveRequest& request = engine_.request(slot);
        if (request.computed != request.tokens() + ahead || request.in_flight != 2 * ahead) return {};
        steps = std::min(steps, request.final_computed() - request.computed);
        if (steps < 2) return {};  // cheaper as a single step
    }
    const std::optional<Bound> bound = closed();
    if (!bound) return {};
    phases_.resize(static_cast<std::size_t>(args_.block_size));
    for (std::vector<std::uint32_t>& phase : phases_) phase.clear();
    for (std::size_t i = 0; i < running_.size(); ++i) {
        const std::int64_t computed = engine_.request(running_[i]).computed;
        phases_[static_cast<std::size_t>(computed % args_.block_size)].push_back(static_cast<std::uint32_t>(i));
    }
    rows = running_;
    steady_taken_ = 0;
    return {steps, *bound};
}

/// Only who takes a block, or fills one that can be found from then on, touches the pool: in the order of the rows.
bool TokenScheduler::steady_step() {
    const auto phase = [this](std::int64_t behind) -> const std::vector<std::uint32_t>& {
        const std::int64_t at = (behind - steady_taken_) % args_.block_size;
        return phases_[static_cast<std::size_t>(at < 0 ? at + args_.block_size : at)];
    };
    const std::vector<std::uint32_t>& takers = phase(0);
    if (static_cast<std::int64_t>(takers.size()) > kv_->free()) return false;
    ++steady_taken_;
    const std::vector<std::uint32_t>* movers = &takers;
    const std::int64_t ahead = args_.async_scheduling ? 1 : 0;
    if (args_.enable_prefix_caching) {
        const std::vector<std::uint32_t>& fillers = phase(ahead);
        if (&fillers != &takers) {
            movers_.clear();
            std::merge(takers.begin(), takers.end(), fillers.begin(), fillers.end(), std::back_inserter(movers_));
            movers = &movers_;
        }
    }
    for (const std::uint32_t i : *movers) {
        LiveRequest& request = engine_.request(running_[i]);
        const std::int64_t upto = request.computed + steady_taken_;
        kv_->extend(request, upto, std::max<std::int64_t>(0, kv_->need(request, upto)));
        if (args_.enable_prefix_caching) kv_->publish(request, upto - ahead);
    }
    return true;
}

// ---- reports

std::string TokenScheduler::describe_head() const {
    if (waiting_->empty()) return "";
    const LiveRequest& head = engine_.request(waiting_->head());
    return kvsim::describe_head(head.tie_id, head.prompt, head.outputs, head.max_tokens, args_, watermark_blocks_);
}

}  // namespace kvsim
