#pragma once
// What FastEngine does; included by fast_engine.hpp.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/fast_engine.hpp"

namespace kvsim {

/// The prices of steps that follow each other, each as round_step(), operation by operation, but two at a time: of `n` steps of
/// `rows` rows after a context sum of `context`, and maybe of one more. They fit in int32.
inline void price_steps(const DecodeLine& line, std::int64_t context, std::int64_t rows, std::int64_t n, std::int32_t* prices) {
    using Doubles [[gnu::vector_size(16)]] = double;
    using Ints [[gnu::vector_size(8)]] = std::int32_t;
    const auto before = static_cast<double>(context);
    const auto more = static_cast<double>(rows);
    const Doubles base = {line.base_ns, line.base_ns};
    const Doubles slope = {line.per_context_ns, line.per_context_ns};
    const Doubles half = {0.5, 0.5};
    const Doubles two_steps = {2 * more, 2 * more};
    Doubles at = {before + more, before + 2 * more};
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < n; i += 2) {
        const Ints whole = __builtin_convertvector(base + slope * at + half, Ints);
        std::memcpy(prices + i, &whole, sizeof whole);
        at += two_steps;
    }
}

/// In [0, m); m > 0.
constexpr std::int64_t euclidean_mod(std::int64_t n, std::int64_t m) {
    return (n % m + m) % m;
}

template <class Listener, class Kv>
FastEngine<Listener, Kv>::FastEngine(const EngineArgs& args, Listener& listener, Integrals& integrals, TokenMeter& tokens)
    : args_(args),
      listener_(listener),
      integrals_(integrals),
      tokens_(tokens),
      kv_(args.usable_blocks(), args.block_size, args.enable_prefix_caching),
      watermark_blocks_(static_cast<std::int64_t>(std::floor(args.watermark * static_cast<double>(args.num_gpu_blocks)))),
      block_shift_(std::has_single_bit(static_cast<std::uint64_t>(args.block_size))
                       ? std::countr_zero(static_cast<std::uint64_t>(args.block_size))
                       : -1),
      crossers_(static_cast<std::size_t>(args.block_size)),
      buckets_(ends_in_sight),
      most_crossings_(stretch / args.block_size + 1),
      // A last block lasts block_size batches, and two more may be in flight when its request leaves.
      scheduled_at_(std::bit_ceil(static_cast<std::size_t>(std::max(args.block_size + 4, stretch)))),
      scheduled_mask_(scheduled_at_.size() - 1) {}

// ---- lists through the requests

template <class Listener, class Kv>
inline void FastEngine<Listener, Kv>::push(List& list, Live& live, Links Live::*links) {
    live.*links = {list.last, nullptr};
    (list.last ? (list.last->*links).next : list.first) = &live;
    list.last = &live;
}

template <class Listener, class Kv>
inline void FastEngine<Listener, Kv>::unlink(List& list, const Live& live, Links Live::*links) {
    const Links at = live.*links;
    (at.previous ? (at.previous->*links).next : list.first) = at.next;
    (at.next ? (at.next->*links).previous : list.last) = at.previous;
}

template <class Listener, class Kv>
inline void FastEngine<Listener, Kv>::enter_bucket(Live& live) {
    const std::size_t at = static_cast<std::size_t>(live.last_batch) & (ends_in_sight - 1);
    push(buckets_[at], live, &Live::bucket);
    occupied_[at / 64] |= std::uint64_t{1} << (at % 64);
    next_end_ = std::min(next_end_, live.last_batch);
}

template <class Listener, class Kv>
inline void FastEngine<Listener, Kv>::leave_bucket(const Live& live) {
    const std::size_t at = static_cast<std::size_t>(live.last_batch) & (ends_in_sight - 1);
    unlink(buckets_[at], live, &Live::bucket);
    if (!buckets_[at].first) occupied_[at / 64] &= ~(std::uint64_t{1} << (at % 64));
}

/// The first batch from `first` on in which somebody gets the last token, at most `stretch` later.
template <class Listener, class Kv>
inline std::int64_t FastEngine<Listener, Kv>::next_end_from(std::int64_t first) {
    for (std::int64_t from = first; from < first + stretch; from += 64) {
        const std::size_t at = static_cast<std::size_t>(from) & (ends_in_sight - 1);
        std::uint64_t bits = occupied_[at / 64] >> (at % 64);
        bits |= occupied_[(at / 64 + 1) & (occupied_.size() - 1)] << 1 << (63 - at % 64);
        for (; bits != 0; bits &= bits - 1) {
            const std::int64_t next = from + std::countr_zero(bits);
            if (somebody_ends_in(next)) return next;
        }
    }
    return first + stretch;
}

