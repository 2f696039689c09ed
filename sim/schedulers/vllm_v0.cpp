// One step of vLLM V0: admission, the running requests, swap-in, in an order that depends on the mode; then the rows.

#include "vllm_v0.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>

#include "kvsim/base/mix.hpp"
#include "kvsim/base/units.hpp"
#include "kvsim/random/stream.hpp"

namespace kvsim {

namespace {

/// Ids of branch j's outputs in a recording: so far behind those of branch j - 1.
constexpr std::uint64_t recorded_branch_stride = 10'000;
/// In a run: within the request's private ids, of which outputs that continue its prompt take the lower half.
constexpr std::uint64_t branch_stride = 1 << 22;

/// The n largest probabilities of what may follow beam `beam` as output number `step`, largest first. They come by breaking a
/// stick: each token takes a share of what the ones before it left, Beta(1, 1/2) each, so that the first one takes 2/3 on the
/// mean. As many as vLLM's beam search looks at, twice the beams.
std::vector<double> next_tokens(std::uint64_t seed, std::int64_t step, std::size_t beam, std::size_t n) {
    std::vector<double> out(2 * n);
    double left = 1;
    std::uint64_t state = mix(seed + mix((static_cast<std::uint64_t>(step) << 16) + beam));
    for (double& share : out) {
        state = mix(state + 0x9e3779b97f4a7c15ULL);
        const double u = to_uniform(state);
        share = left * (1 - u * u);
        left *= u * u;
    }
    std::sort(out.rbegin(), out.rend());
    out.resize(n);
    return out;
}

}  // namespace

VllmV0Scheduler::VllmV0Scheduler(Engine& engine)
    : Scheduler(engine),
      args_(engine.args()),
      gpu_(args_.num_gpu_blocks, args_.enable_prefix_caching, args_.v0.release),
      cpu_(args_.v0.num_cpu_blocks, args_.enable_prefix_caching, args_.v0.release),
      watermark_blocks_(static_cast<std::int64_t>(args_.watermark * static_cast<double>(args_.num_gpu_blocks))),
      long_threshold_(args_.long_prefill_token_threshold) {
    if (args_.v0.max_num_partial_prefills > 1 && long_threshold_ == 0)
        long_threshold_ = static_cast<std::int64_t>(static_cast<double>(args_.max_model_len) * 0.04);
}

// ---- the queues ---------------------------------------------------------------------------------------------------------

void VllmV0Scheduler::arrive(Slot slot) {
    if (slot >= groups_.size()) groups_.resize(slot + std::size_t{1});
    const LiveRequest& request = engine_.request(slot);
    Group& g = group(slot);
    g = {};
    g.sequences = request.sequences;
    g.arrival = args_.v0.clock ? args_.v0.clock->arrival : static_cast<double>(request.arrival.time_since_epoch().count());
    Branch& first = g.branches.emplace_back();
    first.limit = request.max_tokens / request.sequences;
    if (!request.output_lens.empty()) first.limit = std::min(first.limit, request.output_lens.front());
    waiting_.push_back(slot);
    g.queue = Queue::waiting;
}

void VllmV0Scheduler::remove(Slot slot) {
    Group& g = group(slot);
    for (Branch& branch : g.branches) release(branch);
    g.branches.clear();
    if (g.queue == Queue::none) return;
    std::deque<Slot>& queue = g.queue == Queue::waiting ? waiting_ : g.queue == Queue::running ? running_ : swapped_;
    queue.erase(std::find(queue.begin(), queue.end(), slot));
    g.queue = Queue::none;
}

std::vector<Slot> VllmV0Scheduler::waiting() const {
    std::vector<Slot> out(waiting_.begin(), waiting_.end());
    out.insert(out.end(), swapped_.begin(), swapped_.end());
    return out;
}

std::int64_t VllmV0Scheduler::seats(const Group& g) const {
    if (g.sequences > static_cast<std::int64_t>(g.branches.size())) return g.sequences;
    return std::count_if(g.branches.begin(), g.branches.end(),
                         [](const Branch& b) { return b.state != Branch::State::finished; });
}

VllmV0Scheduler::Branch& VllmV0Scheduler::waiting_branch(Group& g) {
    const auto at =
        std::find_if(g.branches.begin(), g.branches.end(), [](const Branch& b) { return b.state == Branch::State::waiting; });
    KVSIM_CHECK(at != g.branches.end(), "a request that waits has a sequence that waits");
    return *at;
}

bool VllmV0Scheduler::finished(const Group& g) const {
    return std::all_of(g.branches.begin(), g.branches.end(),
                       [](const Branch& b) { return b.state == Branch::State::finished; });
}

bool VllmV0Scheduler::more_urgent(Slot a, Slot b) const {
    return std::pair(engine_.request(a).priority, groups_[a].arrival) <
           std::pair(engine_.request(b).priority, groups_[b].arrival);
}

/// It can never run, or never again.
void VllmV0Scheduler::ignore(Slot slot) {
    decision_.ignored.push_back(engine_.request(slot).id);
    set_queue(slot, Queue::none);
    engine_.drop(slot, engine_.now());
}

// ---- one step -----------------------------------------------------------------------------------------------------------

void VllmV0Scheduler::plan(Batch& batch) {
    now_ = args_.v0.clock ? args_.v0.clock->now : static_cast<double>(engine_.now().time_since_epoch().count());
    used_ = cached_ = seats_ = 0;
    decision_.clear();
    for (Rows* rows : {&admitted_, &prefills_, &decodes_, &swapped_prefills_, &swapped_decodes_}) rows->clear();
    recomputed_.clear();
    moved_out_.clear();
    if (args_.enable_chunked_prefill) {
        plan_chunked(batch);
    } else {
        plan_default(batch);
    }
    if (used_ > args_.max_num_batched_tokens || seats_ > args_.max_num_seqs) {
        throw EngineCrash("the step has more than max_num_batched_tokens or max_num_seqs, which the engine asserts against");
    }
    book(batch);
    async_stop_late(batch);
    if (!decision_.preempted.empty() || !swapped_.empty()) batch.bound = Bound::kv_blocks;
    batch.again = !decision_.nothing() || !engine_.finished_in_schedule().empty();
}

void VllmV0Scheduler::plan_default(Batch& batch) {
    for (const Slot slot : running_) seats_ += seats(group(slot));
    if (swapped_.empty()) admission(batch, false);
    if (admitted_.empty()) {
        if (args_.scheduling_policy == QueueOrder::priority) force_priority(batch);
        run_running(batch, false);
        if (recomputed_.empty() && moved_out_.empty()) swap_in_swapped(batch);
    }
    KVSIM_CHECK(prefills_.empty() && swapped_prefills_.empty(), "without chunking a prompt is computed in one step");
    for (const Slot slot : recomputed_) waiting_.push_front(slot);
    for (const Rows* rows : {&admitted_, &decodes_, &swapped_decodes_}) {
        for (const auto& [slot, n] : *rows) running_.push_back(slot);
    }
    swapped_.insert(swapped_.end(), moved_out_.begin(), moved_out_.end());
}

void VllmV0Scheduler::plan_chunked(Batch& batch) {
    if (!old()) partial_ = partial_prefills();
    run_running(batch, true);
    if (recomputed_.empty() && moved_out_.empty()) swap_in_swapped(batch);
    admission(batch, true);
    for (const Slot slot : recomputed_) waiting_.push_front(slot);
    for (const Rows* rows : {&swapped_decodes_, &swapped_prefills_, &decodes_}) {
        for (const auto& [slot, n] : *rows) running_.push_back(slot);
    }
    // Prompts that end now go first, so that as decodes they stand before the other prompts.
    const auto ends = [this](const std::pair<Slot, std::int64_t>& row) {
        const Branch& branch = group(row.first).branches.front();
        return tokens(row.first, branch) - branch.computed == row.second;
    };
    for (const auto& row : prefills_) {
        if (old() || ends(row)) running_.push_back(row.first);
    }
    for (const auto& row : prefills_) {
        if (!old() && !ends(row)) running_.push_back(row.first);
    }
    for (const auto& [slot, n] : admitted_) running_.push_back(slot);
    swapped_.insert(swapped_.end(), moved_out_.begin(), moved_out_.end());
}

void VllmV0Scheduler::admission(Batch& batch, bool chunking) {
    const EngineArgs& args = args_;
    const bool limits_longs = !old() && chunking && args.v0.max_num_partial_prefills > 1;
    const std::int64_t longest = chunking ? args.max_model_len : std::min(args.max_model_len, args.max_num_batched_tokens);
    if (!old() && used_ >= args.max_num_batched_tokens) {
        if (!waiting_.empty()) batch.bound = Bound::token_budget;
        return;
    }
    std::vector<Slot> aside;
    while (passed_delay() && !waiting_.empty()) {
        const Slot slot = waiting_.front();
        Group& g = group(slot);
        if (g.broken) {
            throw EngineCrash("request " + engine_.request(slot).tie_id +
                              " stands in the waiting queue swapped or finished, which the engine asserts against");
        }
        if (limits_longs && partial_.longs >= args.v0.max_long_partial_prefills && is_long(slot)) {
            aside.push_back(slot);
            waiting_.pop_front();
            continue;
        }
        const NewTokens n = new_tokens(slot, Branch::State::waiting, chunking);
        const std::int64_t need = ceil_div(tokens(slot, waiting_branch(g)), args.block_size);
        if (n.all() > longest || gpu_.usable() - need < watermark_blocks_) {
            waiting_.pop_front();
            ignore(slot);
            continue;
        }
        if (gpu_.free() - need < watermark_blocks_) {
            batch.bound = Bound::kv_blocks;
            break;
        }
        if (n.uncached == 0 || used_ + n.uncached > args.max_num_batched_tokens) {
            batch.bound = Bound::token_budget;
            break;
        }
        if (seats_ + seats(g) > args.max_num_seqs) {
            batch.bound = Bound::seats;
            break;
        }
        waiting_.pop_front();
        set_queue(slot, Queue::running);
        if (limits_longs && is_long(slot)) ++partial_.longs;
        place(slot);
        admitted_.emplace_back(slot, n.all());
        used_ += n.uncached;
        cached_ += n.cached;
        seats_ += seats(g);
    }
    admitted_since_ = !admitted_.empty();
    waiting_.insert(waiting_.begin(), aside.begin(), aside.end());
}

void VllmV0Scheduler::run_running(Batch& batch, bool chunking) {
    while (!running_.empty()) {
        const Slot slot = running_.front();
        const NewTokens n = new_tokens(slot, Branch::State::running, chunking);
        if (n.uncached == 0) break;
        running_.pop_front();
        if (args_.v0.async_output_processing && tokens(slot, group(slot).branches.front()) > args_.max_model_len) {
            set_queue(slot, Queue::none);
            stopped_.push_back(slot);
            continue;
        }
        // The engine takes back the seats of the request that lacks blocks, not of the one that gives them.
        const std::int64_t own_seats = chunking ? 0 : seats(group(slot));
        bool lacked = false;
        bool runs = true;
        while (runs && touched(slot, Branch::State::running) > gpu_.free()) {
            lacked = true;
            runs = preempt_for(batch, slot);
        }
        if (lacked) seats_ -= own_seats;
        if (!runs) break;
        append(slot);
        if (is_prefill(slot)) {
            prefills_.emplace_back(slot, n.uncached);
        } else {
            decodes_.emplace_back(slot, 1);
        }
        used_ += n.uncached;
        if (chunking) seats_ += seats(group(slot));
    }
}

/// Blocks for `slot`, which is not in the running queue: from the last one there, else from itself. False: itself.
bool VllmV0Scheduler::preempt_for(Batch& batch, Slot slot) {
    const bool itself = running_.empty();
    const Slot victim = itself ? slot : running_.back();
    if (!itself) running_.pop_back();
    set_queue(victim, Queue::none);
    if (!process_pending(victim)) preempt(batch, victim, false);
    return !itself;
}

void VllmV0Scheduler::preempt(Batch& batch, Slot slot, bool forced) {
    Group& g = group(slot);
    const VllmV0Args& v0 = args_.v0;
    const bool swaps =
        v0.preemption == VllmV0Args::Preemption::swap || (v0.preemption == VllmV0Args::Preemption::automatic && seats(g) != 1);
    decision_.preempted.push_back({engine_.request(slot).id, swaps, forced});
    const auto runs = [](const Branch& b) { return b.state == Branch::State::running; };
    if (swaps) {
        if (swap_need(slot, Branch::State::running, cpu_) > cpu_.free()) {
            throw EngineCrash("request " + engine_.request(slot).tie_id +
                              " is to be swapped out and the CPU has too few free blocks (" + std::to_string(cpu_.free()) +
                              " of " + std::to_string(cpu_.usable()) + "); give it more swap_space");
        }
        std::int64_t blocks = 0;
        for (const Branch& branch : g.branches) {
            if (!runs(branch)) continue;
            blocks += static_cast<std::int64_t>(branch.table.size());
            batch.swapped_tokens += branch.placed;
        }
        move(slot, Branch::State::running, gpu_, cpu_, Branch::State::swapped);
        if (!forced) decision_.blocks_out += blocks;
        engine_.swapped_out(batch, slot);
        set_queue(slot, forced ? Queue::waiting : Queue::swapped);
        if (forced) {
            g.broken = true;
        } else {
            moved_out_.push_back(slot);
        }
        return;
    }
    if (std::count_if(g.branches.begin(), g.branches.end(), runs) != 1) {
        throw EngineCrash("request " + engine_.request(slot).tie_id +
                          " has several sequences and is to be recomputed, which the engine asserts against");
    }
    for (Branch& branch : g.branches) {
        if (!runs(branch)) continue;
        release(branch);
        branch.state = Branch::State::waiting;
        branch.decoding = false;
        branch.computed = 0;
    }
    engine_.preempted(batch, slot);
    set_queue(slot, Queue::waiting);
    if (!forced) recomputed_.push_back(slot);
}

/// Who waits at the head, more urgent than the last of the running ones, has them preempted until it could be admitted. It will
/// be in the next step.
void VllmV0Scheduler::force_priority(Batch& batch) {
    const auto before = [this](Slot a, Slot b) { return more_urgent(a, b); };
    std::stable_sort(running_.begin(), running_.end(), before);
    if (!waiting_.empty()) {
        const Slot head = waiting_.front();
        waiting_.pop_front();
        const NewTokens n = new_tokens(head, Branch::State::waiting, false);
        const std::int64_t head_seats = seats(group(head));
        const std::int64_t need =
            group(head).broken ? 0 : ceil_div(tokens(head, waiting_branch(group(head))), args_.block_size);
        while (!running_.empty() && more_urgent(head, running_.back())) {
            if (group(head).broken) {
                throw EngineCrash("request " + engine_.request(head).tie_id +
                                  " stands in the waiting queue swapped or finished; the engine fails on it");
            }
            const bool fits = gpu_.usable() - need >= watermark_blocks_ && gpu_.free() - need >= watermark_blocks_;
            if (fits && n.uncached > 0 && used_ + n.uncached <= args_.max_num_batched_tokens &&
                seats_ + head_seats <= args_.max_num_seqs)
                break;
            const Slot victim = running_.back();
            running_.pop_back();
            seats_ -= seats(group(victim));
            preempt(batch, victim, true);
            waiting_.push_front(victim);
        }
        waiting_.push_front(head);
    }
    std::stable_sort(waiting_.begin(), waiting_.end(), before);
}

void VllmV0Scheduler::swap_in_swapped(Batch& batch) {
    while (!swapped_.empty()) {
        const Slot slot = swapped_.front();
        Group& g = group(slot);
        const std::int64_t need = swap_need(slot, Branch::State::swapped, gpu_);
        if (gpu_.usable() < need) {
            swapped_.pop_front();
            for (Branch& branch : g.branches) branch.table.clear();  // the engine forgets its CPU blocks: they are lost
            ignore(slot);
            continue;
        }
        if (gpu_.free() - need < watermark_blocks_) break;
        const NewTokens n = new_tokens(slot, Branch::State::swapped, false);
        if (n.uncached == 0 || used_ + n.uncached > args_.max_num_batched_tokens || seats_ + seats(g) > args_.max_num_seqs)
            break;
        swapped_.pop_front();
        set_queue(slot, Queue::running);
        for (const Branch& branch : g.branches) {
            if (branch.state == Branch::State::swapped) decision_.blocks_in += static_cast<std::int64_t>(branch.table.size());
        }
        move(slot, Branch::State::swapped, cpu_, gpu_, Branch::State::running);
        engine_.swapped_in(slot);
        append(slot);
        if (is_prefill(slot)) {
            swapped_prefills_.emplace_back(slot, n.all());
        } else {
            swapped_decodes_.emplace_back(slot, 1);
        }
        used_ += n.uncached;
        cached_ += n.cached;
        seats_ += seats(g);
    }
    static_cast<void>(batch);
}

/// The rows are final: prompts first.
void VllmV0Scheduler::book(Batch& batch) {
    for (const Rows* rows : {&admitted_, &prefills_, &swapped_prefills_, &decodes_, &swapped_decodes_}) {
        const bool prefill = rows == &admitted_ || rows == &prefills_ || rows == &swapped_prefills_;
        for (const auto& [slot, chunk] : *rows) {
            Group& g = group(slot);
            if (is_prefill(slot) && g.branches.size() > 1) {
                throw EngineCrash("request " + engine_.request(slot).tie_id +
                                  " is computed anew with only its first sequence left, which the engine asserts against");
            }
            std::int64_t live = 0;
            Branch* first = nullptr;
            for (Branch& branch : g.branches) {
                if (branch.state != Branch::State::running) continue;
                branch.access = now_;
                branch.had_row = true;
                if (live++ == 0) first = &branch;
            }
            KVSIM_CHECK(first != nullptr, "a row has a sequence");
            Row row{slot, engine_.request(slot).id, prefill, prefill ? chunk : live, first->computed, live, chunk, true, {}};
            if (prefill) {
                row.work = chunk;
                const std::int64_t end = row.computed + chunk;
                // A request whose first sequence has ended is a decode to the engine: no hits, always sampled.
                if (is_prefill(slot)) {
                    const std::int64_t skip = old() ? first->skip : std::max<std::int64_t>(first->hit, 0);
                    if (skip > row.computed) row.work = skip < end ? end - skip : 1;
                    row.samples = end >= tokens(slot, *first);
                }
            }
            if (args_.v0.clock) {
                for (std::size_t j = 0; j < g.branches.size(); ++j) {
                    if (g.branches[j].state == Branch::State::running) row.tables.emplace_back(j, g.branches[j].table);
                }
            }
            decision_.rows.push_back(row);

            LiveRequest& request = engine_.request(slot);
            const bool admitted = rows == &admitted_;
            const auto kind = !admitted                 ? ScheduledRow::Kind::running
                              : request.admitted_before ? ScheduledRow::Kind::resumed
                                                        : ScheduledRow::Kind::fresh;
            const std::int64_t cached = prefill ? row.tokens - row.work : 0;
            if (admitted) engine_.admitted(slot, cached);
            BatchRow out{slot, prefill ? row.work : 1, row.computed + cached, kind, 0, row.samples, row.id};
            if (!admitted) out.blocks_from = request.row;
            request.row = -1;
            batch.rows.push_back(out);
            engine_.book(batch, out, prefill ? 1 : live);
            request.computed = out.computed + out.tokens;
            engine_.account(slot);
        }
    }
    if (!decision_.rows.empty()) gpu_.all_computed();
    decision_.total = used_ + cached_;
    decision_.gpu_free = gpu_.free();
    decision_.cpu_free = cpu_.free();

    const double blocks = static_cast<double>(decision_.blocks_in + decision_.blocks_out);
    carried_ += SimDuration(static_cast<std::int64_t>(std::llround(blocks * args_.v0.swap_ns_per_block)));
    batch.transfer_overlaps = args_.v0.swap_overlaps;
    if (!batch.rows.empty()) {
        batch.transfer = carried_;
        carried_ = {};
    }
}

/// Async: what the last step's outputs have finished is noticed now, when this step is decided.
void VllmV0Scheduler::async_stop_late(Batch& /*batch*/) {
    async_step_ = false;
    if (!args_.v0.async_output_processing) return;
    if (decision_.rows.empty() && !moved_out_.empty()) {
        throw EngineCrash(
            "async output processing meets a step that only swaps out: outputs lag from then on and the engine overwrites what "
            "it still needs; use async_output_processing: false, or preemption: recompute");
    }
    process_pending();
    KVSIM_CHECK(stopped_.empty(), "a sequence that is too long ends with its pending output");
    async_step_ = std::none_of(decision_.rows.begin(), decision_.rows.end(),
                               [this](const Row& row) { return group(row.slot).sequences > 1; });
}

// ---- what it takes ------------------------------------------------------------------------------------------------------

bool VllmV0Scheduler::passed_delay() {
    if (admitted_since_) prompt_latency_ = now_ - asked_;
    asked_ = now_;
    admitted_since_ = false;
    if (args_.v0.delay_factor <= 0 || waiting_.empty() || running_.empty()) return true;
    double earliest = group(waiting_.front()).arrival;
    for (const Slot slot : waiting_) earliest = std::min(earliest, groups_[slot].arrival);
    return now_ - earliest > args_.v0.delay_factor * prompt_latency_;
}

bool VllmV0Scheduler::is_long(Slot slot) const {
    const Branch& first = groups_[slot].branches.front();
    const std::int64_t rest = first.decoding ? 1 : tokens(slot, first) - first.computed;
    return rest > long_threshold_;
}

VllmV0Scheduler::PartialPrefills VllmV0Scheduler::partial_prefills() const {
    const VllmV0Args& v0 = args_.v0;
    PartialPrefills out;
    std::int64_t prefills = 0;
    for (const Slot slot : running_) {
        if (!is_prefill(slot)) continue;
        ++prefills;
        if (is_long(slot)) ++out.longs;
    }
    std::int64_t waiting_longs = 0;
    for (auto at = waiting_.begin(); at != waiting_.end() && prefills < v0.max_num_partial_prefills; ++at) {
        if (is_long(*at)) {
            if (out.longs + waiting_longs >= v0.max_long_partial_prefills) continue;
            ++waiting_longs;
        }
        ++prefills;
    }
    const std::int64_t slots = std::min(prefills, v0.max_num_partial_prefills);
    out.share = slots == 0 ? args_.max_num_batched_tokens : args_.max_num_batched_tokens / slots;
    return out;
}

VllmV0Scheduler::NewTokens VllmV0Scheduler::new_tokens(Slot slot, Branch::State state, bool chunking) {
    const bool looks_up = !old() && args_.enable_prefix_caching;
    NewTokens n;
    std::int64_t branches = 0;
    for (Branch& branch : group(slot).branches) {
        if (branch.state != state) continue;
        ++branches;
        if (branch.decoding) {
            ++n.uncached;
            continue;
        }
        const std::int64_t rest = tokens(slot, branch) - branch.computed;
        n.uncached += rest;
        if (!looks_up) continue;
        const std::int64_t hit = hit_tokens(slot, branch);
        if (hit < branch.computed && !(state == Branch::State::running && args_.enable_chunked_prefill)) {
            throw EngineCrash("request " + engine_.request(slot).tie_id +
                              " was swapped in the middle of its prompt, beyond its cached prefix, which the engine asserts "
                              "against (chunked prefill, swap and prefix caching together)");
        }
        const std::int64_t cached = std::max<std::int64_t>(0, hit - branch.computed);
        n.uncached -= cached;
        n.cached += cached;
    }
    if (n.uncached == 0 && n.cached > 0) {
        n.uncached = 1;
        --n.cached;
    }
    if (!chunking || branches != 1) return n;
    const std::int64_t block = args_.block_size;
    const std::int64_t left = std::max<std::int64_t>(0, args_.max_num_batched_tokens - used_);
    if (!old()) {
        const std::int64_t most = std::min(left, partial_.share);
        n.uncached = std::min(n.uncached, args_.enable_prefix_caching ? most / block * block : most);
    } else if (!args_.enable_prefix_caching) {
        n.uncached = std::min(n.uncached, left);
    } else {
        if (args_.max_num_batched_tokens % block != 0) {
            throw EngineCrash(
                "chunked prefill with prefix caching needs max_num_batched_tokens to be a multiple of block_size");
        }
        if (left < n.uncached) n.uncached = left / block * block;
    }
    return n;
}

/// The engine searches the cached prefix by bisection, so a gap in it may be overlooked, and keeps what it found.
std::int64_t VllmV0Scheduler::hit_tokens(Slot slot, Branch& branch) {
    if (branch.hit != Branch::unknown) return branch.hit;
    const std::int64_t full = tokens(slot, branch) / args_.block_size;
    make_keys(slot, static_cast<std::size_t>(&branch - group(slot).branches.data()), full);
    std::int64_t low = 0;
    std::int64_t high = full;
    while (low < high) {
        const std::int64_t middle = (low + high) / 2;
        if (gpu_.hit(branch.keys[static_cast<std::size_t>(middle)])) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    branch.hit = low * args_.block_size;
    return branch.hit;
}

/// Blocks that appending the tokens without a slot may touch, as the engine estimates it: one even where there is room.
std::int64_t VllmV0Scheduler::touched(Slot slot, Branch::State state) const {
    const std::int64_t block = args_.block_size;
    std::int64_t sum = 0;
    for (const Branch& branch : groups_[slot].branches) {
        if (branch.state != state) continue;
        const std::int64_t room = block - branch.placed % block;
        const std::int64_t more = tokens(slot, branch) - branch.placed - room;  // may be negative: no token, at most one block
        sum += 1 + (more > 0 ? ceil_div(more, block) : more <= -block ? -1 : 0);
    }
    return sum;
}

std::int64_t VllmV0Scheduler::swap_need(Slot slot, Branch::State state, const V0Pool& target) {
    std::int64_t need = touched(slot, state);
    Group& g = group(slot);
    for (std::size_t j = 0; j < g.branches.size(); ++j) {
        const Branch& branch = g.branches[j];
        if (branch.state != state) continue;
        const std::int64_t full = branch.placed / args_.block_size;
        if (!args_.enable_prefix_caching) {
            need += full;
            continue;
        }
        make_keys(slot, j, full);
        for (std::int64_t i = 0; i < full; ++i) need += target.in_use(branch.keys[static_cast<std::size_t>(i)]) ? 0 : 1;
    }
    return need;
}

// ---- blocks -------------------------------------------------------------------------------------------------------------

void VllmV0Scheduler::make_keys(Slot slot, std::size_t index, std::int64_t count) {
    Group& g = group(slot);
    std::vector<BlockKey>& keys = g.branches[index].keys;
    auto have = static_cast<std::int64_t>(keys.size());
    if (have >= count) return;
    const LiveRequest& request = engine_.request(slot);
    const std::vector<TokenRun>* prompt = &request.content;
    TokenRun outputs{request.output_base, request.max_tokens};
    if (args_.v0.clock) {
        outputs.first += recorded_branch_stride * index;
    } else if (request.content.empty() && index == 0) {
        outputs = {private_tokens(request.id), request.prompt + request.max_tokens};
    } else {
        if (request.content.empty()) {
            g.prompt = {{private_tokens(request.id), request.prompt}};
            prompt = &g.prompt;
        }
        if (index > 0) outputs.first = private_tokens(request.id) + (1U << 30) + branch_stride * index;
    }
    BlockKey key = have > 0 ? keys.back() : BlockKey{};
    TokenCursor cursor(*prompt, outputs, have * args_.block_size);
    for (; have < count; ++have) {
        cursor.take(args_.block_size, key);
        keys.push_back(key);
    }
}

/// Blocks for all tokens of a request that is admitted.
void VllmV0Scheduler::place(Slot slot) {
    Group& g = group(slot);
    Branch& branch = waiting_branch(g);
    const std::int64_t block = args_.block_size;
    const std::int64_t count = tokens(slot, branch);
    const std::int64_t blocks = ceil_div(count, block);
    std::int64_t full = 0;
    if (args_.enable_prefix_caching) {
        full = count / block;
        make_keys(slot, static_cast<std::size_t>(&branch - g.branches.data()), full);
    }
    branch.table.reserve(static_cast<std::size_t>(blocks));
    for (std::int64_t i = 0; i < full; ++i)
        branch.table.push_back(gpu_.place(branch.keys[static_cast<std::size_t>(i)], (i + 1) * block));
    for (std::int64_t i = full; i < blocks; ++i) branch.table.push_back(gpu_.take());
    branch.placed = count;
    branch.state = Branch::State::running;
    branch.had_row = false;
    branch.skip = 0;
    if (old() && args_.enable_prefix_caching) {
        for (std::size_t i = 0; i + 1 < branch.table.size(); ++i) branch.skip += gpu_.computed(branch.table[i]) ? block : 0;
    }
}

/// Slots for the tokens that have none yet. A block others write to as well is copied first.
void VllmV0Scheduler::append(Slot slot) {
    Group& g = group(slot);
    const std::int64_t block = args_.block_size;
    std::int64_t held = -1;
    for (std::size_t j = 0; j < g.branches.size(); ++j) {
        Branch& branch = g.branches[j];
        if (branch.state != Branch::State::running) continue;
        if (held < 0) held = static_cast<std::int64_t>(branch.table.size());
        const std::int64_t count = tokens(slot, branch);
        while (static_cast<std::int64_t>(branch.table.size()) * block < count) branch.table.push_back(gpu_.take());
        while (branch.placed < count) {
            const std::int64_t at = branch.placed / block;
            BlockId& id = branch.table[static_cast<std::size_t>(at)];
            const BlockId own = gpu_.own(id);
            if (own != id) ++decision_.blocks_copied;
            id = own;
            branch.placed = std::min(count, (at + 1) * block);
            if (args_.enable_prefix_caching && branch.placed == (at + 1) * block) {
                make_keys(slot, j, at + 1);
                id = gpu_.fill(id, branch.keys[static_cast<std::size_t>(at)], branch.placed);
            }
        }
    }
    engine_.request(slot).row = held;  // where the new blocks of its row start
}

void VllmV0Scheduler::move(Slot slot, Branch::State from, V0Pool& source, V0Pool& target, Branch::State to) {
    Group& g = group(slot);
    for (std::size_t j = 0; j < g.branches.size(); ++j) {
        Branch& branch = g.branches[j];
        if (branch.state != from) continue;
        const std::int64_t full = args_.enable_prefix_caching ? branch.placed / args_.block_size : 0;
        make_keys(slot, j, full);
        for (const BlockId id : branch.table) source.drop(id);
        for (std::size_t i = 0; i < branch.table.size(); ++i) {
            const auto n = static_cast<std::int64_t>(i);
            branch.table[i] = n < full ? target.place(branch.keys[i], (n + 1) * args_.block_size) : target.take();
        }
        branch.state = to;
    }
}

void VllmV0Scheduler::release(Branch& branch) {
    const bool on_cpu = branch.state == Branch::State::swapped;
    V0Pool& pool = on_cpu ? cpu_ : gpu_;
    if (args_.enable_prefix_caching && branch.had_row && !on_cpu) {
        for (const BlockId id : branch.table) pool.set_access(id, branch.access);
    }
    for (const BlockId id : branch.table) pool.drop(id);
    branch.table.clear();
    branch.placed = 0;
    branch.hit = Branch::unknown;
    branch.had_row = false;
}

// ---- results ------------------------------------------------------------------------------------------------------------

void VllmV0Scheduler::receive(const Batch& /*batch*/, SimTime now) {
    for (const Row& row : decision_.rows) {
        if (engine_.request(row.slot).id != row.id) continue;  // left meanwhile
        append_tokens(row, now, !async_step_);
        if (async_step_ && row.samples) pending_.emplace_back(row.slot, row.id);
    }
}

void VllmV0Scheduler::append_tokens(const Row& row, SimTime now, bool tests_end) {
    Group& g = group(row.slot);
    for (Branch& branch : g.branches) {
        if (branch.state != Branch::State::running) continue;
        branch.computed += row.chunk;
        if (branch.computed >= tokens(row.slot, branch)) branch.decoding = true;
    }
    if (!row.samples) return;
    if (g.sequences > static_cast<std::int64_t>(g.branches.size())) {
        engine_.credit(row.slot, now, g.sequences);
        fork(row.slot);
    } else {
        std::int64_t live = 0;
        for (Branch& branch : g.branches) {
            if (branch.state != Branch::State::running) continue;
            ++branch.outputs;
            ++live;
        }
        if (engine_.request(row.slot).beam_seed != 0) choose_beams(row.slot);
        engine_.credit(row.slot, now, live);
        if (!tests_end) return;
        for (Branch& branch : g.branches) {
            if (branch.state == Branch::State::running) end_branch(row.slot, branch);
        }
    }
    if (finished(g)) {
        engine_.finish(row.slot, now);
    } else if (g.branches.size() > 1) {
        engine_.account(row.slot);
    }
}

/// The other sequences start with the first one's blocks and a token of their own.
void VllmV0Scheduler::fork(Slot slot) {
    Group& g = group(slot);
    const LiveRequest& request = engine_.request(slot);
    const auto n = static_cast<std::size_t>(g.sequences);
    g.branches.reserve(n);
    Branch& parent = g.branches.front();
    ++parent.outputs;
    for (std::size_t j = 1; j < n; ++j) {
        Branch& child = g.branches.emplace_back(parent);
        child.had_row = false;
        child.limit = request.max_tokens / request.sequences;
        if (j < request.output_lens.size()) child.limit = std::min(child.limit, request.output_lens[j]);
        for (const BlockId id : child.table) gpu_.share(id);
    }
    if (request.beam_seed != 0) {
        g.weights = next_tokens(request.beam_seed, 0, 0, n);
        for (double& weight : g.weights) weight /= g.weights.front();
    }
    // A child that has ended already gives back what it shared, which changes nothing.
    for (std::size_t j = 1; j < n; ++j) end_branch(slot, g.branches[j]);
    end_branch(slot, parent);
}

/// Of all beams' next tokens the likeliest become the beams, each with the blocks of the one it goes on from.
void VllmV0Scheduler::choose_beams(Slot slot) {
    struct Candidate {
        double weight;
        std::size_t parent;
    };
    Group& g = group(slot);
    const std::uint64_t seed = engine_.request(slot).beam_seed;
    const std::size_t n = g.branches.size();
    KVSIM_CHECK(
        std::all_of(g.branches.begin(), g.branches.end(), [](const Branch& b) { return b.state == Branch::State::running; }),
        "beams run, move and end together");
    std::vector<Candidate> candidates;
    for (std::size_t j = 0; j < n; ++j) {
        for (const double share : next_tokens(seed, g.branches[j].outputs, j, n))
            candidates.push_back({g.weights[j] * share, j});
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; });
    std::vector<Branch> beams;
    for (std::size_t j = 0; j < n; ++j) {
        const Branch& parent = g.branches[candidates[j].parent];
        g.weights[j] = candidates[j].weight / candidates.front().weight;
        for (const BlockId id : parent.table) gpu_.share(id);
        beams.push_back(parent);
    }
    for (Branch& branch : g.branches) release(branch);
    g.branches.swap(beams);
}

bool VllmV0Scheduler::end_branch(Slot slot, Branch& branch) {
    if (branch.outputs < branch.limit && tokens(slot, branch) <= args_.max_model_len) return false;
    release(branch);
    branch.state = Branch::State::finished;
    return true;
}

void VllmV0Scheduler::process_pending() {
    std::vector<std::pair<Slot, RequestId>> rows;
    rows.swap(pending_);
    for (const auto& [slot, id] : rows) {
        if (engine_.request(slot).id != id) continue;
        Branch& branch = group(slot).branches.front();
        std::erase(stopped_, slot);
        if (branch.outputs < branch.limit && tokens(slot, branch) <= args_.max_model_len) continue;
        if (branch.state != Branch::State::running) {  // forced out of the running ones meanwhile
            group(slot).broken = true;
            continue;
        }
        end_branch(slot, branch);
        engine_.finish(slot, engine_.now());
    }
    rows.clear();
    pending_.swap(rows);
}

/// True: the request is finished and gone.
bool VllmV0Scheduler::process_pending(Slot slot) {
    const RequestId id = engine_.request(slot).id;
    const auto at = std::find(pending_.begin(), pending_.end(), std::pair(slot, id));
    if (at == pending_.end()) return false;
    pending_.erase(at);
    if (!end_branch(slot, group(slot).branches.front())) return false;
    engine_.finish(slot, engine_.now());
    return true;
}

// ---- many decode steps --------------------------------------------------------------------------------------------------

/// What the head of the waiting queue waits for, step after step; nothing: that may change.
std::optional<Bound> VllmV0Scheduler::head_waits_on() {
    steady_.head_asks = false;
    if (waiting_.empty()) return Bound::no_waiting;
    const bool chunking = args_.enable_chunked_prefill;
    const auto seated = static_cast<std::int64_t>(running_.size());
    const std::int64_t budget = args_.max_num_batched_tokens;
    const Slot head = waiting_.front();
    if ((!chunking && args_.scheduling_policy == QueueOrder::priority) || args_.v0.delay_factor > 0 || group(head).broken ||
        (chunking && (args_.v0.max_num_partial_prefills > 1 || (old() && args_.enable_prefix_caching))))
        return {};
    if (chunking && !old() && seated >= budget) return Bound::token_budget;
    const Branch& branch = waiting_branch(group(head));
    if (!old() && args_.enable_prefix_caching && branch.hit == Branch::unknown) return {};
    used_ = chunking ? seated : 0;
    partial_ = {budget, 0};
    const NewTokens n = new_tokens(head, Branch::State::waiting, chunking);
    const std::int64_t need = ceil_div(tokens(head, branch), args_.block_size);
    const std::int64_t longest = chunking ? args_.max_model_len : std::min(args_.max_model_len, budget);
    if (n.all() > longest || gpu_.usable() - need < watermark_blocks_) return {};
    steady_.head_asks = true;
    steady_.head_need = need;
    steady_.head_lacks = gpu_.free() - need < watermark_blocks_;
    if (steady_.head_lacks) return Bound::kv_blocks;
    if (n.uncached == 0 || used_ + n.uncached > budget) return Bound::token_budget;
    if (seated + seats(group(head)) > args_.max_num_seqs) return Bound::seats;
    return {};
}

Scheduler::Steady VllmV0Scheduler::steady_steps(std::vector<Slot>& rows) {
    if (args_.v0.clock || running_.size() != decision_.rows.size() || !swapped_.empty() || !pending_.empty() ||
        !stopped_.empty() || admitted_since_ || carried_ != SimDuration::zero())
        return {};
    const auto before = [this](Slot a, Slot b) { return more_urgent(a, b); };
    if (args_.scheduling_policy == QueueOrder::priority && !std::is_sorted(running_.begin(), running_.end(), before)) return {};
    const std::optional<Bound> bound = head_waits_on();
    if (!bound) return {};
    steady_.phases.resize(static_cast<std::size_t>(args_.block_size));
    for (std::vector<std::uint32_t>& phase : steady_.phases) phase.clear();
    steady_.phase = 0;
    steady_.taken = 0;
    std::int64_t steps = INT64_MAX;
    for (std::size_t i = 0; i < running_.size(); ++i) {
        const Row& row = decision_.rows[i];
        const Slot slot = running_[i];
        const LiveRequest& request = engine_.request(slot);
        const Group& g = group(slot);
        if (row.slot != slot || row.id != request.id || row.prefill || !row.samples || g.sequences != 1) return {};
        const Branch& branch = g.branches.front();
        const std::int64_t count = tokens(slot, branch);
        if (branch.state != Branch::State::running || !branch.decoding || branch.placed != count ||
            branch.computed + 1 != count || request.computed != count || branch.outputs != request.outputs ||
            branch.limit != request.max_tokens)
            return {};
        steps = std::min({steps, branch.limit - branch.outputs - 1, args_.max_model_len - count});
        if (steps < 2) return {};  // cheaper as a single step
        steady_.phases[static_cast<std::size_t>(count % args_.block_size)].push_back(static_cast<std::uint32_t>(i));
        rows.push_back(slot);
    }
    return {steps, *bound};
}

/// Only who takes a block, or fills one that can be found from then on, touches the pool: in the order of the rows.
bool VllmV0Scheduler::steady_step() {
    const std::size_t phase = steady_.phase;
    const std::size_t before = phase == 0 ? steady_.phases.size() - 1 : phase - 1;
    const std::vector<std::uint32_t>& takers = steady_.phases[phase];
    const auto taken = static_cast<std::int64_t>(takers.size());
    const std::int64_t free = gpu_.free();
    if (steady_.head_asks) {  // with chunks behind the rows; who fills a block with known content may give one back
        const bool chunking = args_.enable_chunked_prefill;
        const std::int64_t least = chunking ? free - taken : free;
        const std::int64_t back = chunking ? static_cast<std::int64_t>(steady_.phases[before].size()) : 0;
        const auto lacks = [this](std::int64_t blocks) { return blocks - steady_.head_need < watermark_blocks_; };
        if (lacks(least) != steady_.head_lacks || lacks(least + back) != steady_.head_lacks) return false;
    }
    // Each row asks for a block even where it has room. The engine of 0.8.5 may die of an eviction: that is left to a step.
    if (free <= taken || (!old() && free - gpu_.idle() < taken)) return false;
    const std::vector<std::uint32_t>* movers = &takers;
    if (args_.enable_prefix_caching && before != phase) {
        const std::vector<std::uint32_t>& fillers = steady_.phases[before];
        steady_.movers.clear();
        std::merge(takers.begin(), takers.end(), fillers.begin(), fillers.end(), std::back_inserter(steady_.movers));
        movers = &steady_.movers;
    }
    for (const std::uint32_t i : *movers) {
        const Slot slot = running_[i];
        LiveRequest& request = engine_.request(slot);
        Branch& branch = group(slot).branches.front();
        branch.placed = request.tokens() + steady_.taken;
        branch.outputs = request.outputs + steady_.taken + 1;
        append(slot);
        request.row = -1;
    }
    if (args_.enable_prefix_caching) gpu_.all_computed();
    steady_.phase = before;
    ++steady_.taken;
    return true;
}

void VllmV0Scheduler::pass(std::int64_t steps, SimTime now) {
    now_ = static_cast<double>(now.time_since_epoch().count());
    const bool full =
        !old() && args_.enable_chunked_prefill && static_cast<std::int64_t>(running_.size()) >= args_.max_num_batched_tokens;
    if (!full) asked_ = now_;  // else admission() does not get so far
    for (std::size_t i = 0; i < running_.size(); ++i) {
        const Slot slot = running_[i];
        Branch& branch = group(slot).branches.front();
        branch.outputs = engine_.request(slot).outputs + steps;
        branch.placed = tokens(slot, branch);
        branch.computed = branch.placed - 1;
        branch.access = now_;
        decision_.rows[i].computed += steps;
    }
}

// ---- reports ------------------------------------------------------------------------------------------------------------

HeldSlots VllmV0Scheduler::unfilled(const LiveRequest& request) const {
    const Group& g = groups_[static_cast<std::size_t>(&request - engine_.requests().data())];
    HeldSlots held;
    BlockId shared = -1;
    for (const Branch& branch : g.branches) {
        if (branch.state != Branch::State::running || branch.table.empty()) continue;
        // Siblings share their last block until they write to it; beams stand in the order of their weights.
        if (branch.table.back() == std::exchange(shared, branch.table.back())) continue;
        const auto shares = [&branch](const Branch& b) { return !b.table.empty() && b.table.back() == branch.table.back(); };
        if (request.beam_seed != 0 && &*std::find_if(g.branches.begin(), g.branches.end(), shares) != &branch) continue;
        const std::int64_t slots = static_cast<std::int64_t>(branch.table.size()) * args_.block_size;
        const std::int64_t filled = g.branches.size() == 1 ? request.computed : branch.placed;
        const std::int64_t final = request.prompt + branch.limit - 1;
        held.reserved += std::max<std::int64_t>(0, std::min(slots, final) - filled);
        held.internal += std::max<std::int64_t>(0, slots - std::max(final, filled));
    }
    return held;
}

void VllmV0Scheduler::record(const BatchRow& row, ScheduledRow& out) const {
    if (engine_.request(row.slot).id != row.id) return;  // it ended when this step was decided
    const std::vector<Branch>& branches = groups_[row.slot].branches;
    const bool added_only = row.kind == ScheduledRow::Kind::running && branches.size() == 1 && row.blocks_from >= 0;
    for (const Branch& branch : branches) {
        if (branch.state != Branch::State::running) continue;
        const std::size_t from = added_only ? static_cast<std::size_t>(row.blocks_from) : 0;
        for (std::size_t i = from; i < branch.table.size(); ++i) out.blocks.push_back(branch.table[i]);
        if (branches.size() > 1) out.tables.push_back(static_cast<std::int64_t>(branch.table.size()));
    }
}

std::string VllmV0Scheduler::describe_head() const {
    std::string text;
    if (!waiting_.empty()) {
        const LiveRequest& head = engine_.request(waiting_.front());
        text = kvsim::describe_head(head.tie_id, head.prompt, head.outputs, head.max_tokens, args_, watermark_blocks_);
    }
    if (!swapped_.empty()) {
        text += "; " + std::to_string(swapped_.size()) + " swapped out, the first request " +
                engine_.request(swapped_.front()).tie_id + ", " + std::to_string(cpu_.free()) + " of " +
                std::to_string(cpu_.usable()) + " CPU blocks free";
    }
    return text;
}

std::unique_ptr<Scheduler> make_vllm_v0_batching(Engine& engine) {
    return std::make_unique<VllmV0Scheduler>(engine);
}

}  // namespace kvsim
