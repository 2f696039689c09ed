#include "sglang.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "kvsim/base/check.hpp"

namespace kvsim {

namespace {

using Sequence = SglangScheduler::Sequence;
using Row = SglangScheduler::Row;

/// Of sequences from `limit` on lpm neither looks up nor sorts.
constexpr std::size_t lpm_limit = 128;
/// A prompt this close to the longest possible one is refused.
constexpr std::int64_t refused_tail = 5;

std::int64_t floor_to(std::int64_t value, std::int64_t page) {
    const std::int64_t rest = value % page;
    return value - (rest < 0 ? rest + page : rest);
}

}  // namespace

/// What one prefill batch may still take. `offset` sums what its requests and the running ones are expected to need, left to
/// right as the engine does: the last bit of a double decides admissions.
class SglangScheduler::Adder {
public:
    enum class Verdict { ok, no_token, other };

    Adder(SglangScheduler& scheduler, std::int64_t mixed_decodes)
        : s_(scheduler), options_(scheduler.args_.sglang), page_(scheduler.args_.block_size) {
        input_ = options_.max_prefill_tokens - mixed_decodes;
        if (s_.args_.enable_chunked_prefill) chunk_ = s_.args_.max_num_batched_tokens - mixed_decodes;
        double running = 0;
        for (const Sequence* sequence : s_.running_.sequences) {
            running += static_cast<double>(clipped(sequence->max_new - sequence->outputs)) * s_.ratio_;
        }
        offset_ = static_cast<double>(mixed_decodes) + running;
        current_ = mixed_decodes;
    }

    void continue_chunk(Sequence& sequence) {
        const std::int64_t rest = sequence.tokens() - sequence.prefix;
        std::int64_t limit = std::min(*chunk_, static_cast<std::int64_t>(left()));
        if (limit <= 0) limit = *chunk_;
        const std::int64_t n = std::min(rest, limit);
        const bool more = n < rest;
        take(sequence, n, more, more ? 0 : clipped(sequence.max_new), Row::Kind::chunk);
    }

    Verdict add(Sequence& sequence) {
        if (sequence.ignore_eos && !s_.kv_.radix()) return add_exactly(sequence);
        const std::int64_t n = sequence.tokens() - sequence.prefix;
        const auto want =
            static_cast<double>(n + clipped(std::max<std::int64_t>(sequence.max_new - sequence.outputs, 0)) + page_);
        if (want >= left()) return Verdict::no_token;
        if (!chunk_ && !rows_.empty() && s_.kv_.up(n) >= input_) return Verdict::other;
        s_.kv_.lock(sequence.node);
        if (want >= left()) {
            s_.kv_.unlock(sequence.node);
            return Verdict::no_token;
        }
        if (!chunk_ || s_.kv_.up(n) <= *chunk_) {
            take(sequence, n, false, clipped(sequence.max_new), started(sequence));
        } else {
            const std::int64_t first = floor_to(sequence.prefix + floor_to(*chunk_, page_), page_) - sequence.prefix;
            if (first <= 0) {
                s_.kv_.unlock(sequence.node);
                return Verdict::other;
            }
            take(sequence, first, true, 0, started(sequence));
        }
        return verdict();
    }