// ---- requests come

template <class Listener, class Kv>
[[gnu::noinline]] void FastEngine<Listener, Kv>::make_live() {
    lives_.push_back(std::make_unique<Live>());
    spare_lives_.push_back(lives_.back().get());
}

template <class Listener, class Kv>
[[gnu::always_inline]] inline void FastEngine<Listener, Kv>::enqueue(Request& request) {
    if (spare_lives_.empty()) make_live();
    Live& live = *spare_lives_.back();
    spare_lives_.pop_back();
    live.id = request.id;
    live.prompt = static_cast<std::int32_t>(request.prompt);
    live.max_tokens = static_cast<std::int32_t>(std::min(request.max_tokens, args_.max_model_len - request.prompt));
    live.outputs = live.computed = live.high_water = live.registered = 0;
    live.measured = request.measured;
    live.admitted_before = live.has_token = false;
    if constexpr (!Kv::counts_only) {
        if (kv_.caching()) {
            live.kv = {};
            live.content.swap(request.content);
            live.kv.content = &live.content;
            live.kv.shareable = kv_.shareable_blocks(live.content);
        }
        if (kv_.keeps_ids()) {
            live.table.clear();
            live.kv.table = &live.table;
        }
    }
    ++unfinished_;
    work_ += live.prompt + live.max_tokens - 1;
    if (waiting_.empty()) steady_ = false;  // a head that was not looked at yet
    waiting_.push_back() = &live;
}

// ---- one step

/// A token for each of the decoders, for which there are blocks.
template <class Listener, class Kv>
inline void FastEngine<Listener, Kv>::advance(Batch& batch, std::int64_t crossers, SimTime now) {
    const std::int64_t rows = decoders_;
    kv_.take(crossers);
    held_integrals_.add(crossers, crossers * args_.block_size - rows, now);
    advanced_ += rows;
    decode_context_ += rows;
    batch.decoders = rows;
    batch.measured_decoders = measured_decoders_;
}

template <class Listener, class Kv>
inline void FastEngine<Listener, Kv>::plan_decoders(Batch& batch) {
    // In admission order each crosser takes one, from the last one running if need be, who then crosses no more.
    while (crossers_[phase_] > kv_.free()) preempt(batch);
    advance(batch, crossers_[phase_], now_);
    if (kv_.keeps_ids()) name_crossers();
    batch.context = decode_context_;
    budget_ -= decoders_;
}

template <class Listener, class Kv>
[[gnu::noinline]] void FastEngine<Listener, Kv>::plan_prefilling(Batch& batch) {
    Live& live = *prefilling_;
    const std::int64_t n = std::min<std::int64_t>(live.prompt + live.outputs - live.computed, budget_);
    KVSIM_DCHECK(n > 0, "decoding requests leave budget for the one that prefills");
    const std::int64_t need = blocks(live.computed + n) - blocks(live.computed);
    if (need > kv_.free()) {
        preempt(batch);  // it is the last one running, so it is its own victim
        return;
    }
    kv_.extend(live.kv, need);
    held_integrals_.add(need, need * args_.block_size - n, now_);
    prefilling_ = nullptr;
    if (kv_.keeps_ids()) note_row(batch, {&live, n, live.computed, blocks(live.computed)});
    place(batch, live, n, blocks(live.computed + n));
}

/// Whether the head of the queue, of `tokens` tokens and with `total` blocks after this step, has to wait for blocks; then it
/// is not asked again before that can change.
template <class Listener, class Kv>
inline bool FastEngine<Listener, Kv>::lacks_blocks(PrefixHit hit, std::int64_t total, std::int64_t tokens) {
    const std::int64_t room = kv_.free() - watermark_blocks_ + hit.blocks - hit.idle;
    const bool whole_prompt_lacks = args_.scheduler_reserve_full_isl && blocks(std::min(tokens, args_.max_model_len)) > room;
    if (!whole_prompt_lacks && total <= room) return false;
    // Without chunks a shorter hit may become too much for the budget.
    if (args_.enable_chunked_prefill) blocked_budget_ = whole_prompt_lacks ? 0 : budget_;
    return true;
}

/// After a preemption nobody is admitted, and the next step has no more blocks and no less budget than this one has left: who
/// would be held back now is then.
template <class Listener, class Kv>
inline bool FastEngine<Listener, Kv>::held_back_in_next() {
    if (!args_.enable_chunked_prefill || budget_ <= 0) return false;
    const Live& head = *waiting_.front();
    const std::int64_t tokens = head.prompt + head.outputs;
    const PrefixHit hit = kv_.lookup(head.kv, tokens);
    const std::int64_t cached = hit.blocks * args_.block_size;
    return lacks_blocks(hit, blocks(cached + std::min(tokens - cached, budget_)), tokens);
}

