#include "naive_engine.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "kvsim/base/check.hpp"

namespace kvsim::oracle {

namespace {

std::size_t at(std::int64_t index) {
    KVSIM_CHECK(index >= 0, "negative index");
    return static_cast<std::size_t>(index);
}

std::int64_t length(const auto& container) {
    return static_cast<std::int64_t>(container.size());
}

}  // namespace

NaiveEngine::NaiveEngine(EngineArgs args, Mutation mutation) : args_(std::move(args)), mutation_(mutation) {
    blocks_.resize(at(args_.num_gpu_blocks));
    for (std::int64_t block = 1; block < args_.num_gpu_blocks; ++block) free_.push_back(block);  // 0 is the null block
}

void NaiveEngine::add(NaiveRequest request) {
    const RequestId id = request.id;
    KVSIM_CHECK(request.size() == request.prompt_tokens, "a prompt's ids do not match its length");
    KVSIM_CHECK(requests_.emplace(id, std::move(request)).second, "request added twice");
    insert_waiting(id);
}

// FCFS keeps arrival order; priority keeps the queue sorted.
void NaiveEngine::insert_waiting(RequestId id) {
    waiting_.push_back(id);
    if (args_.scheduling_policy == QueueOrder::fcfs) return;
    for (std::size_t i = waiting_.size() - 1; i > 0 && before(waiting_[i], waiting_[i - 1]); --i) {
        std::swap(waiting_[i], waiting_[i - 1]);
    }
}

bool NaiveEngine::before(RequestId a, RequestId b) const {
    const NaiveRequest& x = requests_.at(a);
    const NaiveRequest& y = requests_.at(b);
    if (is(Mutation::ids_as_numbers)) {
        return std::tuple(x.priority, x.arrival_time, x.id) < std::tuple(y.priority, y.arrival_time, y.id);
    }
    return std::tie(x.priority, x.arrival_time, x.name) < std::tie(y.priority, y.arrival_time, y.name);
}

NaiveBatch NaiveEngine::schedule(std::int64_t step) {
    NaiveBatch batch;
    batch.record.step = step;
    std::int64_t budget = args_.max_num_batched_tokens;
    bool stopped_by_blocks = false;
    bool stopped_by_chunking = false;

    schedule_running(batch, budget);
    if (batch.record.preempted.empty() || is(Mutation::admit_after_preemption)) {
        schedule_waiting(batch, budget, stopped_by_blocks, stopped_by_chunking);
    }

    for (const ScheduledRow& row : batch.record.scheduled) {
        NaiveRequest& request = requests_.at(row.id);
        batch.record.total_tokens += row.tokens;
        batch.tokens_present.push_back(request.size());
        batch.recomputed.push_back(
            std::max<std::int64_t>(0, std::min(row.computed + row.tokens, request.most_computed) - row.computed));
        request.computed += row.tokens;
        request.scheduled += row.tokens;
        request.most_computed = std::max(request.most_computed, request.computed);
        // 3.10, 3.11: who samples is fixed here.
        const bool samples = request.computed >= request.size() + request.in_flight;
        batch.samples.push_back(samples);
        if (samples && args_.async_scheduling) ++request.in_flight;
    }
    // Hits were noted at admission; rows of running requests have none.
    batch.record.free_after_schedule = free_blocks();

    if (!batch.record.preempted.empty() || stopped_by_blocks) {
        batch.bound = Bound::kv_blocks;
    } else if (!waiting_.empty() && length(running_) == args_.max_num_seqs) {
        batch.bound = Bound::seats;
    } else if (budget == 0 || stopped_by_chunking) {
        batch.bound = Bound::token_budget;
    }
    return batch;
}

// 3.3
void NaiveEngine::schedule_running(NaiveBatch& batch, std::int64_t& budget) {
    std::vector<ScheduledRow>& rows = batch.record.scheduled;
    std::int64_t i = 0;
    while (i < length(running_) && budget > 0) {
        NaiveRequest& request = requests_.at(running_[at(i)]);

        // 1: its last token is on the way.
        if (request.in_flight > 0 && request.computed + 2 - request.in_flight >= request.prompt_tokens + request.max_tokens &&
            !is(Mutation::running_ignores_last_token_in_flight)) {
            ++i;
            continue;
        }

        // 2
        std::int64_t n = request.size() + request.in_flight - request.computed;
        if (args_.long_prefill_token_threshold > 0 && !is(Mutation::running_ignores_threshold)) {
            n = std::min(n, args_.long_prefill_token_threshold);
        }
        n = std::min(n, budget);
        n = std::min(n, args_.max_model_len - 1 - request.computed);
        KVSIM_CHECK(n >= 0 && !request.finished, "a running request is not finished and not ahead of its tokens");
        if (n == 0) {
            if (is(Mutation::stop_running_at_idle_request)) return;
            ++i;
            continue;
        }

        // 3
        const std::int64_t end = std::min(request.computed + n, args_.max_model_len);
        const std::int64_t need = std::max<std::int64_t>(0, ceil_div(end, args_.block_size) - length(request.table));
        const std::int64_t kept_free =
            is(Mutation::watermark_on_running)
                ? static_cast<std::int64_t>(std::floor(args_.watermark * static_cast<double>(args_.num_gpu_blocks)))
                : 0;
        bool preempted_itself = false;
        while (need > 0 && need + kept_free > free_blocks() && !preempted_itself) {
            const RequestId victim = pick_victim();
            const auto row = std::find_if(rows.begin(), rows.end(), [&](const ScheduledRow& r) { return r.id == victim; });
            const auto seat = std::find(running_.begin(), running_.end(), victim);
            const bool sits_before = seat - running_.begin() < i;
            if (row != rows.end()) {
                if (!is(Mutation::victim_tokens_not_returned)) budget += row->tokens;
                rows.erase(row);
                batch.hit_tokens.pop_back();  // rows of the running part have none, so any one entry will do
                --i;
            } else if (sits_before && is(Mutation::skipped_victim_moves_index)) {
                --i;
            }
            running_.erase(seat);
            preempt(victim, batch);
            preempted_itself = victim == request.id;
        }
        // 4
        if (preempted_itself) {
            if (is(Mutation::carry_on_after_self_preemption)) continue;
            return;
        }
        ScheduledRow row{request.id, n, request.computed, ScheduledRow::Kind::running, {}};
        for (std::int64_t k = 0; k < need; ++k) row.blocks.push_back(take_block());
        request.table.insert(request.table.end(), row.blocks.begin(), row.blocks.end());
        if (!is(Mutation::register_at_update)) register_blocks(request, std::min(request.computed + n, request.size()));
        rows.push_back(std::move(row));
        batch.hit_tokens.push_back(0);
        budget -= n;
        ++i;
    }
}

RequestId NaiveEngine::pick_victim() const {
    if (args_.scheduling_policy == QueueOrder::fcfs) return is(Mutation::victim_is_first) ? running_.front() : running_.back();
    RequestId victim = running_.front();
    for (const RequestId id : running_) {
        const NaiveRequest& a = requests_.at(id);
        const NaiveRequest& b = requests_.at(victim);
        const auto urgency_a = std::pair(a.priority, a.arrival_time);
        const auto urgency_b = std::pair(b.priority, b.arrival_time);
        if (urgency_a > urgency_b || (is(Mutation::priority_tie_last) && urgency_a == urgency_b)) victim = id;
    }
    return victim;
}

// 3.4; the caller has taken it out of `running`.
void NaiveEngine::preempt(RequestId id, NaiveBatch& batch) {
    NaiveRequest& request = requests_.at(id);
    release(request);
    request.computed = 0;
    request.was_preempted = true;
    ++request.preemptions;
    batch.record.preempted.push_back(id);
    if (args_.scheduling_policy == QueueOrder::priority || is(Mutation::preempted_to_back)) {
        insert_waiting(id);
    } else {
        waiting_.push_back(id);
        std::rotate(waiting_.begin(), waiting_.end() - 1, waiting_.end());
    }
}

// 3.5
void NaiveEngine::schedule_waiting(NaiveBatch& batch, std::int64_t& budget, bool& stopped_by_blocks,
                                   bool& stopped_by_chunking) {
    const std::int64_t watermark =
        is(Mutation::no_watermark)
            ? 0
            : static_cast<std::int64_t>(std::floor(args_.watermark * static_cast<double>(args_.num_gpu_blocks)));
    const std::int64_t seats = args_.max_num_seqs + (is(Mutation::ignore_seats) ? 1 : 0);
    std::size_t head = 0;  // always the first; only a mutation looks behind it
    while (head < waiting_.size() && budget > 0 && length(running_) != seats) {
        NaiveRequest& request = requests_.at(waiting_[head]);

        // 1
        const std::vector<std::int64_t> hit = lookup(request);
        const std::int64_t hit_tokens = length(hit) * args_.block_size;

        // 2
        std::int64_t n = request.size() - hit_tokens;
        if (args_.long_prefill_token_threshold > 0 && !is(Mutation::waiting_ignores_threshold)) {
            n = std::min(n, args_.long_prefill_token_threshold);
        }
        if (!args_.enable_chunked_prefill && n > budget && !is(Mutation::chunk_although_off)) {
            stopped_by_chunking = true;
            return;
        }
        n = std::min(n, budget);

        // 3 and 4
        std::int64_t idle = 0;
        for (const std::int64_t block : hit) {
            if (blocks_[at(block)].users == 0) ++idle;
        }
        const std::int64_t blocks_whole = ceil_div(std::min(request.size(), args_.max_model_len), args_.block_size);
        const std::int64_t blocks_now = ceil_div(hit_tokens + n, args_.block_size);
        const std::int64_t idle_counted = is(Mutation::idle_hits_are_free) ? 0 : idle;
        const bool reserve = args_.scheduler_reserve_full_isl && !is(Mutation::no_full_isl_check);
        const bool no_room_whole = reserve && blocks_whole - length(hit) + idle_counted + watermark > free_blocks();
        const bool no_room_now = blocks_now - length(hit) + idle_counted + watermark > free_blocks();
        if (no_room_whole || no_room_now || blocks_now - length(hit) + idle > free_blocks()) {
            stopped_by_blocks = true;
            if (!is(Mutation::skip_blocked_head)) return;
            ++head;
            continue;
        }

        // 5
        for (const std::int64_t block : hit) {
            if (blocks_[at(block)].users == 0) free_.remove(block);
            ++blocks_[at(block)].users;
        }
        request.table = hit;
        while (length(request.table) < blocks_now) request.table.push_back(take_block());
        request.registered = length(hit);
        if (!is(Mutation::register_at_update)) register_blocks(request, hit_tokens + n);
        request.computed = hit_tokens;
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(head));
        running_.push_back(request.id);
        const auto kind = request.was_preempted ? ScheduledRow::Kind::resumed : ScheduledRow::Kind::fresh;
        batch.record.scheduled.push_back({request.id, n, hit_tokens, kind, request.table});
        batch.hit_tokens.push_back(hit_tokens);
        budget -= n;
    }
}

