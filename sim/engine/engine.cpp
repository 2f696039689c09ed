// A request's life in five verbs, one after the other: admit, prefill, decode, preempt, finish.

#include "kvsim/engine/engine.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kvsim/base/check.hpp"

namespace kvsim {

namespace {

constexpr RequestId nobody = std::numeric_limits<RequestId>::max();

}  // namespace

Engine::Engine(const EngineArgs& args, EngineListener& listener)
    : args_(args),
      listener_(listener),
      waiting_(make_waiting_queue(args.scheduling_policy, requests_)),
      kv_(args.kv_groups.empty() ? make_paged_kv(args.num_gpu_blocks - 1, args.block_size, args.enable_prefix_caching)
                                 : make_group_kv(args)),
      scheduler_(make_vllm_v1_scheduler()),
      watermark_blocks_(static_cast<std::int64_t>(std::floor(args.watermark * static_cast<double>(args.num_gpu_blocks)))),
      slots_per_block_(kvsim::slots_per_block(args)) {
    for (const BlockGroup& group : args.kv_groups) {
        if (group.rule != BlockGroup::Rule::sliding && group.rule != BlockGroup::Rule::chunked) continue;
        const WindowContext window{group.window, group.rule == BlockGroup::Rule::chunked, 0};
        const auto same = [&](const WindowContext& w) { return w.window == window.window && w.chunked == window.chunked; };
        if (std::none_of(windows_.begin(), windows_.end(), same)) windows_.push_back(window);
    }
    KVSIM_CHECK(args.num_gpu_blocks >= 1 && args.block_size >= 1 && args.max_num_seqs >= 1, "engine arguments were checked");
}

Slot Engine::enqueue(NewRequest& request) {
    LiveRequest live;
    live.id = request.id;
    live.priority = request.priority;
    live.arrival_rank = request.arrival_rank;
    live.tie_id = request.tie_id.empty() ? std::to_string(request.id) : std::move(request.tie_id);
    live.prompt = request.prompt;
    live.max_tokens = std::min(request.max_tokens, args_.max_model_len - request.prompt);
    live.content = std::move(request.content);
    live.output_base = request.output_base;
    live.measured = request.measured;
    KVSIM_CHECK(live.prompt >= 1 && live.max_tokens >= 1, "a request has a prompt, and room for an output token");
    Slot slot = static_cast<Slot>(requests_.size());
    if (free_slots_.empty()) {
        requests_.push_back(std::move(live));
    } else {
        slot = free_slots_.back();
        free_slots_.pop_back();
        requests_[slot] = std::move(live);
    }
    ++unfinished_;
    outstanding_ += requests_[slot].final_computed();
    waiting_->push_new(slot);
    return slot;
}

void Engine::schedule(Batch& batch, SimTime now) {
    batch.clear();
    batch.step = step_++;
    if (batch.windows.size() != windows_.size()) batch.windows = windows_;
    now_ = now;
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
            listener_.on_recompute(request.id, redone);
        }
        request.high_water = std::max(request.high_water, row.computed + row.tokens);
        request.computed += row.tokens;
        request.scheduled += row.tokens;
        outstanding_ -= row.tokens;
        row.id = request.id;
        row.samples = request.computed >= request.tokens() + request.in_flight;
        if (row.samples) {
            ++batch.shape.sampled;
            if (args_.async_scheduling) ++request.in_flight;
        }
        account(request);
    }
    batch.shape.sequences = static_cast<std::int64_t>(batch.rows.size());
    batch.shape.chunks = batch.chunks;
    batch.shape.windows = batch.windows;
}

