#include "kvsim/engine/fast_engine.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "kvsim/base/check.hpp"

namespace kvsim {
namespace {

/// So that sums over run_ahead()'s steps fit in int64, and contexts in the whole numbers of double.
constexpr std::int64_t most_seats = 1 << 18;

/// The prices of steps that follow each other, each as round_step(), operation by operation, but two at a time: of `n` steps of
/// `rows` rows after a context sum of `context`, and maybe of one more. They fit in int32.
void price_steps(const DecodeLine& line, std::int64_t context, std::int64_t rows, std::int64_t n, std::int32_t* prices) {
    using Doubles [[gnu::vector_size(16)]] = double;
    using Ints [[gnu::vector_size(8)]] = std::int32_t;
    const auto before = static_cast<double>(context);
    const auto more = static_cast<double>(rows);
    const Doubles base = {line.base_ns, line.base_ns};
    const Doubles slope = {line.per_context_ns, line.per_context_ns};
    const Doubles half = {0.5, 0.5};
    const Doubles two_steps = {2 * more, 2 * more};
    Doubles at = {before + more, before + 2 * more};
    for (std::int64_t i = 0; i < n; i += 2) {
        const Ints whole = __builtin_convertvector(base + slope * at + half, Ints);
        std::memcpy(prices + i, &whole, sizeof whole);
        at += two_steps;
    }
}

}  // namespace

bool FastEngine::handles(const EngineArgs& args) {
    return args.batching == "vllm-v1" && !args.policy.any() && args.kv_groups.empty() &&
           args.scheduling_policy == QueueOrder::fcfs && args.long_prefill_token_threshold == 0 &&
           args.max_num_batched_tokens >= args.max_num_seqs && args.block_size <= 4096 && args.max_model_len <= 0x3fffffff &&
           args.max_num_seqs <= most_seats;
}

FastEngine::FastEngine(const EngineArgs& args, EngineListener& listener, Integrals& integrals, TokenMeter& tokens)
    : args_(args),
      listener_(listener),
      integrals_(integrals),
      tokens_(tokens),
      kv_(args.usable_blocks(), args.block_size, args.enable_prefix_caching),
      watermark_blocks_(static_cast<std::int64_t>(std::floor(args.watermark * static_cast<double>(args.num_gpu_blocks)))),
      block_shift_(std::has_single_bit(static_cast<std::uint64_t>(args.block_size))
                       ? std::countr_zero(static_cast<std::uint64_t>(args.block_size))
                       : -1),
      phases_(static_cast<std::size_t>(args.block_size)),
      crossers_(phases_.size()),
      buckets_(4096),
      bucket_mask_(buckets_.size() - 1),
      occupied_(buckets_.size() / 64),
      most_crossings_(stretch / args.block_size + 1),
      // A last block lasts block_size batches, and two more may be in flight when its request leaves.
      scheduled_at_(std::bit_ceil(static_cast<std::size_t>(std::max(args.block_size + 4, stretch)))),
      scheduled_mask_(scheduled_at_.size() - 1) {}

// ---- lists through the requests

template <FastEngine::Links FastEngine::Live::*links>
inline void FastEngine::push(List& list, Live& live) {
    live.*links = {list.last, nullptr};
    (list.last ? (list.last->*links).next : list.first) = &live;
    list.last = &live;
}

template <FastEngine::Links FastEngine::Live::*links>
inline void FastEngine::unlink(List& list, const Live& live) {
    const Links at = live.*links;
    (at.previous ? (at.previous->*links).next : list.first) = at.next;
    (at.next ? (at.next->*links).previous : list.last) = at.previous;
}

inline void FastEngine::enter_bucket(Live& live) {
    const std::size_t at = static_cast<std::size_t>(live.last_batch) & bucket_mask_;
    push<&Live::bucket>(buckets_[at], live);
    occupied_[at / 64] |= std::uint64_t{1} << (at % 64);
    next_end_ = std::min(next_end_, live.last_batch);
}

inline void FastEngine::leave_bucket(const Live& live) {
    const std::size_t at = static_cast<std::size_t>(live.last_batch) & bucket_mask_;
    unlink<&Live::bucket>(buckets_[at], live);
    if (!buckets_[at].first) occupied_[at / 64] &= ~(std::uint64_t{1} << (at % 64));
}

/// In how many batches from `first` on, at most `most`, nobody gets its last token.
std::int64_t FastEngine::batches_without_end(std::int64_t first, std::int64_t most) {
    for (std::int64_t from = first; from < first + most; from += 64) {
        const std::size_t at = static_cast<std::size_t>(from) & bucket_mask_;
        std::uint64_t bits = occupied_[at / 64] >> (at % 64);
        bits |= occupied_[(at / 64 + 1) & (occupied_.size() - 1)] << 1 << (63 - at % 64);
        for (; bits != 0; bits &= bits - 1) {
            const std::int64_t next = from + std::countr_zero(bits);
            if (somebody_ends_in(next)) return std::min(next - first, most);
        }
    }
    return most;
}

// ---- requests come

[[gnu::noinline]] void FastEngine::make_live() {
    lives_.push_back(std::make_unique<Live>());
    spare_lives_.push_back(lives_.back().get());
}

void FastEngine::enqueue(NewRequest& request) {
    if (spare_lives_.empty()) make_live();
    Live& live = *spare_lives_.back();
    spare_lives_.pop_back();
    live.id = request.id;
    live.prompt = static_cast<std::int32_t>(request.prompt);
    live.max_tokens = static_cast<std::int32_t>(std::min(request.max_tokens, args_.max_model_len - request.prompt));
    live.outputs = live.computed = live.high_water = live.registered = 0;
    live.measured = request.measured;
    live.admitted_before = live.has_token = false;
    live.last_block = never;
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
    ++unfinished_;
    outstanding_ += live.prompt + live.max_tokens - 1;
    if (waiting_.empty()) steady_ = false;  // a head that was not looked at yet
    waiting_.push_back() = &live;
}

// ---- one step

inline void FastEngine::plan_decoders(Batch& batch) {
    // In admission order each crosser takes one, from the last one running if need be, who then crosses no more.
    while (crossers_[phase_] > kv_.free()) preempt(batch);
    const std::int64_t crossers = crossers_[phase_];
    kv_.take(crossers);
    table_blocks_ += crossers;
    if (kv_.keeps_ids()) name_crossers();
    batch.decoders = decoders_;
    batch.measured_decoders = measured_decoders_;
    decode_context_ += decoders_;
    batch.context = decode_context_;
    budget_ -= decoders_;
    computed_ += decoders_;
    outstanding_ -= decoders_;
}

void FastEngine::plan_prefilling(Batch& batch) {
    Live& live = *prefilling_;
    const std::int64_t n = std::min<std::int64_t>(live.prompt + live.outputs - live.computed, budget_);
    KVSIM_DCHECK(n > 0, "decoding requests leave budget for the one that prefills");
    const std::int64_t need = blocks(live.computed + n) - blocks(live.computed);
    if (need > kv_.free()) {
        preempt(batch);  // it is the last one running, so it is its own victim
        return;
    }
    kv_.extend(live.kv, need);
    table_blocks_ += need;
    prefilling_ = nullptr;
    if (kv_.keeps_ids()) note_row(batch, {&live, n, live.computed, blocks(live.computed)});
    place(batch, live, n);
}

/// Whether the head of the queue, of `tokens` tokens and with `total` blocks after this step, has to wait for blocks; then it
/// is not asked again before that can change.
inline bool FastEngine::lacks_blocks(PrefixHit hit, std::int64_t total, std::int64_t tokens) {
    const std::int64_t room = kv_.free() - watermark_blocks_ + hit.blocks - hit.idle;
    const bool whole_prompt_lacks = args_.scheduler_reserve_full_isl && blocks(std::min(tokens, args_.max_model_len)) > room;
    if (!whole_prompt_lacks && total <= room) return false;
    // Without chunks a shorter hit may become too much for the budget.
    if (args_.enable_chunked_prefill) blocked_budget_ = whole_prompt_lacks ? 0 : budget_;
    return true;
}

/// After a preemption nobody is admitted, and the next step has no more blocks and no less budget than this one has left: who
/// would be held back now is then.
inline bool FastEngine::held_back_in_next() {
    if (!args_.enable_chunked_prefill || budget_ <= 0) return false;
    const Live& head = *waiting_.front();
    const std::int64_t tokens = head.prompt + head.outputs;
    const PrefixHit hit = kv_.lookup(head.kv, tokens);
    const std::int64_t cached = hit.blocks * args_.block_size;
    return lacks_blocks(hit, blocks(cached + std::min(tokens - cached, budget_)), tokens);
}

void FastEngine::plan_waiting(Batch& batch) {
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
        kv_.admit(head.kv, hit, total - hit.blocks);
        table_blocks_ += total;
        computed_ += cached;
        outstanding_ -= cached;
        head.computed = static_cast<std::int32_t>(cached);
        head.admitted_before = true;
        head.order = admissions_++;
        head.last_block = never;
        push<&Live::run>(running_, head);
        ++running_count_;
        if (kv_.keeps_ids()) {
            const auto kind = head.state == State::preempted ? ScheduledRow::Kind::resumed : ScheduledRow::Kind::fresh;
            note_row(batch, {&head, n, cached, 0, kind});
        }
        place(batch, head, n);
    }
}