template <class Listener, class Kv>
[[gnu::always_inline]] inline void FastEngine<Listener, Kv>::plan_waiting(Batch& batch) {
    while (!waiting_.empty() && budget_ > 0) {
        if (running_count_ == args_.max_num_seqs) {
            batch.bound = Bound::seats;
            return;
        }
        if (budget_ >= blocked_budget_) {
            batch.bound = Bound::kv_blocks;
            return;
        }
        Live& head = *waiting_.front();
        const std::int64_t tokens = head.prompt + head.outputs;
        const PrefixHit hit = kv_.lookup(head.kv, tokens);
        const std::int64_t cached = hit.blocks * args_.block_size;
        std::int64_t n = tokens - cached;
        if (!args_.enable_chunked_prefill && n > budget_) {
            batch.bound = Bound::token_budget;
            return;
        }
        n = std::min(n, budget_);
        const std::int64_t total = blocks(cached + n);
        if (lacks_blocks(hit, total, tokens)) {
            batch.bound = Bound::kv_blocks;
            return;
        }
        waiting_.pop_front();
        listener_.on_admitted(head.id, head.admitted_before, tokens, cached, now_);
        const std::int64_t free = kv_.free();
        kv_.admit(head.kv, hit, total - hit.blocks);
        held_integrals_.add(free - kv_.free(), total * args_.block_size - cached - n, now_);
        other_computed_ += cached;
        head.computed = static_cast<std::int32_t>(cached);
        head.admitted_before = true;
        head.last_block = never;
        push(running_, head, &Live::run);
        ++running_count_;
        if (kv_.keeps_ids()) {
            const auto kind = head.state == State::preempted ? ScheduledRow::Kind::resumed : ScheduledRow::Kind::fresh;
            note_row(batch, {&head, n, cached, 0, kind});
        }
        place(batch, head, n, total);
    }
}

/// `tokens` new tokens for a request that prefills; its blocks are taken, it holds `held` now.
template <class Listener, class Kv>
[[gnu::always_inline]] inline void FastEngine<Listener, Kv>::place(Batch& batch, Live& live, std::int64_t tokens,
                                                                   std::int64_t held) {
    blocked_budget_ = not_blocked;
    budget_ -= tokens;
    batch.prefills = true;
    ++batch.prefill_rows;
    batch.prefill_tokens += tokens;
    if (tokens == 1) {
        batch.single_context += live.computed + 1;
    } else {
        batch.chunks.push_back({tokens, live.computed});
    }
    const auto upto = static_cast<std::int32_t>(live.computed + tokens);
    if (const std::int32_t redone = std::min(live.high_water, upto) - live.computed; redone > 0) {
        batch.recomputed_tokens += redone;
        listener_.on_recompute(live.id, redone);
    }
    live.high_water = std::max(live.high_water, upto);
    if (live.last_block == never && held == blocks(live.prompt + live.max_tokens - 1)) live.last_block = now_;
    live.computed = upto;
    other_computed_ += tokens;
    kv_.publish(live.kv, upto);
    if (upto == live.prompt + live.outputs) {
        batch.completing.push_back(&live);
        if (kv_.keeps_ids()) batch.prefill_list.back().samples = true;
    } else {
        live.state = State::prefilling;
        prefilling_ = &live;
    }
}

/// The batch is decided; whoever joins or leaves it from now on does so after it.
template <class Listener, class Kv>
inline void FastEngine<Listener, Kv>::count_batch(Batch& batch, SimTime now) {
    scheduled_at(batch_) = now;
    batch.number = batch_++;
    phase_ = next_phase(phase_);
}

/// Who decodes from the next batch on.
template <class Listener, class Kv>
[[gnu::always_inline]] inline void FastEngine<Listener, Kv>::close_plan(Batch& batch) {
    // Without chunks the head may turn from lacking blocks to lacking budget when blocks it would have hit are taken.
    steady_ = prefilling_ == nullptr &&
              (batch.preempted == 0 ? args_.enable_chunked_prefill || waiting_.empty() : held_back_in_next());
    if (batch.empty()) return;
    count_batch(batch, now_);
    batch.ends = next_end_ < batch_ && release_ended(batch.number);
    for (Live* const live : batch.completing) {
        live->offset = live->computed - batch_;
        live->last_batch = batch.number + live->max_tokens - live->outputs - 1;
        live->registered = live->computed;
        enter_bucket(*live);
        if (live->last_batch >= batch_) {
            start_decoding(*live);
        } else {
            live->state = State::draining;
            batch.ends = true;
        }
    }
}