void Engine::admit(Batch& batch, PrefixHit hit, std::int64_t tokens) {
    const Slot slot = waiting_->head();
    waiting_->pop_head();
    LiveRequest& request = requests_[slot];
    KVSIM_DCHECK(request.computed == 0 && request.in_flight == 0, "a waiting request starts from nothing");
    request.computed = hit.blocks * args_.block_size;
    outstanding_ -= request.computed;
    listener_.on_admitted(request.id, request.admitted_before, request.tokens(), request.computed, now_);
    const auto kind = request.state == RequestState::preempted ? ScheduledRow::Kind::resumed : ScheduledRow::Kind::fresh;
    kv_->admit(request, hit, request.computed + tokens);
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
    kv_->extend(request, request.computed + tokens, new_blocks);
    if (args_.enable_prefix_caching) kv_->publish(request, std::min(request.computed + tokens, request.tokens()));
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
    const std::int64_t context = request.computed + 1;
    batch.shape.decode_context += context;
    batch.shape.longest_context = std::max(batch.shape.longest_context, context);
    batch.shape.shortest_context = batch.shape.decode_rows == 1 ? context : std::min(batch.shape.shortest_context, context);
    for (WindowContext& window : batch.windows) window.context += window.attended(context);
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
    batch.preempted.push_back(request.id);
    listener_.on_preempted(request.id);
    return given_back;
}

void Engine::finish(Slot slot, SimTime now) {
    leave(slot);
    LiveRequest& request = requests_[slot];
    if (keep_gaps_) listener_.on_gaps(request.id, request.gaps);
    listener_.on_finished(request.id, request.outputs, now);
}

Aborted Engine::abort(Slot slot) {
    leave(slot);
    LiveRequest& request = requests_[slot];
    request.id = nobody;  // its rows in flight find nobody
    check_invariants();
    return {request.outputs, request.scheduled};
}

void Engine::leave(Slot slot) {
    LiveRequest& request = requests_[slot];
    if (request.state == RequestState::running) {
        kv_->release(request);
        running_.erase(std::find(running_.begin(), running_.end(), slot));
    } else {
        waiting_->remove(slot);  // aborted, or preempted with its last token in flight
    }
    outstanding_ -= request.final_computed() - request.computed;
    request.computed = 0;
    request.state = RequestState::waiting;
    account(request);
    --unfinished_;
    free_slots_.push_back(slot);
}

void Engine::update(const Batch& batch, SimTime now) {
    received_.clear();
    finished_.clear();
    // Decoding requests got their last tokens together, so nearly all rows have one gap: they are told as one.
    std::int64_t next_tokens = 0;
    std::int64_t measured = 0;
    SimDuration gap{};
    for (const BatchRow& row : batch.rows) {
        if (!row.samples) continue;
        LiveRequest& request = requests_[row.slot];
        if (request.id != row.id) continue;  // aborted meanwhile
        ++request.outputs;
        if (args_.async_scheduling) {
            --request.in_flight;
            if (args_.enable_prefix_caching && request.state == RequestState::running)
                kv_->publish(request, request.computed - request.in_flight);
        }
        if (request.outputs == 1) {
            listener_.on_first_token(request.id, now);
        } else {
            if (now - request.last_token != gap) {
                if (next_tokens > 0) listener_.on_next_tokens(next_tokens, measured, gap, now);
                next_tokens = 0;
                measured = 0;
                gap = now - request.last_token;
            }
            ++next_tokens;
            measured += request.measured;
            if (keep_gaps_) request.gaps.push_back((now - request.last_token).count());
        }
        request.last_token = now;
        received_.push_back(request.id);
        if (request.outputs < request.max_tokens) continue;
        finished_.push_back(request.id);
        finish(row.slot, now);
    }
    if (next_tokens > 0) listener_.on_next_tokens(next_tokens, measured, gap, now);
    check_invariants();
}

void Engine::account_tables(LiveRequest& request) {
    const HeldSlots held = kv_->unfilled(request);
    request.reserved_slots = held.reserved;
    request.internal_slots = held.internal;
    held_.reserved += held.reserved;
    held_.internal += held.internal;
}

/// Keeps the waste shares of one request current.
void Engine::account(LiveRequest& request) {
    held_.reserved -= request.reserved_slots;
    held_.internal -= request.internal_slots;
    request.reserved_slots = 0;
    request.internal_slots = 0;
    if (request.state != RequestState::running) return;
    if (!request.tables.empty()) return account_tables(request);
    const std::int64_t slots = static_cast<std::int64_t>(request.table.size()) * args_.block_size;
    const std::int64_t final = request.final_computed();
    request.reserved_slots = std::max<std::int64_t>(0, std::min(slots, final) - request.computed);
    request.internal_slots = std::max<std::int64_t>(0, slots - std::max(final, request.computed));
    held_.reserved += request.reserved_slots;
    held_.internal += request.internal_slots;
}