// 3.6
std::vector<std::int64_t> NaiveEngine::lookup(const NaiveRequest& request) const {
    std::vector<std::int64_t> hit;
    if (!args_.enable_prefix_caching) return hit;
    const std::int64_t most = (request.size() - (is(Mutation::hit_whole_prompt) ? 0 : 1)) / args_.block_size;
    Key key;
    for (std::int64_t block = 0; block < most; ++block) {
        for (std::int64_t k = 0; k < args_.block_size; ++k) key.push_back(request.tokens[at(block * args_.block_size + k)]);
        const auto found = registered_.find(key);
        if (found == registered_.end()) break;
        hit.push_back(is(Mutation::hit_newest) ? found->second.back() : found->second.front());
    }
    return hit;
}

// 3.7
void NaiveEngine::register_blocks(NaiveRequest& request, std::int64_t up_to) {
    if (!args_.enable_prefix_caching) return;
    while (request.registered < up_to / args_.block_size) {
        const std::int64_t end = (request.registered + 1) * args_.block_size;
        Key key(request.tokens.begin(), request.tokens.begin() + end);
        const std::int64_t block = request.table.at(at(request.registered));
        ++request.registered;
        if (is(Mutation::no_duplicates) && registered_.count(key) > 0) continue;
        KVSIM_CHECK(!blocks_[at(block)].key, "block registered twice");
        registered_[key].push_back(block);
        blocks_[at(block)].key = std::move(key);
    }
}

