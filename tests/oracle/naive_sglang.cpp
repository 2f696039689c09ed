#include "naive_sglang.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

namespace kvsim::oracle {
namespace {

using Json = nlohmann::ordered_json;
using Tokens = std::vector<std::uint64_t>;
using Int = std::int64_t;
using M = SglangMutation;

struct Node {
    Tokens key;
    Node* parent = nullptr;
    std::vector<std::unique_ptr<Node>> children;  // in order of first insertion
    Int locks = 0;
    Int time = 0;
};

struct Tree {
    explicit Tree(Int page_size) : page(page_size) {}
    Int page;
    Int clock = 0;
    Node root;
    bool refreshes = true;

    Tokens whole(Tokens key) const {
        key.resize(key.size() / static_cast<std::size_t>(page) * static_cast<std::size_t>(page));
        return key;
    }
    Node* child(Node& node, const Tokens& key, std::size_t from) const {
        for (auto& c : node.children) {
            if (std::equal(c->key.begin(), c->key.begin() + page, key.begin() + static_cast<std::ptrdiff_t>(from)))
                return c.get();
        }
        return nullptr;
    }
    /// The node whose path is the longest stored prefix in whole pages, and its length.
    std::pair<Node*, std::size_t> walk(const Tokens& key) {
        const Int now = ++clock;
        Node* node = &root;
        std::size_t at = 0;
        while (at < key.size()) {
            Node* next = child(*node, key, at);
            if (next == nullptr) break;
            if (refreshes) next->time = now;
            std::size_t same = 0;
            while (same < next->key.size() && at + same < key.size() && next->key[same] == key[at + same]) ++same;
            same = same / static_cast<std::size_t>(page) * static_cast<std::size_t>(page);
            at += same;
            if (same < next->key.size()) {
                node = split(*next, same);
                break;
            }
            node = next;
        }
        return {node, at};
    }
    Node* split(Node& lower, std::size_t at) {
        auto upper = std::make_unique<Node>();
        Node* result = upper.get();
        Node* parent = lower.parent;
        upper->key.assign(lower.key.begin(), lower.key.begin() + static_cast<std::ptrdiff_t>(at));
        upper->parent = parent;
        upper->locks = lower.locks;
        upper->time = ++clock;
        lower.key.erase(lower.key.begin(), lower.key.begin() + static_cast<std::ptrdiff_t>(at));
        for (auto& c : parent->children) {
            if (c.get() != &lower) continue;
            upper->children.push_back(std::move(c));
            c = std::move(upper);
            break;
        }
        lower.parent = result;
        return result;
    }
    Int insert(const Tokens& tokens) {
        const Tokens key = whole(tokens);
        const auto [node, there] = walk(key);
        if (there < key.size()) {
            auto leaf = std::make_unique<Node>();
            leaf->key.assign(key.begin() + static_cast<std::ptrdiff_t>(there), key.end());
            leaf->parent = node;
            leaf->time = ++clock;
            node->children.push_back(std::move(leaf));
        }
        return static_cast<Int>(there);
    }
    void lock(Node* node, Int by) {
        for (; node != nullptr && node != &root; node = node->parent) node->locks += by;
    }
    Int evictable() const { return unlocked(root); }
    static Int unlocked(const Node& node) {
        Int sum = node.parent != nullptr && node.locks == 0 ? static_cast<Int>(node.key.size()) : 0;
        for (const auto& c : node.children) sum += unlocked(*c);
        return sum;
    }
    static void oldest(Node& node, Node*& found) {
        if (node.parent != nullptr && node.children.empty() && node.locks == 0 && (found == nullptr || node.time < found->time))
            found = &node;
        for (auto& c : node.children) oldest(*c, found);
    }
    Int evict(Int tokens) {
        Int freed = 0;
        while (freed < tokens) {
            Node* leaf = nullptr;
            oldest(root, leaf);
            if (leaf == nullptr) break;
            freed += static_cast<Int>(leaf->key.size());
            auto& siblings = leaf->parent->children;
            siblings.erase(std::find_if(siblings.begin(), siblings.end(), [&](const auto& c) { return c.get() == leaf; }));
        }
        return freed;
    }
};

struct Req {
    std::string id;
    Int arrival = 0;
    Tokens prompt;
    Int output_len = 0;
    Int max_new = 0;
    std::uint64_t base = 0;
    bool ignore_eos = false;
    Int out = 0;
    Int kv = 0;
    Int prefix = 0;
    Int prot = 0;
    Int end = 0;
    Node* node = nullptr;
    Int in_flight = 0;
    bool finished = false;
    bool retracted = false;
    bool seat = false;
    bool ran = false;
    bool error = false;