    [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
    /// Set by the last row if that is a chunk but the last.
    [[nodiscard]] Sequence* chunk() const { return more_; }

private:
    [[nodiscard]] std::int64_t clipped(std::int64_t tokens) const { return std::min(tokens, options_.clip_max_new_tokens); }
    [[nodiscard]] double left() const { return static_cast<double>(s_.kv_.space()) - offset_; }
    [[nodiscard]] static Row::Kind started(const Sequence& sequence) {
        return sequence.resumes ? Row::Kind::resumed : Row::Kind::fresh;
    }

    [[nodiscard]] Verdict verdict() const {
        if (left() <= 0 || s_.kv_.space() - current_ <= 0) return Verdict::no_token;
        if (input_ <= 0 || (chunk_ && *chunk_ <= 0)) return Verdict::other;
        return Verdict::ok;
    }

    void take(Sequence& sequence, std::int64_t n, bool more, std::int64_t expected, Row::Kind kind) {
        const std::int64_t pages = s_.kv_.up(n);
        offset_ += static_cast<double>(pages + expected + page_);
        current_ += pages + page_;
        input_ -= pages;
        if (chunk_) *chunk_ -= pages;
        rows_.push_back({&sequence, sequence.id, n, sequence.prefix, kind, more});
        if (more) more_ = &sequence;
    }

    /// Every request says how long it will be, so whether all of them fit to their ends can be told.
    Verdict add_exactly(Sequence& sequence) {
        const std::int64_t n = sequence.tokens() - sequence.prefix;
        const std::int64_t room = s_.kv_.space() - current_;
        const auto pages = static_cast<double>(s_.kv_.up(n));
        if (pages > static_cast<double>(room) || pages > left()) return Verdict::no_token;
        if (!states_built_) {
            note(sequence, false);
            for (const Sequence* running : s_.running_.sequences) note(*running, false);
            for (const Row& row : rows_) note(*row.sequence, false);
            std::stable_sort(states_.begin(), states_.end(),
                             [](const State& a, const State& b) { return a.to_come < b.to_come; });
            states_built_ = true;
        } else {
            note(sequence, true);
        }
        std::int64_t free = room - s_.kv_.up(n);
        for (std::size_t i = 0; i < states_.size(); ++i) {
            const auto still = static_cast<double>(states_.size() - i);
            if (static_cast<double>(free) - states_[i].to_come * still <= still) return Verdict::no_token;
            free += states_[i].held;
        }
        if (!chunk_ || n <= *chunk_) {
            take(sequence, n, false, clipped(sequence.max_new), started(sequence));
        } else {
            if (*chunk_ <= 0) return Verdict::other;
            take(sequence, *chunk_, true, 0, started(sequence));
        }
        return verdict();
    }

    struct State {
        double to_come;
        std::int64_t held;
    };
    /// Sorted in, but before the last one if it belongs behind all: the engine's loop ends there.
    void note(const Sequence& sequence, bool sorted) {
        const double ratio = sequence.ignore_eos ? 1 : s_.ratio_;
        const State state{static_cast<double>(sequence.max_new) * ratio - static_cast<double>(sequence.outputs),
                          sequence.tokens()};
        if (state.to_come <= 0) return;
        if (!sorted || states_.empty()) {
            states_.push_back(state);
            return;
        }
        auto at =
            std::find_if(states_.begin(), states_.end(), [&](const State& other) { return state.to_come <= other.to_come; });
        if (at == states_.end()) --at;
        states_.insert(at, state);
    }

    SglangScheduler& s_;
    const SglangArgs& options_;
    std::int64_t page_;
    std::int64_t input_ = 0;
    std::optional<std::int64_t> chunk_;
    double offset_ = 0;
    std::int64_t current_ = 0;
    std::vector<Row> rows_;
    Sequence* more_ = nullptr;
    std::vector<State> states_;
    bool states_built_ = false;
};

SglangScheduler::SglangScheduler(Engine& engine)
    : Scheduler(engine),
      args_(engine.args()),
      kv_(args_.usable_blocks(), args_.block_size, args_.enable_prefix_caching, args_.sglang.evict_shortfall),
      ratio_start_(std::min(args_.sglang.init_new_token_ratio * args_.sglang.schedule_conservativeness, 1.0)),
      ratio_min_(std::min(ratio_start_ * args_.sglang.min_new_token_ratio_factor, 1.0)),
      ratio_decay_((ratio_start_ - ratio_min_) / static_cast<double>(args_.sglang.new_token_ratio_decay_steps)),
      ratio_(ratio_start_),
      max_seats_(args_.max_num_seqs) {}

void SglangScheduler::arrive(Slot slot) {
    LiveRequest& request = engine_.request(slot);
    if (unused_.empty()) {
        sequences_.emplace_back();
        unused_.push_back(&sequences_.back());
    }
    Sequence& sequence = *unused_.back();
    unused_.pop_back();
    sequence = {};
    sequence.id = request.id;
    sequence.slot = slot;
    sequence.content = std::move(request.content);
    sequence.output_base = request.output_base;
    if (sequence.content.empty()) {
        sequence.content.push_back({private_tokens(request.id), request.prompt});
        sequence.output_base = private_tokens(request.id) + static_cast<std::uint64_t>(request.prompt);
    }
    std::int64_t asked = request.limit > 0 ? request.limit : request.max_tokens;
    sequence.ignore_eos = request.ignore_eos;
    if (args_.sglang.max_new_tokens > 0 && request.limit == 0) {
        asked = std::max(asked, args_.sglang.max_new_tokens);
        sequence.ignore_eos = false;
    }

    const std::int64_t context = args_.sglang.context_len > 0 ? args_.sglang.context_len : args_.max_model_len;
    const std::int64_t longest = std::min(context, kv_.total()) - 1;
    sequence.max_new = std::max<std::int64_t>(
        0, std::min({asked, longest - request.prompt - 1, kv_.total() - kv_.up(request.prompt) - args_.block_size - 1}));
    request.max_tokens = std::min(request.max_tokens, std::max<std::int64_t>(sequence.max_new, 1));
    if (request.prompt >= longest - refused_tail) {  // it is answered with an error, in the place of its first token
        sequence.content.assign(1, {0, 1});
        request.prompt = request.max_tokens = 1;
    }
    sequence.prompt = request.prompt;
    engine_.account(slot);

    if (slot >= of_slot_.size()) of_slot_.resize(slot + 1);
    of_slot_[slot] = &sequence;
    waiting_.push_back(&sequence);
    idle_passes_ = 0;
}

void SglangScheduler::plan(Batch& batch) {
    reap();
    KVSIM_CHECK(in_flight_ < passes_.size(), "at most two passes are in flight");
    plan_ = &passes_[(first_in_flight_ + in_flight_) % passes_.size()];
    plan_->step = batch.step;
    plan_->kind = Pass::Kind::idle;
    plan_->rows.clear();
    plan_->was_processing = in_flight_ > 0;

    if (chunk_ != nullptr && chunk_->end > chunk_->prefix) stash(*chunk_);
    merge_last();
    if (!plan_prefill(batch)) plan_decode(batch);
    plan_->ratio = ratio_;

    if (plan_->rows.empty()) {
        idle_passes_ = plan_->was_processing ? 0 : idle_passes_ + 1;
        if (!plan_->was_processing && nothing_left()) ratio_ = ratio_start_;
        // The first pass may drop what has finished, the second may admit in its place or find another order of the queue.
        batch.again = !plan_->was_processing && !waiting_.empty() && idle_passes_ <= 2;
    } else {
        idle_passes_ = 0;
        book(batch);
        ++in_flight_;
    }
}

/// Step B: the requests of the last prefill batch join the running batch.
void SglangScheduler::merge_last() {
    if (last_prefill_) {
        const std::size_t before = last_.sequences.size();
        last_.sequences.erase(
            std::remove_if(last_.sequences.begin(), last_.sequences.end(),
                           [this](const Sequence* s) { return s->finished || s == chunk_ || s == last_chunk_; }),
            last_.sequences.end());
        if (last_.sequences.size() < before) running_.full = false;
        if (!last_.sequences.empty()) {
            if (running_.sequences.empty()) {
                running_ = std::move(last_);
            } else {
                running_.sequences.insert(running_.sequences.end(), last_.sequences.begin(), last_.sequences.end());
                running_.prefill_only = running_.prefill_only && last_.prefill_only;
            }
        }
    }
    last_ = {};
    last_prefill_ = false;
    last_chunk_ = nullptr;
    if (running_.prefill_only) {
        drop_finished(running_.sequences);
        if (running_.sequences.empty()) running_.full = false;
    }
}

bool SglangScheduler::plan_prefill(Batch& batch) {
    const bool mixed = args_.sglang.enable_mixed_chunk;
    if (chunk_ == nullptr) {
        if (waiting_.empty()) return false;
        if (!running_.full && seats() <= 0) {
            running_.full = true;
            full_bound_ = Bound::seats;
        }
        if (running_.full) {
            batch.bound = full_bound_;
            return false;
        }
    }
    sort_waiting();
    Adder adder(*this, mixed ? static_cast<std::int64_t>(running_.sequences.size()) : 0);
    if (chunk_ != nullptr) {
        adder.continue_chunk(*chunk_);
        batch.bound = Bound::token_budget;
    }
    for (Sequence* const sequence : waiting_) {
        if (static_cast<std::int64_t>(adder.rows().size()) >= seats()) {
            running_.full = true;
            full_bound_ = Bound::seats;
        }
        if (running_.full) {
            batch.bound = full_bound_;
            break;
        }
        sequence->prefix = sequence->locked = 0;
        sequence->node = RadixTree::root;
        if (kv_.radix()) {
            const RadixTree::Match hit = kv_.tree().lookup(sequence->view(), sequence->tokens() - 1);
            sequence->prefix = sequence->locked = hit.length;
            sequence->node = hit.node;
        }
        const Adder::Verdict verdict = adder.add(*sequence);
        if (verdict == Adder::Verdict::ok) continue;
        if (verdict == Adder::Verdict::no_token) {
            running_.full = true;
            full_bound_ = Bound::kv_blocks;
        }
        const bool last = !adder.rows().empty() && adder.rows().back().sequence == waiting_.back();
        if (!last) batch.bound = verdict == Adder::Verdict::no_token ? Bound::kv_blocks : Bound::token_budget;
        break;
    }
    if (adder.rows().empty()) return false;
    commit_prefill(batch, adder.rows(), adder.chunk());
    return true;
}

/// The batch is decided: its slots are taken (here the real engine may find that there are none) and its requests leave the
/// queue.
void SglangScheduler::commit_prefill(Batch& batch, const std::vector<Row>& added, Sequence* chunk) {
    std::int64_t tokens = 0;
    std::int64_t slots = 0;
    for (const Row& row : added) {
        tokens += row.tokens;
        slots += kv_.up(row.before + row.tokens) - kv_.up(row.before);
    }
    const std::int64_t page = args_.block_size;
    kv_.make_room(page == 1 ? tokens : tokens + page * static_cast<std::int64_t>(added.size()));
    if (slots > kv_.available()) { throw EngineCrash("RuntimeError: Out of memory. Try to lower your batch size."); }
    kv_.take(slots);

    bool prefill_only = true;
    std::size_t from_queue = 0;
    for (const Row& row : added) {
        Sequence& sequence = *row.sequence;
        sequence.end = sequence.kv = row.before + row.tokens;
        prefill_only = prefill_only && sequence.max_new == 0;
        last_.sequences.push_back(&sequence);
        if (row.kind == Row::Kind::chunk) continue;
        ++from_queue;
        sequence.seated = true;
        sequence.retracted = false;
        sequence.resumes = true;
        ++seated_;
        ++admitted_;
        engine_.admitted(sequence.slot, row.before);
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(from_queue));
    chunk_ = chunk;
    if (chunk_ != nullptr) ++chunk_->chunks_in_flight;
    last_chunk_ = chunk_;
    last_prefill_ = true;
    plan_->kind = Pass::Kind::prefill;
    plan_->rows = added;
    if (args_.sglang.enable_mixed_chunk && !running_.sequences.empty()) mix_in_decodes(prefill_only);
    last_.prefill_only = prefill_only;
    if (batch.bound == Bound::no_waiting && !waiting_.empty()) batch.bound = Bound::token_budget;
}

/// Mixed chunk: the running requests' decodes ride along, whether there is room or not.
void SglangScheduler::mix_in_decodes(bool& prefill_only) {
    drop_finished(running_.sequences);
    if (!running_.sequences.empty()) {
        take_decode_slots(running_.sequences);
        prefill_only = prefill_only && running_.prefill_only;
        plan_->kind = Pass::Kind::mixed;
        last_.sequences.insert(last_.sequences.end(), running_.sequences.begin(), running_.sequences.end());
    }
    running_.sequences.clear();
    running_.prefill_only = false;
}

/// Step D.
void SglangScheduler::plan_decode(Batch& batch) {
    std::vector<Sequence*>& running = running_.sequences;
    if (running.empty() || running_.prefill_only) return;
    const std::size_t before = running.size();
    drop_finished(running);
    if (running.empty()) {
        running_.full = false;
        return;
    }
    const std::int64_t need = decode_need(running);
    kv_.make_room(need);
    if (kv_.available() >= need) {
        ratio_ = std::max(ratio_ - ratio_decay_, ratio_min_);
    } else {
        retract(batch);
    }
    if (running.size() < before) running_.full = false;
    plan_->kind = Pass::Kind::decode;
    take_decode_slots(running);
}

/// Most outputs first, then the shortest prompt: those at the end lose their KV until the rest has room.
void SglangScheduler::retract(Batch& batch) {
    std::vector<Sequence*>& running = running_.sequences;
    std::stable_sort(running.begin(), running.end(), [](const Sequence* a, const Sequence* b) {
        return a->outputs != b->outputs ? a->outputs > b->outputs : a->prompt < b->prompt;
    });
    batch.bound = Bound::kv_blocks;
    bool fits = false;
    while (!fits && running.size() > 1) {
        Sequence& victim = *running.back();
        running.pop_back();
        release(victim, false);
        victim.retracted = true;
        --admitted_;
        engine_.preempted(batch, victim.slot);
        waiting_.push_back(&victim);
        kv_.make_room(args_.sglang.retract_decode_steps * static_cast<std::int64_t>(running.size()));
        const std::int64_t need = decode_need(running);
        kv_.make_room(need);
        fits = kv_.available() >= need;
    }
    KVSIM_CHECK(fits || kv_.available() >= decode_need(running), "a request alone fits: its length was cut at arrival");
    std::int64_t outputs = 0;
    std::int64_t asked = 0;
    for (const Sequence* sequence : running) {
        outputs += sequence->outputs;
        asked += sequence->max_new;
    }
    outputs += args_.sglang.retract_decode_steps * static_cast<std::int64_t>(running.size());
    ratio_ = std::min(1.0, static_cast<double>(outputs) / static_cast<double>(asked + 1));
}

/// Slots of one more token each.
std::int64_t SglangScheduler::decode_need(const std::vector<Sequence*>& sequences) const {
    const std::int64_t page = args_.block_size;
    if (page == 1) return static_cast<std::int64_t>(sequences.size());
    return page * std::count_if(sequences.begin(), sequences.end(), [page](const Sequence* s) { return s->kv % page == 0; });
}

void SglangScheduler::take_decode_slots(const std::vector<Sequence*>& sequences) {
    kv_.make_room(args_.block_size * static_cast<std::int64_t>(sequences.size()));
    const std::int64_t need = decode_need(sequences);
    if (need > kv_.available()) { throw EngineCrash("RuntimeError: Out of memory. Try to lower your batch size."); }
    kv_.take(need);
    for (Sequence* sequence : sequences) {
        plan_->rows.push_back({sequence, sequence->id, 1, sequence->kv, Row::Kind::decode, false});
        ++sequence->kv;
    }
}

void SglangScheduler::book(Batch& batch) {
    batch.rows.reserve(plan_->rows.size());
    for (const Row& row : plan_->rows) {
        const Sequence& sequence = *row.sequence;
        LiveRequest& request = engine_.request(sequence.slot);
        const auto kind = row.kind == Row::Kind::fresh     ? ScheduledRow::Kind::fresh
                          : row.kind == Row::Kind::resumed ? ScheduledRow::Kind::resumed
                                                           : ScheduledRow::Kind::running;
        batch.rows.push_back({sequence.slot, row.tokens, row.before, kind, 0, !row.more, sequence.id});
        // Overlap: a row too many follows the last token, before that is known. Nobody needs its slot.
        request.computed = std::min(sequence.kv, request.final_computed());
        request.room = sequence.kv;
        engine_.book(batch, batch.rows.back());
        engine_.account(sequence.slot);
    }
}

void SglangScheduler::receive(const Batch& batch, SimTime now) {
    const Pass& pass = passes_[first_in_flight_];
    KVSIM_CHECK(in_flight_ > 0 && pass.step == batch.step, "results arrive in the order of launch");
    first_in_flight_ = (first_in_flight_ + 1) % passes_.size();
    --in_flight_;
    for (const Row& row : pass.rows) {
        Sequence& sequence = *row.sequence;
        if (sequence.finished || sequence.retracted) continue;
        const bool prefill = row.kind != Row::Kind::decode;
        if (prefill && sequence.chunks_in_flight > 0) {
            --sequence.chunks_in_flight;
            continue;
        }
        ++sequence.outputs;
        if (engine_.credit(sequence.slot, now)) {
            engine_.finish(sequence.slot, now);
        } else if (prefill) {
            stash(sequence);
        }
    }
}

// ---- many decode passes

Scheduler::Steady SglangScheduler::steady_steps(std::vector<Slot>& rows) {
    const std::vector<Sequence*>& running = running_.sequences;
    const bool nobody_joins = waiting_.empty() || running_.full;
    if (chunk_ != nullptr || last_prefill_ || !last_.sequences.empty() || running.empty() || running_.prefill_only ||
        !nobody_joins || in_flight_ != (args_.async_scheduling ? 2U : 1U))
        return {};
    for (std::size_t i = 0; i < in_flight_; ++i) {
        const std::vector<Row>& flying = passes_[(first_in_flight_ + i) % passes_.size()].rows;
        const auto same = [](const Row& row, const Sequence* sequence) {
            return row.sequence == sequence && row.kind == Row::Kind::decode;
        };
        if (!std::equal(flying.begin(), flying.end(), running.begin(), running.end(), same)) return {};
    }
    std::int64_t steps = INT64_MAX;
    phases_.assign(static_cast<std::size_t>(args_.block_size), 0);
    phase_ = 0;
    for (const Sequence* sequence : running) {
        if (sequence->finished || sequence->retracted || sequence->chunks_in_flight > 0) return {};
        const LiveRequest& request = engine_.request(sequence->slot);
        if (request.computed != sequence->kv) return {};  // its last row is a row too many
        steps = std::min(steps, request.final_computed() - sequence->kv);
        if (steps < 2) return {};  // cheaper as a single step
        ++phases_[static_cast<std::size_t>(sequence->kv % args_.block_size)];
        rows.push_back(sequence->slot);
    }
    return {steps, waiting_.empty() ? Bound::no_waiting : full_bound_};
}

/// As plan_decode() and take_decode_slots(): the tree gives up what they would make it give up.
bool SglangScheduler::steady_step() {
    const std::int64_t page = args_.block_size;
    const std::int64_t need = page * phases_[phase_];
    if (need > (kv_.radix() ? kv_.space() : kv_.available())) return false;  // somebody is retracted
    kv_.make_room(need);
    ratio_ = std::max(ratio_ - ratio_decay_, ratio_min_);
    kv_.make_room(page * static_cast<std::int64_t>(running_.sequences.size()));
    kv_.take(need);
    phase_ = phase_ == 0 ? phases_.size() - 1 : phase_ - 1;
    return true;
}

void SglangScheduler::pass(std::int64_t steps, SimTime /*now*/) {
    for (Sequence* sequence : running_.sequences) {
        sequence->outputs += steps;
        sequence->kv += steps;
        engine_.request(sequence->slot).room = sequence->kv;
    }
    for (std::size_t i = 0; i < in_flight_; ++i) {
        Pass& pass = passes_[(first_in_flight_ + i) % passes_.size()];
        pass.step += steps;
        for (Row& row : pass.rows) row.before += steps;
    }
}

void SglangScheduler::remove(Slot slot) {
    Sequence& sequence = *of_slot_[slot];
    of_slot_[slot] = nullptr;
    sequence.finished = true;
    gone_.push_back(&sequence);
    if (engine_.request(slot).state == RequestState::running) {
        if (chunk_ == &sequence) chunk_ = nullptr;  // aborted
        release(sequence, true);
        --admitted_;
    } else {
        waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &sequence));
    }
}