/// `tokens` new tokens for a request that prefills; its blocks are taken.
inline void FastEngine::place(Batch& batch, Live& live, std::int64_t tokens) {
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
    if (live.last_block == never && blocks(upto) == blocks(live.prompt + live.max_tokens - 1)) live.last_block = now_;
    live.computed = upto;
    computed_ += tokens;
    outstanding_ -= tokens;
    kv_.publish(live.kv, upto);
    if (upto == live.prompt + live.outputs) {
        batch.completing.push_back(&live);
        if (kv_.keeps_ids()) batch.prefill_list.back().samples = true;
    } else {
        live.state = State::prefilling;
        prefilling_ = &live;
    }
}

/// Who decodes from the next batch on.
inline void FastEngine::close_plan(Batch& batch) {
    // Without chunks the head may turn from lacking blocks to lacking budget when blocks it would have hit are taken.
    steady_ = prefilling_ == nullptr &&
              (batch.preempted == 0 ? args_.enable_chunked_prefill || waiting_.empty() : held_back_in_next());
    if (batch.empty()) return;
    batch.number = batch_;
    scheduled_at(batch_) = now_;
    batch.ends = next_end_ <= batch_ && release_ended(batch_);
    for (Live* const live : batch.completing) {
        live->offset = live->computed - (batch_ + 1);
        live->last_batch = batch_ + live->max_tokens - live->outputs - 1;
        live->registered = live->computed;
        enter_bucket(*live);
        if (live->last_batch > batch_) {
            start_decoding(*live);
        } else {
            live->state = State::draining;
            batch.ends = true;
        }
    }
    ++batch_;
    phase_ = phase_ + 1 == phases_.size() ? 0 : phase_ + 1;
}

