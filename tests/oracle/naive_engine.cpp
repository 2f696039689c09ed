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
    for (const BlockGroup& group : args_.kv_groups) {
        for (std::int64_t t = 0; t < group.tables; ++t) {
            tables_.push_back({group.rule, group.block_size, group.window, group.state_blocks});
        }
    }
    if (tables_.empty()) tables_.push_back({BlockGroup::Rule::full, args_.block_size, 0, 0});
    const auto divides = [this](const Table& t) { return t.rule == BlockGroup::Rule::state || align_ % t.block_size == 0; };
    while (align_ % args_.block_size != 0 || !std::all_of(tables_.begin(), tables_.end(), divides)) ++align_;
}

// G2
std::int64_t NaiveEngine::first_attended(const Table& table, std::int64_t computed) const {
    const bool sliding = table.rule == BlockGroup::Rule::sliding;
    const bool chunked = table.rule == BlockGroup::Rule::chunked;
    if (sliding || (chunked && is(Mutation::chunk_as_window))) {
        const std::int64_t back = table.window - (is(Mutation::window_one_longer) ? 0 : 1);
        return std::max<std::int64_t>(0, computed - back);
    }
    return chunked ? computed - computed % table.window : 0;
}

// G1
std::int64_t NaiveEngine::blocks_for(const Table& table, std::int64_t tokens) const {
    if (table.rule == BlockGroup::Rule::state && !is(Mutation::state_grows)) return table.state_blocks;
    return ceil_div(tokens, table.block_size);
}

// G6
std::int64_t NaiveEngine::blocks_at_gate(const Table& table, std::int64_t tokens) const {
    const std::int64_t blocks = blocks_for(table, tokens);
    if (is(Mutation::gate_without_cap)) return blocks;
    const std::int64_t step = args_.max_num_batched_tokens;
    if (table.rule == BlockGroup::Rule::sliding) {
        return std::min(blocks, 1 + ceil_div(std::min(table.window - 1 + step, args_.max_model_len), table.block_size));
    }
    if (table.rule == BlockGroup::Rule::chunked) {
        return std::min(blocks, ceil_div(std::min(table.window + step, args_.max_model_len), table.block_size));
    }
    return blocks;
}

bool NaiveEngine::can_ever_fit(std::int64_t tokens) const {
    std::int64_t blocks = 0;
    for (const Table& table : tables_) blocks += blocks_at_gate(table, tokens);
    return blocks <= usable_blocks();
}

bool NaiveEngine::starts_alone(std::int64_t prompt) const {
    std::int64_t first = prompt;
    if (args_.enable_chunked_prefill && !args_.scheduler_reserve_full_isl) {
        first = std::min(prompt, args_.max_num_batched_tokens);
        if (args_.long_prefill_token_threshold > 0) first = std::min(first, args_.long_prefill_token_threshold);
    }
    std::int64_t blocks = 0;
    for (const Table& table : tables_) blocks += blocks_at_gate(table, first);
    const auto kept = static_cast<std::int64_t>(args_.watermark * static_cast<double>(args_.num_gpu_blocks));
    return blocks + (is(Mutation::no_watermark) ? 0 : kept) <= usable_blocks();
}

