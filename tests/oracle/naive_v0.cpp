#include "naive_v0.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

namespace kvsim::oracle {
namespace {

using Json = nlohmann::json;
using Tokens = std::vector<std::uint64_t>;
using Int = std::int64_t;

struct Dies {};

Int ceil_of(Int a, Int b) {
    return (a + b - 1) / b;
}

struct Config {
    bool old = false, chunked = false, caching = false, priority = false, async = false;
    std::string mode;
    Int G = 0, C = 0, B = 0, seqs = 0, T = 0, L = 0, wm = 0, partial = 1, longs = 1, threshold = 0;
    double delay = 0, base = 1, per_token = 0;
    V0Mutation wrong = V0Mutation::none;
};

/// One device's blocks.
struct Device {
    const Config& cfg;
    std::deque<Int> free;
    std::map<Int, Int> users;
    std::map<Int, Tokens> content;  // of full cached blocks: all tokens up to their end
    std::map<Tokens, Int> index;
    std::map<Int, double> access;
    std::map<Int, bool> computed;
    std::vector<Int> idle;  // in the order of becoming so
    std::set<Int> touched;
    std::map<Int, std::vector<std::pair<double, Tokens>>> was_idle;
    bool* unclear;

    Device(const Config& c, Int blocks, bool* u) : cfg(c), unclear(u) {
        for (Int i = 0; i < blocks; ++i) free.push_back(i);
    }
    Int available() const { return static_cast<Int>(free.size() + idle.size()); }

    Int evict() {
        std::size_t best = 0;
        const bool shallow = cfg.wrong == V0Mutation::evicts_shallow_first;
        for (std::size_t i = 1; i < idle.size(); ++i) {
            const double a = access[idle[best]];
            const double b = access[idle[i]];
            const auto deep_a = content[idle[best]].size();
            const auto deep_b = content[idle[i]].size();
            const bool deeper = shallow ? deep_b < deep_a : deep_b > deep_a;
            if (cfg.old) {
                if (a < b) break;
                if (deeper) best = i;
            } else if (b < a || (b == a && (deeper || (deep_a == deep_b && idle[i] < idle[best])))) {
                best = i;
            }
        }
        const Int id = idle[best];
        if (!cfg.old) {
            for (const Int other : idle) {
                for (const auto& [at, held] : was_idle[other]) {
                    if (at == access[other] && held != content[other] && held.size() >= content[other].size()) *unclear = true;
                }
            }
        }
        idle.erase(idle.begin() + static_cast<std::ptrdiff_t>(best));
        index.erase(content[id]);
        content.erase(id);
        return id;
    }
    Int take() {
        Int id = 0;
        if (!free.empty()) {
            id = free.front();
            free.pop_front();
        } else if (!idle.empty()) {
            id = evict();
        } else {
            throw Dies{};
        }
        users[id] = 1;
        access[id] = -1;
        computed[id] = false;
        return id;
    }
    void drop(Int id) {
        if (--users[id] > 0) return;
        if (content.count(id) > 0) {
            idle.push_back(id);
            was_idle[id].emplace_back(access[id], content[id]);
        } else if (cfg.wrong == V0Mutation::free_list_is_a_queue) {
            free.push_back(id);
        } else {
            free.push_front(id);
        }
    }
    void use(Int id) {
        if (users[id]++ > 0) return;
        idle.erase(std::find(idle.begin(), idle.end(), id));
        access[id] = -1;
        computed[id] = true;
    }
    Int place_full(const Tokens& upto) {
        const auto found = index.find(upto);
        if (found != index.end()) {
            use(found->second);
            return found->second;
        }
        const Int id = take();
        add(id, upto);
        return id;
    }
    void add(Int id, const Tokens& upto) {
        index[upto] = id;
        content[id] = upto;
        touched.insert(id);
        if (cfg.wrong == V0Mutation::computed_at_once) computed[id] = true;
    }
    bool is_computed(const Tokens& upto) {
        const auto found = index.find(upto);
        return found != index.end() && (users[found->second] == 0 || computed[found->second]);
    }
};

enum class State { waiting, running, swapped, finished };

struct Seq {
    State state = State::waiting;
    Tokens tokens;
    Int outputs = 0, computed = 0, placed = 0, limit = 0, skip = 0, branch = 0;
    bool decode = false;
    std::optional<Int> hit;
    std::optional<double> last_row;
    std::vector<Int> table;
    std::vector<Int> shown;  // the table at its last row
    Int size() const { return static_cast<Int>(tokens.size()); }
    Tokens upto(Int count) const { return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count)}; }
};

struct Group {
    std::string id;
    Int n = 1, priority = 0, max_tokens = 0, arrival_step = 0, branch = 0;
    std::uint64_t output_base = 0;
    double arrival = 0;
    std::optional<double> given_arrival;
    std::vector<Int> lens;
    std::vector<Seq> seqs;