    Tokens tokens() const {
        Tokens all = prompt;
        for (Int i = 0; i < out; ++i) all.push_back(base + static_cast<std::uint64_t>(i));
        return all;
    }
    Int size() const { return static_cast<Int>(prompt.size()) + out; }
    Tokens first(Int n) const {
        Tokens all = tokens();
        all.resize(std::min(all.size(), static_cast<std::size_t>(n)));
        return all;
    }
};
using R = std::shared_ptr<Req>;

enum class Mode { prefill, decode, mixed };

struct Batch {
    std::vector<R> reqs;
    bool full = false;
    bool prefill_only = false;
    Mode mode = Mode::prefill;
    R chunk;  // with which it was built
};
using B = std::shared_ptr<Batch>;

struct Line {
    R req;
    Int n = 0;
    Int p = 0;
    std::string k;
    bool more = false;
};
/// What a launched batch will bring.
struct Launched {
    Int step = 0;
    Mode mode = Mode::prefill;
    std::vector<Line> lines;
};

struct OutOfMemory {};

class Naive {
public:
    Naive(const Json& input, M mutation) : mutation_(mutation), tree_(input.at("config").at("page_size").get<Int>()) {
        const Json& c = input.at("config");
        page_ = c.at("page_size");
        total_ = c.at("max_total_num_tokens").get<Int>() / page_ * page_;
        free_ = total_;
        if (!c.at("chunked_prefill_size").is_null() && c.at("chunked_prefill_size").get<Int>() > 0)
            chunk_size_ = c.at("chunked_prefill_size").get<Int>();
        max_prefill_ = c.at("max_prefill_tokens");
        max_running_ = c.at("max_running_requests");
        policy_ = c.at("schedule_policy");
        mixed_ = c.at("enable_mixed_chunk");
        radix_ = !c.at("disable_radix_cache").get<bool>();
        overlap_ = c.at("overlap");
        context_ = c.value("context_len", Int{1} << 50);
        clip_ = c.value("clip_max_new_tokens", Int{4096});
        retract_steps_ = c.value("retract_decode_steps", Int{20});
        check_ = c.value("in_batch_check", Int{32});
        deprioritize_ = c.value("in_batch_deprioritize", Int{32});
        shortfall_ = c.value("evict", std::string("amount")) == "shortfall" || is(M::evict_shortfall);
        start_ = std::min(c.value("init_new_token_ratio", 0.7) * c.at("schedule_conservativeness").get<double>(), 1.0);
        min_ = std::min(start_ * c.value("min_new_token_ratio_factor", 0.14), 1.0);
        decay_ = (start_ - min_) / static_cast<double>(c.value("new_token_ratio_decay_steps", Int{600}));
        ratio_ = start_;
        tree_.refreshes = !is(M::lru_by_insertion);
        max_steps_ = input.value("max_steps", INT64_MAX);
        for (const Json& r : input.at("requests")) {
            auto q = std::make_shared<Req>();
            q->id = r.at("id");
            q->arrival = r.at("arrival_step");
            for (const Json& run : r.at("prompt")) {
                for (Int i = 0; i < run.at(1).get<Int>(); ++i)
                    q->prompt.push_back(run.at(0).get<std::uint64_t>() + static_cast<std::uint64_t>(i));
            }
            q->output_len = r.at("output_len");
            q->max_new = r.at("max_new_tokens");
            q->base = r.at("output_base");
            q->ignore_eos = r.value("ignore_eos", false);
            all_.push_back(q);
        }
        run_ = std::make_shared<Batch>();
    }