std::pair<std::int64_t, std::int64_t> NaiveEngine::unfilled(const NaiveRequest& request, std::int64_t last) const {
    std::pair<std::int64_t, std::int64_t> slots{0, 0};
    for (std::size_t t = 0; t < request.tables.size(); ++t) {
        const Table& table = tables_[t];
        if (table.rule == BlockGroup::Rule::state) continue;  // full from the start
        const std::int64_t end = length(request.tables[t]) * table.block_size;
        for (std::int64_t token = request.computed; token < end; ++token) {
            (token < last ? slots.first : slots.second) += align_ / table.block_size;
        }
    }
    return slots;
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

NaiveBatch NaiveEngine::schedule(std::int64_t step, SimTime) {
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
        if (!is(Mutation::window_given_back_after_need) && !is(Mutation::window_kept_when_refused)) {
            give_back_unattended(request);
        }
        if (is(Mutation::window_kept_when_refused) && lacking(request, end) <= free_blocks()) give_back_unattended(request);
        const std::int64_t need = lacking(request, end);
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
        ScheduledRow row{request.id, n, request.computed, ScheduledRow::Kind::running, {}, {}};
        grow(request, end, row);
        if (is(Mutation::window_given_back_after_need)) give_back_unattended(request);
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
        const std::int64_t hit_tokens = lookup(request);
        std::vector<std::vector<std::int64_t>> hit(tables_.size());
        for (std::size_t t = 0; t < tables_.size() && hit_tokens > 0; ++t) {
            const std::int64_t size = tables_[t].block_size;
            hit[t].assign(at(first_attended(tables_[t], hit_tokens) / size), 0);
            while (length(hit[t]) * size < hit_tokens) hit[t].push_back(find(request, t, length(hit[t])));
        }

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
        std::int64_t more_whole = 0;
        std::int64_t more_now = 0;
        for (std::size_t t = 0; t < tables_.size(); ++t) {
            for (const std::int64_t block : hit[t]) {
                if (block != 0 && blocks_[at(block)].users == 0) ++idle;
            }
            const std::int64_t whole = blocks_at_gate(tables_[t], std::min(request.size(), args_.max_model_len));
            more_whole += std::max<std::int64_t>(0, whole - length(hit[t]));
            more_now += blocks_for(tables_[t], hit_tokens + n) - length(hit[t]);
        }
        const std::int64_t idle_counted = is(Mutation::idle_hits_are_free) ? 0 : idle;
        const bool reserve = args_.scheduler_reserve_full_isl && !is(Mutation::no_full_isl_check);
        const bool no_room_whole = reserve && more_whole + idle_counted + watermark > free_blocks();
        const bool no_room_now = more_now + idle_counted + watermark > free_blocks();
        if (no_room_whole || no_room_now || more_now + idle > free_blocks()) {
            stopped_by_blocks = true;
            if (!is(Mutation::skip_blocked_head)) return;
            ++head;
            continue;
        }

        // 5
        const auto kind = request.was_preempted ? ScheduledRow::Kind::resumed : ScheduledRow::Kind::fresh;
        ScheduledRow row{request.id, n, hit_tokens, kind, {}, {}};
        const auto hold = [&](std::size_t t) {
            for (const std::int64_t block : hit[t]) {
                if (block == 0) continue;
                if (blocks_[at(block)].users == 0) free_.remove(block);
                ++blocks_[at(block)].users;
            }
            request.tables[t] = hit[t];
        };
        request.tables.assign(tables_.size(), {});
        if (is(Mutation::take_before_hold)) {
            for (std::size_t t = 0; t < tables_.size(); ++t) {
                hold(t);
                while (length(request.tables[t]) < blocks_for(tables_[t], hit_tokens + n)) {
                    request.tables[t].push_back(take_block());
                }
            }
        } else {
            for (std::size_t t = 0; t < tables_.size(); ++t) hold(t);
            ScheduledRow added = row;
            grow(request, hit_tokens + n, added);
        }
        request.registered = hit_tokens;
        for (const std::vector<std::int64_t>& table : request.tables) {
            row.blocks.insert(row.blocks.end(), table.begin(), table.end());
            if (!args_.kv_groups.empty()) row.tables.push_back(length(table));
        }
        if (!is(Mutation::register_at_update)) register_blocks(request, hit_tokens + n);
        request.computed = hit_tokens;
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(head));
        running_.push_back(request.id);
        batch.record.scheduled.push_back(std::move(row));
        batch.hit_tokens.push_back(hit_tokens);
        budget -= n;
    }
}

// G4
std::int64_t NaiveEngine::lacking(const NaiveRequest& request, std::int64_t tokens) const {
    std::int64_t need = 0;
    for (std::size_t t = 0; t < tables_.size(); ++t) {
        need += std::max<std::int64_t>(0, blocks_for(tables_[t], tokens) - length(request.tables[t]));
    }
    return need;
}

void NaiveEngine::grow(NaiveRequest& request, std::int64_t tokens, ScheduledRow& row) {
    std::vector<std::vector<std::int64_t>> added(tables_.size());
    const auto add = [&](std::size_t t) {
        if (length(request.tables[t]) >= blocks_for(tables_[t], tokens)) return false;
        added[t].push_back(take_block());
        request.tables[t].push_back(added[t].back());
        return true;
    };
    if (is(Mutation::blocks_in_turns)) {
        for (bool some = true; some;) {
            some = false;
            for (std::size_t t = 0; t < tables_.size(); ++t) some = add(t) || some;
        }
    } else {
        for (std::size_t t = 0; t < tables_.size(); ++t) {
            while (add(t)) {}
        }
    }
    for (const std::vector<std::int64_t>& blocks : added) {
        row.blocks.insert(row.blocks.end(), blocks.begin(), blocks.end());
        if (!args_.kv_groups.empty()) row.tables.push_back(length(blocks));
    }
}

// G3
void NaiveEngine::give_back_unattended(NaiveRequest& request) {
    if (is(Mutation::window_kept)) return;
    for (std::size_t t = 0; t < tables_.size(); ++t) {
        std::vector<std::int64_t>& table = request.tables[t];
        const std::int64_t first = first_attended(tables_[t], request.computed);
        std::vector<std::size_t> places;
        for (std::size_t j = 0; j < table.size(); ++j) {
            const bool before = static_cast<std::int64_t>(j + 1) * tables_[t].block_size <= first;
            if (before && table[j] != 0) places.push_back(j);
        }
        if (!is(Mutation::window_earliest_first)) std::reverse(places.begin(), places.end());
        for (const std::size_t j : places) {
            if (is(Mutation::window_forgotten)) forget(table[j]);
            drop(table[j]);
            table[j] = 0;
        }
    }
}