    Int seats() const {
        if (n > static_cast<Int>(seqs.size())) return n;
        return std::count_if(seqs.begin(), seqs.end(), [](const Seq& s) { return s.state != State::finished; });
    }
    bool prefill() const { return !seqs.front().decode; }
    bool done() const {
        return std::all_of(seqs.begin(), seqs.end(), [](const Seq& s) { return s.state == State::finished; });
    }
    Int limit_of(Int j) const {
        return static_cast<std::size_t>(j) < lens.size() ? std::min(max_tokens, lens[static_cast<std::size_t>(j)]) : max_tokens;
    }
};

struct Row {
    Group* group;
    bool prefill;
    Int n, c, q, chunk, live;
    bool s;
};

class Machine {
public:
    Machine(const Json& input, V0Mutation wrong) {
        const Json& c = input.at("config");
        cfg_.wrong = wrong;
        cfg_.old = c.at("version") == "0.6.3.post1";
        cfg_.chunked = c.at("chunked_prefill_enabled");
        cfg_.caching = c.at("enable_prefix_caching");
        cfg_.priority = c.at("policy") == "priority";
        cfg_.async = c.at("async_output_proc");
        cfg_.mode = c.at("preemption_mode");
        cfg_.G = c.at("num_gpu_blocks");
        cfg_.C = c.at("num_cpu_blocks");
        cfg_.B = c.at("block_size");
        cfg_.seqs = c.at("max_num_seqs");
        cfg_.T = c.at("max_num_batched_tokens");
        cfg_.L = c.at("max_model_len");
        cfg_.wm = static_cast<Int>(c.at("watermark").get<double>() * static_cast<double>(cfg_.G));
        if (wrong == V0Mutation::no_watermark) cfg_.wm = 0;
        cfg_.partial = c.at("max_num_partial_prefills");
        cfg_.longs = c.at("max_long_partial_prefills");
        cfg_.threshold = c.at("long_prefill_token_threshold");
        if (cfg_.partial > 1 && cfg_.threshold == 0) cfg_.threshold = static_cast<Int>(static_cast<double>(cfg_.L) * 0.04);
        cfg_.delay = c.at("delay_factor");
        cfg_.base = c.value("clock_base", 1.0);
        cfg_.per_token = c.value("clock_per_token", 0.0);
        max_steps_ = input.at("max_steps");
        gpu_ = std::make_unique<Device>(cfg_, cfg_.G, &out_.unclear);
        cpu_ = std::make_unique<Device>(cfg_, cfg_.C, &out_.unclear);
        for (const Json& r : input.at("requests")) add(r);
        std::stable_sort(coming_.begin(), coming_.end(),
                         [](const Group* a, const Group* b) { return a->arrival_step < b->arrival_step; });
    }

    V0Replay run() {
        std::string end = "done";
        Int step = 0;
        try {
            while (true) {
                if (waiting_.empty() && running_.empty() && swapped_.empty()) {
                    if (coming_.empty()) break;
                    const Int to = std::max(step, coming_.front()->arrival_step);
                    clock_ += static_cast<double>(to - step) * cfg_.base;
                    step = to;
                }
                while (!coming_.empty() && coming_.front()->arrival_step <= step) {
                    Group* g = coming_.front();
                    coming_.pop_front();
                    g->arrival = g->given_arrival.value_or(clock_);
                    waiting_.push_back(g);
                }
                const Json record = one_step(step);
                out_.lines.push_back(record);
                clock_ += cfg_.base + cfg_.per_token * record.at("total").get<double>();
                ++steps_;
                last_ = step++;
                if (waiting_.empty() && running_.empty() && swapped_.empty()) continue;
                const bool idle = record.at("rows").empty() && record.at("preempted").empty() && record.at("ignored").empty() &&
                                  record.at("finished").empty();
                if (idle && coming_.empty() && cfg_.delay == 0) {
                    end = "stalled";
                    break;
                }
                if (steps_ == max_steps_) {
                    end = "max_steps";
                    break;
                }
            }
        } catch (const Dies&) { end = "error"; }
        Json& sum = out_.lines.emplace_back();
        sum = sums_;
        sum["end"] = end;
        sum["steps"] = steps_;
        sum["last_step"] = last_;
        sum["gpu"] = gpu_->available();
        sum["cpu"] = cpu_->available();
        return std::move(out_);
    }

private:
    void add(const Json& r) {
        const Int n = r.at("n");
        const bool split = !cfg_.old && n > 1;
        for (Int j = 0; j < (split ? n : 1); ++j) {
            Group& g = all_.emplace_back();
            g.id = r.at("id").get<std::string>() + (split ? "_parallel_sample_" + std::to_string(j) : "");
            g.n = split ? 1 : n;
            g.branch = split ? j : 0;
            g.priority = r.at("priority");
            g.max_tokens = r.at("output_len");
            g.arrival_step = r.at("arrival_step");
            g.output_base = r.at("output_base").get<std::uint64_t>() + 10'000 * static_cast<std::uint64_t>(g.branch);
            if (r.contains("arrival_time")) g.given_arrival = r.at("arrival_time").get<double>();
            if (r.contains("output_lens")) {
                g.lens = r.at("output_lens").get<std::vector<Int>>();
                if (split) g.lens = {g.lens.at(static_cast<std::size_t>(j))};
            }
            Seq& s = g.seqs.emplace_back();
            for (const Json& run : r.at("prompt")) {
                for (std::uint64_t k = 0; k < run.at(1).get<std::uint64_t>(); ++k)
                    s.tokens.push_back(run.at(0).get<std::uint64_t>() + k);
            }
            s.limit = g.limit_of(0);
            coming_.push_back(&g);
        }
    }