template <class Listener, class Kv>
[[gnu::always_inline]] inline void FastEngine<Listener, Kv>::schedule(Batch& batch, SimTime now) {
    batch.clear();
    if constexpr (!Kv::counts_only) batch.step = step_++;
    if (kv_.keeps_ids()) batch.clear_lists();
    now_ = now;
    budget_ = args_.max_num_batched_tokens;
    plan_decoders(batch);
    if (prefilling_) plan_prefilling(batch);
    if (batch.preempted == 0) {
        if (!waiting_.empty()) {
            plan_waiting(batch);
            if (batch.bound != Bound::kv_blocks && !waiting_.empty() && running_count_ == args_.max_num_seqs)
                batch.bound = Bound::seats;
        }
        if (batch.bound == Bound::no_waiting && budget_ == 0) batch.bound = Bound::token_budget;
    } else {
        batch.bound = Bound::kv_blocks;
    }
    close_plan(batch);
}

/// Those who get their last token in `batch`, which is the latest, decode no more; they finish when it ends. Whether there are
/// any.
template <class Listener, class Kv>
inline bool FastEngine<Listener, Kv>::release_ended(std::int64_t batch) {
    bool any = false;
    for (Live* live = bucket(batch).first; live; live = live->bucket.next) {
        if (live->last_batch != batch) continue;
        any = true;
        stop_decoding(*live);
        live->computed = static_cast<std::int32_t>(batch + 1 + live->offset);
        decode_context_ -= live->computed;
        live->state = State::draining;
    }
    next_end_ = next_end_from(batch + 1);
    return any;
}

/// From batch_ on.
template <class Listener, class Kv>
inline void FastEngine<Listener, Kv>::start_decoding(Live& live) {
    live.state = State::decoding;
    // Batch k is of phase k mod block_size.
    live.phase_index = static_cast<std::uint32_t>(block_shift_ >= 0 ? -live.offset & (args_.block_size - 1)
                                                                    : euclidean_mod(-live.offset, args_.block_size));
    ++crossers_[live.phase_index];
    if (kv_.keeps_ids()) named_crossers_[live.phase_index].push_back(&live);
    ++decoders_;
    measured_decoders_ += live.measured ? 1 : 0;
    decode_context_ += live.computed;
}

/// Leaves the counts but for decode_context_, which depends on how far it got.
template <class Listener, class Kv>
inline void FastEngine<Listener, Kv>::stop_decoding(Live& live) {
    --crossers_[live.phase_index];
    if (kv_.keeps_ids()) std::erase(named_crossers_[live.phase_index], &live);
    --decoders_;
    measured_decoders_ -= live.measured ? 1 : 0;
}

/// The last one running gives its blocks back and waits at the front.
template <class Listener, class Kv>
[[gnu::noinline]] void FastEngine<Listener, Kv>::preempt(Batch& batch) {
    Live& live = *running_.last;
    std::int64_t registered = live.computed;
    if (live.state == State::decoding) {
        live.computed = static_cast<std::int32_t>(batch_ + live.offset);
        live.outputs = live.computed - live.prompt + 1;
        registered = live.computed;
        if (!args_.async_scheduling) {
            live.last_token = last_update_;
        } else {
            in_flight_.push_back(&live);  // its last token is still to come
            registered = std::max<std::int64_t>(live.registered, live.computed - 1);
        }
        stop_decoding(live);
        decode_context_ -= live.computed;
        leave_bucket(live);
    } else if (live.state == State::prefilling) {
        prefilling_ = nullptr;
    }
    // A draining request has its last token in flight: it stays in its bucket and finishes from the waiting queue.
    live.high_water = std::max(live.high_water, live.computed);
    leave_running(live, registered);
    live.computed = 0;
    live.state = State::preempted;
    waiting_.push_front() = &live;
    ++batch.preempted;
    if (kv_.keeps_ids()) batch.victims.push_back(live.id);
    listener_.on_preempted(live.id);
}

