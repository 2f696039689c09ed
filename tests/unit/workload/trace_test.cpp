#include <fstream>

#include "unit/workload/support.hpp"

using namespace kvsim;

namespace {

std::vector<TraceRow> rows(const std::string& text, const TraceOptions& options = {}) {
    const auto reader = open_trace_text("t", text, "", options);
    std::vector<TraceRow> out;
    TraceRow row;
    while (reader->next(row)) out.push_back(row);
    return out;
}

std::string failure(const std::string& text, const TraceOptions& options = {}) {
    try {
        static_cast<void>(rows(text, options));
    } catch (const UserError& e) {
        const std::string message = e.what();
        return message.substr(0, message.find('\n'));  // the line and the caret follow
    }
    return "accepted";
}

/// Without the line and the caret.
std::string first_line(const std::string& text) {
    return text.substr(0, text.find('\n'));
}

std::int64_t at(const TraceRow& row) {
    return row.time.time_since_epoch().count();
}

/// A Mooncake row with `extra` before the closing brace.
std::string row(const std::string& timestamp, const std::string& extra = "") {
    return R"({"timestamp": )" + timestamp + R"(, "input_length": 9, "output_length": 2)" + extra + "}\n";
}

const std::string azure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";

std::unique_ptr<Workload> replay(const std::string& text, const ReplayOptions& options, const TraceOptions& trace = {}) {
    return make_replay(open_trace_text("t", text, "", trace), options, 1);
}

}  // namespace

