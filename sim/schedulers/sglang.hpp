#pragma once
// SGLang's scheduler and its KV (main, 2026-07-13): prompts and decodes in batches of their own, admission against an estimate
// of what the running requests will still need, retraction when that was too low, a radix tree over what has been computed. In
// the header only because recorded decisions show more of it than the Scheduler interface does.

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "../kv_managers/radix_tree.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/scheduler.hpp"

namespace kvsim {

/// Token slots in pages, held by requests, by the radix tree, or free. All amounts are tokens.
class RadixKv final : public KvPool {
public:
    RadixKv(std::int64_t pages, std::int64_t page, bool radix, bool evict_shortfall)
        : KvPool(pages), page_(page), radix_(radix), shortfall_(evict_shortfall), available_(pages * page), tree_(page) {}

    [[nodiscard]] std::int64_t up(std::int64_t tokens) const { return (tokens + page_ - 1) / page_ * page_; }
    [[nodiscard]] std::int64_t down(std::int64_t tokens) const { return tokens / page_ * page_; }
    [[nodiscard]] std::int64_t total() const { return usable_ * page_; }
    [[nodiscard]] std::int64_t available() const { return available_; }
    [[nodiscard]] std::int64_t evictable() const { return tree_.evictable(); }
    [[nodiscard]] std::int64_t space() const { return available_ + tree_.evictable(); }
    [[nodiscard]] bool radix() const { return radix_; }
    [[nodiscard]] RadixTree& tree() { return tree_; }

    /// If fewer than `tokens` are free, the tree gives up as many (or what is missing), and often more: leaves go whole.
    void make_room(std::int64_t tokens) {
        if (available_ < tokens && radix_) give(tree_.evict(shortfall_ ? tokens - available_ : tokens));
    }
    void take(std::int64_t tokens) {
        available_ -= tokens;
        KVSIM_CHECK(available_ >= 0, "slots are only taken when they are free");
        count();
    }
    void give(std::int64_t tokens) {
        available_ += tokens;
        count();
    }
    void lock(RadixTree::Node node) {
        tree_.lock(node);
        count();
    }
    void unlock(RadixTree::Node node) {
        tree_.unlock(node);
        count();
    }

private:
    void count() { free_ = (available_ + tree_.evictable()) / page_; }

    std::int64_t page_;
    bool radix_;
    bool shortfall_;
    std::int64_t available_;
    RadixTree tree_;
};

class SglangScheduler final : public Scheduler {
public:
    /// A request as the scheduler knows it; it outlives the engine's, because a finished one stays in its batch for a while.
    struct Sequence {
        RequestId id = 0;
        Slot slot = 0;
        std::vector<TokenRun> content;
        std::uint64_t output_base = 0;
        std::int64_t prompt = 0;
        std::int64_t outputs = 0;  // received
        std::int64_t max_new = 0;  // output tokens asked for, as clamped at arrival
        bool ignore_eos = false;
        bool finished = false;
        bool retracted = false;  // since its last admission
        bool seated = false;
        bool resumes = false;  // it was admitted before
        std::int64_t kv = 0;   // tokens with KV, those of the step in progress included
        std::int64_t prefix = 0;
        std::int64_t locked = 0;                 // leading tokens of it that the tree holds for it, whole pages
        RadixTree::Node node = RadixTree::root;  // what it locks
        std::int64_t end = 0;                    // how far its prompt (and earlier outputs) has been taken
        std::int64_t chunks_in_flight = 0;       // chunks but the last whose results are not in
        std::uint64_t mark = 0;

        [[nodiscard]] std::int64_t tokens() const { return prompt + outputs; }
        [[nodiscard]] TokenView view() const { return {content, output_base}; }
    };
    struct Row {
        enum class Kind { fresh, resumed, chunk, decode };
        Sequence* sequence = nullptr;
        RequestId id = 0;
        std::int64_t tokens = 0;
        std::int64_t before = 0;
        Kind kind = Kind::decode;
        bool more = false;  // a chunk that is not the last
    };
    struct Pass {
        enum class Kind { idle, prefill, decode, mixed };
        std::int64_t step = 0;
        Kind kind = Kind::idle;
        std::vector<Row> rows;
        double ratio = 0;             // new_token_ratio after scheduling
        bool was_processing = false;  // the results of an earlier pass were due
    };

    explicit SglangScheduler(Engine& engine);