/// Releases the KV; slots of its last block that it would never have filled were counted as reserved until now.
template <class Listener, class Kv>
inline void FastEngine<Listener, Kv>::leave_running(Live& live, std::int64_t registered_tokens) {
    blocked_budget_ = not_blocked;
    const std::int64_t final = live.prompt + live.max_tokens - 1;
    const std::int64_t held = blocks(live.computed);
    const std::int64_t last = live.computed == final ? held : blocks(final);
    if (held == last) {
        SimTime since = live.last_block;
        if (since == never) since = scheduled_at((last - 1) * args_.block_size - live.offset);
        const Int128 internal = static_cast<Int128>(last * args_.block_size - final) * (now_ - since).count();
        integrals_.slots_internal_dt += internal;
        integrals_.slots_reserved_dt -= internal;
    }
    other_computed_ -= live.computed;
    const std::int64_t free = kv_.free();
    kv_.release(live.kv, held, registered_tokens);
    held_integrals_.add(free - kv_.free(), live.computed - held * args_.block_size, now_);
    unlink(running_, live, &Live::run);
    --running_count_;
}

template <class Listener, class Kv>
HeldSlots FastEngine<Listener, Kv>::held_apart() const {
    HeldSlots out = held();
    for (const Live* live = running_.first; live != nullptr; live = live->run.next) {
        const std::int64_t final = live->prompt + live->max_tokens - 1;
        const std::int64_t last = blocks(final);
        if (blocks(live->state == State::decoding ? batch_ + live->offset : live->computed) == last)
            out.internal += last * args_.block_size - final;
    }
    out.reserved -= out.internal;
    return out;
}

template <class Listener, class Kv>
Int128 FastEngine<Listener, Kv>::internal_until(SimTime now) const {
    Int128 sum = 0;
    for (const Live* live = running_.first; live != nullptr; live = live->run.next) {
        const std::int64_t final = live->prompt + live->max_tokens - 1;
        const std::int64_t last = blocks(final);
        if (blocks(live->state == State::decoding ? batch_ + live->offset : live->computed) != last) continue;
        SimTime since = live->last_block;
        if (since == never) since = scheduled_at((last - 1) * args_.block_size - live->offset);
        sum += static_cast<Int128>(last * args_.block_size - final) * (now - since).count();
    }
    return sum;
}

template <class Listener, class Kv>
[[gnu::always_inline]] inline void FastEngine<Listener, Kv>::update(const Batch& batch, SimTime now) {
    now_ = now;
    if (batch.decoders > 0) tokens_.next(batch.decoders, batch.measured_decoders, now - last_update_, now);
    last_update_ = now;
    if (kv_.keeps_ids()) finished_.clear();
    if (batch.prefills || batch.ends || !in_flight_.empty()) update_others(batch);
}

template <class Listener, class Kv>
[[gnu::noinline]] void FastEngine<Listener, Kv>::update_others(const Batch& batch) {
    take_tokens(batch);
    if (batch.ends) finish_all(batch.number);
}

/// Of those who do not decode, or did and do no more.
template <class Listener, class Kv>
[[gnu::always_inline]] inline void FastEngine<Listener, Kv>::take_tokens(const Batch& batch) {
    for (Live* const live : batch.completing) {
        if (live->has_token) {
            tokens_.next(1, live->measured ? 1 : 0, now_ - live->last_token, now_);
        } else {
            live->has_token = true;
            listener_.on_first_token(live->id, now_);
        }
    }
    for (Live* const live : in_flight_) live->last_token = now_;
    in_flight_.clear();
}

/// Prefills end in the order of admission, so those that leave together stand in that order.
template <class Listener, class Kv>
[[gnu::always_inline]] inline void FastEngine<Listener, Kv>::finish_all(std::int64_t batch) {
    for (Live* live = bucket(batch).first; live;) {
        Live& ended = *live;
        live = live->bucket.next;
        if (ended.last_batch == batch) finish(ended);
    }
}

template <class Listener, class Kv>
[[gnu::always_inline]] inline void FastEngine<Listener, Kv>::finish(Live& live) {
    leave_bucket(live);
    if (live.state == State::draining) {
        leave_running(live, -1);
    } else {
        KVSIM_CHECK(live.state == State::preempted,
                    "a request that finishes runs, or was preempted with its last token in flight");
        std::size_t at = 0;
        while (waiting_[at] != &live) ++at;
        waiting_.erase(at);
        kv_.forget(live.kv);
        blocked_budget_ = not_blocked;
    }
    work_ -= live.prompt + live.max_tokens - 1;
    live.state = State::waiting;
    steady_ = false;
    --unfinished_;
    spare_lives_.push_back(&live);
    if (kv_.keeps_ids()) finished_.push_back(live.id);
    listener_.on_finished(live.id, live.max_tokens, now_);
    KVSIM_CHECK(unfinished_ > 0 || used_blocks() == 0, "an empty engine holds no KV");
}

