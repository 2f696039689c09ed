// A request's life in five verbs, one after the other: admit, prefill, decode, preempt, finish.

#include "kvsim/engine/engine.hpp"

#include <algorithm>
#include <cmath>

#include "kvsim/base/check.hpp"

namespace kvsim {

Engine::Engine(const EngineArgs& args, EngineListener& listener)
    : args_(args),
      listener_(listener),
      waiting_(make_waiting_queue(args.scheduling_policy, requests_)),
      kv_(make_paged_kv(args.num_gpu_blocks - 1, args.block_size, args.enable_prefix_caching)),
      scheduler_(make_vllm_v1_scheduler()),
      watermark_blocks_(static_cast<std::int64_t>(std::floor(args.watermark * static_cast<double>(args.num_gpu_blocks)))) {
    KVSIM_CHECK(args.num_gpu_blocks >= 1 && args.block_size >= 1 && args.max_num_seqs >= 1, "engine arguments were checked");
}

Slot Engine::enqueue(LiveRequest request) {
    Slot slot = static_cast<Slot>(requests_.size());
    request.max_tokens = std::min(request.max_tokens, args_.max_model_len - request.prompt);
    KVSIM_CHECK(request.prompt >= 1 && request.max_tokens >= 1, "a request has a prompt, and room for an output token");
    if (free_slots_.empty()) {
        requests_.push_back(std::move(request));
    } else {
        slot = free_slots_.back();
        free_slots_.pop_back();
        requests_[slot] = std::move(request);
    }
    ++unfinished_;
    outstanding_ += requests_[slot].final_computed();
    waiting_->push_new(slot);
    return slot;
}

void Engine::schedule(Batch& batch) {
    batch.clear();
    batch.step = step_++;
    scheduler_->plan(*this, batch);
    advance(batch);
    check_invariants();
}

/// The rows are final: their tokens count as computed from here on, before the model has run.
void Engine::advance(Batch& batch) {
    for (BatchRow& row : batch.rows) {
        LiveRequest& request = requests_[row.slot];
        request.row = -1;
        if (row.tokens == 1) {
            decode(batch, request, row);
        } else {
            prefill(batch, request, row);
        }
        const std::int64_t redone =
            std::max<std::int64_t>(0, std::min(request.high_water, row.computed + row.tokens) - row.computed);
        if (redone > 0) {
            batch.recomputed_tokens += redone;
            listener_.on_recompute(request, redone);
        }
        request.high_water = std::max(request.high_water, row.computed + row.tokens);
        request.computed += row.tokens;
        outstanding_ -= row.tokens;
        row.samples = request.computed >= request.tokens() + request.in_flight;
        if (row.samples) {
            ++batch.shape.sampled;
            if (args_.async_scheduling) ++request.in_flight;
        }
        account(request);
    }
    batch.shape.sequences = static_cast<std::int64_t>(batch.rows.size());
    batch.shape.chunks = batch.chunks;
}

void Engine::admit(Batch& batch, PrefixHit hit, std::int64_t tokens) {
    const Slot slot = waiting_->head();
    waiting_->pop_head();
    LiveRequest& request = requests_[slot];
    KVSIM_DCHECK(request.computed == 0 && request.in_flight == 0, "a waiting request starts from nothing");
    request.computed = hit.blocks * args_.block_size;
    outstanding_ -= request.computed;
    listener_.on_admitted(request, request.computed);
    const auto kind = request.state == RequestState::preempted ? ScheduledRow::Kind::resumed : ScheduledRow::Kind::fresh;
    kv_->admit(request, hit, ceil_div(request.computed + tokens, args_.block_size));
    kv_->publish(request, request.computed + tokens);
    request.state = RequestState::running;
    request.admitted_before = true;
    running_.push_back(slot);
    request.row = static_cast<std::int64_t>(batch.rows.size());
    batch.rows.push_back({slot, tokens, request.computed, kind, 0, false});
}

void Engine::extend(Batch& batch, Slot slot, std::int64_t tokens, std::int64_t new_blocks) {
    LiveRequest& request = requests_[slot];
    const auto held = static_cast<std::int64_t>(request.table.size());
    kv_->extend(request, new_blocks);
    kv_->publish(request, std::min(request.computed + tokens, request.tokens()));
    request.row = static_cast<std::int64_t>(batch.rows.size());
    batch.rows.push_back({slot, tokens, request.computed, ScheduledRow::Kind::running, held, false});
}

void Engine::prefill(Batch& batch, const LiveRequest& request, const BatchRow& row) {
    KVSIM_DCHECK(row.computed == request.computed && row.tokens >= 2, "a chunk continues where its request stands");
    batch.shape.tokens += row.tokens;
    batch.chunks.push_back({row.tokens, request.computed});
}

void Engine::decode(Batch& batch, const LiveRequest& request, [[maybe_unused]] const BatchRow& row) {
    KVSIM_DCHECK(row.computed == request.computed && row.tokens == 1, "a decode row is one token");
    ++batch.shape.tokens;
    ++batch.shape.decode_rows;
    batch.shape.decode_context += request.computed + 1;
}

std::int64_t Engine::preempt(Batch& batch, std::size_t index) {
    const Slot slot = running_[index];
    LiveRequest& request = requests_[slot];
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
    std::int64_t given_back = 0;
    if (request.row >= 0) {
        const auto at = static_cast<std::size_t>(request.row);
        given_back = batch.rows[at].tokens;
        batch.rows.erase(batch.rows.begin() + request.row);
        for (std::size_t i = at; i < batch.rows.size(); ++i) requests_[batch.rows[i].slot].row = static_cast<std::int64_t>(i);
        request.row = -1;
    }
    kv_->release(request);
    outstanding_ += request.computed;
    request.computed = 0;
    request.state = RequestState::preempted;
    account(request);
    waiting_->push_preempted(slot);
    batch.preempted.push_back(slot);
    batch.preempted_ids.push_back(request.id);
    listener_.on_preempted(request);
    return given_back;
}

void Engine::finish(Slot slot) {
    LiveRequest& request = requests_[slot];
    if (request.state == RequestState::running) {
        kv_->release(request);
        running_.erase(std::find(running_.begin(), running_.end(), slot));
    } else {
        waiting_->remove(slot);  // preempted with its last token in flight
    }
    outstanding_ -= request.final_computed() - request.computed;
    request.computed = 0;
    request.state = RequestState::waiting;
    account(request);
    listener_.on_finished(request);
    --unfinished_;
    free_slots_.push_back(slot);
}

void Engine::update(const Batch& batch, std::vector<RequestId>* received, std::vector<RequestId>* finished) {
    for (const BatchRow& row : batch.rows) {
        if (!row.samples) continue;
        LiveRequest& request = requests_[row.slot];
        ++request.outputs;
        if (args_.async_scheduling) {
            --request.in_flight;
            if (request.state == RequestState::running) kv_->publish(request, request.computed - request.in_flight);
        }
        listener_.on_token(request);
        if (received) received->push_back(request.id);
        if (request.outputs < request.max_tokens) continue;
        if (finished) finished->push_back(request.id);
        finish(row.slot);
    }
    check_invariants();
}

/// Keeps the waste shares of one request current.
void Engine::account(LiveRequest& request) {
    held_.reserved -= request.reserved_slots;
    held_.internal -= request.internal_slots;
    request.reserved_slots = 0;
    request.internal_slots = 0;
    if (request.state != RequestState::running) return;
    const std::int64_t slots = static_cast<std::int64_t>(request.table.size()) * args_.block_size;
    const std::int64_t final = request.final_computed();
    request.reserved_slots = std::max<std::int64_t>(0, std::min(slots, final) - request.computed);
    request.internal_slots = std::max<std::int64_t>(0, slots - std::max(final, request.computed));
    held_.reserved += request.reserved_slots;
    held_.internal += request.internal_slots;
}

void Engine::check_invariants() const {
    KVSIM_CHECK(static_cast<std::int64_t>(running_.size() + waiting_->size()) == unfinished_, "every request runs or waits");
    KVSIM_CHECK(unfinished_ > 0 || used_blocks() == 0, "an empty engine holds no KV");
#ifndef NDEBUG
    HeldSlots held;
    for (const Slot slot : running_) {
        const LiveRequest& request = requests_[slot];
        KVSIM_CHECK(request.state == RequestState::running, "running() holds running requests");
        KVSIM_CHECK(static_cast<std::int64_t>(request.table.size()) * args_.block_size >= request.computed,
                    "computed tokens have a slot");
        held.reserved += request.reserved_slots;
        held.internal += request.internal_slots;
    }
    KVSIM_CHECK(held.reserved == held_.reserved && held.internal == held_.internal,
                "the waste shares are sums over running requests");
#endif
}

}  // namespace kvsim