    [[nodiscard]] const KvPool& pool() const override { return kv_; }
    void arrive(Slot slot) override;
    void plan(Batch& batch) override;
    void receive(const Batch& batch, SimTime now) override;
    void remove(Slot slot) override;
    Steady steady_steps(std::vector<Slot>& rows) override;
    bool steady_step() override;
    void pass(std::int64_t steps, SimTime now) override;
    [[nodiscard]] bool pending() const override;
    [[nodiscard]] std::vector<Slot> running() const override;
    [[nodiscard]] std::vector<Slot> waiting() const override;
    [[nodiscard]] std::int64_t running_count() const override { return admitted_; }
    [[nodiscard]] std::int64_t waiting_count() const override { return static_cast<std::int64_t>(waiting_.size()); }
    [[nodiscard]] HeldSlots unfilled(const LiveRequest& request) const override;
    void record(const BatchRow&, ScheduledRow&) const override {}
    [[nodiscard]] std::string describe_head() const override;

    // ---- for recordings
    [[nodiscard]] const Pass& last_plan() const { return *plan_; }
    [[nodiscard]] const RadixKv& kv() const { return kv_; }
    [[nodiscard]] double new_token_ratio() const { return ratio_; }
    [[nodiscard]] bool batch_is_full() const { return running_.full; }
    [[nodiscard]] std::optional<RequestId> chunked() const;
    /// Unfinished requests of the running batch.
    [[nodiscard]] std::vector<RequestId> running_batch() const;
    /// Neither waiting, nor in the running batch, nor a chunk in progress.
    [[nodiscard]] bool nothing_left() const { return waiting_.empty() && running_.sequences.empty() && chunk_ == nullptr; }
    /// max_new_tokens of the request as clamped; it has not left.
    [[nodiscard]] std::int64_t max_new_tokens(Slot slot) const { return of_slot_[slot]->max_new; }

private:
    struct SequenceBatch {
        std::vector<Sequence*> sequences;
        bool full = false;          // nobody is admitted
        bool prefill_only = false;  // nobody in it generates
    };
    class Adder;
    friend class Adder;

    void stash(Sequence& sequence);
    void merge_last();
    bool plan_prefill(Batch& batch);
    void sort_waiting();
    void sort_by_tree();
    void commit_prefill(Batch& batch, const std::vector<Row>& added, Sequence* chunk);
    void mix_in_decodes(bool& prefill_only);
    void plan_decode(Batch& batch);
    void retract(Batch& batch);
    [[nodiscard]] std::int64_t decode_need(const std::vector<Sequence*>& sequences) const;
    void take_decode_slots(const std::vector<Sequence*>& sequences);
    void release(Sequence& sequence, bool insert);
    void book(Batch& batch);
    void reap();
    bool drop_finished(std::vector<Sequence*>& sequences) const;
    [[nodiscard]] std::int64_t seats() const;

    const EngineArgs& args_;
    RadixKv kv_;
    double ratio_start_;
    double ratio_min_;
    double ratio_decay_;
    double ratio_;
    std::int64_t max_seats_;
    std::int64_t seated_ = 0;
    std::int64_t admitted_ = 0;

    std::deque<Sequence*> waiting_;
    SequenceBatch running_;
    SequenceBatch last_;  // the batch of the previous pass, if that was prefill or mixed
    bool last_prefill_ = false;
    Sequence* last_chunk_ = nullptr;  // with which it was built
    Sequence* chunk_ = nullptr;       // the one request whose prompt is not all taken
    Bound full_bound_ = Bound::seats;

    // Two may be in flight while a third is planned; their rows' storage serves again and again.
    std::array<Pass, 3> passes_;
    Pass* plan_ = passes_.data();  // the last one planned
    std::size_t first_in_flight_ = 0;
    std::size_t in_flight_ = 0;
    std::int64_t idle_passes_ = 0;  // in a row, with nothing to process, since the last arrival

    std::deque<Sequence> sequences_;
    std::vector<Sequence*> unused_;
    std::vector<Sequence*> gone_;  // finished, perhaps still in a batch
    std::vector<Sequence*> of_slot_;
    std::uint64_t mark_ = 0;
    std::vector<std::int64_t> phases_;  // steady_steps(): how many of the running batch have each kv mod page
    std::size_t phase_ = 0;
};

}  // namespace kvsim