// ---- what one step was; out of the way of those who do not ask

template <class Listener, class Kv>
[[gnu::cold]] void FastEngine<Listener, Kv>::name_crossers() {
    if constexpr (!Kv::counts_only) {
        for (const Live* const live : named_crossers_[phase_]) kv_.name(live->kv, 1);
    }
}

template <class Listener, class Kv>
[[gnu::cold]] void FastEngine<Listener, Kv>::note_row(Batch& batch, const PrefillRow& row) {
    batch.prefill_list.push_back(row);
}

template <class Listener, class Kv>
void FastEngine<Listener, Kv>::record_scheduled(StepRecord& record, Batch& batch) const {
    record.step = batch.step;
    record.total_tokens = batch.tokens();
    record.preempted = batch.victims;
    record.free_after_schedule = kv_.free();
    record.scheduled.resize(static_cast<std::size_t>(batch.rows()));
    batch.received.resize(static_cast<std::size_t>(batch.sampled()));
    auto row = record.scheduled.begin();
    auto receiver = batch.received.begin();
    const auto crossing = static_cast<std::uint32_t>(phase_ == 0 ? crossers_.size() - 1 : phase_ - 1);
    const Live* live = running_.first;
    for (std::int64_t left = batch.decoders; left > 0; live = live->run.next) {
        if (live->state == State::draining && live->last_batch < batch.number) continue;
        row->id = *receiver++ = live->id;
        row->tokens = 1;
        row->computed = batch.number + live->offset;
        row->kind = ScheduledRow::Kind::running;
        row->blocks.clear();
        if (live->phase_index == crossing) row->blocks.push_back(live->table.back());
        ++row;
        --left;
    }
    for (const PrefillRow& prefill : batch.prefill_list) {
        row->id = prefill.live->id;
        row->tokens = prefill.tokens;
        row->computed = prefill.computed;
        row->kind = prefill.kind;
        row->blocks.assign(prefill.live->table.begin() + prefill.blocks_from, prefill.live->table.end());
        ++row;
        if (prefill.samples) *receiver++ = prefill.live->id;
    }
    KVSIM_CHECK(row == record.scheduled.end() && receiver == batch.received.end(), "a batch's rows are those it counts");
}

template <class Listener, class Kv>
void FastEngine<Listener, Kv>::record_updated(StepRecord& record) const {
    record.free_after_update = kv_.free();
    record.running.resize(static_cast<std::size_t>(running_count_));
    auto id = record.running.begin();
    for (const Live* live = running_.first; live; live = live->run.next) *id++ = live->id;
    record.waiting.resize(waiting_.size());
    for (std::size_t i = 0; i < waiting_.size(); ++i) record.waiting[i] = waiting_[i]->id;
}

// ---- many steps

/// Whether `bound` is also that of a schedule() which only advances the decoders.
template <class Listener, class Kv>
bool FastEngine<Listener, Kv>::bound_stays(Bound bound) const {
    const std::int64_t budget = args_.max_num_batched_tokens - decoders_;
    if (waiting_.empty()) return bound == (budget == 0 ? Bound::token_budget : Bound::no_waiting);
    if (running_count_ == args_.max_num_seqs) return bound == Bound::seats;
    return bound == Bound::kv_blocks && budget > 0 && budget >= blocked_budget_;
}

/// Whether schedule() would, as things are, preempt and leave the head of the queue waiting for blocks; somebody decodes on.
template <class Listener, class Kv>
inline bool FastEngine<Listener, Kv>::only_preempts(Bound bound) const {
    // Without shared blocks each victim gives one at least.
    return bound == Bound::kv_blocks && !waiting_.empty() && !kv_.caching() && crossers_[phase_] - kv_.free() < decoders_;
}

/// A step whose results are more than the tokens of decoders, or after which some are preempted. False: somebody may be
/// admitted after it, or it is not to be passed over, and nothing has changed.
template <class Listener, class Kv>
[[gnu::always_inline]] inline bool FastEngine<Listener, Kv>::pass_mixed(Batch& batch, SimTime now, Bound bound,
                                                                        SimTime last_finish, SimTime next_arrival) {
    const bool enough = crossers_[phase_] <= kv_.free();
    if (batch.ends ? !enough || !waiting_.empty() || now > last_finish
                   : !enough && (now >= next_arrival || !only_preempts(bound)))
        return false;
    now_ = now;
    if (batch.decoders > 0) tokens_.next(batch.decoders, batch.measured_decoders, now - last_update_, now);
    last_update_ = now;
    take_tokens(batch);
    if (batch.ends || !enough) note_peak();
    if (batch.ends) finish_all(batch.number);
    batch.clear_prefills();
    batch.ends = false;
    batch.preempted = 0;
    steady_ = true;
    if (enough) {
        advance(batch, crossers_[phase_], now);
    } else {
        budget_ = args_.max_num_batched_tokens;
        plan_decoders(batch);
        steady_ = held_back_in_next();
    }
    return true;
}