    std::vector<Json> go() {
        std::vector<Json> lines;
        std::vector<R> coming = all_;
        std::stable_sort(coming.begin(), coming.end(), [](const R& a, const R& b) { return a->arrival < b->arrival; });
        std::size_t next = 0;
        Int step = 0;
        Int passes = 0;
        Int nulls = 0;
        Int nulls_since_arrival = 0;
        std::string end;
        while (end.empty()) {
            if (passes++ == max_steps_) {
                end = "max_steps";
                break;
            }
            while (next < coming.size() && coming[next]->arrival <= step) {
                arrive(coming[next++]);
                nulls_since_arrival = 0;
            }
            Json record;
            bool null_step = false;
            try {
                record = pass(step, null_step);
            } catch (const OutOfMemory&) {
                lines.push_back(
                    {{"step", step}, {"kind", "crash"}, {"error", "x"}, {"retracted", retracted_}, {"aborted", Json::array()}});
                end = "crash";
                break;
            }
            nulls = null_step ? nulls + 1 : 0;
            nulls_since_arrival = null_step ? nulls_since_arrival + 1 : 0;
            if (nulls <= 1) lines.push_back(record);
            ++step;
            if (!null_step) continue;
            const bool all_in = next == coming.size();
            const bool all_done = std::all_of(all_.begin(), all_.end(), [](const R& r) { return r->finished; });
            if (all_in && all_done) {
                end = "done";
            } else if (all_in && nulls_since_arrival >= 2) {
                end = "stalled";
            } else if (!all_in && ((wait_.empty() && run_->reqs.empty() && !chunk_) || nulls >= 2)) {
                step = std::max(step, coming[next]->arrival);
            }
        }
        Json unfinished = Json::array();
        for (const R& r : all_) {
            if (!r->finished) unfinished.push_back(r->id);
        }
        lines.push_back({{"end", end},
                         {"steps", 0},
                         {"prefill", kinds_["prefill"]},
                         {"decode", kinds_["decode"]},
                         {"mixed", kinds_["mixed"]},
                         {"idle", 0},
                         {"retractions", retractions_},
                         {"aborted", 0},
                         {"finished", finished_},
                         {"tokens", tokens_},
                         {"hit_tokens", hits_},
                         {"last_step", 0},
                         {"avail", free_},
                         {"evictable", evictable()},
                         {"limits", limits_},
                         {"unfinished", unfinished}});
        return lines;
    }

private:
    bool is(M mutation) const { return mutation_ == mutation; }
    Int up(Int x) const { return (x + page_ - 1) / page_ * page_; }
    Int down(Int x) const { return x / page_ * page_; }
    Int evictable() const { return radix_ ? tree_.evictable() : 0; }
    Int space() const { return free_ + evictable(); }

    void make_room(Int x) {
        if (!radix_ || free_ >= x) return;
        free_ += tree_.evict(shortfall_ ? x - free_ : x);
    }

    void arrive(const R& r) {
        const Int m = std::min(context_, total_) - 1;
        const auto prompt = static_cast<Int>(r->prompt.size());
        const Int late = is(M::clamp_one_more) ? 1 : 0;
        const Int got = std::max<Int>(0, std::min({r->max_new, m - prompt - 1 + late, total_ - up(prompt) - page_ - 1 + late}));
        if (got != r->max_new) limits_[r->id] = got;
        r->max_new = got;
        if (prompt >= m - 5) {
            r->prompt = {0};
            r->error = true;
        }
        wait_.push_back(r);
    }

    static std::vector<R> alive(const std::vector<R>& reqs) {
        std::vector<R> out;
        for (const R& r : reqs) {
            if (!r->finished) out.push_back(r);
        }
        return out;
    }

