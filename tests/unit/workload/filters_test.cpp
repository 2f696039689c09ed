#include <fstream>

#include "kvsim/model/trace_filters.hpp"
#include "unit/workload/support.hpp"

using namespace kvsim;

namespace {

std::string row(std::int64_t ms, std::int64_t input, const std::string& extra = "") {
    return "{\"timestamp\": " + std::to_string(ms) + ", \"input_length\": " + std::to_string(input) + ", \"output_length\": 8" +
           extra + "}\n";
}

std::unique_ptr<TraceReader> open(const std::string& text, const TraceOptions& options = {}) {
    return open_trace_text("t", text, "mooncake", options);
}

std::vector<TraceRow> all(std::unique_ptr<TraceReader> reader) {
    std::vector<TraceRow> out;
    TraceRow r;
    while (reader->next(r)) out.push_back(r);
    return out;
}

std::string many(int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += row(10 * i, i + 1, ", \"session_id\": " + std::to_string(i / 2));
    return text;
}

std::unique_ptr<Workload> replay(const std::string& text) {
    return make_replay(open(text), {{}, 1, {}, {}}, 1);
}

SimTime ms(std::int64_t t) {
    return SimTime(std::chrono::milliseconds(t));
}

}  // namespace

TEST_CASE("window: half open, its start becomes 0") {
    const auto r = all(cut_window(open(row(0, 1) + row(10, 2) + row(20, 3) + row(30, 4)), std::chrono::milliseconds(10),
                                  std::chrono::milliseconds(30)));
    REQUIRE(r.size() == 2);
    CHECK(r[0].time == SimTime{});
    CHECK(r[0].input_length == 2);
    CHECK(r[1].time == ms(10));
    // What stands behind the window is not read.
    CHECK(all(cut_window(open(row(0, 1) + row(50, 2) + "garbage"), {}, std::chrono::milliseconds(30))).size() == 1);
}

TEST_CASE("sampling: the share, whole sessions, the seed") {
    const std::string text = many(20'000);
    const auto r = all(sample_rows(open(text), 0.3, 1));
    CHECK(static_cast<double>(r.size()) == doctest::Approx(6000).epsilon(0.05));
    for (std::size_t i = 0; i + 1 < r.size(); i += 2) CHECK(r[i].session_id == r[i + 1].session_id);
    CHECK(all(sample_rows(open(text), 0.3, 1)) == r);
    CHECK(all(sample_rows(open(text), 0.3, 2)) != r);
    // Rows without a session are drawn one by one.
    std::string plain;
    for (int i = 0; i < 10'000; ++i) plain += row(i, 1);
    CHECK(static_cast<double>(all(sample_rows(open(plain), 0.5, 1)).size()) == doctest::Approx(5000).epsilon(0.05));
}

TEST_CASE("clipping cuts lengths and the ids behind them") {
    TraceOptions four;
    four.trace_block_size = 4;
    const auto r = all(clip_lengths(open(row(0, 14, ", \"hash_ids\": [7, 8, 3, 4]") + row(0, 3), four), 6, 2));
    CHECK(r[0].input_length == 6);
    CHECK(r[0].output_length == 2);
    CHECK(r[0].hash_ids == std::vector<std::uint64_t>{7, 8});
    CHECK(r[1].input_length == 3);
}

TEST_CASE("shuffling moves requests, not times") {
    std::string text;
    for (int i = 0; i < 500; ++i) text += row(i, i + 1);
    const auto r = all(shuffle_rows(open(text), 1));
    REQUIRE(r.size() == 500);
    std::vector<bool> seen(501);
    int moved = 0;
    for (std::size_t i = 0; i < r.size(); ++i) {
        CHECK(r[i].time == ms(static_cast<std::int64_t>(i)));
        CHECK(!seen[static_cast<std::size_t>(r[i].input_length)]);
        seen[static_cast<std::size_t>(r[i].input_length)] = true;
        moved += r[i].input_length != static_cast<std::int64_t>(i) + 1;
    }
    CHECK(moved > 450);
    CHECK(all(shuffle_rows(open(text), 1)) == r);
    CHECK(all(shuffle_rows(open(text), 2)) != r);
    CHECK_THROWS_AS(all(shuffle_rows(open(row(0, 1, R"(, "session_id": 1, "think_ms": 5)")), 1)), UserError);
}

TEST_CASE("think_ms: the session's next request follows the end of the one before") {
    const auto w = replay(row(0, 1, R"(, "session_id": "a")") + row(0, 2, R"(, "session_id": "a", "think_ms": 100)") +
                          row(0, 3, R"(, "session_id": "a", "think_ms": 50)") + row(500, 4) +
                          row(900, 5, R"(, "session_id": "a", "think_ms": 1)"));
    CHECK(w->closed_loop());
    Arrival a;
    const auto take = [&] {
        REQUIRE(w->next_time());
        w->pop(a);
        return a.prompt_tokens;
    };
    CHECK(take() == 1);
    CHECK(w->next_time() == std::optional(ms(500)));  // the session waits for its answer
    w->finished(0, ms(30), FinishReason::length, 1);
    CHECK(w->next_time() == std::optional(ms(130)));
    CHECK(take() == 2);
    CHECK(take() == 4);
    CHECK(!w->next_time());
    w->finished(1, ms(700), FinishReason::length, 1);
    CHECK(w->next_time() == std::optional(ms(750)));
    CHECK(take() == 3);
    w->finished(2, ms(710), FinishReason::length, 1);  // nobody's predecessor
    CHECK(!w->next_time());
    w->finished(3, ms(760), FinishReason::length, 1);
    CHECK(w->next_time() == std::optional(ms(900)));  // not before its own time
    CHECK(take() == 5);
    CHECK(!w->next_time());
    CHECK(!replay(row(0, 1))->closed_loop());
}

TEST_CASE("the options of a scenario's trace") {
    const auto folder = std::filesystem::temp_directory_path() / "kvsim_filters_test";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "t.jsonl") << many(100) << "garbage\n" << row(2000, 5);
    const std::string trace = "trace: {path: " + (folder / "t.jsonl").string();
    CHECK(test::drain(*test::workload(trace + ", end: 100ms, start: 50ms}")).size() == 5);
    CHECK(test::drain(*test::workload(trace + ", max_prompt_tokens: 7, end: 900ms}"))[50].prompt_tokens == 7);
    const auto w = test::workload(trace + ", on_error: skip}");
    CHECK(test::drain(*w).size() == 101);
    REQUIRE(w->notes().size() == 1);
    CHECK(w->notes()[0].find("1 wrong row is skipped, the first: ") == 0);
    CHECK(w->notes()[0].find("t.jsonl:101:1: error: expected an object, found 'g'") != std::string::npos);
    CHECK_THROWS_AS(test::drain(*test::workload(trace + "}")), UserError);
    CHECK(test::workload_error(trace + ", start: 2s, end: 1s}").find("end must lie behind start") != std::string::npos);
    CHECK(test::workload_error(trace + ", on_error: skip, start: 1h}").find("no row of the trace is left") !=
          std::string::npos);
    CHECK(test::workload_error(trace + ", on_error: stop}").find("on_error") != std::string::npos);
    CHECK(test::workload_error(trace + ", sample: 0}").find("sample") != std::string::npos);
    CHECK(test::drain(*test::workload(trace + ", sample: 0.5, on_error: skip, shuffle: true, jitter: 5ms}")).size() < 80);
    std::filesystem::remove_all(folder);
}