template <class Listener, class Kv>
typename FastEngine<Listener, Kv>::Ahead FastEngine<Listener, Kv>::run_ahead(Batch*& current, Batch*& next, bool async,
                                                                             SimTime& end, SimTime horizon, SimTime last_finish,
                                                                             SimTime next_arrival, DecodePrices& prices) {
    constexpr std::int64_t most_steps = 1 << 10;  // then the user's interrupt is looked for
    constexpr std::int64_t few = 4;               // steps that pass_many() is not worth its start for
    Batch* first = current;                       // of the queue, and the last of it: the same when it has one
    Batch* last = async ? next : current;
    const Bound bound = last->bound;
    if (!bound_stays(bound)) return {};

    const std::int64_t begin = batch_;
    const std::int64_t advanced = advanced_;
    const DecodePrices::Line* line = &prices.plain_line(decoders_);
    bool drained = !in_flight_.empty();
    Ahead ahead;
    SimTime now = end;
    do {
        Batch& batch = *first;
        if (const std::int64_t crossers = crossers_[phase_];
            crossers <= kv_.free() && !batch.ends && !batch.prefills && !drained) {
            tokens_.next(batch.decoders, batch.measured_decoders, now - last_update_, now);
            last_update_ = now;
            advance(batch, crossers, now);
        } else {
            if (!pass_mixed(batch, now, bound, last_finish, next_arrival)) break;
            if (batch.preempted > 0) {
                ahead.preempted += batch.preempted;
                line = &prices.plain_line(decoders_);
                if (!steady_) horizon = now;
            }
            drained = !in_flight_.empty();
        }
        count_batch(batch, now);
        batch.duration =
            decode_context_ <= line->upto ? line->price(decode_context_) : prices.price(batch.decoders, decode_context_);
        first = last;
        last = &batch;
        now += first->duration;
        std::int64_t endless = next_end_ - batch_;
        if (endless >= few && is_plain(*first) && is_plain(*last) && !drained && line->upto >= 0) {
            pass_many(*first, *last, now, horizon, *line);
            endless = next_end_ - batch_;
        }
        if (endless < 0) {
            if (release_ended(batch_ - 1)) {
                last->ends = true;
                if (decoders_ == 0 || bound == Bound::token_budget) break;
                line = &prices.plain_line(decoders_);
            }
            if (batch_ - begin > most_steps) break;
        }
    } while (now < horizon);
    now_ = last_update_;
    note_peak();
    end = now;
    current = first;
    if (async) next = last;
    first->bound = last->bound = bound;
    ahead.steps = batch_ - begin;
    ahead.rows = advanced_ - advanced;
    return ahead;
}

/// How many of `most` steps of at most `longest` ns begin within `room` > 0 and lack no block.
template <class Listener, class Kv>
inline std::int64_t FastEngine<Listener, Kv>::steps_in_time(std::int64_t most, std::int64_t room, std::int64_t longest) const {
    std::int64_t n = most;
    if (std::int64_t left = kv_.free(); left < decoders_ * most_crossings_) {
        std::size_t phase = phase_;
        std::int64_t enough = 0;
        while (enough < n && (left -= crossers_[phase]) >= 0) {
            ++enough;
            phase = next_phase(phase);
        }
        n = enough;
    }
    if (room <= longest * (n - 1)) n = (room - 1) / longest + 1;
    return n;
}

