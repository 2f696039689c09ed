// A request's life in five verbs, one after the other: admit, prefill, decode, preempt, finish.

#include "kvsim/engine/engine.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/scheduler.hpp"

namespace kvsim {

namespace {

constexpr RequestId nobody = std::numeric_limits<RequestId>::max();

std::unique_ptr<Scheduler> make_scheduler(Engine& engine) {
    for (const Entry<MakeScheduler>& entry : schedulers()) {
        if (entry.name == engine.args().batching) return entry.make(engine);
    }
    KVSIM_CHECK(false, "the batch policy's name was checked");
    return nullptr;
}

}  // namespace

Engine::Engine(const EngineArgs& args, EngineListener& listener)
    : args_(args), listener_(listener), slots_per_block_(kvsim::slots_per_block(args)) {
    for (const BlockGroup& group : args.kv_groups) {
        if (group.rule != BlockGroup::Rule::sliding && group.rule != BlockGroup::Rule::chunked) continue;
        const WindowContext window{group.window, group.rule == BlockGroup::Rule::chunked, 0};
        const auto same = [&](const WindowContext& w) { return w.window == window.window && w.chunked == window.chunked; };
        if (std::none_of(windows_.begin(), windows_.end(), same)) windows_.push_back(window);
    }
    KVSIM_CHECK(args.num_gpu_blocks >= 1 && args.block_size >= 1 && args.max_num_seqs >= 1, "engine arguments were checked");
    if (args.policy.predictor) predictor_ = args.policy.predictor.make(*this);
    scheduler_ = make_scheduler(*this);
}

std::int32_t Engine::label(const std::string& name) {
    if (name.empty()) return -1;
    const auto at = static_cast<std::size_t>(std::find(labels_.begin(), labels_.end(), name) - labels_.begin());
    if (at == labels_.size()) labels_.push_back(name);
    return static_cast<std::int32_t>(at);
}

std::int64_t believed_outputs(const LiveRequest& request) {
    const std::int64_t guess = request.predicted > 0 ? request.predicted : request.max_tokens;
    return std::max(guess, request.outputs + 1);
}

std::int64_t believed_final(const LiveRequest& request) {
    return request.prompt + believed_outputs(request) - 1;
}

std::int64_t AdmissionView::lacking(const LiveRequest& head, const FinalOf& final_of) const {
    const auto final = [&](const LiveRequest& request) { return std::min(final_of(request), engine.args().max_model_len); };
    const std::int64_t own = final(head);
    std::int64_t blocks = kv.admission_need(head, hit, own, own).whole;
    for (const Slot slot : running) {
        const LiveRequest& request = engine.request(slot);
        blocks += kv.lacking(request, final(request));
    }
    return blocks;
}

Slot Engine::enqueue(NewRequest& request) {
    LiveRequest live;
    live.id = request.id;
    live.arrival = request.arrival;
    live.priority = request.priority;
    live.arrival_rank = request.arrival_rank;
    live.tie_id = request.tie_id.empty() ? std::to_string(request.id) : std::move(request.tie_id);
    live.prompt = request.prompt;
    live.sequences = request.sequences;
    live.beam_seed = request.beam_seed;
    // Some engines take a prompt without room and drop it when they come to it.
    const std::int64_t room = std::max<std::int64_t>(args_.output_limit(request.prompt), 1);
    live.max_tokens = std::min(request.max_tokens, room) * request.sequences;
    live.limit = request.limit;
    live.ignore_eos = request.ignore_eos;
    live.output_lens = std::move(request.output_lens);
    live.content = std::move(request.content);
    live.output_base = request.output_base;
    live.measured = request.measured;
    live.outstanding = live.final_computed();
    live.request_class = label(request.request_class);
    live.tenant = label(request.tenant);
    KVSIM_CHECK(live.prompt >= 1 && live.max_tokens >= 1, "a request has a prompt, and room for an output token");
    if (predictor_) live.predicted = std::clamp<std::int64_t>(predictor_->predict(live), 1, room);
    Slot slot = static_cast<Slot>(requests_.size());
    if (free_slots_.empty()) {
        requests_.push_back(std::move(live));
    } else {
        slot = free_slots_.back();
        free_slots_.pop_back();
        requests_[slot] = std::move(live);
    }
    ++unfinished_;
    outstanding_ += requests_[slot].outstanding;
    scheduler_->arrive(slot);
    return slot;
}

void Engine::schedule(Batch& batch, SimTime now) {
    batch.clear();
    batch.step = step_++;
    if (batch.windows.size() != windows_.size()) batch.windows = windows_;
    now_ = now;
    early_.clear();  // of a step without rows, which no update() follows
    scheduling_ = true;
    scheduler_->plan(batch);
    scheduling_ = false;
    batch.shape.chunks = batch.chunks;
    batch.shape.windows = batch.windows;
    check_invariants();
}

void Engine::update(const Batch& batch, SimTime now) {
    received_.clear();
    finished_.clear();
    finished_.swap(early_);
    now_ = now;
    scheduler_->receive(batch, now);
    tell_next_tokens();
    check_invariants();
}

void Engine::admitted(Slot slot, std::int64_t cached) {
    LiveRequest& request = requests_[slot];
    listener_.on_admitted(request.id, request.admitted_before, request.tokens(), cached, now_);
    request.computed = cached;
    request.state = RequestState::running;
    request.admitted_before = true;
}

void Engine::preempted(Batch& batch, Slot slot) {
    LiveRequest& request = requests_[slot];
    request.computed = 0;
    request.state = RequestState::preempted;
    account(request);
    batch.preempted.push_back(request.id);
    listener_.on_preempted(request.id);
}

void Engine::swapped_out(Batch& batch, Slot slot) {
    LiveRequest& request = requests_[slot];
    request.state = RequestState::preempted;
    account(request);
    batch.preempted.push_back(request.id);
    listener_.on_preempted(request.id);
}

void Engine::swapped_in(Slot slot) {
    requests_[slot].state = RequestState::running;
}

SimDuration Engine::price_of_prompt(std::int64_t tokens) const {
    KVSIM_CHECK(prices_ != nullptr && tokens >= 1, "prices are only asked for where steps have them");
    const PrefillChunk chunk{tokens, 0};
    StepShape shape;
    shape.tokens = tokens;
    shape.sequences = shape.sampled = 1;
    if (tokens == 1) {
        shape.decode_rows = shape.decode_context = shape.shortest_context = shape.longest_context = 1;
    } else {
        shape.chunks = {&chunk, 1};
    }
    return prices_->duration(shape);
}

void Engine::prefill(Batch& batch, const BatchRow& row) {
    batch.shape.tokens += row.tokens;
    batch.chunks.push_back({row.tokens, row.computed});
}

void Engine::tell_next_tokens() {
    if (next_tokens_.count > 0) listener_.on_next_tokens(next_tokens_.count, next_tokens_.measured, next_tokens_.gap, now_);
    next_tokens_ = {};
}

void Engine::drop(Slot slot, SimTime now) {
    leave(slot);
    LiveRequest& request = requests_[slot];
    const RequestId id = std::exchange(request.id, nobody);
    listener_.on_dropped(id, {request.outputs, request.scheduled}, now);
}

void Engine::finish(Slot slot, SimTime now) {
    (scheduling_ ? early_ : finished_).push_back(requests_[slot].id);
    leave(slot);
    LiveRequest& request = requests_[slot];
    if (keep_gaps_) listener_.on_gaps(request.id, request.gaps);
    if (predictor_) predictor_->finished(request);
    listener_.on_work(request.id, request.scheduled);
    const RequestId id = std::exchange(request.id, nobody);  // rows of it in flight find nobody
    listener_.on_finished(id, request.outputs, now);
}

Aborted Engine::abort(Slot slot) {
    leave(slot);
    LiveRequest& request = requests_[slot];
    request.id = nobody;  // its rows in flight find nobody
    check_invariants();
    return {request.outputs, request.scheduled};
}

void Engine::leave(Slot slot) {
    scheduler_->remove(slot);
    LiveRequest& request = requests_[slot];
    outstanding_ -= request.outstanding;
    held_.reserved -= request.reserved_slots;
    held_.internal -= request.internal_slots;
    request.outstanding = request.reserved_slots = request.internal_slots = request.computed = 0;
    request.state = RequestState::waiting;
    --unfinished_;
    free_slots_.push_back(slot);
}

void Engine::account(Slot slot) {
    account(requests_[slot]);
}

void Engine::account(LiveRequest& request) {
    account(request, request.state == RequestState::running ? scheduler_->unfilled(request) : HeldSlots{});
}

std::string Engine::describe() const {
    return std::to_string(running_count()) + " running, " + std::to_string(waiting_count()) + " waiting, " +
           std::to_string(free_blocks()) + " of " + std::to_string(usable_blocks()) + " KV blocks free" +
           scheduler_->describe_head();
}

bool Engine::head_blocks_others() const {
    if (waiting_count() < 2 || running_count() >= args_.max_num_seqs) return false;
    const std::vector<Slot> waiting = scheduler_->waiting();
    const auto fits = [this](Slot slot) { return admission_blocks(args_, requests_[slot].tokens()) <= free_blocks(); };
    return !fits(waiting.front()) && std::any_of(waiting.begin() + 1, waiting.end(), fits);
}

std::vector<std::pair<RequestId, std::int64_t>> Engine::left_over() const {
    std::vector<std::pair<RequestId, std::int64_t>> out;
    for (const Slot slot : scheduler_->running()) out.emplace_back(requests_[slot].id, requests_[slot].outputs);
    for (const Slot slot : scheduler_->waiting()) out.emplace_back(requests_[slot].id, requests_[slot].outputs);
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

// ---- many steps

/// The rows as run_ahead() needs them; false: their next steps are not all alike.
bool Engine::note_steady(std::int64_t steps) {
    const std::int64_t block = slots_per_block_;
    steady_.phases.assign(static_cast<std::size_t>(block), 0);
    steady_.beyond.assign(static_cast<std::size_t>(steps), 0);
    steady_.gaps.clear();
    steady_.measured = 0;
    steady_.last_token = requests_[steady_.rows.front()].last_token;
    for (const Slot slot : steady_.rows) {
        const LiveRequest& request = requests_[slot];
        const std::int64_t computed = request.computed;
        const std::int64_t final = request.final_computed();
        const std::int64_t slots = ceil_div(computed, block) * block;
        // A first token is told by itself, recomputed ones are counted, and one gap is told for all.
        if (request.outputs < 1 || request.high_water != computed || request.last_token != steady_.last_token) return false;
        if (request.reserved_slots + request.internal_slots != slots - computed || computed + steps > final) return false;
        steady_.measured += request.measured ? 1 : 0;
        ++steady_.phases[static_cast<std::size_t>(computed % block)];
        const std::int64_t last_block = (final - 1) / block * block;  // taken when so many are computed
        const std::int64_t at = last_block - computed;
        if (at >= 0 && at < steps) steady_.beyond[static_cast<std::size_t>(at)] += last_block + block - final;
    }
    return true;
}

Engine::Ahead Engine::run_ahead(Batch& current, Batch* next, SimTime& end, SimTime horizon, const DecodeLine& line) {
    constexpr std::int64_t most_steps = 4096;  // then the user's interrupt is looked for
    Ahead passed;
    steady_.rows.clear();
    const Scheduler::Steady steady = scheduler_->steady_steps(steady_.rows);
    const std::int64_t steps = std::min(steady.steps, most_steps);
    if (steps <= 0 || steady_.rows.empty() || !note_steady(steps)) return passed;
    const auto rows = static_cast<std::int64_t>(steady_.rows.size());
    passed.rows = rows;
    passed.bound = steady.bound;

    Batch& newest = next != nullptr ? *next : current;
    std::int64_t context = newest.shape.decode_context;
    SimDuration flying = current.duration;
    SimDuration pending = newest.duration;
    SimTime last = steady_.last_token;
    std::size_t phase = 0;
    std::int64_t free = passed.least_free = free_blocks();
    for (; passed.steps < steps && end < horizon && scheduler_->steady_step(); ++passed.steps) {
        // The results of the batch in progress arrive, and the next one is decided, both at `end`.
        listener_.on_next_tokens(rows, steady_.measured, end - last, end);
        if (keep_gaps_) steady_.gaps.push_back((end - last).count());
        last = end;
        const Int128 instant = end.time_since_epoch().count();
        const std::int64_t beyond = steady_.beyond[static_cast<std::size_t>(passed.steps)];
        const std::int64_t taken = steady_.phases[phase] * slots_per_block_;
        passed.used_dt += instant * (free - free_blocks());
        passed.reserved_dt += instant * (taken - beyond - rows);
        passed.internal_dt += instant * beyond;
        free = free_blocks();
        passed.least_free = std::min(passed.least_free, free);
        phase = phase == 0 ? steady_.phases.size() - 1 : phase - 1;
        context += rows;
        const SimDuration price = round_step(line.base_ns + line.per_context_ns * static_cast<double>(context));
        passed.priced += price;
        flying = next != nullptr ? pending : price;
        pending = price;
        end += flying;
    }
    if (passed.steps == 0) return passed;

    now_ = last;
    step_ += passed.steps;
    finished_.clear();
    early_.clear();
    scheduler_->pass(passed.steps, last);
    for (const Slot slot : steady_.rows) pass(slot, passed.steps);
    const auto move = [&passed, rows](Batch& batch, SimDuration duration) {
        batch.step += passed.steps;
        for (BatchRow& row : batch.rows) row.computed += passed.steps;
        batch.preempted.clear();
        batch.bound = passed.bound;
        batch.shape.shortest_context += passed.steps;
        batch.shape.longest_context += passed.steps;
        batch.shape.decode_context += passed.steps * rows;
        batch.transfer = {};
        batch.duration = duration;
    };
    move(current, flying);
    if (next != nullptr) move(*next, pending);
    check_invariants();
    return passed;
}

void Engine::pass(Slot slot, std::int64_t steps) {
    LiveRequest& request = requests_[slot];
    request.outputs += steps;
    request.computed += steps;
    request.high_water = request.computed;
    request.scheduled += steps;
    request.last_token = now_;
    request.gaps.insert(request.gaps.end(), steady_.gaps.begin(), steady_.gaps.end());
    account(request);
}

void Engine::check_invariants() const {
    KVSIM_CHECK(running_count() + waiting_count() == unfinished_, "every request runs or waits");
    KVSIM_CHECK(has_work() || used_blocks() == 0, "an empty engine holds no KV");
#ifndef NDEBUG
    HeldSlots held;
    std::int64_t outstanding = 0;
    const std::vector<Slot> running = scheduler_->running();
    for (const Slot slot : running) {
        const LiveRequest& request = requests_[slot];
        KVSIM_CHECK(request.state == RequestState::running, "running() holds running requests");
        held.reserved += request.reserved_slots;
        held.internal += request.internal_slots;
        outstanding += request.outstanding;
    }
    const std::vector<Slot> waiting = scheduler_->waiting();
    for (const Slot slot : waiting) {
        KVSIM_CHECK(requests_[slot].state != RequestState::running, "waiting() holds waiting requests");
        outstanding += requests_[slot].outstanding;
    }
    KVSIM_CHECK(static_cast<std::int64_t>(running.size()) == running_count() &&
                    static_cast<std::int64_t>(waiting.size()) == waiting_count(),
                "counts are of the lists");
    KVSIM_CHECK(held.reserved == held_.reserved && held.internal == held_.internal,
                "the waste shares are sums over running requests");
    KVSIM_CHECK(
        held_.reserved >= 0 && held_.internal >= 0 && held_.reserved + held_.internal <= used_blocks() * slots_per_block_,
        "of the slots that are held each holds a token, or will, or never will");
    KVSIM_CHECK(outstanding == outstanding_, "outstanding tokens are a sum over requests");
#endif
}

void fill_scheduled(StepRecord& record, const Engine& engine, const Batch& batch) {
    record.step = batch.step;
    record.scheduled.resize(batch.rows.size());
    for (std::size_t i = 0; i < batch.rows.size(); ++i) {
        const BatchRow& row = batch.rows[i];
        ScheduledRow& out = record.scheduled[i];
        out.id = row.id;
        out.tokens = row.tokens;
        out.computed = row.computed;
        out.kind = row.kind;
        out.blocks.clear();
        out.tables.clear();
        engine.scheduler().record(row, out);
    }
    record.total_tokens = batch.shape.tokens;
    record.preempted = batch.preempted;
    record.free_after_schedule = engine.free_blocks();
}

void fill_updated(StepRecord& record, const Engine& engine) {
    record.free_after_update = engine.free_blocks();
    record.running.clear();
    for (const Slot slot : engine.scheduler().running()) record.running.push_back(engine.request(slot).id);
    record.waiting.clear();
    for (const Slot slot : engine.scheduler().waiting()) record.waiting.push_back(engine.request(slot).id);
}

}  // namespace kvsim