std::int64_t NaiveEngine::take_block() {
    KVSIM_CHECK(!free_.empty(), "a block is taken only when one is free");
    const std::int64_t block = free_.front();
    free_.pop_front();
    forget(block);
    ++blocks_[at(block)].users;
    return block;
}

void NaiveEngine::forget(std::int64_t block) {
    std::optional<Key>& key = blocks_[at(block)].key;
    if (!key) return;
    std::vector<std::int64_t>& same = registered_.at(*key);
    same.erase(std::find(same.begin(), same.end(), block));
    if (same.empty()) registered_.erase(*key);
    key.reset();
}

// 3.8
void NaiveEngine::release(NaiveRequest& request) {
    if (is(Mutation::release_head_first)) std::reverse(request.table.begin(), request.table.end());
    while (!request.table.empty()) {
        const std::int64_t block = request.table.back();
        request.table.pop_back();
        if (--blocks_[at(block)].users > 0) continue;
        if (is(Mutation::forget_on_release)) forget(block);
        if (is(Mutation::release_to_front)) {
            free_.push_front(block);
        } else {
            free_.push_back(block);
        }
    }
    request.registered = 0;
}

// 3.10, 3.11
void NaiveEngine::update(const NaiveBatch& batch, StepRecord& record) {
    std::vector<RequestId> released_later;
    for (std::size_t row = 0; row < batch.record.scheduled.size(); ++row) {
        NaiveRequest& request = requests_.at(batch.record.scheduled[row].id);
        if (request.aborted) continue;
        const auto seat = std::find(running_.begin(), running_.end(), request.id);
        const bool is_running = seat != running_.end();
        if (is_running && is(Mutation::register_at_update)) {
            register_blocks(request, std::min(request.computed, request.size()));
        }
        if (!batch.samples[row]) continue;

        KVSIM_CHECK(!request.finished, "a token for a request that has finished");
        request.tokens.push_back(request.output_base + static_cast<std::uint64_t>(request.outputs()));
        record.received.push_back(request.id);
        if (args_.async_scheduling) {
            --request.in_flight;
            if (is_running && !is(Mutation::no_register_on_receipt)) {
                register_blocks(request, request.computed - request.in_flight);
            }
        }

        const std::int64_t last = request.max_tokens + (is(Mutation::finish_one_late) ? 1 : 0);
        if (request.size() < args_.max_model_len && request.outputs() < last) continue;
        request.finished = true;
        record.finished.push_back(request.id);
        if (is_running) {
            running_.erase(seat);
        } else {
            waiting_.erase(std::find(waiting_.begin(), waiting_.end(), request.id));
        }
        if (is(Mutation::release_reverse_rows)) {
            released_later.push_back(request.id);
        } else {
            release(request);
        }
    }
    while (!released_later.empty()) {
        release(requests_.at(released_later.back()));
        released_later.pop_back();
    }
}