/// Steps that are known to end in time and lack no block, where each batch of the queue just gives all decoders a token, and
/// nobody gets the last one but in the last of them. Gives how many; 0: it cannot tell.
template <class Listener, class Kv>
[[gnu::noinline]] std::int64_t FastEngine<Listener, Kv>::pass_many(Batch& first, Batch& last, SimTime& end, SimTime horizon,
                                                                   const DecodeLine& line) {
    constexpr std::int64_t few = 4;  // so many are not worth the start
    const std::int64_t most = std::min(next_end_ - batch_ + 1, stretch);
    if (horizon - end <= few * first.duration || kv_.free() * args_.block_size <= few * decoders_) return 0;
    const std::int64_t rows = decoders_;
    const bool async = &first != &last;
    const std::int64_t pending = async ? last.duration.count() : 0;
    if (end >= tokens_.second_end()) tokens_.add(0, end);  // only now that no replica has tokens of the second before
    const std::int64_t room = (std::min(horizon, tokens_.second_end()) - end).count();
    const double dearest = line.base_ns + line.per_context_ns * static_cast<double>(decode_context_ + most * rows) + 0.5;
    const std::int64_t gap = (end - last_update_).count();
    // Then prices rise with the context and fit in int32, and no sum below needs a check.
    if (line.per_context_ns < 0 || line.base_ns < 1 || !(dearest < INT32_MAX) || pending > INT32_MAX || gap > INT32_MAX)
        return 0;
    const std::int64_t n = steps_in_time(most, room, std::max(pending, static_cast<std::int64_t>(dearest)));
    if (n <= 0) return 0;

    // The results of the batch in progress arrive and batch_ + i is scheduled, both at `now`. Instants count from `end`.
    std::array<std::int32_t, stretch + 3> gaps;  // between results
    gaps[0] = static_cast<std::int32_t>(gap);
    std::int32_t* const prices = gaps.data() + 1;  // of the steps that end one after the other from `end` on
    prices[0] = static_cast<std::int32_t>(pending);
    price_steps(line, decode_context_, rows, n, prices + (async ? 1 : 0));
    std::int64_t now = 0, instants = 0, block_instants = 0, taken = 0;
    for (std::int64_t i = 0; i < n;) {  // up to the end of a turn of either ring
        const std::size_t slot = static_cast<std::size_t>(batch_ + i) & scheduled_mask_;
        const auto whole = static_cast<std::int64_t>(std::min(crossers_.size() - phase_, scheduled_at_.size() - slot));
        const std::int64_t some = std::min(n - i, whole);
        const std::int32_t* const price = prices + i;
        const std::int32_t* const crossers = crossers_.data() + phase_;
        SimTime* const scheduled = scheduled_at_.data() + slot;
#pragma GCC unroll 8
        for (std::int64_t k = 0; k < some; ++k) {
            scheduled[k] = end + SimDuration(now);
            instants += now;
            taken += crossers[k];
            block_instants += crossers[k] * now;
            now += price[k];
        }
        i += some;
        phase_ += static_cast<std::size_t>(some);
        if (phase_ == crossers_.size()) phase_ = 0;
    }
    const std::int64_t flying = prices[n - 1];
    const std::int64_t latest = now - flying;
    // From the third gap on they only rise.
    std::int32_t low = gaps[0], high = gaps[0];
    if (n > 1) {
        low = std::min({low, prices[0], prices[n > 2 ? 1 : 0]});
        high = std::max({high, prices[0], prices[n - 2]});
    }
    tokens_.next_each({gaps.data(), static_cast<std::size_t>(n)}, rows, measured_decoders_, gap + latest, low, high);
    const std::int64_t tokens = n * rows;
    kv_.take(taken);
    advanced_ += tokens;
    decode_context_ += tokens;
    batch_ += n;
    const Int128 origin = end.time_since_epoch().count();
    const Int128 used_sum = origin * taken + block_instants;
    const Int128 token_sum = origin * tokens + instants * rows;
    held_integrals_.add(taken, taken * args_.block_size - tokens, used_sum, used_sum * args_.block_size - token_sum);
    now_ = last_update_ = end + SimDuration(latest);
    end += SimDuration(now);
    last.number = batch_ - 1;
    last.duration = SimDuration(prices[async ? n : n - 1]);
    if (async) {
        first.number = batch_ - 2;
        first.duration = SimDuration(flying);
    }
    return n;
}

/// A stalled engine runs nothing: whoever is left waits.
template <class Listener, class Kv>
std::vector<std::pair<RequestId, std::int64_t>> FastEngine<Listener, Kv>::left_over() const {
    std::vector<std::pair<RequestId, std::int64_t>> out;
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
        const Live& live = *waiting_[i];
        out.emplace_back(live.id, live.outputs);
    }
    return out;
}

template <class Listener, class Kv>
std::string FastEngine<Listener, Kv>::describe() const {
    std::string text = std::to_string(running_count_) + " running, " + std::to_string(waiting_.size()) + " waiting, " +
                       std::to_string(kv_.free()) + " of " + std::to_string(kv_.usable()) + " KV blocks free";
    if (waiting_.empty()) return text;
    const Live& head = *waiting_.front();
    return text + describe_head(std::to_string(head.id), head.prompt, head.outputs, head.max_tokens, args_, watermark_blocks_);
}

}  // namespace kvsim