/// What has been computed of its prompt becomes findable, and is locked where it stands in the tree.
void SglangScheduler::stash(Sequence& sequence) {
    if (kv_.radix()) {
        const std::int64_t there = kv_.tree().insert(sequence.view(), sequence.end);
        kv_.give(there - sequence.locked);
        const RadixTree::Node node = kv_.tree().lookup(sequence.view(), sequence.end).node;
        kv_.unlock(sequence.node);
        kv_.lock(node);
        sequence.node = node;
        sequence.locked = kv_.down(sequence.end);
    }
    sequence.prefix = sequence.end;
}

/// Gives up all its slots; `insert`: what is computed and known stays in the tree.
void SglangScheduler::release(Sequence& sequence, bool insert) {
    if (kv_.radix()) {
        if (insert) {
            const std::int64_t known = std::min(sequence.kv, sequence.tokens());
            const std::int64_t there = kv_.tree().insert(sequence.view(), known);
            kv_.give(there - sequence.locked + kv_.up(sequence.kv) - kv_.down(known));
        } else {
            kv_.give(kv_.up(sequence.kv) - sequence.locked);
        }
        kv_.unlock(sequence.node);
    } else {
        kv_.give(kv_.up(sequence.kv));
    }
    sequence.kv = sequence.prefix = sequence.locked = sequence.end = 0;
    sequence.node = RadixTree::root;
    if (sequence.seated) --seated_;
    sequence.seated = false;
}