    Json pass(Int step, bool& null_step) {
        retracted_ = Json::array();
        B launched;
        std::vector<Line> lines;
        schedule(launched, lines);
        const char* kind = !launched                         ? "idle"
                           : launched->mode == Mode::prefill ? "prefill"
                           : launched->mode == Mode::decode  ? "decode"
                                                             : "mixed";
        Json rows = Json::array();
        Int total = 0;
        for (const Line& line : lines) {
            Json row{{"id", line.req->id}, {"n", line.n}, {"p", line.p}, {"k", line.k}};
            if (line.more) row["more"] = true;
            rows.push_back(row);
            total += line.n;
            if (line.k == "new" || line.k == "resumed") hits_ += line.p;
        }
        Json record{{"step", step},
                    {"kind", kind},
                    {"rows", rows},
                    {"total", total},
                    {"ratio", ratio_},
                    {"retracted", retracted_},
                    {"aborted", Json::array()},
                    {"avail_sched", free_},
                    {"evict_sched", evictable()}};
        ++kinds_[kind];
        tokens_ += total;
        last_ = launched;

        std::optional<Launched> due;
        if (overlap_) {
            due = in_flight_;
            in_flight_.reset();
            if (launched) in_flight_ = Launched{step, launched->mode, lines};
        } else if (launched) {
            due = Launched{step, launched->mode, lines};
        }
        record["upd"] = due ? Json(due->step) : Json(nullptr);
        Json tok = Json::array();
        Json finished = Json::array();
        if (due) result(*due, tok, finished);
        record["tok"] = tok;
        record["finished"] = finished;
        null_step = !launched && !due;
        if (null_step && !is(M::no_reset) && wait_.empty() && run_->reqs.empty() && !chunk_) ratio_ = start_;
        record["avail"] = free_;
        record["evictable"] = evictable();
        record["ratio_end"] = ratio_;
        record["full"] = run_->full;
        record["chunked"] = chunk_ ? Json(chunk_->id) : Json(nullptr);
        Json running = Json::array();
        for (const R& r : run_->reqs) {
            if (!r->finished) running.push_back(r->id);
        }
        if (launched && launched->mode != Mode::decode) {
            for (const R& r : launched->reqs) {
                if (!r->finished && r != chunk_) running.push_back(r->id);
            }
        }
        record["running_ids"] = running;
        Json waiting = Json::array();
        for (const R& r : wait_) waiting.push_back(r->id);
        record["waiting_ids"] = waiting;
        return record;
    }

    void schedule(B& launched, std::vector<Line>& lines) {
        if (chunk_ && chunk_->end > chunk_->prefix) stash(*chunk_);
        if (last_ && last_->mode != Mode::decode) {
            std::vector<R> kept;
            for (const R& r : last_->reqs) {
                if (!r->finished && r != chunk_ && r != last_->chunk) kept.push_back(r);
            }
            if (kept.size() < last_->reqs.size()) run_->full = false;
            last_->reqs = kept;
            if (!kept.empty()) {
                if (run_->reqs.empty()) {
                    run_ = last_;
                } else {
                    run_->reqs.insert(run_->reqs.end(), kept.begin(), kept.end());
                    run_->prefill_only = run_->prefill_only && last_->prefill_only;
                }
            }
        }
        if (run_->prefill_only) {
            run_->reqs = alive(run_->reqs);
            if (run_->reqs.empty()) run_->full = false;
        }
        if (is(M::finished_leave_at_once)) run_->reqs = alive(run_->reqs);
        launched = prefill(lines);
        if (launched) {
            if (is(M::decay_on_prefill)) ratio_ = std::max(ratio_ - decay_, min_);
            return;
        }
        if (run_->reqs.empty() || run_->prefill_only) return;
        const std::size_t before = run_->reqs.size();
        run_->reqs = alive(run_->reqs);
        if (run_->reqs.empty()) {
            run_->full = false;
            return;
        }
        if (fits(run_->reqs)) {
            ratio_ = std::max(ratio_ - decay_, min_);
        } else {
            retract();
        }
        if (run_->reqs.size() < before) run_->full = false;
        if (is(M::retract_admits_at_once) && !retracted_.empty()) {
            launched = prefill(lines);
            if (launched) return;
        }
        lines = decode_rows(run_->reqs);
        run_->mode = Mode::decode;
        launched = run_;
    }

    Int need(const std::vector<R>& reqs) const {
        Int n = 0;
        for (const R& r : reqs) n += r->kv % page_ == 0 ? page_ : 0;
        return n;
    }
    bool fits(const std::vector<R>& reqs) {
        make_room(need(reqs));
        return free_ >= need(reqs);
    }
    std::vector<Line> decode_rows(const std::vector<R>& reqs) {
        make_room(page_ * static_cast<Int>(reqs.size()));
        if (need(reqs) > free_) throw OutOfMemory{};
        free_ -= need(reqs);
        std::vector<Line> lines;
        for (const R& r : reqs) {
            lines.push_back({r, 1, r->kv, "decode", false});
            ++r->kv;
        }
        return lines;
    }