    // ---- 3.6: tokens
    struct New {
        Int unc = 0, cac = 0;
    };
    Int hit_of(Seq& s) {
        if (s.hit && cfg_.wrong != V0Mutation::hit_looked_up_again) return *s.hit;
        Int lo = 0;
        Int hi = s.size() / cfg_.B;
        while (lo < hi) {
            const Int mid = (lo + hi) / 2;
            if (gpu_->is_computed(s.upto((mid + 1) * cfg_.B))) {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        s.hit = lo * cfg_.B;
        return *s.hit;
    }
    New new_tokens(Group& g, State state, bool chunk) {
        New n;
        Int count = 0;
        for (Seq& s : g.seqs) {
            if (s.state != state) continue;
            ++count;
            if (s.decode) {
                n.unc += 1;
                continue;
            }
            Int cached = 0;
            if (!cfg_.old && cfg_.caching) {
                const Int hit = hit_of(s);
                if (hit < s.computed && !(state == State::running && cfg_.chunked)) throw Dies{};
                cached = std::max<Int>(0, hit - s.computed);
            }
            n.cac += cached;
            n.unc += s.size() - s.computed - cached;
        }
        if (n.unc == 0 && n.cac > 0) {
            n.unc = 1;
            n.cac -= 1;
        }
        if (!chunk || count != 1) return n;
        const Int left = std::max<Int>(0, cfg_.T - used_);
        const bool rounds = cfg_.caching && cfg_.wrong != V0Mutation::chunks_not_rounded;
        if (cfg_.old) {
            if (cfg_.caching && cfg_.T % cfg_.B != 0) throw Dies{};
            if (n.unc > left) n.unc = rounds ? left / cfg_.B * cfg_.B : left;
        } else {
            const Int share = cfg_.wrong == V0Mutation::whole_budget_for_each ? cfg_.T : share_;
            const Int most = std::min(left, share);
            n.unc = std::min(n.unc, rounds ? most / cfg_.B * cfg_.B : most);
        }
        return n;
    }
    bool is_long(const Group& g) const {
        const Seq& s = g.seqs.front();
        return (s.decode ? 1 : s.size() - s.computed) > cfg_.threshold;
    }
    void count_partial() {
        Int slots = 0;
        longs_ = 0;
        for (const Group* g : running_) {
            if (!g->prefill()) continue;
            ++slots;
            if (is_long(*g)) ++longs_;
        }
        Int waiting_long = 0;
        for (const Group* g : waiting_) {
            if (slots >= cfg_.partial) break;
            if (is_long(*g)) {
                if (longs_ + waiting_long >= cfg_.longs) continue;
                ++waiting_long;
            }
            ++slots;
        }
        slots = std::min(slots, cfg_.partial);
        share_ = slots == 0 ? cfg_.T : cfg_.T / slots;
    }

    // ---- 3.2, 3.9: blocks
    Int touch(const Seq& s) const {
        const Int k = s.size() - s.placed;
        if (cfg_.wrong == V0Mutation::touch_only_when_needed)
            return std::max<Int>(0, ceil_of(s.size(), cfg_.B) - static_cast<Int>(s.table.size()));
        const Int r = s.placed % cfg_.B;
        if (k == 0) return r > 0 ? 1 : 0;
        Int blocks = 1;
        for (Int room = cfg_.B - r; room < k; room += cfg_.B) ++blocks;
        return blocks;
    }
    Int touch(const Group& g, State state) const {
        Int sum = 0;
        for (const Seq& s : g.seqs) sum += s.state == state ? touch(s) : 0;
        return sum;
    }
    Int swap_need(const Group& g, State state, Device& to) const {
        Int sum = touch(g, state);
        std::set<Int> distinct;
        for (const Seq& s : g.seqs) {
            if (s.state != state) continue;
            for (Int i = 0; (i + 1) * cfg_.B <= s.placed; ++i) {
                if (cfg_.wrong == V0Mutation::swap_keeps_sharing_count &&
                    !distinct.insert(s.table[static_cast<std::size_t>(i)]).second)
                    continue;
                if (cfg_.caching) {
                    const auto found = to.index.find(s.upto((i + 1) * cfg_.B));
                    if (found != to.index.end() && to.users[found->second] > 0) continue;
                }
                ++sum;
            }
        }
        return sum;
    }
    void fill_table(Seq& s, Device& device, Int count) {
        s.table.clear();
        for (Int i = 0; i * cfg_.B < count; ++i) {
            const bool full = (i + 1) * cfg_.B <= count;
            s.table.push_back(full && cfg_.caching ? device.place_full(s.upto((i + 1) * cfg_.B)) : device.take());
        }
        s.placed = count;
    }
    void append(Group& g) {
        for (Seq& s : g.seqs) {
            if (s.state != State::running) continue;
            while (static_cast<Int>(s.table.size()) * cfg_.B < s.size()) s.table.push_back(gpu_->take());
            while (s.placed < s.size()) {
                Int& id = s.table[static_cast<std::size_t>(s.placed / cfg_.B)];
                if (gpu_->users[id] > 1 && cfg_.wrong != V0Mutation::no_copy_on_write) {
                    gpu_->users[id] -= 1;
                    id = gpu_->take();
                    ++copies_;
                }
                s.placed = std::min(s.size(), (s.placed / cfg_.B + 1) * cfg_.B);
                if (!cfg_.caching || s.placed % cfg_.B != 0) continue;
                const Tokens key = s.upto(s.placed);
                const auto found = gpu_->index.find(key);
                if (found == gpu_->index.end()) {
                    gpu_->add(id, key);
                } else {
                    const Int other = found->second;
                    gpu_->drop(id);
                    gpu_->use(other);
                    id = other;
                }
            }
        }
    }
    Int move(Group& g, State from, Device& source, Device& target, State to) {
        Int moved = 0;
        for (Seq& s : g.seqs) {
            if (s.state != from) continue;
            const Int count = s.placed;
            for (const Int id : s.table) source.drop(id);
            fill_table(s, target, count);
            moved += static_cast<Int>(s.table.size());
            s.state = to;
        }
        return moved;
    }
    void free_seq(Seq& s) {
        if (cfg_.caching && s.last_row) {
            for (const Int id : s.table) gpu_->access[id] = *s.last_row;
        }
        for (const Int id : s.table) gpu_->drop(id);
        s.table.clear();
        s.placed = 0;
        s.hit.reset();
        s.last_row.reset();
    }

    // ---- 3.4: preemption
    void preempt(Group& g, bool forced) {
        const bool swap = cfg_.mode == "swap" || (cfg_.mode == "auto" && g.seats() != 1);
        Json entry{g.id, swap ? "swap" : "recompute"};
        if (forced) entry.push_back("forced");
        preempted_.push_back(entry);
        if (swap) {
            if (swap_need(g, State::running, *cpu_) > cpu_->available()) throw Dies{};
            const Int moved = move(g, State::running, *gpu_, *cpu_, State::swapped);
            if (!forced) {
                blocks_out_ += moved;
                swapped_out_.push_back(&g);
            }
            return;
        }
        Int live = 0;
        for (Seq& s : g.seqs) {
            if (s.state != State::running) continue;
            ++live;
        }
        if (live != 1) throw Dies{};
        for (Seq& s : g.seqs) {
            if (s.state != State::running) continue;
            free_seq(s);
            s.state = State::waiting;
            s.computed = 0;
            s.decode = false;
        }
        if (!forced) recomputed_.push_back(&g);
    }
    bool blocks_ok(Group& g) {
        const Int need = ceil_of(waiting_seq(g).size(), cfg_.B);
        return cfg_.G - need >= cfg_.wm && gpu_->available() - need >= cfg_.wm;
    }
    static Seq& waiting_seq(Group& g) {
        for (Seq& s : g.seqs) {
            if (s.state == State::waiting) return s;
        }
        throw Dies{};
    }

    // ---- 3.10
    bool passed_delay() {
        if (prompt_before_) latency_ = clock_ - asked_;
        prompt_before_ = false;
        asked_ = clock_;
        if (cfg_.delay == 0 || waiting_.empty() || running_.empty() || cfg_.wrong == V0Mutation::no_delay) return true;
        double earliest = waiting_.front()->arrival;
        for (const Group* g : waiting_) earliest = std::min(earliest, g->arrival);
        return clock_ - earliest > cfg_.delay * latency_;
    }

    // ---- 3.5
    void admission(bool chunk) {
        if (!cfg_.old && used_ >= cfg_.T) return;
        std::deque<Group*> aside;
        while (passed_delay() && !waiting_.empty()) {
            Group& g = *waiting_.front();
            Seq& s = waiting_seq(g);
            if (!cfg_.old && chunk && cfg_.partial > 1 && is_long(g) && longs_ >= cfg_.longs) {
                aside.push_back(&g);
                waiting_.pop_front();
                continue;
            }
            const New n = new_tokens(g, State::waiting, chunk);
            const Int longest = chunk ? cfg_.L : std::min(cfg_.L, cfg_.T);
            const Int need = ceil_of(s.size(), cfg_.B);
            if (n.unc + n.cac > longest || cfg_.G - need < cfg_.wm) {
                ignored_.push_back(g.id);
                waiting_.pop_front();
                continue;
            }
            const Int cost = n.unc + (cfg_.wrong == V0Mutation::cached_tokens_cost_budget ? n.cac : 0);
            const bool seats_ok = seats_ + g.seats() <= cfg_.seqs || cfg_.wrong == V0Mutation::no_seats;
            if (gpu_->available() - need < cfg_.wm || n.unc == 0 || used_ + cost > cfg_.T || !seats_ok) {
                if (cfg_.wrong != V0Mutation::passes_the_head) break;
                aside.push_back(&g);
                waiting_.pop_front();
                continue;
            }
            waiting_.pop_front();
            if (!cfg_.old && chunk && cfg_.partial > 1 && is_long(g)) ++longs_;
            fill_table(s, *gpu_, s.size());
            s.state = State::running;
            s.last_row.reset();
            s.skip = 0;
            if (cfg_.old && cfg_.caching) {
                for (std::size_t i = 0; i + 1 < s.table.size(); ++i) s.skip += gpu_->computed[s.table[i]] ? cfg_.B : 0;
            }
            admitted_.emplace_back(&g, n.unc + n.cac);
            used_ += cost;
            cached_ += n.cac - (cost - n.unc);
            seats_ += g.seats();
        }
        prompt_before_ = !admitted_.empty();
        waiting_.insert(waiting_.begin(), aside.begin(), aside.end());
    }

    // ---- 3.4
    void running_part(bool chunk) {
        while (!running_.empty()) {
            Group& g = *running_.front();
            const New n = new_tokens(g, State::running, chunk);
            if (n.unc == 0) return;
            running_.pop_front();
            if (cfg_.async && g.seqs.front().size() > cfg_.L) {
                stopped_.push_back(&g);
                continue;
            }
            const Int seats = g.seats();
            bool gave = false;
            bool alone = false;
            while (!alone && touch(g, State::running) > gpu_->available()) {
                if (!gave && !chunk) seats_ -= seats;
                gave = true;
                Group* victim = &g;
                alone = running_.empty();
                if (!alone) {
                    if (cfg_.wrong == V0Mutation::first_victim_is_the_first) {
                        victim = running_.front();
                        running_.pop_front();
                    } else {
                        victim = running_.back();
                        running_.pop_back();
                    }
                }
                const auto pending = std::find(pending_.begin(), pending_.end(), victim);
                if (pending != pending_.end()) {
                    pending_.erase(pending);
                    if (ends(*victim)) continue;
                }
                preempt(*victim, false);
            }
            if (alone) return;
            append(g);
            (g.prefill() ? prefills_ : decodes_).emplace_back(&g, g.prefill() ? n.unc : 1);
            used_ += n.unc;
            if (chunk) seats_ += g.seats();
        }
    }

    // ---- 3.7
    void swap_in() {
        while (!swapped_.empty()) {
            Group& g = *swapped_.front();
            const Int need = swap_need(g, State::swapped, *gpu_);
            if (cfg_.G < need) {
                ignored_.push_back(g.id);
                swapped_.pop_front();
                continue;
            }
            const Int keep = cfg_.wrong == V0Mutation::swap_in_without_watermark ? 0 : cfg_.wm;
            if (gpu_->available() - need < keep) return;
            const New n = new_tokens(g, State::swapped, false);
            if (n.unc == 0 || used_ + n.unc > cfg_.T || seats_ + g.seats() > cfg_.seqs) return;
            swapped_.pop_front();
            blocks_in_ += move(g, State::swapped, *cpu_, *gpu_, State::running);
            append(g);
            (g.prefill() ? back_prefills_ : back_decodes_).emplace_back(&g, g.prefill() ? n.unc + n.cac : 1);
            used_ += n.unc;
            cached_ += n.cac;
            seats_ += g.seats();
        }
    }

    // ---- 3.8
    static bool urgent(const Group* a, const Group* b) {
        return std::pair(a->priority, a->arrival) < std::pair(b->priority, b->arrival);
    }
    void priorities() {
        std::stable_sort(running_.begin(), running_.end(), urgent);
        if (cfg_.wrong == V0Mutation::priority_head_sorted) std::stable_sort(waiting_.begin(), waiting_.end(), urgent);
        if (!waiting_.empty()) {
            Group* head = waiting_.front();
            waiting_.pop_front();
            const New n = new_tokens(*head, State::waiting, false);
            while (!running_.empty() && urgent(head, running_.back())) {
                if (blocks_ok(*head) && n.unc > 0 && used_ + n.unc <= cfg_.T && seats_ + head->seats() <= cfg_.seqs) break;
                Group* victim = running_.back();
                running_.pop_back();
                seats_ -= victim->seats();
                preempt(*victim, true);
                waiting_.push_front(victim);
            }
            waiting_.push_front(head);
        }
        std::stable_sort(waiting_.begin(), waiting_.end(), urgent);
    }

    // ---- 3.11
    bool ended(const Seq& s) const {
        const Int most = cfg_.wrong == V0Mutation::ends_at_the_limit ? cfg_.L - 1 : cfg_.L;
        return s.outputs >= s.limit || s.size() > most;
    }
    /// The finish tests of a request's sequences. True: all have ended.
    bool ends(Group& g) {
        for (Seq& s : g.seqs) {
            if (s.state == State::running && ended(s)) {
                free_seq(s);
                s.state = State::finished;
            }
        }
        if (g.done()) {
            finished_.push_back(g.id);
            running_.erase(std::remove(running_.begin(), running_.end(), &g), running_.end());
            stopped_.erase(std::remove(stopped_.begin(), stopped_.end(), &g), stopped_.end());
        }
        return g.done();
    }
    void give_token(Group& g, Seq& s) {
        s.tokens.push_back(g.output_base + 10'000 * static_cast<std::uint64_t>(s.branch) +
                           static_cast<std::uint64_t>(s.outputs));
        ++s.outputs;
    }
    void results(const Row& row, bool async) {
        Group& g = *row.group;
        for (Seq& s : g.seqs) {
            if (s.state != State::running) continue;
            s.computed += row.chunk;
            if (s.computed == s.size()) s.decode = true;
        }
        if (!row.s) return;
        tok_.push_back(g.id);
        if (static_cast<Int>(g.seqs.size()) < g.n) {
            for (Int j = 1; j < g.n; ++j) {
                Seq child = g.seqs.front();
                child.branch = j;
                child.limit = g.limit_of(j);
                child.shown.clear();
                child.last_row.reset();
                give_token(g, child);
                for (const Int id : child.table) gpu_->users[id] += 1;
                g.seqs.push_back(child);
            }
            give_token(g, g.seqs.front());
            std::rotate(g.seqs.begin(), g.seqs.begin() + 1, g.seqs.end());  // children are tested first
            for (Seq& s : g.seqs) {
                if (ended(s)) {
                    free_seq(s);
                    s.state = State::finished;
                }
            }
            std::rotate(g.seqs.begin(), g.seqs.end() - 1, g.seqs.end());
        } else {
            for (Seq& s : g.seqs) {
                if (s.state == State::running) give_token(g, s);
            }
        }
        if (async && cfg_.wrong != V0Mutation::finish_test_at_once) {
            pending_.push_back(&g);
        } else {
            ends(g);
        }
    }

    Json one_step(Int step) {
        used_ = cached_ = seats_ = blocks_in_ = blocks_out_ = copies_ = 0;
        preempted_ = Json::array();
        ignored_ = finished_ = tok_ = Json::array();
        admitted_.clear(), prefills_.clear(), decodes_.clear(), back_prefills_.clear(), back_decodes_.clear();
        recomputed_.clear(), swapped_out_.clear();
        if (cfg_.chunked) {
            count_partial();
            running_part(true);
            if (recomputed_.empty() && swapped_out_.empty()) swap_in();
            admission(true);
        } else {
            for (const Group* g : running_) seats_ += g->seats();
            if (swapped_.empty() || cfg_.wrong == V0Mutation::admits_while_swapped) admission(false);
            if (admitted_.empty() || cfg_.wrong == V0Mutation::decodes_beside_prompts) {
                if (cfg_.priority) priorities();
                running_part(false);
                if (recomputed_.empty() && swapped_out_.empty()) swap_in();
            }
        }
        if (used_ > cfg_.T || seats_ > cfg_.seqs) throw Dies{};
        queues();

        std::vector<Row> rows;
        for (const auto* part : {&admitted_, &prefills_, &back_prefills_, &decodes_, &back_decodes_}) {
            for (const auto& [g, chunk] : *part)
                rows.push_back(make_row(*g, chunk, part != &decodes_ && part != &back_decodes_));
        }
        Json shown = Json::array();
        for (const Row& row : rows) shown.push_back(show(row));
        if (!rows.empty()) {
            for (const Int id : gpu_->touched) gpu_->computed[id] = true;
            gpu_->touched.clear();
        }
        Json record{{"step", step},
                    {"t", clock_},
                    {"rows", shown},
                    {"total", used_ + cached_},
                    {"preempted", preempted_},
                    {"in", blocks_in_},
                    {"out", blocks_out_},
                    {"copy", copies_},
                    {"ignored", ignored_},
                    {"gpu_sched", gpu_->available()},
                    {"cpu_sched", cpu_->available()}};

        if (cfg_.async) {
            if (rows.empty() && !swapped_out_.empty()) throw Dies{};
            std::vector<Group*> late;
            late.swap(pending_);
            for (Group* g : late) {
                Seq& s = g->seqs.front();
                if (s.state == State::running) {
                    ends(*g);
                } else if (ended(s)) {
                    s.state = State::finished;  // and stays in the waiting queue, into which it was forced
                }
            }
        }
        const bool async = cfg_.async && std::all_of(rows.begin(), rows.end(), [](const Row& r) { return r.group->n == 1; });
        for (const Row& row : rows) {
            if (!row.group->done()) results(row, async);
        }
        record["tok"] = tok_;
        record["finished"] = finished_;
        record["gpu"] = gpu_->available();
        record["cpu"] = cpu_->available();
        record["running"] = ids(running_);
        record["waiting"] = ids(waiting_);
        record["swapped"] = ids(swapped_);
        for (const Json& p : preempted_) bump(p[1].get<std::string>().c_str(), 1);
        for (const Row& row : rows) {
            if (row.prefill) bump("hit", row.n - row.q);
        }
        bump("rows", static_cast<Int>(rows.size()));
        bump("tokens", used_ + cached_);
        bump("swap_in_blocks", blocks_in_);
        bump("swap_out_blocks", blocks_out_);
        bump("copies", copies_);
        bump("finished", static_cast<Int>(finished_.size()));
        bump("ignored", static_cast<Int>(ignored_.size()));
        return record;
    }

    void queues() {
        if (cfg_.wrong == V0Mutation::victims_to_the_back) {
            waiting_.insert(waiting_.end(), recomputed_.begin(), recomputed_.end());
        } else {
            for (Group* g : recomputed_) waiting_.push_front(g);
        }
        const auto push = [this](const auto& part) {
            for (const auto& [g, chunk] : part) running_.push_back(g);
        };
        if (cfg_.chunked) {
            push(back_decodes_), push(back_prefills_), push(decodes_);
            const auto ends_now = [](const std::pair<Group*, Int>& row) {
                return row.first->seqs.front().size() - row.first->seqs.front().computed == row.second;
            };
            if (!cfg_.old && cfg_.wrong != V0Mutation::ended_prompts_not_first) {
                auto ordered = prefills_;
                std::stable_partition(ordered.begin(), ordered.end(), ends_now);
                push(ordered);
            } else {
                push(prefills_);
            }
            push(admitted_);
        } else {
            push(admitted_), push(decodes_), push(back_decodes_);
        }
        swapped_.insert(swapped_.end(), swapped_out_.begin(), swapped_out_.end());
    }

    Row make_row(Group& g, Int chunk, bool prefill) {
        if (g.prefill() && g.seqs.size() > 1) throw Dies{};
        Int live = 0;
        Seq* first = nullptr;
        for (Seq& s : g.seqs) {
            if (s.state != State::running) continue;
            s.last_row = clock_;
            if (live++ == 0) first = &s;
        }
        Row row{&g, prefill, prefill ? chunk : live, first->computed, prefill ? chunk : live, chunk, live, true};
        if (prefill && g.prefill()) {
            const Int skip = cfg_.old ? first->skip : cfg_.caching ? *first->hit : 0;
            const Int end = row.c + row.n;
            row.q = skip <= row.c ? row.n : skip < end ? end - skip : 1;
            row.s = end >= first->size();
        }
        return row;
    }
    Json show(const Row& row) {
        Json nb = Json::array();
        Json b = Json::array();
        for (Seq& s : row.group->seqs) {
            if (s.state != State::running) continue;
            nb.push_back(s.table.size());
            Json changed = Json::array();
            for (std::size_t i = 0; i < s.table.size(); ++i) {
                if (i >= s.shown.size() || s.shown[i] != s.table[i]) changed.push_back({i, s.table[i]});
            }
            b.push_back(changed);
            s.shown = s.table;
        }
        return {{"id", row.group->id},
                {"k", row.prefill ? "prefill" : "decode"},
                {"n", row.n},
                {"c", row.c},
                {"q", row.q},
                {"s", row.s ? 1 : 0},
                {"nb", nb},
                {"b", b}};
    }
    static Json ids(const std::deque<Group*>& queue) {
        Json out = Json::array();
        for (const Group* g : queue) out.push_back(g->id);
        return out;
    }
    void bump(const char* key, Int by) { sums_[key] = sums_.value(key, Int{0}) + by; }

    using Part = std::vector<std::pair<Group*, Int>>;
    Config cfg_;
    V0Replay out_;
    Json sums_{{"rows", 0},           {"tokens", 0},          {"hit", 0},    {"recompute", 0}, {"swap", 0},
               {"swap_in_blocks", 0}, {"swap_out_blocks", 0}, {"copies", 0}, {"finished", 0},  {"ignored", 0}};
    std::unique_ptr<Device> gpu_, cpu_;
    std::deque<Group> all_;
    std::deque<Group*> coming_, waiting_, running_, swapped_;
    std::vector<Group*> recomputed_, swapped_out_, stopped_, pending_;
    Part admitted_, prefills_, decodes_, back_prefills_, back_decodes_;
    Json preempted_, ignored_, finished_, tok_;
    Int used_ = 0, cached_ = 0, seats_ = 0, blocks_in_ = 0, blocks_out_ = 0, copies_ = 0, share_ = 0, longs_ = 0;
    Int steps_ = 0, last_ = -1, max_steps_ = 0;
    double clock_ = 0, asked_ = 0, latency_ = 0;
    bool prompt_before_ = false;
};

}  // namespace

V0Replay replay_v0(const Json& input, V0Mutation mutation) {
    return Machine(input, mutation).run();
}

Json random_v0_input(std::uint64_t seed) {
    std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ULL + 1);
    const auto pick = [&](Int low, Int high) {
        return low + static_cast<Int>(random() % static_cast<std::uint64_t>(high - low + 1));
    };
    const auto chance = [&](Int percent) { return pick(1, 100) <= percent; };
    const bool old = chance(35);
    const bool chunked = chance(40);
    const bool caching = chance(45);
    const Int block = std::array<Int, 4>{1, 2, 4, 8}[static_cast<std::size_t>(pick(0, 3))];
    const Int blocks = pick(3, 24);
    const Int longest = std::min(blocks * block, pick(6, 64));
    const Int seqs = pick(1, 8);
    Int budget = std::max(seqs, pick(4, 40));
    if (!chunked) budget = std::max(longest, budget);
    if (old && chunked && caching) budget = ceil_of(budget, block) * block;
    const Int partial = chunked && chance(30) ? pick(2, 4) : 1;
    const char* modes[] = {"auto", "recompute", "swap"};
    Json config{{"version", old ? "0.6.3.post1" : "0.8.5"},
                {"num_gpu_blocks", blocks},
                {"num_cpu_blocks", chance(80) ? pick(20, 200) : pick(0, 10)},
                {"block_size", block},
                {"max_num_seqs", seqs},
                {"max_num_batched_tokens", budget},
                {"max_model_len", longest},
                {"chunked_prefill_enabled", chunked},
                {"enable_prefix_caching", caching},
                {"policy", chance(25) ? "priority" : "fcfs"},
                {"preemption_mode", modes[pick(0, 2)]},
                {"watermark", chance(60) ? 0.01 : static_cast<double>(pick(1, 3)) / 10},
                {"max_num_partial_prefills", partial},
                {"max_long_partial_prefills", pick(1, partial)},
                {"long_prefill_token_threshold", chance(50) ? 0 : pick(1, 20)},
                {"delay_factor", chance(15) ? 1.5 : 0.0},
                {"async_output_proc", chance(25)},
                {"clock_per_token", chance(50) ? 0.0 : 0.05}};
    Json requests = Json::array();
    Int step = 0;
    const Int count = pick(2, 14);
    for (Int i = 0; i < count; ++i) {
        if (chance(50)) step += pick(0, 6);
        Json prompt = Json::array();
        Int left = pick(1, std::max<Int>(1, longest * 3 / 4));
        const Int length = left;
        if (chance(60)) {  // a beginning that others have
            const Int shared = std::min(left, pick(1, 24));
            prompt.push_back({100 * pick(1, 2), shared});
            left -= shared;
        }
        if (left > 0) prompt.push_back({1'000'000 + 1'000 * i, left});
        const Int n = chance(25) ? pick(2, 3) : 1;
        Json request{{"id", "r" + std::to_string(i)},
                     {"arrival_step", step},
                     {"prompt_len", length},
                     {"output_len", pick(1, 20)},
                     {"n", std::min(n, seqs)},
                     {"priority", pick(0, 3)},
                     {"prompt", prompt},
                     {"output_base", 500'000'000 + 100'000 * i}};
        if (chance(30)) {
            Json lens = Json::array();
            for (Int j = 0; j < request["n"].get<Int>(); ++j) lens.push_back(pick(1, 20));
            request["output_lens"] = lens;
        }
        requests.push_back(request);
    }
    return {{"name", "random_" + std::to_string(seed)},
            {"covers", ""},
            {"config", config},
            {"requests", requests},
            {"max_steps", 400}};
}

}  // namespace kvsim::oracle