std::int64_t SglangScheduler::seats() const {
    return std::min(max_seats_ - static_cast<std::int64_t>(running_.sequences.size()), max_seats_ - seated_);
}

bool SglangScheduler::drop_finished(std::vector<Sequence*>& sequences) const {
    const auto end =
        std::remove_if(sequences.begin(), sequences.end(), [](const Sequence* sequence) { return sequence->finished; });
    const bool any = end != sequences.end();
    sequences.erase(end, sequences.end());
    return any;
}

void SglangScheduler::sort_waiting() {
    switch (args_.scheduling_policy) {
        case QueueOrder::lof:
            std::stable_sort(waiting_.begin(), waiting_.end(),
                             [](const Sequence* a, const Sequence* b) { return a->max_new > b->max_new; });
            return;
        case QueueOrder::lpm:
        case QueueOrder::dfs_weight:
            if (kv_.radix()) sort_by_tree();
            return;
        case QueueOrder::fcfs:
        case QueueOrder::priority:
            return;
    }
}

void SglangScheduler::sort_by_tree() {
    struct Found {
        Sequence* sequence;
        RadixTree::Match hit;
        std::int64_t rank;
    };
    const bool lpm = args_.scheduling_policy == QueueOrder::lpm;
    if (lpm && waiting_.size() > lpm_limit) return;
    constexpr std::int64_t held_back = -1;
    RadixTree earlier(1);
    std::vector<Found> found;
    found.reserve(waiting_.size());
    for (Sequence* const sequence : waiting_) {
        const std::int64_t tokens = sequence->tokens();
        Found& f = found.emplace_back(Found{sequence, kv_.tree().lookup(sequence->view(), tokens), 0});
        f.rank = std::min(f.hit.length, tokens - 1);
        if (lpm && f.hit.length <= args_.sglang.in_batch_check) {
            if (earlier.lookup(sequence->view(), tokens).length >= args_.sglang.in_batch_deprioritize) {
                f.rank = held_back;
            } else {
                earlier.insert(sequence->view(), tokens);
            }
        }
    }
    if (lpm) {
        std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.rank > b.rank; });
        std::transform(found.begin(), found.end(), waiting_.begin(), [](const Found& f) { return f.sequence; });
        return;
    }

    // Depth first: the heavier subtree first, children before the node's own requests.
    struct Branch {
        std::int64_t weight = 0;
        std::vector<Sequence*> own;
        std::vector<RadixTree::Node> children;
        std::size_t next = 0;
    };
    std::map<RadixTree::Node, Branch> branches;
    for (const Found& f : found) {
        branches[f.hit.node].own.push_back(f.sequence);
        for (RadixTree::Node node = f.hit.node;; node = kv_.tree().parent(node)) {
            Branch& branch = branches[node];
            if (branch.weight++ == 0 && node != RadixTree::root) { branches[kv_.tree().parent(node)].children.push_back(node); }
            if (node == RadixTree::root) break;
        }
    }
    for (auto& [node, branch] : branches) {
        std::sort(branch.children.begin(), branch.children.end(), [&](RadixTree::Node a, RadixTree::Node b) {
            const std::int64_t wa = branches[a].weight;
            const std::int64_t wb = branches[b].weight;
            return wa != wb ? wa > wb : kv_.tree().order(a) < kv_.tree().order(b);
        });
    }
    waiting_.clear();
    std::vector<RadixTree::Node> path{RadixTree::root};
    while (!path.empty()) {
        Branch& branch = branches[path.back()];
        if (branch.next < branch.children.size()) {
            path.push_back(branch.children[branch.next++]);
        } else {
            waiting_.insert(waiting_.end(), branch.own.begin(), branch.own.end());
            path.pop_back();
        }
    }
}