void FastEngine::schedule(Batch& batch, SimTime now) {
    batch.clear();
    batch.step = step_++;
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
inline bool FastEngine::release_ended(std::int64_t batch) {
    bool any = false;
    for (Live* live = bucket(batch).first; live; live = live->bucket.next) {
        if (live->last_batch != batch) continue;
        any = true;
        stop_decoding(*live);
        live->computed = static_cast<std::int32_t>(batch + 1 + live->offset);
        decode_context_ -= live->computed;
        live->state = State::draining;
    }
    next_end_ = batch + 1 + batches_without_end(batch + 1, stretch);
    return any;
}

/// From batch_ + 1 on; called before batch_ counts as scheduled.
inline void FastEngine::start_decoding(Live& live) {
    live.state = State::decoding;
    const std::int64_t rest = live.computed - (blocks(live.computed) - 1) * args_.block_size;  // in its last block, >= 1
    const std::size_t crosses = phase_ + 1 + static_cast<std::size_t>(args_.block_size - rest);
    live.phase_index = static_cast<std::uint32_t>(crosses >= phases_.size() ? crosses - phases_.size() : crosses);
    push<&Live::phase>(phases_[live.phase_index], live);
    ++crossers_[live.phase_index];
    ++decoders_;
    measured_decoders_ += live.measured ? 1 : 0;
    decode_context_ += live.computed;
}

/// Leaves the counts but for decode_context_, which depends on how far it got.
inline void FastEngine::stop_decoding(Live& live) {
    unlink<&Live::phase>(phases_[live.phase_index], live);
    --crossers_[live.phase_index];
    --decoders_;
    measured_decoders_ -= live.measured ? 1 : 0;
}

/// The last one running gives its blocks back and waits at the front.
void FastEngine::preempt(Batch& batch) {
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
    outstanding_ += live.computed;
    live.computed = 0;
    live.state = State::preempted;
    waiting_.push_front() = &live;
    ++batch.preempted;
    if (kv_.keeps_ids()) batch.victims.push_back(live.id);
    listener_.on_preempted(live.id);
}

/// Releases the KV; slots of its last block that it would never have filled were counted as reserved until now.
inline void FastEngine::leave_running(Live& live, std::int64_t registered_tokens) {
    blocked_budget_ = not_blocked;
    const std::int64_t final = live.prompt + live.max_tokens - 1;
    const std::int64_t last = blocks(final);
    const std::int64_t held = blocks(live.computed);
    if (held == last) {
        SimTime since = live.last_block;
        if (since == never) since = scheduled_at((last - 1) * args_.block_size - live.offset);
        const Int128 internal = static_cast<Int128>(last * args_.block_size - final) * (now_ - since).count();
        integrals_.slots_internal_dt += internal;
        integrals_.slots_reserved_dt -= internal;
    }
    table_blocks_ -= held;
    computed_ -= live.computed;
    // Decoding blocks were only counted; now they are its own.
    live.kv.own_blocks = static_cast<std::int32_t>(held) - live.kv.path_blocks;
    kv_.release(live.kv, registered_tokens);
    unlink<&Live::run>(running_, live);
    --running_count_;
}

HeldSlots FastEngine::held_apart() const {
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

Int128 FastEngine::internal_until(SimTime now) const {
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

void FastEngine::update(const Batch& batch, SimTime now) {
    now_ = now;
    if (batch.decoders > 0) tokens_.next(batch.decoders, batch.measured_decoders, now - last_update_, now);
    last_update_ = now;
    if (batch.prefills || !in_flight_.empty()) take_tokens(batch);
    if (kv_.keeps_ids()) finished_.clear();
    if (batch.ends) finish_all(batch.number);
}

/// Of those who do not decode, or did and do no more.
[[gnu::noinline]] void FastEngine::take_tokens(const Batch& batch) {
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
[[gnu::noinline]] void FastEngine::finish_all(std::int64_t batch) {
    for (Live* live = bucket(batch).first; live;) {
        Live& ended = *live;
        live = live->bucket.next;
        if (ended.last_batch == batch) finish(ended);
    }
}

inline void FastEngine::finish(Live& live) {
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
        outstanding_ -= live.prompt + live.max_tokens - 1;
        blocked_budget_ = not_blocked;
    }
    live.state = State::waiting;
    steady_ = false;
    --unfinished_;
    spare_lives_.push_back(&live);
    if (kv_.keeps_ids()) finished_.push_back(live.id);
    listener_.on_finished(live.id, live.max_tokens, now_);
    KVSIM_CHECK(unfinished_ > 0 || used_blocks() == 0, "an empty engine holds no KV");
}

// ---- what one step was; out of the way of those who do not ask

[[gnu::cold]] void FastEngine::name_crossers() {
    for (const Live* live = phases_[phase_].first; live; live = live->phase.next) kv_.name(live->kv, 1);
}

[[gnu::cold]] void FastEngine::note_row(Batch& batch, const PrefillRow& row) {
    batch.prefill_list.push_back(row);
}

void FastEngine::record_scheduled(StepRecord& record, Batch& batch) const {
    record.step = batch.step;
    record.total_tokens = batch.tokens();
    record.preempted = batch.victims;
    record.free_after_schedule = kv_.free();
    record.scheduled.resize(static_cast<std::size_t>(batch.rows()));
    batch.received.resize(static_cast<std::size_t>(batch.sampled()));
    auto row = record.scheduled.begin();
    auto receiver = batch.received.begin();
    const auto crossing = static_cast<std::uint32_t>(phase_ == 0 ? phases_.size() - 1 : phase_ - 1);
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

void FastEngine::record_updated(StepRecord& record) const {
    record.free_after_update = kv_.free();
    record.running.resize(static_cast<std::size_t>(running_count_));
    auto id = record.running.begin();
    for (const Live* live = running_.first; live; live = live->run.next) *id++ = live->id;
    record.waiting.resize(waiting_.size());
    for (std::size_t i = 0; i < waiting_.size(); ++i) record.waiting[i] = waiting_[i]->id;
}

// ---- many steps

/// Whether `bound` is also that of a schedule() which only advances the decoders.
bool FastEngine::bound_stays(Bound bound) const {
    const std::int64_t budget = args_.max_num_batched_tokens - decoders_;
    if (waiting_.empty()) return bound == (budget == 0 ? Bound::token_budget : Bound::no_waiting);
    if (running_count_ == args_.max_num_seqs) return bound == Bound::seats;
    return bound == Bound::kv_blocks && budget > 0 && budget >= blocked_budget_;
}

/// What run_ahead() has passed over and does not count yet: sums over its steps, and of each times its instant.
struct FastEngine::Walk {
    SimTime origin;  // instants count from here
    std::int64_t blocks = 0;
    std::int64_t tokens = 0;
    std::int64_t block_instants = 0;
    std::int64_t token_instants = 0;
    std::int64_t all_tokens = 0;  // those that count already too
};

/// What `walk` has passed over comes to count; instants of what follows count from `now`.
inline void FastEngine::flush(Walk& walk, SimTime now) {
    if (walk.tokens > 0) {
        kv_.take(walk.blocks);
        table_blocks_ += walk.blocks;
        computed_ += walk.tokens;
        outstanding_ -= walk.tokens;
        walk.all_tokens += walk.tokens;
        const Int128 origin = walk.origin.time_since_epoch().count();
        const Int128 used_sum = origin * walk.blocks + walk.block_instants;
        const Int128 token_sum = origin * walk.tokens + walk.token_instants;
        held_integrals_.set(used_blocks(), held().reserved, used_sum, used_sum * args_.block_size - token_sum);
        integrals_.blocks_used_peak = std::max(integrals_.blocks_used_peak, used_blocks());
        walk.blocks = walk.tokens = walk.block_instants = walk.token_instants = 0;
    }
    walk.origin = now;
}

/// The result of `batch`, in which somebody gets the last token while nobody waits or prefills.
[[gnu::noinline]] void FastEngine::finish_in(const Batch& batch, SimTime now) {
    update(batch, now);
    account(now);
    steady_ = true;
}

/// The preemptions of the next schedule(); how many.
[[gnu::noinline]] std::int64_t FastEngine::make_room(Batch& batch, SimTime now) {
    batch.preempted = 0;
    while (crossers_[phase_] > kv_.free()) preempt(batch);
    account(now);
    return batch.preempted;
}

/// Whether schedule() would, as things are, preempt and leave the head of the queue waiting for blocks; somebody decodes on.
inline bool FastEngine::only_preempts(Bound bound, std::int64_t free) const {
    // Without shared blocks each victim gives one at least.
    return bound == Bound::kv_blocks && !waiting_.empty() && !kv_.caching() && crossers_[phase_] - free < decoders_;
}

FastEngine::Ahead FastEngine::run_ahead(Batch*& current, Batch*& next, bool async, SimTime& end, SimTime horizon,
                                        SimTime last_finish, DecodePrices& prices) {
    // Over so few and so short steps of at most 2^18 rows no sum of a Walk overflows.
    constexpr std::int64_t most_steps = 1 << 10;
    constexpr SimDuration most_apart{std::int64_t{1} << 33};
    constexpr std::int64_t few = 4;  // steps that pass_many() is not worth its start for
    Batch* first = current;          // of the queue, and the last of it: the same when it has one
    Batch* last = async ? next : current;
    const Bound bound = last->bound;
    const DecodeLine* line = prices.line(decoders_);
    if (!line || !bound_stays(bound)) return {};

    const std::int64_t begin = batch_;
    const std::int64_t stop = batch_ + most_steps;
    const std::int64_t queued = async ? 2 : 1;
    // So many steps are taken one by one: the first until each batch of the queue just gives each of the decoders a token.
    const auto plain = [this](const Batch& batch) { return !batch.prefills && batch.decoders == decoders_; };
    std::int64_t singles = !plain(*last) ? queued : plain(*first) ? 0 : 1;
    bool drained = !in_flight_.empty();
    std::int64_t preempted = 0;
    std::int64_t free = kv_.free();
    Walk walk{end};
    SimTime now = end;
    const SimTime until = std::min(horizon, now + most_apart);
    const std::size_t turn = phases_.size();
    // The next schedule().
    const auto advance = [&](Batch& batch) {
        const std::int64_t crossers = crossers_[phase_];
        const std::int64_t rows = decoders_;
        const std::int64_t since = (now - walk.origin).count();
        free -= crossers;
        walk.blocks += crossers;
        walk.tokens += rows;
        walk.block_instants += crossers * since;
        walk.token_instants += rows * since;
        decode_context_ += rows;
        phase_ = phase_ + 1 == turn ? 0 : phase_ + 1;
        scheduled_at(batch_) = now;
        batch.clear_prefills();
        batch.number = batch_++;
        batch.decoders = rows;
        batch.measured_decoders = measured_decoders_;
        batch.ends = false;
    };
    const auto go_on = [&](Batch& batch) {
        first = last;
        last = &batch;
        now += first->duration;
    };
    do {
        if (singles == 0) {
            const std::int64_t most = std::min(next_end_ - batch_ + 1, stretch);
            singles = std::min(most, few);
            if (most > few && until - now > few * first->duration && free * args_.block_size > few * decoders_) {
                if (pass_many(walk, *first, last, now, until, most, *line) > 0) singles = 0;
                free = kv_.free() - walk.blocks;
            }
        }
        if (singles > 0) {
            if (now >= until) break;
            Batch& batch = *first;
            const bool enough = crossers_[phase_] <= free;
            if (batch.ends) {
                if (!enough || !waiting_.empty() || now > last_finish) break;
                flush(walk, now);
                finish_in(batch, now);
                free = kv_.free();
            } else {
                if (!enough && !only_preempts(bound, free)) break;
                if (batch.decoders > 0) tokens_.next(batch.decoders, batch.measured_decoders, now - last_update_, now);
                now_ = last_update_ = now;
                if (batch.prefills || drained) take_tokens(batch);
            }
            drained = !enough;
            if (enough) {
                advance(batch);
                batch.duration = DecodePrices::price(*line, decode_context_);
                go_on(batch);
                --singles;
            } else {
                flush(walk, now);
                preempted += make_room(batch, now);
                free = kv_.free();
                advance(batch);
                batch.duration = prices.price(batch.decoders, decode_context_);
                flush(walk, now);
                budget_ = args_.max_num_batched_tokens - batch.decoders;
                steady_ = held_back_in_next();
                go_on(batch);
                singles = queued;
                line = steady_ ? prices.line(decoders_) : nullptr;
            }
        }
        if (next_end_ < batch_ && release_ended(batch_ - 1)) {
            last->ends = true;
            singles = queued;
            if (decoders_ == 0 || bound == Bound::token_budget) break;
            if (line) line = prices.line(decoders_);
        }
    } while (line && batch_ < stop);
    flush(walk, now);
    end = now;
    current = first;
    if (async) next = last;
    first->bound = last->bound = bound;
    return {batch_ - begin, walk.all_tokens, preempted};
}

/// At most `most` steps that are known to end in time and lack no block, where each batch of the queue just gives all decoders
/// a token, and nobody gets the last one but in the last of them. Gives how many; 0: it cannot tell.
std::int64_t FastEngine::pass_many(Walk& walk, Batch& first, Batch* last, SimTime& end, SimTime horizon, std::int64_t most,
                                   const DecodeLine& line) {
    if (line.per_context_ns < 0 || line.base_ns < 1) return 0;  // prices must rise with the context
    const std::int64_t rows = decoders_;
    const bool async = &first != last;
    const std::int64_t pending = async ? last->duration.count() : 0;
    std::int64_t n = most;
    if (std::int64_t left = kv_.free() - walk.blocks; left < rows * most_crossings_) {
        std::size_t phase = phase_;
        std::int64_t enough = 0;
        while (enough < n && (left -= crossers_[phase]) >= 0) {
            ++enough;
            phase = phase + 1 == phases_.size() ? 0 : phase + 1;
        }
        n = enough;
    }
    if (end >= tokens_.second_end()) tokens_.add(0, end);  // only now that no replica has tokens of the second before
    const std::int64_t room = (std::min(horizon, tokens_.second_end()) - end).count();
    const double dearest = line.base_ns + line.per_context_ns * static_cast<double>(decode_context_ + n * rows) + 0.5;
    // Then prices fit in int32, and no sum below needs a check.
    const std::int64_t gap = (end - last_update_).count();
    if (!(dearest < INT32_MAX) || pending > INT32_MAX || gap > INT32_MAX) return 0;
    const std::int64_t longest = std::max(pending, static_cast<std::int64_t>(dearest));
    if (room <= longest * (n - 1)) n = (room - 1) / longest + 1;
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
        const auto whole = static_cast<std::int64_t>(std::min(phases_.size() - phase_, scheduled_at_.size() - slot));
        const std::int64_t some = std::min(n - i, whole);
        const std::int32_t* const price = prices + i;
        const std::int32_t* const crossers = crossers_.data() + phase_;
        SimTime* const scheduled = scheduled_at_.data() + slot;
        for (std::int64_t k = 0; k < some; ++k) {
            scheduled[k] = end + SimDuration(now);
            instants += now;
            taken += crossers[k];
            block_instants += crossers[k] * now;
            now += price[k];
        }
        i += some;
        phase_ += static_cast<std::size_t>(some);
        if (phase_ == phases_.size()) phase_ = 0;
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
    const std::int64_t since = (end - walk.origin).count();
    walk.blocks += taken;
    walk.tokens += n * rows;
    walk.block_instants += taken * since + block_instants;
    walk.token_instants += (n * since + instants) * rows;
    batch_ += n;
    decode_context_ += n * rows;
    now_ = last_update_ = end + SimDuration(latest);
    end += SimDuration(now);
    last->number = batch_ - 1;
    last->duration = SimDuration(prices[async ? n : n - 1]);
    if (async) {
        first.number = batch_ - 2;
        first.duration = SimDuration(flying);
    }
    return n;
}

/// A stalled engine runs nothing: whoever is left waits.
std::vector<std::pair<RequestId, std::int64_t>> FastEngine::left_over() const {
    std::vector<std::pair<RequestId, std::int64_t>> out;
    for (std::size_t i = 0; i < waiting_.size(); ++i) {
        const Live& live = *waiting_[i];
        out.emplace_back(live.id, live.outputs);
    }
    return out;
}

std::string FastEngine::describe() const {
    std::string text = std::to_string(running_count_) + " running, " + std::to_string(waiting_.size()) + " waiting, " +
                       std::to_string(kv_.free()) + " of " + std::to_string(kv_.usable()) + " KV blocks free";
    if (waiting_.empty()) return text;
    const Live& head = *waiting_.front();
    return text + describe_head(std::to_string(head.id), head.prompt, head.outputs, head.max_tokens, args_, watermark_blocks_);
}

}  // namespace kvsim
