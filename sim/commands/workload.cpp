// kvsim workload: the requests a scenario would send, as a trace.

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "kvsim/app/command.hpp"
#include "kvsim/app/prepare.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/engine/simulation.hpp"
#include "kvsim/model/clients.hpp"
#include "kvsim/model/trace_writer.hpp"

namespace kvsim::app {
namespace {

struct Turn {
    Arrival arrival;
    TraceTurn said;
    std::size_t session = 0;  ///< number of its first request
};

/// Remembers what a run of sessions sends and when the previous request of the session had left.
class Recorder final : public Workload {
public:
    explicit Recorder(Workload& inner) : inner_(inner) {}
    [[nodiscard]] std::optional<SimTime> next_time() override { return inner_.next_time(); }
    void pop(Arrival& out) override {
        inner_.pop(out);
        const std::size_t id = turns_.size();
        Turn turn{out, {static_cast<RequestId>(id), out.time, {}}, id};
        if (!out.session_id.empty()) {
            const auto [last, is_first] = last_.try_emplace(out.session_id, id);
            if (!is_first) {
                const std::optional<SimTime> left = left_[last->second];
                if (!left || *left > out.time)
                    throw UserError("cannot be written as a trace: session " + out.session_id + " sends requests side by side");
                turn.session = turns_[last->second].session;
                turn.said.time = turns_[turn.session].said.time;
                turn.said.think = out.time - *left;
                last->second = id;
            }
        }
        turns_.push_back(std::move(turn));
        left_.emplace_back();
    }
    void finished(RequestId id, SimTime now, FinishReason reason, std::int64_t outputs) override {
        left_[id] = now;
        inner_.finished(id, now, reason, outputs);
    }
    [[nodiscard]] bool may_cancel() const override { return inner_.may_cancel(); }
    [[nodiscard]] bool outputs_are_private() const override { return inner_.outputs_are_private(); }
    [[nodiscard]] std::optional<std::int64_t> size_hint() const override { return inner_.size_hint(); }

    std::vector<Turn>& as_sent() { return turns_; }
    /// Each session as a whole, by the time of its first request.
    std::vector<Turn>& by_session() {
        std::sort(turns_.begin(), turns_.end(), [](const Turn& a, const Turn& b) {
            if (a.said.time != b.said.time) return a.said.time < b.said.time;
            return a.session != b.session ? a.session < b.session : a.said.id < b.said.id;
        });
        return turns_;
    }

private:
    Workload& inner_;
    std::vector<Turn> turns_;
    std::vector<std::optional<SimTime>> left_;
    std::unordered_map<std::string, std::size_t> last_;  // by session, only looked up
};

void run_to_the_end(const Prepared& p, Workload& workload) {
    try {
        const Outcome outcome = simulate(p.options, *p.step_time, *p.router, workload);
        throw_if_stopped();
        if (!outcome.stall_report.empty()) throw UserError(p.scenario.name + ": " + outcome.stall_report);
    } catch (const UserError& e) {
        const std::string message = e.what();
        if (message.find("error: ") != std::string::npos) throw;
        throw UserError(p.scenario.file.string() + ": error: " + message);
    }
}

}  // namespace

int workload_command(const std::vector<std::string>& args) {
    const Usage usage{
        "workload",
        "kvsim workload SCENARIO.yaml --out TRACE.jsonl [options]",
        "Writes the requests a run of the scenario would send as a trace (format mooncake); a scenario that\n"
        "replays it gives the same run. Sessions and thinking users are run for it, and their later requests follow\n"
        "the end of the one before by think_ms. Refused, with the reason: what no trace can say.",
        {{"out", "TRACE.jsonl", "the trace"},
         {"set", "KEY.PATH=VALUE", "change a key of the scenario first", true},
         {"seed", "N", "the same as --set seed=N"},
         {"trace-block-size", "N", "tokens per hash id; divides the engine's block_size (and is that by default)"}},
        "a scenario file",
        1,
        1};
    const std::optional<Arguments> given = parse(usage, args);
    if (!given) return exit_done;
    const std::optional<std::string> out = given->text("out");
    if (!out || out->empty()) throw UserError("error: name the trace to write with --out");
    std::vector<std::string> sets = given->all("set");
    if (const auto seed = given->text("seed")) sets.push_back("seed=" + *seed);

    const std::string& file = given->positional.front();
    config::Diagnostics diagnostics;
    Prepared prepared = prepare(file, sets, diagnostics);
    for (const std::string& warning : diagnostics.warnings()) log_diagnostic(warning);
    diagnostics.throw_if_errors();
    Workload& workload = *prepared.workload;
    const auto refuse = [&](const std::string& why) {
        throw UserError(file + ": error: cannot be written as a trace: " + why);
    };
    // Users who never think are a limit of concurrency, under which rows may all come at once.
    std::optional<std::int64_t> limit = prepared.options.max_concurrency;
    const std::optional<std::int64_t> users = never_thinking_users(workload);
    const bool at_once = users && limit.value_or(*users) == *users;
    if (at_once) {
        limit = users;
    } else if (const std::string why = beyond_think_times(workload); !why.empty()) {
        refuse(why);
    }
    if (!workload.closed_loop() && !workload.outputs_are_private()) refuse("its prompts repeat generated tokens");
    const std::int64_t engine_block = prepared.options.engine.block_size;
    const std::int64_t block = given->integer("trace-block-size", 1, engine_block).value_or(engine_block);
    if (engine_block % block != 0)
        throw UserError("error: --trace-block-size " + std::to_string(block) + " does not divide the engine's block_size of " +
                        std::to_string(engine_block));

    AtomicFile trace(*out);
    const TraceKeys keys{.timeouts = workload.may_cancel(),
                         .branches = workload.may_branch(),
                         .think_times = workload.closed_loop() && !at_once,
                         .outputs_recur = !workload.outputs_are_private()};
    TraceWriter writer(block, keys);
    std::string line;
    std::int64_t count = 0;
    const auto write = [&](const Arrival& arrival, const TraceTurn& turn) {
        if (const std::string what = TraceWriter::left_out(arrival); !what.empty())
            refuse("request " + std::to_string(turn.id) + " has " + what + ", for which the format has no key");
        line.clear();
        writer.append(arrival, turn, line);
        trace.write(line);
        if ((++count & 0xFFF) == 0) throw_if_stopped();
    };
    if (workload.closed_loop()) {
        Recorder recorder(workload);
        run_to_the_end(prepared, recorder);
        for (Turn& turn : at_once ? recorder.as_sent() : recorder.by_session()) {
            if (at_once) turn.said.time = SimTime{};
            write(turn.arrival, turn.said);
        }
    } else {
        Arrival arrival;
        while (workload.next_time()) {
            workload.pop(arrival);
            write(arrival, {static_cast<RequestId>(count), arrival.time, {}});
        }
    }
    throw_if_stopped();
    trace.commit();
    for (const std::string& note : workload.notes()) log_warning(note);
    print(std::to_string(count) + " requests written to " + *out + "\nreplay: workload: {trace: {path: " + *out + "}" +
          (limit ? ", max_concurrency: " + std::to_string(*limit) : std::string()) + "}\n");
    return exit_done;
}

}  // namespace kvsim::app