std::string Engine::describe() const {
    std::string text = std::to_string(running_count()) + " running, " + std::to_string(waiting_count()) + " waiting, " +
                       std::to_string(kv_->free()) + " of " + std::to_string(kv_->usable()) + " KV blocks free";
    if (waiting_->empty()) return text;
    const LiveRequest& head = requests_[waiting_->head()];
    return text + describe_head(head.tie_id, head.prompt, head.outputs, head.max_tokens, args_, watermark_blocks_);
}

std::vector<std::pair<RequestId, std::int64_t>> Engine::left_over() const {
    std::vector<std::pair<RequestId, std::int64_t>> out;
    for (const Slot slot : running_) out.emplace_back(requests_[slot].id, requests_[slot].outputs);
    for (const Slot slot : waiting_->in_order()) out.emplace_back(requests_[slot].id, requests_[slot].outputs);
    return out;
}

std::string describe_head(const std::string& name, std::int64_t prompt, std::int64_t outputs, std::int64_t max_tokens,
                          const EngineArgs& args, std::int64_t watermark_blocks) {
    std::string text = "; the head of the queue, request " + name + ", has " + std::to_string(prompt + outputs) +
                       " tokens (prompt " + std::to_string(prompt) + ", outputs " + std::to_string(outputs) + " of " +
                       std::to_string(max_tokens) + ") and needs " + std::to_string(admission_blocks(args, prompt + outputs)) +
                       " blocks to be admitted";
    if (watermark_blocks > 0) text += ", with " + std::to_string(watermark_blocks) + " kept free (watermark)";
    return text;
}

void Engine::check_invariants() const {
    KVSIM_CHECK(static_cast<std::int64_t>(running_.size() + waiting_->size()) == unfinished_, "every request runs or waits");
    KVSIM_CHECK(unfinished_ > 0 || used_blocks() == 0, "an empty engine holds no KV");
#ifndef NDEBUG
    HeldSlots held;
    for (const Slot slot : running_) {
        const LiveRequest& request = requests_[slot];
        KVSIM_CHECK(request.state == RequestState::running, "running() holds running requests");
        const std::int64_t room =
            request.tables.empty() ? static_cast<std::int64_t>(request.table.size()) * args_.block_size : request.room;
        KVSIM_CHECK(room >= request.computed, "computed tokens have a slot");
        held.reserved += request.reserved_slots;
        held.internal += request.internal_slots;
    }
    KVSIM_CHECK(held.reserved == held_.reserved && held.internal == held_.internal,
                "the waste shares are sums over running requests");
#endif
}

void fill_scheduled(StepRecord& record, const Engine& engine, const Batch& batch) {
    record.step = batch.step;
    record.scheduled.resize(batch.rows.size());
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        const BatchRow& row = batch.rows[i];
        const LiveRequest& request = engine.request(row.slot);
        ScheduledRow& out = record.scheduled[i];
        out.id = request.id;
        out.tokens = row.tokens;
        out.computed = row.computed;
        out.kind = row.kind;
        out.tables.clear();
        if (request.tables.empty()) {
            out.blocks.assign(request.table.begin() + row.blocks_from, request.table.end());
        } else {
            out.blocks.clear();
            record_tables(engine.args(), request, row.kind == ScheduledRow::Kind::running ? row.computed : 0, out);
        }
    }
    record.total_tokens = batch.shape.tokens;
    record.preempted = batch.preempted;
    record.free_after_schedule = engine.kv().free();
}

void fill_updated(StepRecord& record, const Engine& engine) {
    record.free_after_update = engine.kv().free();
    record.running.clear();
    for (const Slot slot : engine.running()) record.running.push_back(engine.request(slot).id);
    record.waiting.clear();
    for (const Slot slot : engine.waiting().in_order()) record.waiting.push_back(engine.request(slot).id);
}

}  // namespace kvsim