    void retract() {
        std::vector<R> sorted = run_->reqs;
        std::stable_sort(sorted.begin(), sorted.end(), [this](const R& a, const R& b) {
            if (a->out != b->out) return is(M::retract_most_outputs) ? a->out < b->out : a->out > b->out;
            return is(M::retract_ties_short) ? a->prompt.size() > b->prompt.size() : a->prompt.size() < b->prompt.size();
        });
        std::vector<R> gone;
        do {
            if (sorted.size() == 1) break;
            const R victim = sorted.back();
            sorted.pop_back();
            release(*victim, is(M::retraction_inserts));
            victim->retracted = true;
            gone.push_back(victim);
            retracted_.push_back(victim->id);
            ++retractions_;
            if (!is(M::retract_evicts_nothing)) make_room(retract_steps_ * static_cast<Int>(sorted.size()));
        } while (!fits(sorted));
        if (is(M::retract_keeps_order)) {
            std::vector<R> kept;
            for (const R& r : run_->reqs) {
                if (std::find(sorted.begin(), sorted.end(), r) != sorted.end()) kept.push_back(r);
            }
            sorted = kept;
        }
        run_->reqs = sorted;
        Int out = 0;
        Int asked = 0;
        for (const R& r : sorted) {
            out += r->out;
            asked += r->max_new;
        }
        ratio_ = std::min(
            1.0, static_cast<double>(out + retract_steps_ * static_cast<Int>(sorted.size())) / static_cast<double>(asked + 1));
        wait_.insert(is(M::retracted_to_front) ? wait_.begin() : wait_.end(), gone.begin(), gone.end());
    }

    Int seats() const {
        Int held = 0;
        for (const R& r : all_) held += r->seat && !(is(M::chunk_holds_no_seat) && r == chunk_) ? 1 : 0;
        return std::min(max_running_ - static_cast<Int>(run_->reqs.size()), max_running_ - held);
    }

    // ---- prefill
    enum class Verdict { ok, no_token, other };
    struct Budget {
        Int in = 0;
        std::optional<Int> chunk;
        double off = 0;
        Int cur = 0;
        std::vector<Line> taken;
        R first_chunk;
        std::optional<std::vector<std::pair<double, Int>>> states;
    };
    double left(const Budget& b) const { return static_cast<double>(space()) - b.off; }
    void spend(Budget& b, Int n, Int fresh) const {
        n = up(n);
        b.off += static_cast<double>(n + fresh + page_);
        b.cur += n + page_;
        b.in -= n;
        if (b.chunk) *b.chunk -= n;
    }
    Verdict verdict(const Budget& b) const {
        if (left(b) <= 0 || space() - b.cur <= 0) return Verdict::no_token;
        if (b.in <= 0 || (b.chunk && *b.chunk <= 0)) return Verdict::other;
        return Verdict::ok;
    }
    static std::string started(const Req& r) { return r.ran ? "resumed" : "new"; }
    Int charge(const Req& r) const { return std::min(is(M::reserve_resumed_rest) ? r.max_new - r.out : r.max_new, clip_); }

    B prefill(std::vector<Line>& lines) {
        if ((run_->full || wait_.empty()) && !chunk_) return nullptr;
        if (seats() <= 0 && !chunk_) {
            run_->full = true;
            return nullptr;
        }
        sort();
        Budget b;
        const Int m = mixed_ && !is(M::mixed_unbudgeted) ? static_cast<Int>(run_->reqs.size()) : 0;
        b.in = max_prefill_ - m;
        if (chunk_size_) b.chunk = *chunk_size_ - m;
        double sum = 0;
        for (const R& r : run_->reqs) {
            sum += static_cast<double>(std::min(r->max_new - r->out, clip_)) * (is(M::reserve_whole) ? 1.0 : ratio_);
        }
        b.off = static_cast<double>(m) + sum;
        b.cur = m;
        if (chunk_) {
            Int lim = is(M::chunk_ignores_left) ? *b.chunk : std::min(*b.chunk, static_cast<Int>(std::trunc(left(b))));
            if (lim <= 0) lim = *b.chunk;
            if (is(M::chunk_cut_to_pages) && lim > page_) lim = down(lim);
            const Int rest = chunk_->size() - chunk_->prefix;
            const Int n = std::min(rest, lim);
            const bool more = n < rest;
            b.taken.push_back({chunk_, n, chunk_->prefix, "chunk", more});
            spend(b, n, more ? 0 : std::min(chunk_->max_new, clip_));
            if (!more) chunk_ = nullptr;
        }
        for (const R& r : wait_) {
            if (static_cast<Int>(b.taken.size()) >= seats()) run_->full = true;
            if (run_->full) break;
            r->prefix = r->prot = 0;
            r->node = nullptr;
            if (radix_) {
                const auto [node, length] =
                    tree_.walk(tree_.whole(r->first(is(M::hit_whole_prompt) ? r->size() : r->size() - 1)));
                r->prefix = r->prot = std::min(static_cast<Int>(length), r->size() - 1);
                r->node = node;
            }
            const Verdict v = add(b, r);
            if (v == Verdict::no_token) run_->full = !is(M::skip_head);
            if (v != Verdict::ok && !is(M::skip_head)) break;
        }
        if (b.taken.empty()) return nullptr;
        return launch(b, lines);
    }