void NaiveEngine::abort(RequestId id) {
    NaiveRequest& request = requests_.at(id);
    KVSIM_CHECK(!request.finished, "what has left cannot be aborted");
    std::erase(running_, id);
    std::erase(waiting_, id);
    request.finished = true;
    request.aborted = true;
    release(request);
}

void NaiveEngine::describe(StepRecord& record) const {
    record.free_after_update = free_blocks();
    record.running = running_;
    record.waiting = waiting_;
}

std::int64_t NaiveEngine::used_blocks() const {
    std::int64_t used = 0;
    for (const Block& block : blocks_) {
        if (block.users > 0) ++used;
    }
    return used;
}

void NaiveEngine::check_invariants() const {
    std::vector<std::int64_t> holders(blocks_.size(), 0);
    for (const auto& [id, request] : requests_) {
        const bool is_running = std::find(running_.begin(), running_.end(), id) != running_.end();
        const bool is_waiting = std::find(waiting_.begin(), waiting_.end(), id) != waiting_.end();
        KVSIM_CHECK(is_running + is_waiting + request.finished == 1, "a request is in exactly one place");
        KVSIM_CHECK(is_running || request.table.empty(), "blocks are held by running requests only");
        KVSIM_CHECK(std::set<std::int64_t>(request.table.begin(), request.table.end()).size() == request.table.size(),
                    "a table names a block twice");
        KVSIM_CHECK(request.computed <= length(request.table) * args_.block_size || !is_running, "computed beyond the table");
        for (const std::int64_t block : request.table) ++holders[at(block)];
    }
    std::vector<std::int64_t> times_free(blocks_.size(), 0);
    for (const std::int64_t block : free_) ++times_free[at(block)];
    KVSIM_CHECK(holders[0] == 0 && times_free[0] == 0 && !blocks_[0].key, "the null block is never given out");
    for (std::size_t block = 1; block < blocks_.size(); ++block) {
        KVSIM_CHECK(blocks_[block].users == holders[block], "users are the tables that name the block");
        KVSIM_CHECK(times_free[block] == (holders[block] == 0 ? 1 : 0), "a block is free exactly when nobody holds it");
    }
    std::size_t with_key = 0;
    for (const auto& [key, same] : registered_) {
        with_key += same.size();
        for (const std::int64_t block : same) KVSIM_CHECK(blocks_[at(block)].key == key, "registration and block disagree");
    }
    const auto keyed = std::count_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return b.key.has_value(); });
    KVSIM_CHECK(static_cast<std::int64_t>(with_key) == keyed, "a registered block is found by its key");
}

std::string NaiveEngine::state() const {
    std::string text = "free " + std::to_string(free_blocks()) + " of " + std::to_string(usable_blocks()) + " blocks; running";
    for (const RequestId id : running_) text += " " + requests_.at(id).name;
    text += "; waiting";
    for (const RequestId id : waiting_) {
        text += " " + requests_.at(id).name + "(" + std::to_string(requests_.at(id).size()) + " tokens)";
    }
    return text;
}

}  // namespace kvsim::oracle
