// FastServe's skip-join multi-level feedback queue, preemptive: a request starts on the level that its prompt would reach
// anyway, sinks as it uses up what each level allows, and rises again when it has waited for too long.

#include <set>
#include <tuple>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/waiting_queue.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

struct Params {
    std::string policy;
    std::int64_t quantum = 256;
    std::int64_t levels = 6;
    SimDuration promote = std::chrono::seconds(10);
};

const config::Schema<Params>& schema() {
    static const config::Schema<Params> table{
        config::field("policy", &Params::policy, "mlfq"),
        config::field("quantum", &Params::quantum,
                      "tokens, of prompt and output, that a request gets on the first level; each further one allows twice as "
                      "many",
                      config::Range{1, 1e9})
            .by_default("256"),
        config::field("levels", &Params::levels, "queues; nobody sinks below the last", config::Range{1, 30}).by_default("6"),
        config::field("promote", &Params::promote,
                      "one that waited so long since it was last served returns to the first level", config::positive)
            .by_default("10s")};
    return table;
}

class MlfqQueue final : public WaitingQueue {
public:
    MlfqQueue(Engine& engine, const Params& params) : engine_(engine), p_(params) {}

    [[nodiscard]] std::size_t size() const override { return queue_.size(); }
    [[nodiscard]] Slot head() const override { return std::get<Slot>(*queue_.begin()); }
    void push_new(Slot slot) override {
        if (slot >= jobs_.size()) jobs_.resize(slot + std::size_t{1});
        const LiveRequest& request = engine_.request(slot);
        Job& job = jobs_[slot];
        job = {0, next_++, 0, request.arrival};
        while (job.level + 1 < p_.levels && quantum(job.level) < request.prompt) ++job.level;
        insert(slot);
    }
    void push_preempted(Slot slot) override { insert(slot); }
    void pop_head() override { remove(head()); }
    void remove(Slot slot) override {
        const Job& job = jobs_[slot];
        KVSIM_CHECK(queue_.erase({job.level, job.joined, slot}) == 1, "a waiting request stands in its queue");
        if (job.level > 0) longest_waiting_.erase({job.served, job.level, job.joined, slot});
    }
    void begin_step() override {
        while (!longest_waiting_.empty()) {
            const auto [served, level, joined, slot] = *longest_waiting_.begin();
            if (engine_.now() - served < p_.promote) break;
            remove(slot);
            join(jobs_[slot], 0);
            insert(slot);
        }
    }
    void served(Slot slot, std::int64_t tokens) override {
        Job& job = jobs_[slot];
        job.served = engine_.now();
        job.used += tokens;
        if (job.used >= quantum(job.level) && job.level + 1 < p_.levels) join(job, job.level + 1);
    }
    [[nodiscard]] bool follows_steps() const override { return true; }
    [[nodiscard]] bool displaces(Slot waiting, Slot running) const override {
        return jobs_[waiting].level < jobs_[running].level;
    }
    [[nodiscard]] std::vector<Slot> in_order() const override {
        std::vector<Slot> out;
        out.reserve(queue_.size());
        for (const auto& place : queue_) out.push_back(std::get<Slot>(place));
        return out;
    }

private:
    struct Job {
        std::int64_t level = 0;
        std::uint64_t joined = 0;  ///< its level, as the how manieth
        std::int64_t used = 0;     ///< tokens since then
        SimTime served{};          ///< last; its arrival before that
    };

    [[nodiscard]] std::int64_t quantum(std::int64_t level) const { return p_.quantum << level; }
    void join(Job& job, std::int64_t level) {
        job.level = level;
        job.joined = next_++;
        job.used = 0;
    }
    void insert(Slot slot) {
        const Job& job = jobs_[slot];
        queue_.insert({job.level, job.joined, slot});
        if (job.level > 0) longest_waiting_.insert({job.served, job.level, job.joined, slot});
    }

    Engine& engine_;
    Params p_;
    std::uint64_t next_ = 0;
    std::vector<Job> jobs_;  // by slot
    std::set<std::tuple<std::int64_t, std::uint64_t, Slot>> queue_;
    std::set<std::tuple<SimTime, std::int64_t, std::uint64_t, Slot>> longest_waiting_;  // below the first level
};

}  // namespace

std::vector<config::FieldDoc> mlfq_order_docs() {
    return schema().docs();
}

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_mlfq_order(const PieceSource& source,
                                                                      config::Diagnostics& diagnostics) {
    Params p;
    if (!read_params(schema(), source, p, diagnostics)) return nullptr;
    if (source.deployment.engine.batching == "static" || source.deployment.engine.batching == "no-evict")
        return refuse(source,
                      "its levels only order by service received, which nobody who waits has got under batching " +
                          source.deployment.engine.batching + ", where nobody is preempted",
                      diagnostics);
    return [p](Engine& engine) { return std::make_unique<MlfqQueue>(engine, p); };
}

}  // namespace kvsim