    Verdict add(Budget& b, const R& r) {
        if (r->ignore_eos && !radix_) return add_exactly(b, r);
        const Int n = r->size() - r->prefix;
        const auto want = static_cast<double>(n + std::min(std::max<Int>(r->max_new - r->out, 0), clip_) + page_);
        const auto too_much = [&] { return is(M::admit_on_equal) ? want > left(b) : want >= left(b); };
        if (too_much()) return Verdict::no_token;
        if (!b.chunk && (!b.taken.empty() || is(M::first_obeys_max_prefill)) && up(n) >= b.in) return Verdict::other;
        tree_.lock(r->node, 1);
        if (!is(M::lock_not_counted) && too_much()) {
            tree_.lock(r->node, -1);
            return Verdict::no_token;
        }
        if (!b.chunk || up(n) <= *b.chunk) {
            b.taken.push_back({r, n, r->prefix, started(*r), false});
            spend(b, n, charge(*r));
        } else {
            const Int pages = is(M::new_chunk_not_cut) ? *b.chunk : python_floor(*b.chunk);
            const Int first = (is(M::new_chunk_not_cut) ? r->prefix + pages : python_floor(r->prefix + pages)) - r->prefix;
            if (first <= 0) {
                tree_.lock(r->node, -1);
                return Verdict::other;
            }
            b.taken.push_back({r, first, r->prefix, started(*r), true});
            b.first_chunk = r;
            spend(b, first, 0);
        }
        return verdict(b);
    }
    Int python_floor(Int x) const {
        return static_cast<Int>(std::floor(static_cast<double>(x) / static_cast<double>(page_))) * page_;
    }

    Verdict add_exactly(Budget& b, const R& r) {
        const Int n = r->size() - r->prefix;
        if (static_cast<double>(up(n)) > std::min(static_cast<double>(space() - b.cur), left(b))) return Verdict::no_token;
        const auto state = [&](const Req& q) {
            return std::pair(static_cast<double>(q.max_new) * (q.ignore_eos ? 1.0 : ratio_) - static_cast<double>(q.out),
                             q.size());
        };
        if (!b.states) {
            b.states.emplace();
            std::vector<R> seen{r};
            seen.insert(seen.end(), run_->reqs.begin(), run_->reqs.end());
            for (const Line& line : b.taken) seen.push_back(line.req);
            for (const R& q : seen) {
                if (state(*q).first > 0) b.states->push_back(state(*q));
            }
            std::stable_sort(b.states->begin(), b.states->end(),
                             [](const auto& x, const auto& y) { return x.first < y.first; });
        } else if (const auto s = state(*r); s.first > 0) {
            std::size_t at = 0;
            while (at < b.states->size() && (*b.states)[at].first < s.first) ++at;
            if (at == b.states->size() && at > 0 && !is(M::eos_inserts_behind)) --at;
            b.states->insert(b.states->begin() + static_cast<std::ptrdiff_t>(at), s);
        }
        Int rest = space() - b.cur - up(n);
        Int k = static_cast<Int>(b.states->size());
        for (const auto& [to_come, held] : *b.states) {
            if (static_cast<double>(rest) - to_come * static_cast<double>(k) <= static_cast<double>(k))
                return Verdict::no_token;
            rest += held;
            --k;
        }
        if (!b.chunk || n <= *b.chunk) {
            b.taken.push_back({r, n, r->prefix, started(*r), false});
            spend(b, n, charge(*r));
        } else if (*b.chunk <= 0) {
            return Verdict::other;
        } else {
            b.taken.push_back({r, *b.chunk, r->prefix, started(*r), true});
            b.first_chunk = r;
            spend(b, b.taken.back().n, 0);
        }
        return verdict(b);
    }

