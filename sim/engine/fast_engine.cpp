#include "kvsim/engine/fast_engine.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kvsim/base/check.hpp"

namespace kvsim {
namespace {

std::size_t power_of_two(std::int64_t at_least) {
    std::size_t n = 64;
    while (n < static_cast<std::size_t>(at_least)) n *= 2;
    return n;
}

}  // namespace

bool FastEngine::handles(const EngineArgs& args) {
    return args.kv_groups.empty() && args.scheduling_policy == QueueOrder::fcfs && args.long_prefill_token_threshold == 0 &&
           args.max_num_batched_tokens >= args.max_num_seqs && args.block_size <= 4096 && args.max_model_len <= 0x3fffffff;
}

FastEngine::FastEngine(const EngineArgs& args, EngineListener& listener, Integrals& integrals, TokenMeter& tokens)
    : args_(args),
      listener_(listener),
      integrals_(integrals),
      tokens_(tokens),
      kv_(args.num_gpu_blocks - 1, args.block_size, args.enable_prefix_caching),
      watermark_blocks_(static_cast<std::int64_t>(std::floor(args.watermark * static_cast<double>(args.num_gpu_blocks)))),
      phases_(static_cast<std::size_t>(args.block_size)),
      buckets_(4096),
      bucket_mask_(buckets_.size() - 1),
      scheduled_at_(power_of_two(args.block_size + 4)),
      scheduled_mask_(scheduled_at_.size() - 1) {}

// ---- lists through the requests

void FastEngine::push(List& list, Links Live::*links, Slot slot) {
    (lives_[slot].get()->*links) = {list.last, none};
    (list.last == none ? list.first : (lives_[list.last].get()->*links).next) = slot;
    list.last = slot;
    ++list.count;
}

void FastEngine::unlink(List& list, Links Live::*links, Slot slot) {
    const Links at = lives_[slot].get()->*links;
    (at.previous == none ? list.first : (lives_[at.previous].get()->*links).next) = at.next;
    (at.next == none ? list.last : (lives_[at.next].get()->*links).previous) = at.previous;
    --list.count;
}

FastEngine::List& FastEngine::phase_list(const Live& live) {
    const std::int64_t rest = live.offset % args_.block_size;
    return phases_[static_cast<std::size_t>(rest > 0 ? args_.block_size - rest : -rest)];
}

// ---- requests come

Slot FastEngine::enqueue(NewRequest& request) {
    Slot slot = static_cast<Slot>(lives_.size());
    if (free_slots_.empty()) {
        lives_.push_back(std::make_unique<Live>());
    } else {
        slot = free_slots_.back();
        free_slots_.pop_back();
    }
    Live& live = *lives_[slot];
    live.id = request.id;
    live.prompt = static_cast<std::int32_t>(request.prompt);
    live.max_tokens = static_cast<std::int32_t>(std::min(request.max_tokens, args_.max_model_len - request.prompt));
    live.outputs = live.computed = live.high_water = live.registered = 0;
    live.state = State::waiting;
    live.measured = request.measured;
    live.admitted_before = live.has_token = false;
    live.last_block = never;
    live.kv = {};
    live.kv.owner = slot;
    if (kv_.caching()) {
        live.content.swap(request.content);
        live.kv.content = &live.content;
        live.kv.shareable = kv_.shareable_blocks(live.content);
    }
    ++unfinished_;
    outstanding_ += live.prompt + live.max_tokens - 1;
    if (waiting_.empty()) steady_ = false;  // a head that was not looked at yet
    waiting_.push_back() = slot;
    return slot;
}

// ---- one step

void FastEngine::schedule(Batch& batch, SimTime now) {
    batch.clear();
    batch.step = step_++;
    now_ = now;
    budget_ = args_.max_num_batched_tokens;
    plan_decoders(batch);
    if (prefilling_ != none) plan_prefilling(batch);
    if (batch.preempted.empty()) {
        plan_waiting(batch);
        if (batch.bound != Bound::kv_blocks && !waiting_.empty() && running_count_ == args_.max_num_seqs)
            batch.bound = Bound::seats;
        if (batch.bound == Bound::no_waiting && budget_ == 0) batch.bound = Bound::token_budget;
    } else {
        batch.bound = Bound::kv_blocks;
    }
    close_plan(batch);
}

void FastEngine::plan_decoders(Batch& batch) {
    List& crossers = phases_[static_cast<std::size_t>(batch_ % args_.block_size)];
    if (crossers.count <= kv_.free()) {
        kv_.take(crossers.count);
        table_blocks_ += crossers.count;
    } else {
        for (Slot slot = crossers.first; slot != none; slot = lives_[slot]->phase.next) {
            bool gone = false;
            while (!gone && kv_.free() == 0) {
                gone = running_.last == slot;
                preempt(batch);
            }
            if (gone) break;  // it was the last one running: nobody is left behind it
            kv_.take(1);
            ++table_blocks_;
        }
    }
    batch.decoders = decoders_;
    batch.measured_decoders = measured_decoders_;
    batch.shape.tokens = batch.shape.decode_rows = batch.shape.sampled = batch.shape.sequences = decoders_;
    batch.shape.decode_context = decode_context_ + decoders_;
    budget_ -= decoders_;
    decode_context_ += decoders_;
    computed_ += decoders_;
    outstanding_ -= decoders_;
}

void FastEngine::plan_prefilling(Batch& batch) {
    Live& live = *lives_[prefilling_];
    const std::int64_t n = std::min<std::int64_t>(live.prompt + live.outputs - live.computed, budget_);
    KVSIM_DCHECK(n > 0, "decoding requests leave budget for the one that prefills");
    const std::int64_t need = blocks(live.computed + n) - blocks(live.computed);
    if (need > kv_.free()) {
        preempt(batch);  // it is the last one running, so it is its own victim
        return;
    }
    kv_.extend(live.kv, need);
    table_blocks_ += need;
    const Slot slot = std::exchange(prefilling_, none);
    place(batch, slot, n);
}

void FastEngine::plan_waiting(Batch& batch) {
    while (!waiting_.empty() && budget_ > 0) {
        if (running_count_ == args_.max_num_seqs) {
            batch.bound = Bound::seats;
            return;
        }
        const Slot slot = waiting_.front();
        Live& head = *lives_[slot];
        const std::int64_t tokens = head.prompt + head.outputs;
        const PrefixHit hit = kv_.lookup(head.kv, tokens);
        const std::int64_t cached = hit.blocks * args_.block_size;
        std::int64_t n = tokens - cached;
        if (!args_.enable_chunked_prefill && n > budget_) {
            batch.bound = Bound::token_budget;
            return;
        }
        n = std::min(n, budget_);
        const std::int64_t room = kv_.free() - watermark_blocks_ + hit.blocks - hit.idle;
        const std::int64_t total = blocks(cached + n);
        if ((args_.scheduler_reserve_full_isl && blocks(std::min(tokens, args_.max_model_len)) > room) || total > room) {
            batch.bound = Bound::kv_blocks;
            return;
        }
        waiting_.pop_front();
        listener_.on_admitted(head.id, head.admitted_before, tokens, cached, now_);
        kv_.admit(head.kv, hit, total - hit.blocks);
        table_blocks_ += total;
        computed_ += cached;
        outstanding_ -= cached;
        head.computed = static_cast<std::int32_t>(cached);
        head.admitted_before = true;
        head.order = admissions_++;
        head.last_block = never;
        push(running_, &Live::run, slot);
        ++running_count_;
        place(batch, slot, n);
    }
}

/// `tokens` new tokens for a request that prefills; its blocks are taken.
void FastEngine::place(Batch& batch, Slot slot, std::int64_t tokens) {
    Live& live = *lives_[slot];
    budget_ -= tokens;
    ++batch.shape.sequences;
    batch.shape.tokens += tokens;
    if (tokens == 1) {
        ++batch.shape.decode_rows;
        batch.shape.decode_context += live.computed + 1;
    } else {
        batch.chunks.push_back({tokens, live.computed});
    }
    const auto upto = static_cast<std::int32_t>(live.computed + tokens);
    if (const std::int32_t redone = std::min(live.high_water, upto) - live.computed; redone > 0) {
        batch.recomputed_tokens += redone;
        listener_.on_recompute(live.id, redone);
    }
    live.high_water = std::max(live.high_water, upto);
    const std::int64_t last = blocks(live.prompt + live.max_tokens - 1);
    if (live.last_block == never && blocks(upto) == last) live.last_block = now_;
    live.computed = upto;
    computed_ += tokens;
    outstanding_ -= tokens;
    kv_.publish(live.kv, upto);
    if (upto == live.prompt + live.outputs) {
        ++batch.shape.sampled;
        batch.completing.push_back(slot);
    } else {
        live.state = State::prefilling;
        prefilling_ = slot;
    }
}

/// Who decodes from the next batch on.
void FastEngine::close_plan(Batch& batch) {
    batch.shape.chunks = batch.chunks;
    steady_ = prefilling_ == none && batch.preempted.empty();
    if (batch.empty()) return;
    batch.number = batch_;
    scheduled_at_[static_cast<std::size_t>(batch_) & scheduled_mask_] = now_;
    for (Slot slot = bucket(batch_).first; slot != none; slot = lives_[slot]->bucket.next) {
        Live& live = *lives_[slot];
        if (live.last_batch != batch_) continue;
        stop_decoding(slot);
        decode_context_ -= batch_ + 1 + live.offset;
        live.computed = static_cast<std::int32_t>(batch_ + 1 + live.offset);
        live.state = State::draining;
    }
    for (const Slot slot : batch.completing) {
        Live& live = *lives_[slot];
        live.offset = live.computed - (batch_ + 1);
        live.last_batch = batch_ + live.max_tokens - live.outputs - 1;
        live.registered = live.computed;
        push(bucket(live.last_batch), &Live::bucket, slot);
        if (live.last_batch > batch_) {
            start_decoding(slot);
        } else {
            live.state = State::draining;
        }
    }
    ++batch_;
}

void FastEngine::start_decoding(Slot slot) {
    Live& live = *lives_[slot];
    live.state = State::decoding;
    push(phase_list(live), &Live::phase, slot);
    ++decoders_;
    measured_decoders_ += live.measured ? 1 : 0;
    decode_context_ += live.computed;
}

/// Leaves the counts but for decode_context_, which depends on how far it got.
void FastEngine::stop_decoding(Slot slot) {
    Live& live = *lives_[slot];
    unlink(phase_list(live), &Live::phase, slot);
    --decoders_;
    measured_decoders_ -= live.measured ? 1 : 0;
}

/// The last one running gives its blocks back and waits at the front.
void FastEngine::preempt(Batch& batch) {
    const Slot slot = running_.last;
    Live& live = *lives_[slot];
    std::int64_t registered = live.computed;
    if (live.state == State::decoding) {
        live.computed = static_cast<std::int32_t>(batch_ + live.offset);
        live.outputs = live.computed - live.prompt + 1;
        registered = live.computed;
        if (!args_.async_scheduling) {
            live.last_token = last_update_;
        } else {
            in_flight_.push_back(slot);  // its last token is still to come
            registered = std::max<std::int64_t>(live.registered, live.computed - 1);
        }
        stop_decoding(slot);
        decode_context_ -= live.computed;
        unlink(bucket(live.last_batch), &Live::bucket, slot);
    } else if (live.state == State::prefilling) {
        prefilling_ = none;
    }
    // A draining request has its last token in flight: it stays in its bucket and finishes from the waiting queue.
    live.high_water = std::max(live.high_water, live.computed);
    leave_running(live, registered);
    unlink(running_, &Live::run, slot);
    --running_count_;
    outstanding_ += live.computed;
    live.computed = 0;
    live.state = State::preempted;
    waiting_.push_front() = slot;
    batch.preempted.push_back(live.id);
    listener_.on_preempted(live.id);
}

/// Releases the KV; slots of its last block that it would never have filled were counted as reserved until now.
void FastEngine::leave_running(Live& live, std::int64_t registered_tokens) {
    const std::int64_t final = live.prompt + live.max_tokens - 1;
    const std::int64_t last = blocks(final);
    if (blocks(live.computed) == last) {
        SimTime since = live.last_block;
        if (since == never)
            since = scheduled_at_[static_cast<std::size_t>((last - 1) * args_.block_size - live.offset) & scheduled_mask_];
        const Int128 internal = static_cast<Int128>(last * args_.block_size - final) * (now_ - since).count();
        integrals_.slots_internal_dt += internal;
        integrals_.slots_reserved_dt -= internal;
    }
    live.last_block = never;
    table_blocks_ -= blocks(live.computed);
    computed_ -= live.computed;
    // Decoding blocks were only counted; now they are its own.
    live.kv.own_blocks = static_cast<std::int32_t>(blocks(live.computed)) - live.kv.path_blocks;
    kv_.release(live.kv, registered_tokens);
}

void FastEngine::update(const Batch& batch, SimTime now) {
    now_ = now;
    if (batch.decoders > 0) tokens_.next(batch.decoders, batch.measured_decoders, now - last_update_, now);
    for (const Slot slot : batch.completing) {
        Live& live = *lives_[slot];
        if (live.has_token) {
            tokens_.next(1, live.measured ? 1 : 0, now - live.last_token, now);
        } else {
            live.has_token = true;
            listener_.on_first_token(live.id, now);
        }
    }
    for (const Slot slot : in_flight_) lives_[slot]->last_token = now;
    in_flight_.clear();
    last_update_ = now;

    leaving_.clear();
    for (Slot slot = bucket(batch.number).first; slot != none; slot = lives_[slot]->bucket.next) {
        if (lives_[slot]->last_batch == batch.number) leaving_.push_back(slot);
    }
    if (leaving_.size() > 1) {
        std::sort(leaving_.begin(), leaving_.end(), [this](Slot a, Slot b) { return lives_[a]->order < lives_[b]->order; });
    }
    for (const Slot slot : leaving_) finish(slot);
}

void FastEngine::finish(Slot slot) {
    Live& live = *lives_[slot];
    unlink(bucket(live.last_batch), &Live::bucket, slot);
    if (live.state == State::draining) {
        leave_running(live, -1);
        unlink(running_, &Live::run, slot);
        --running_count_;
    } else {
        KVSIM_CHECK(live.state == State::preempted,
                    "a request that finishes runs, or was preempted with its last token in flight");
        std::size_t at = 0;
        while (waiting_[at] != slot) ++at;
        waiting_.erase(at);
        kv_.forget(live.kv);
        outstanding_ -= live.prompt + live.max_tokens - 1;
    }
    live.state = State::waiting;
    steady_ = false;
    --unfinished_;
    free_slots_.push_back(slot);
    listener_.on_finished(live.id, live.max_tokens, now_);
    KVSIM_CHECK(unfinished_ > 0 || used_blocks() == 0, "an empty engine holds no KV");
}

SimDuration FastEngine::run_ahead(Batch& current, Batch* next, SimTime& end, SimTime integrated, SimTime horizon,
                                  const StepTimeModel& step_time, Integrals& integrals, Counters& counters) {
    // Both batches of the queue must be plain decode steps, and nobody may finish in them.
    if (current.shape.sequences != decoders_ || current.decoders != decoders_) return {};
    if (next && (next->shape.sequences != decoders_ || next->decoders != decoders_)) return {};
    if (somebody_ends_in(batch_ - 1) || (next && somebody_ends_in(batch_ - 2))) return {};

    const std::optional<DecodeLine> line = step_time.decode_line(decoders_);
    // Prices must rise with the context, and the dearest weighted with all rows stay far from the end of time; then neither
    // they nor the sums below need a check one by one.
    constexpr std::int64_t stride = 1 << 20;  // at most so many steps: the user's interrupt is looked for in between
    if (!line || line->per_context_ns < 0 || line->base_ns < 1) return {};
    const double dearest = line->base_ns + line->per_context_ns * static_cast<double>(decode_context_ + decoders_ * stride);
    if (dearest * static_cast<double>(decoders_ + 1) > 1e18) return {};

    // The state changes in steps of known size at known instants, so its integrals need only the sum of the instants and of
    // the instants weighted with the blocks taken. Everything the loop touches lives in locals: it is most of the time of a
    // run with long outputs.
    const double base = line->base_ns;
    const double slope = line->per_context_ns;
    const std::int64_t rows = decoders_;
    const SimTime origin = integrated;
    const SimTime first_end = end;
    const SimTime first_update = last_update_;
    const SimDuration first_pending = next ? next->duration : SimDuration{};
    Batch& newest = next ? *next : current;
    const List* const phases = phases_.data();
    const std::size_t last_phase = phases_.size() - 1;
    const List* const buckets = buckets_.data();
    const std::size_t bucket_mask = bucket_mask_;
    SimTime* const scheduled_at = scheduled_at_.data();
    const std::size_t scheduled_mask = scheduled_mask_;
    LogLinearHistogram::Slow gaps(tokens_.measured_gaps(), measured_decoders_);
    std::optional<LogLinearHistogram::Slow> all_gaps;
    if (LogLinearHistogram* all = tokens_.all_gaps()) all_gaps.emplace(*all, rows);
    const std::int64_t instants_limit = (std::int64_t{1} << 62) / (rows + 1);

    const std::int64_t first_batch = batch_;
    std::int64_t free = kv_.free();
    std::int64_t context = decode_context_;
    std::int64_t batch = batch_;
    std::int64_t counted = batch_;        // tokens_ has seen the batches before it
    std::int64_t instants = 0;            // sum of (instant - origin)
    std::int64_t block_instants = 0;      // the same, weighted with the blocks taken at it
    SimDuration pending = first_pending;  // async: of the batch that follows
    SimDuration flying = current.duration;
    SimDuration first_gap{}, second_gap{}, gap{};
    SimTime second_end = tokens_.second_end();
    SimTime last_update = last_update_;
    SimTime now = end;
    auto phase = static_cast<std::size_t>(batch % args_.block_size);
    const std::int64_t last_batch = first_batch + stride;
    while (now < horizon && batch < last_batch) {
        const std::int64_t crossers = phases[phase].count;
        if (crossers > free) break;
        if (buckets[static_cast<std::size_t>(batch) & bucket_mask].count > 0 && somebody_ends_in(batch)) break;
        phase = phase == last_phase ? 0 : phase + 1;
        // The results of the batch in progress arrive...
        gap = now - last_update;
        gaps.add(gap.count());
        if (all_gaps) all_gaps->add(gap.count());
        if (now >= second_end) [[unlikely]] {
            tokens_.add((batch - counted) * rows, last_update);
            tokens_.add(0, now);
            counted = batch;
            second_end = tokens_.second_end();
        }
        if (batch <= first_batch + 1) [[unlikely]]
            (batch == first_batch ? first_gap : second_gap) = gap;
        last_update = now;
        // ... and `batch` is scheduled at the same instant.
        const std::int64_t instant = (now - origin).count();
        instants += instant;
        block_instants += crossers * instant;
        scheduled_at[static_cast<std::size_t>(batch) & scheduled_mask] = now;
        ++batch;
        free -= crossers;
        context += rows;
        // As round_step(), operation by operation.
        const double ns = base + slope * static_cast<double>(context);
        const SimDuration price(static_cast<std::int64_t>(ns + 0.5));
        flying = next ? pending : price;
        now += flying;
        pending = price;
        if (instants > instants_limit) [[unlikely]]
            break;  // weighted with at most `rows` blocks they still fit
    }
    const std::int64_t steps = batch - first_batch;
    if (steps == 0) return {};

    tokens_.add((batch - counted) * rows, last_update);
    // From the second on gaps only rise.
    const Int128 gap_sum = (last_update - first_update).count();
    const std::int64_t least = std::min({first_gap, steps > 1 ? second_gap : first_gap, gap}).count();
    const std::int64_t most = std::max(first_gap, gap).count();
    gaps.close(steps, gap_sum, least, most);
    if (all_gaps) all_gaps->close(steps, gap_sum, least, most);

    const std::int64_t taken = kv_.free() - free;
    const Int128 passed = (last_update - origin).count();
    const Int128 taken_dt = passed * taken - block_instants;
    const Int128 used_dt = passed * used_blocks() + taken_dt;
    const Int128 held_dt = passed * held().reserved + taken_dt * args_.block_size - (passed * steps - instants) * rows;
    integrals.blocks_used_dt += used_dt;
    integrals.slots_token_dt += used_dt * args_.block_size - held_dt;
    integrals.slots_reserved_dt += held_dt;
    integrals.stepping += now - first_end + (next ? pending - first_pending : SimDuration{});

    kv_.take(taken);
    table_blocks_ += taken;
    integrals.blocks_used_peak = std::max(integrals.blocks_used_peak, used_blocks());
    end = now;
    batch_ = batch;
    decode_context_ = context;
    last_update_ = last_update;
    computed_ += steps * rows;
    outstanding_ -= steps * rows;
    step_ += steps;
    now_ = last_update;
    counters.steps += steps;
    counters.rows += steps * rows;
    counters.tokens += steps * rows;
    newest.shape.decode_context = context;
    newest.duration = pending;
    newest.step = step_ - 1;
    newest.number = batch_ - 1;
    if (next) {
        // Steps one apart differ only in their context, number and duration.
        current.shape = newest.shape;
        current.shape.decode_context -= rows;
        current.number = batch_ - 2;
        current.step = step_ - 2;
        current.duration = flying;
    }
    return last_update - origin;
}

/// A stalled engine runs nothing: whoever is left waits.
std::vector<std::pair<RequestId, std::int64_t>> FastEngine::left_over() const {
    std::vector<std::pair<RequestId, std::int64_t>> out;
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
        const Live& live = *lives_[waiting_[i]];
        out.emplace_back(live.id, live.outputs);
    }
    return out;
}

std::string FastEngine::describe() const {
    std::string text = std::to_string(running_count_) + " running, " + std::to_string(waiting_.size()) + " waiting, " +
                       std::to_string(kv_.free()) + " of " + std::to_string(kv_.usable()) + " KV blocks free";
    if (waiting_.empty()) return text;
    const Live& head = *lives_[waiting_.front()];
    return text + describe_head(std::to_string(head.id), head.prompt, head.outputs, head.max_tokens, args_, watermark_blocks_);
}

}  // namespace kvsim