/// Finished requests that no batch and no result in flight names any more.
void SglangScheduler::reap() {
    if (gone_.empty()) return;
    ++mark_;
    for (Sequence* sequence : running_.sequences) sequence->mark = mark_;
    for (Sequence* sequence : last_.sequences) sequence->mark = mark_;
    for (std::size_t i = 0; i < in_flight_; ++i) {
        for (const Row& row : passes_[(first_in_flight_ + i) % passes_.size()].rows) row.sequence->mark = mark_;
    }
    if (last_chunk_ != nullptr) last_chunk_->mark = mark_;
    const auto named = [this](const Sequence* sequence) { return sequence->mark == mark_; };
    const auto end = std::stable_partition(gone_.begin(), gone_.end(), named);
    unused_.insert(unused_.end(), end, gone_.end());
    gone_.erase(end, gone_.end());
}

bool SglangScheduler::pending() const {
    return !running_.sequences.empty() || !last_.sequences.empty() || chunk_ != nullptr || ratio_ != ratio_start_;
}

std::optional<RequestId> SglangScheduler::chunked() const {
    return chunk_ == nullptr ? std::nullopt : std::optional(chunk_->id);
}

std::vector<RequestId> SglangScheduler::running_batch() const {
    std::vector<RequestId> out;
    for (const Sequence* sequence : running_.sequences) {
        if (!sequence->finished) out.push_back(sequence->id);
    }
    if (!last_prefill_) return out;
    for (const Sequence* sequence : last_.sequences) {
        if (!sequence->finished && sequence != chunk_) out.push_back(sequence->id);
    }
    return out;
}