    B launch(Budget& b, std::vector<Line>& lines) {
        auto batch = std::make_shared<Batch>();
        batch->prefill_only = true;
        Int new_tokens = 0;
        for (const Line& line : b.taken) {
            wait_.erase(std::remove(wait_.begin(), wait_.end(), line.req), wait_.end());
            batch->reqs.push_back(line.req);
            batch->prefill_only = batch->prefill_only && line.req->max_new == 0;
            line.req->seat = true;
            new_tokens += line.n;
        }
        if (b.first_chunk) chunk_ = b.first_chunk;
        if (chunk_) ++chunk_->in_flight;
        batch->chunk = chunk_;
        make_room(page_ == 1 ? new_tokens : new_tokens + page_ * static_cast<Int>(b.taken.size()));
        Int slots = 0;
        for (const Line& line : b.taken) slots += up(line.p + line.n) - up(line.p);
        if (slots > free_) throw OutOfMemory{};
        free_ -= slots;
        for (const Line& line : b.taken) {
            line.req->end = line.req->kv = line.p + line.n;
            line.req->retracted = false;
            line.req->ran = true;
        }
        lines = b.taken;
        batch->mode = Mode::prefill;
        if (mixed_ && !run_->reqs.empty()) {
            run_->reqs = alive(run_->reqs);
            if (!run_->reqs.empty()) {
                const std::vector<Line> decodes = decode_rows(run_->reqs);
                lines.insert(is(M::mixed_decodes_first) ? lines.begin() : lines.end(), decodes.begin(), decodes.end());
                batch->reqs.insert(is(M::mixed_decodes_first) ? batch->reqs.begin() : batch->reqs.end(), run_->reqs.begin(),
                                   run_->reqs.end());
                batch->prefill_only = batch->prefill_only && run_->prefill_only;
                batch->mode = Mode::mixed;
            }
            auto empty = std::make_shared<Batch>();
            empty->full = run_->full;
            run_ = empty;
        }
        return batch;
    }

    // ---- the queue
    void sort() {
        if (policy_ == "lof") {
            std::stable_sort(wait_.begin(), wait_.end(), [this](const R& a, const R& b) {
                return is(M::lof_shortest) ? a->max_new < b->max_new : a->max_new > b->max_new;
            });
        }
        if (!radix_ || (policy_ != "lpm" && policy_ != "dfs-weight")) return;
        if (policy_ == "lpm" && wait_.size() > 128 && !is(M::lpm_always)) return;
        std::map<R, Int> rank;
        std::map<R, Node*> where;
        std::vector<Tokens> side;  // of earlier ones
        for (const R& r : wait_) {
            const auto [node, length] = tree_.walk(tree_.whole(r->tokens()));
            where[r] = node;
            const auto h = static_cast<Int>(length);
            rank[r] = is(M::lpm_whole_hit) ? h : std::min(h, r->size() - 1);
            if (policy_ != "lpm" || h > check_ || is(M::no_hold_back)) continue;
            Int shared = 0;
            const Tokens mine = r->tokens();
            for (const Tokens& other : side) {
                const auto [a, b] = std::mismatch(mine.begin(), mine.end(), other.begin(), other.end());
                static_cast<void>(b);
                shared = std::max<Int>(shared, a - mine.begin());
            }
            if (shared >= deprioritize_) {
                rank[r] = -1;
            } else {
                side.push_back(mine);
            }
        }
        if (policy_ == "lpm") {
            std::stable_sort(wait_.begin(), wait_.end(), [&](const R& a, const R& b) { return rank[a] > rank[b]; });
            return;
        }
        const std::vector<R> before = wait_;
        wait_.clear();
        depth_first(tree_.root, before, where);
    }
    static Int weight(const Node& node, const std::vector<R>& reqs, std::map<R, Node*>& where) {
        Int sum = 0;
        for (const R& r : reqs) sum += where[r] == &node ? 1 : 0;
        for (const auto& c : node.children) sum += weight(*c, reqs, where);
        return sum;
    }
    void depth_first(Node& node, const std::vector<R>& reqs, std::map<R, Node*>& where) {
        const auto own = [&] {
            for (const R& r : reqs) {
                if (where[r] == &node) wait_.push_back(r);
            }
        };
        if (is(M::dfs_own_first)) own();
        std::vector<Node*> children;
        for (auto& c : node.children) children.push_back(c.get());
        std::stable_sort(children.begin(), children.end(), [&](Node* a, Node* b) {
            const Int wa = weight(*a, reqs, where);
            const Int wb = weight(*b, reqs, where);
            return is(M::dfs_light_first) ? wa < wb : wa > wb;
        });
        for (Node* c : children) depth_first(*c, reqs, where);
        if (!is(M::dfs_own_first)) own();
    }