TEST_CASE("a Mooncake row") {
    const auto r = rows(
        R"({"timestamp": 27482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 2366]})"
        "\r\n"
        R"( { "hash_ids":[0 , 1],"output_length":1,"input_length":513,"timestamp":27482.0000015 , "request_id": "a\u00e9\n", "priority": -3, "class": "chat", "session_id": 12, "tenant": "acme", "n": 1, "think_ms": null } )");
    REQUIRE(r.size() == 2);
    CHECK(at(r[0]) == 27'482'000'000);
    CHECK(r[0].input_length == 1030);
    CHECK(r[0].output_length == 52);
    CHECK(r[0].hash_ids == std::vector<std::uint64_t>{46, 47, 2366});
    CHECK(at(r[1]) == 27'482'000'002);  // half a nanosecond rounds up
    CHECK(r[1].request_id == "a\xC3\xA9\n");
    CHECK(r[1].priority == -3);
    CHECK(r[1].request_class == "chat");
    CHECK(r[1].session_id == "12");
    CHECK(r[1].tenant == "acme");
    CHECK(r[0].tenant.empty());
}

TEST_CASE("timestamps are exact decimals") {
    CHECK(at(rows(row("0"))[0]) == 0);
    CHECK(at(rows(row("0.000001"))[0]) == 1);
    CHECK(at(rows(row("0.0000004999999999999999999999"))[0]) == 0);
    CHECK(at(rows(row("1e3"))[0]) == 1'000'000'000);
    CHECK(at(rows(row("1.25E-2"))[0]) == 12'500);
    CHECK(at(rows(row("0e99999"))[0]) == 0);
    CHECK(at(rows(row("1e-99999"))[0]) == 0);
    CHECK(at(rows(row("4611686018427.387904"))[0]) == std::int64_t{1} << 62);
    CHECK(failure(row("4611686018427.387905")).find("t:1:15: error: timestamp is too large") == 0);
    CHECK(first_line(failure(row("1e400"))) == "t:1:15: error: timestamp is too large");
}

TEST_CASE("tolerated: byte order mark, CRLF, blank lines at the end, no final newline, unknown keys") {
    CHECK(rows("\xEF\xBB\xBF" + row("0") + row("0") + "\n \t\r\n\n").size() == 2);
    CHECK(rows(row("5", R"(, "model": {"a": [1, -2.5e-3, "x", {}, [], true, false, null]})")).size() == 1);
    const auto reader = open_trace_text("t", row("5", R"(, "model": 1)") + row("5", R"(, "model": 2, "zone": "x")"), "", {});
    TraceRow r;
    while (reader->next(r)) {}
    CHECK(reader->unknown_keys() == std::vector<std::string>{"model", "zone"});
    std::string cut = row("7");
    cut.pop_back();
    CHECK(rows(cut).size() == 1);
}

TEST_CASE("Mooncake rows that are wrong are named with line and column") {
    struct Case {
        std::string text;
        std::string message;
    };
    const std::vector<Case> cases{
        {row("0") + R"({"timestamp": 3, "input_len)", "t:2:18: error: text without its closing quote"},
        {row("0") + R"({"timestamp": 3, "input_length": 9)",
         "t:2:35: error: the line ends inside the object; is the file truncated?"},
        {row("0") + R"({"timestamp": 3,)", "t:2:17: error: the line ends inside the object; is the file truncated?"},
        {row("0") + R"({"timestamp": )", "t:2:15: error: the line ends inside the object; is the file truncated?"},
        {row("NaN"), "t:1:15: error: timestamp must be a number of milliseconds, not NaN or Infinity"},
        {row("-1"), "t:1:15: error: timestamp must not be negative"},
        {row("\"3\""), "t:1:15: error: timestamp must be a number of milliseconds, not text"},
        {row("03"), "t:1:15: error: a number must not start with 0"},
        {row("3."), "t:1:17: error: malformed number"},
        {row("3e"), "t:1:17: error: malformed number"},
        {row("3 4"), "t:1:17: error: expected '}' or ','"},
        {row("0") + "[1]\n", "t:2:1: error: expected an object, found a list"},
        {R"({"timestamp": 0, "input_length": 0, "output_length": 2})",
         "t:1:34: error: input_length 0 is outside [1, 1073741823]"},
        {R"({"timestamp": 0, "input_length": -5, "output_length": 2})",
         "t:1:34: error: input_length -5 is outside [1, 1073741823]"},
        {R"({"timestamp": 0, "input_length": 99999999999999999999, "output_length": 2})",
         "t:1:34: error: input_length 99999999999999999999 is outside [1, 1073741823]"},
        {R"({"timestamp": 0, "input_length": 1.5, "output_length": 2})", "t:1:34: error: input_length must be a whole number"},
        {R"({"timestamp": 0, "input_length": true, "output_length": 2})",
         "t:1:34: error: input_length must be a whole number, not true"},
        {R"({"timestamp": 0, "input_length": null, "output_length": 2})",
         "t:1:34: error: input_length must be a whole number, not null"},
        {R"({"timestamp": 0, "input_length": 9})", "t:1:1: error: missing key 'output_length'"},
        {"{}", "t:1:1: error: missing key 'timestamp'"},
        {row("0", R"(, "timestamp": 1)"), "t:1:57: error: duplicate key 'timestamp'"},
        {row("0", R"(, "x": 1, "x": 1)"), "t:1:65: error: duplicate key 'x'"},
        {row("0", ","), "t:1:56: error: expected a key, found '}'"},
        {R"({"timestamp": 0, "input_length": 9, "output_length": 2} x)", "t:1:57: error: text after the object"},
        {row("0", ", \"x\": \"\xFF\""), "t:1:63: error: not UTF-8"},
        {row("0", ", \"x\": \"\xC0\x80\""), "t:1:63: error: not UTF-8"},
        {row("0", ", \"x\": \"\xED\xA0\x80\""), "t:1:63: error: not UTF-8"},
        {row("0", ", \"x\": \"\t\""), "t:1:63: error: control character inside text"},
        {row("0", R"(, "x": "\q")"), "t:1:63: error: malformed escape"},
        {row("0", R"(, "x": "\ud800")"), "t:1:63: error: malformed surrogate pair"},
        {row("0", R"(, "x": tru)"), "t:1:62: error: expected true"},
        {row("0", R"(, "hash_ids": [1, 2])"),
         "t:1:69: error: 2 hash_ids for an input_length of 9; trace_block_size 512 makes 1"},
        {row("0", R"(, "hash_ids": [])"), "t:1:69: error: 0 hash_ids for an input_length of 9; trace_block_size 512 makes 1"},
        {row("0", R"(, "hash_ids": [-1])"), "t:1:70: error: hash id -1 is outside [0, 9007199254740991]"},
        {row("0", R"(, "hash_ids": [1.5])"), "t:1:70: error: hash id must be a whole number"},
        {row("0", R"(, "hash_ids": [1,])"), "t:1:72: error: hash id must be a whole number, not ']'"},
        {row("0", R"(, "hash_ids": [01])"), "t:1:70: error: a number must not start with 0"},
        {row("0", R"(, "hash_ids": [1 2])"), "t:1:72: error: expected ',' or ']' in hash_ids"},
        {row("0", R"(, "tenant": {})"), "t:1:67: error: tenant must be text or a whole number, not an object"},
        {row("0", R"(, "tenant": true)"), "t:1:67: error: tenant must be text or a whole number, not true"},
        {row("0", R"(, "class": [1])"), "t:1:66: error: class must be text or a whole number, not a list"},
        {row("0", R"(, "tenant": 1.5)"), "t:1:67: error: tenant must be text or a whole number"},
        {row("0", R"(, "tenant": -x)"), "t:1:67: error: malformed number"},
        {row("0", R"(, "hash_ids": 7)"), "t:1:69: error: hash_ids must be a list, not '7'"},
        {row("0", R"(, "hash_ids": null)"), "t:1:69: error: hash_ids must be a list, not null"},
        {row("0", R"(, "n": 0)"), "t:1:62: error: n 0 is outside [1, 10000]"},
        {row("0", R"(, "think_ms": 5)"), "t:1:69: error: think_ms needs a session_id"},
        {row("0", R"(, "think_ms": -5)"), "t:1:69: error: think_ms must not be negative"},
        {row("0", R"(, "timeout_ms": "x")"), "t:1:71: error: timeout_ms must be a number of milliseconds, not text"},
        {row("0", R"(, "trace_block_size": 0)"), "t:1:77: error: trace_block_size 0 is outside [1, 1073741823]"},
        {row("0", R"(, "trace_block_size": 8)") + row("0", R"(, "trace_block_size": 4)"),
         "t:2:77: error: trace_block_size 4 is not the 8 of the rows before or of the scenario"},
        {row("200") + row("199.5"), "t:2:15: error: timestamp 199.5 is before the previous row's 200; rows must be sorted"},
        {row("0") + "\n" + row("1"), "t:3:1: error: a row after blank line 2"},
        {"", "t:1:1: error: the trace is empty or starts with a blank line"},
        {"hello\n",
         "t:1:1: error: no known trace format (timed_trace, guidellm, mooncake, azure, burstgpt, vidur, sharegpt, vllm_custom, "
         "llmservingsim, weka)"},
        {row("0", ", \"x\": " + std::string(100, '[')), "t:1:95: error: nested too deeply"},
    };
    for (const Case& c : cases) CHECK(first_line(failure(c.text)) == c.message);
}

TEST_CASE("an Azure trace") {
    const auto r = rows(azure +
                        "2023-12-31 23:59:59.9999999,374,44\r\n"
                        "2024-01-01 00:00:00,396,109\n"
                        "2024-02-29 00:00:00.25+00:00,879,55\n"
                        "2024-03-01 00:00:00.000000001,91,16");
    REQUIRE(r.size() == 4);
    CHECK(at(r[0]) == 0);
    CHECK(at(r[1]) == 100);
    CHECK(at(r[2]) == std::int64_t{59} * 86'400 * 1'000'000'000 + 250'000'100);
    CHECK(at(r[3]) == std::int64_t{60} * 86'400 * 1'000'000'000 + 101);
    CHECK(r[0].input_length == 374);
    CHECK(r[3].output_length == 16);
    CHECK(r[3].hash_ids.empty());
}

TEST_CASE("Azure rows that are wrong are named with line and column") {
    struct Case {
        std::string text;
        std::string message;
    };
    const std::string good = "2023-11-16 18:15:46.6805900,374,44\r\n";
    const std::vector<Case> cases{
        {"TIMESTAMP,Context\n" + good, "t:1:1: error: the header lacks 'contexttokens', 'generatedtokens'"},
        {azure + good + "2023-11-16 18:15:46.6805899,374,44",
         "t:3:1: error: timestamp before the previous row's; rows must be sorted"},
        {azure + "2023-02-29 18:15:46,374,44", "t:2:1: error: no such date or time"},
        {azure + "2023-11-16 24:15:46,374,44", "t:2:1: error: no such date or time"},
        {azure + "2023-11-16x18:15:46,374,44", "t:2:11: error: expected a timestamp like 2023-11-16 18:15:46.6805900"},
        {azure + "2023-11-16 18:15:46.,374,44", "t:2:21: error: expected fractional digits"},
        {azure + "2023-11-16 18:15:46.0123456789,374,44", "t:2:30: error: more than nine fractional digits"},
        {azure + "2023-11-16 18:15:46,374,0\n", "t:2:25: error: generatedtokens 0 is outside [1, 1073741823]"},
        {azure + "2023-11-16 18:15:46,0,3\n", "t:2:21: error: contexttokens 0 is outside [1, 1073741823]"},
        {azure + "2023-11-16 18:15:46,99999999999999999999,3\n",
         "t:2:21: error: contexttokens 99999999999999999999 is outside [1, 1073741823]"},
        {azure + "2023-11-16 18:15:46,3.5,3\n", "t:2:21: error: contexttokens must be a whole number"},
        {azure + "2023-11-16 18:15:46,-3,3\n", "t:2:21: error: contexttokens must be a whole number"},
        {azure + "2023-11-16 18:15:46,374",
         "t:2:24: error: the line ends early: 2 fields, the header has 3; is the file truncated?"},
        {azure + "2023-11-16 18:15:46,374,", "t:2:25: error: generatedtokens must be a whole number"},
        {azure + "2023-11-16 18:15:46,374,44,1", "t:2:1: error: 4 fields, the header has 3"},
        {azure + good + "\n" + good, "t:4:1: error: a row after blank line 3"},
        {azure + "1000-11-16 18:15:46,3,4\n9999-11-16 18:15:46,3,4", "t:3:1: error: timestamp too far from the first row's"},
        {azure, "t:1:1: error: the trace has no rows"},
    };
    for (const Case& c : cases) CHECK(first_line(failure(c.text)) == c.message);
}

TEST_CASE("hash ids become runs of token ids") {
    const std::string text = R"({"timestamp": 0, "input_length": 14, "output_length": 1, "hash_ids": [7, 8, 3, 4]})"
                             "\n"
                             R"({"timestamp": 0, "input_length": 14, "output_length": 1})"
                             "\n";
    const auto w = replay(text, {{}, 1, {}, {}}, {4});
    const auto a = test::drain(*w);
    REQUIRE(a.size() == 2);
    CHECK(a[0].prompt == std::vector<TokenRun>{{28, 8}, {12, 6}});
    CHECK(a[0].prompt_tokens == 14);
    CHECK(a[1].prompt.empty());
    CHECK(a[0].output_base != a[1].output_base);
}

TEST_CASE("limits and rate_scale of a replay") {
    const std::string text = row("0", R"(, "request_id": "a")") + row("1000") + row("1000") + row("3000");
    CHECK(test::drain(*replay(text, {{}, 1, 2, {}})).size() == 2);
    CHECK(test::drain(*replay(text, {{}, 1, {}, std::chrono::seconds(1)})).size() == 3);
    const auto slow = test::drain(*replay(text, {{}, 0.5, {}, {}}));
    REQUIRE(slow.size() == 4);
    CHECK(test::ns(slow[1]) == 2'000'000'000);
    CHECK(test::ns(slow[3]) == 6'000'000'000);
    CHECK(slow[0].external_id == "a");
    CHECK(slow[1].external_id.empty());
    // Rows past the limit are not looked at.
    CHECK(test::drain(*replay(row("0") + row("1") + "garbage", {{}, 1, 2, {}})).size() == 2);
}

TEST_CASE("jitter spreads a tick and the stream stays sorted") {
    std::string text;
    for (int i = 0; i < 300; ++i) text += row(std::to_string(i / 30 * 3000), ", \"priority\": " + std::to_string(i));
    const auto a = test::drain(*replay(text, {std::chrono::seconds(4), 1, {}, {}}));
    REQUIRE(a.size() == 300);
    std::vector<bool> seen(300);
    int overtaken = 0;
    double spread = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const auto index = static_cast<std::size_t>(a[i].priority);
        const std::int64_t late = test::ns(a[i]) - static_cast<std::int64_t>(index / 30) * 3'000'000'000;
        CHECK(late >= 0);
        CHECK(late < 4'000'000'000);
        spread += static_cast<double>(late) * 1e-9 / 300;
        CHECK(!seen[index]);
        seen[index] = true;
        if (i > 0) {
            CHECK(a[i].time >= a[i - 1].time);
            overtaken += a[i].priority < a[i - 1].priority;
        }
    }
    CHECK(overtaken > 50);
    CHECK(spread == doctest::Approx(2).epsilon(0.1));
}

TEST_CASE("a trace file, by the scenario") {
    const auto folder = std::filesystem::temp_directory_path() / "kvsim_trace_test";
    std::filesystem::create_directories(folder);
    // Longer than one chunk of the reader, so rows straddle its ends.
    constexpr int n = 20'000;
    {
        std::ofstream file(folder / "t.jsonl");
        for (int i = 0; i < n; ++i) file << row(std::to_string(i), ", \"zone\": 1");
    }
    config::Diagnostics diagnostics;
    const auto w =
        make_workload(test::workload_config("trace: {path: t.jsonl, format: mooncake, jitter: 1ms}"), 1, folder, diagnostics);
    REQUIRE(w);
    CHECK(diagnostics.ok());
    REQUIRE(diagnostics.warnings().size() == 1);
    CHECK(diagnostics.warnings()[0].find("key 'zone' is unknown and ignored") != std::string::npos);
    CHECK(test::drain(*w).size() == n);

    CHECK(test::workload_error("trace: {path: t.jsonl, format: moncake}") ==
          "t.yaml:1:32: error: unknown trace format 'moncake'; did you mean 'mooncake'?");
    CHECK(test::workload_error("trace: {path: /nowhere/t.jsonl}")
              .find("t.yaml:1:15: error: /nowhere/t.jsonl: cannot open the trace: No such file or directory") == 0);
    CHECK(test::workload_error("trace: {format: azure}").find("lacks the key 'path'") != std::string::npos);
    CHECK(test::workload_error("trace: {path: t.jsonl}\nprompt_tokens: 5").find("prompt_tokens does not go with trace") !=
          std::string::npos);
    std::ofstream(folder / "u.jsonl") << row("0");
    CHECK_THROWS_WITH_AS(
        static_cast<void>(open_trace(folder, "mooncake", {})),
        (folder.string() + ": error: a folder of mooncake files; only sessions and conversations are read from several")
            .c_str(),
        UserError);
    std::filesystem::create_directories(folder / "empty");
    CHECK_THROWS_WITH_AS(static_cast<void>(open_trace(folder / "empty", "", {})),
                         ((folder / "empty").string() + ": error: the folder holds no .json or .jsonl file").c_str(),
                         UserError);
    std::filesystem::remove_all(folder);
}