std::vector<Slot> SglangScheduler::running() const {
    std::vector<Slot> out;
    const auto add = [&out](const Sequence* sequence) {
        if (!sequence->finished) out.push_back(sequence->slot);
    };
    for (const Sequence* sequence : running_.sequences) add(sequence);
    for (const Sequence* sequence : last_.sequences) {
        if (sequence != chunk_) add(sequence);
    }
    if (chunk_ != nullptr) add(chunk_);
    return out;
}

std::vector<Slot> SglangScheduler::waiting() const {
    std::vector<Slot> out;
    for (const Sequence* sequence : waiting_) out.push_back(sequence->slot);
    return out;
}

HeldSlots SglangScheduler::unfilled(const LiveRequest& request) const {
    const std::int64_t slots = kv_.up(request.room);
    const std::int64_t final = request.final_computed();
    return {std::max<std::int64_t>(0, std::min(slots, final) - request.computed),
            std::max<std::int64_t>(0, slots - std::max(final, request.computed))};
}

std::string SglangScheduler::describe_head() const {
    if (waiting_.empty()) return "";
    const Sequence& head = *waiting_.front();
    return "; the head of the queue, request " + engine_.request(head.slot).tie_id + ", has " + std::to_string(head.tokens()) +
           " tokens (prompt " + std::to_string(head.prompt) + ", outputs " + std::to_string(head.outputs) +
           ") and max_new_tokens " + std::to_string(head.max_new) +
           ": tokens to compute, what may still be generated and a page of " + std::to_string(args_.block_size) +
           " must stay below the " + std::to_string(kv_.space()) +
           " tokens that are free or evictable, less what the running requests are expected to need";
}

std::unique_ptr<Scheduler> make_sglang_batching(Engine& engine) {
    return std::make_unique<SglangScheduler>(engine);
}

}  // namespace kvsim