NaiveEngine::Key NaiveEngine::key_of(const NaiveRequest& request, std::size_t table, std::int64_t block) const {
    const std::int64_t end = (block + 1) * tables_[table].block_size;
    // Blocks of different sizes end at different tokens, or hold a prefix that is the same for both.
    const std::size_t name = is(Mutation::hit_of_any_table) ? 0 : table;
    return {name, {request.tokens.begin(), request.tokens.begin() + end}};
}

std::int64_t NaiveEngine::find(const NaiveRequest& request, std::size_t table, std::int64_t block) const {
    const auto found = registered_.find(key_of(request, table, block));
    if (found == registered_.end()) return 0;
    return is(Mutation::hit_newest) ? found->second.back() : found->second.front();
}

// 3.6, G5
std::int64_t NaiveEngine::lookup(const NaiveRequest& request) const {
    if (!args_.enable_prefix_caching) return 0;
    const std::int64_t most = request.size() - (is(Mutation::hit_whole_prompt) ? 0 : 1);
    std::vector<std::vector<bool>> cached(tables_.size());
    for (std::size_t t = 0; t < tables_.size(); ++t) {
        for (std::int64_t j = 0; (j + 1) * tables_[t].block_size <= most; ++j) cached[t].push_back(find(request, t, j) != 0);
    }
    const auto good = [&](std::size_t t, std::int64_t h) {
        const Table& table = tables_[t];
        const std::int64_t end = h / table.block_size;
        std::int64_t first = first_attended(table, h) / table.block_size;
        if (table.rule == BlockGroup::Rule::sliding) first = std::min(first, end - 1);
        if (is(Mutation::hit_needs_all)) first = 0;
        for (std::int64_t j = first; j < end; ++j) {
            if (!cached[t][at(j)]) return false;
        }
        return true;
    };
    for (std::int64_t h = most / align_ * align_; h > 0; h -= align_) {
        bool all = true;
        for (std::size_t t = 0; t < tables_.size(); ++t) all = all && good(t, h);
        if (all) return h;
    }
    return 0;
}

// 3.7, G8
void NaiveEngine::register_blocks(NaiveRequest& request, std::int64_t up_to) {
    if (!args_.enable_prefix_caching) return;
    const std::int64_t end = up_to / align_ * align_;
    for (std::size_t t = 0; t < tables_.size(); ++t) {
        for (std::int64_t j = request.registered / tables_[t].block_size; (j + 1) * tables_[t].block_size <= end; ++j) {
            const std::int64_t block = request.tables[t].at(at(j));
            if (block == 0) continue;
            Key key = key_of(request, t, j);
            if (is(Mutation::no_duplicates) && registered_.count(key) > 0) continue;
            KVSIM_CHECK(!blocks_[at(block)].key, "block registered twice");
            registered_[key].push_back(block);
            blocks_[at(block)].key = std::move(key);
        }
    }
    request.registered = std::max(request.registered, end);
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

void NaiveEngine::drop(std::int64_t block) {
    if (--blocks_[at(block)].users > 0) return;
    if (is(Mutation::forget_on_release)) forget(block);
    if (is(Mutation::release_to_front)) {
        free_.push_front(block);
    } else {
        free_.push_back(block);
    }
}

// 3.8, G9
void NaiveEngine::release(NaiveRequest& request) {
    if (is(Mutation::last_table_first)) std::reverse(request.tables.begin(), request.tables.end());
    for (std::vector<std::int64_t>& table : request.tables) {
        if (!is(Mutation::release_head_first)) std::reverse(table.begin(), table.end());
        for (const std::int64_t block : table) {
            if (block != 0) drop(block);
        }
    }
    request.tables.clear();
    request.registered = 0;
}

// 3.10, 3.11
void NaiveEngine::update(const NaiveBatch& batch, StepRecord& record, SimTime) {
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
        KVSIM_CHECK(is_running || request.tables.empty(), "blocks are held by running requests only");
        for (std::size_t t = 0; t < request.tables.size(); ++t) {
            const std::vector<std::int64_t>& table = request.tables[t];
            KVSIM_CHECK(tables_[t].rule == BlockGroup::Rule::state || request.computed <= length(table) * tables_[t].block_size,
                        "computed beyond the table");
            for (const std::int64_t block : table) {
                if (block == 0) continue;
                KVSIM_CHECK(std::count(table.begin(), table.end(), block) == 1, "a table names a block twice");
                ++holders[at(block)];
            }
            // Given back only what no later token attends to; after a step `computed` has moved on.
            for (std::int64_t j = first_attended(tables_[t], request.computed) / tables_[t].block_size; j < length(table);
                 ++j) {
                KVSIM_CHECK(table[at(j)] != 0, "a block the next token attends to was given back");
            }
        }
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

}  // namespace kvsim::oracle