    // ---- memory of a request
    void stash(Req& r) {
        if (radix_) {
            const Int there = tree_.insert(r.first(r.end));
            free_ += there - r.prot;
            Node* node = tree_.walk(tree_.whole(r.first(r.end))).first;
            tree_.lock(r.node, -1);
            tree_.lock(node, 1);
            r.node = node;
            r.prot = down(r.end);
        }
        r.prefix = r.end;
    }
    void release(Req& r, bool insert) {
        if (!radix_) {
            free_ += up(r.kv);
        } else {
            if (insert) {
                const Int kv = is(M::last_token_kept) && !overlap_ && up(r.kv + 1) == up(r.kv) ? r.kv + 1 : r.kv;
                const Int there = tree_.insert(r.first(kv));
                free_ += there - r.prot + up(kv) - down(std::min(kv, r.size()));
            } else {
                free_ += up(r.kv) - r.prot;
            }
            tree_.lock(r.node, -1);
        }
        r.kv = r.prefix = r.prot = r.end = 0;
        r.node = nullptr;
        r.seat = false;
    }

    void result(const Launched& due, Json& tok, Json& finished) {
        for (const Line& line : due.lines) {
            Req& r = *line.req;
            if (r.finished) continue;
            if (r.retracted) {
                if (is(M::keeps_token_in_flight)) ++r.out;
                continue;
            }
            const bool prompt = line.k != "decode";
            if (prompt && r.in_flight > 0) {
                --r.in_flight;
                continue;
            }
            ++r.out;
            tok.push_back(r.id);
            if (r.error || r.out >= r.max_new || r.out == r.output_len) {
                r.finished = true;
                finished.push_back(r.id);
                ++finished_;
                release(r, true);
                if (is(M::full_cleared_by_finish)) run_->full = false;
            } else if (prompt) {
                stash(r);
            }
        }
    }

    M mutation_;
    Tree tree_;
    Int page_ = 1;
    Int total_ = 0;
    Int free_ = 0;
    std::optional<Int> chunk_size_;
    Int max_prefill_ = 0;
    Int max_running_ = 0;
    std::string policy_;
    bool mixed_ = false;
    bool radix_ = true;
    bool overlap_ = false;
    bool shortfall_ = false;
    Int context_ = 0;
    Int clip_ = 0;
    Int retract_steps_ = 0;
    Int check_ = 0;
    Int deprioritize_ = 0;
    double start_ = 0;
    double min_ = 0;
    double decay_ = 0;
    double ratio_ = 0;
    Int max_steps_ = 0;

    std::vector<R> all_;
    std::vector<R> wait_;
    B run_;
    B last_;
    R chunk_;
    std::optional<Launched> in_flight_;
    Json retracted_ = Json::array();
    Json limits_ = Json::object();
    std::map<std::string, Int> kinds_;
    Int retractions_ = 0;
    Int finished_ = 0;
    Int tokens_ = 0;
    Int hits_ = 0;
};

}  // namespace

std::vector<Json> naive_sglang(const Json& input, SglangMutation mutation) {
    return Naive(input, mutation).go();
}

}  // namespace kvsim::oracle
