#include <zlib.h>

#include <fstream>

#include "kvsim/model/trace_filters.hpp"
#include "unit/workload/support.hpp"

using namespace kvsim;

namespace {

struct Read {
    std::string format;
    std::vector<TraceRow> rows;
    std::vector<std::string> notes;
};

Read read(const std::string& text, const TraceOptions& options = {}, const std::string& format = "") {
    const auto reader = open_trace_text("t", text, format, options);
    Read out;
    out.format = reader->format();
    TraceRow row;
    while (reader->next(row)) out.rows.push_back(row);
    out.notes = reader->notes();
    return out;
}

std::string failure(const std::string& text, const TraceOptions& options = {}, const std::string& format = "") {
    try {
        static_cast<void>(read(text, options, format));
    } catch (const UserError& e) {
        const std::string message = e.what();
        return message.substr(0, message.find('\n'));
    }
    return "accepted";
}

std::int64_t at(const TraceRow& row) {
    return row.time.time_since_epoch().count();
}

std::string gzip(const std::string& text) {
    z_stream z{};
    REQUIRE(deflateInit2_(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY, ZLIB_VERSION, static_cast<int>(sizeof z)) ==
            Z_OK);
    std::string in = text;
    std::string out(deflateBound(&z, in.size()) + 64, '\0');
    z.next_in = reinterpret_cast<Bytef*>(in.data());
    z.avail_in = static_cast<uInt>(in.size());
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(out.size());
    REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
    out.resize(z.total_out);
    deflateEnd(&z);
    return out;
}

constexpr const char* session = R"({"id": "x", "models": ["m"], "block_size": 64, "hash_id_scope": "local",
 "requests": [
  {"t": 0.5, "type": "n", "model": "m", "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 1.0, "stop": null},
  {"type": "nested", "t": 1.0, "status": "completed", "duration_ms": 7, "requests": [{"t": 2.5, "in": 64, "out": 3, "hash_ids": [1]}]},
  {"t": 1.25, "type": "s", "model": "m", "in": 200, "out": 0, "hash_ids": [1, 2, 3, 9]}
 ], "totals": {"n": 3}})";

}  // namespace

TEST_CASE("BurstGPT, both layouts: columns by name, failed requests left out") {
    const Read old = read(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
        "5,ChatGPT,472,18,490,Conversation log\r\n"
        "45,GPT-4,417,0,417,Conversation log\r\n"
        "118,GPT-4,1087,230,1317,API log\r\n");
    CHECK(old.format == "burstgpt");
    REQUIRE(old.rows.size() == 2);
    CHECK(at(old.rows[0]) == 5'000'000'000);
    CHECK(old.rows[0].input_length == 472);
    CHECK(old.rows[0].output_length == 18);
    CHECK(old.rows[1].request_class == "GPT-4");
    CHECK(old.notes == std::vector<std::string>{"1 failed requests (0 tokens) are left out"});

    const Read later = read(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5.25,\"a,\"\"b\",3.2,ChatGPT,472,18,490,Conversation log\n");
    REQUIRE(later.rows.size() == 1);
    CHECK(at(later.rows[0]) == 5'250'000'000);
    CHECK(later.rows[0].input_length == 472);
    CHECK(later.rows[0].session_id == "a,\"b");
    CHECK(failure("Timestamp,Request tokens,Response tokens\n5,x,1") == "t:2:3: error: request tokens must be a whole number");
    CHECK(failure("Timestamp,Request tokens,Response tokens\n5,1,1\n4,1,1") ==
          "t:3:1: error: timestamp before the previous row's; rows must be sorted");
    CHECK(failure("Timestamp,Request tokens,Response tokens,Timestamp\n") ==
          "t:1:1: error: the header has the column 'timestamp' twice");
}

TEST_CASE("Azure 2024: a zone, timestamps with and without fraction, columns in any order") {
    const Read r = read(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n"
        "2024-05-10 00:00:01+00:00,2399,6\n"
        "2024-05-10 02:00:01.5+02:00,1,1\n");
    REQUIRE(r.rows.size() == 3);
    CHECK(at(r.rows[1]) == 990'070'000);
    CHECK(at(r.rows[2]) == 1'490'070'000);
    CHECK(read("GeneratedTokens,ContextTokens,TIMESTAMP\n5,2162,2024-05-10 00:00:00\n").rows.at(0).input_length == 2162);
}

TEST_CASE("a column tenant is read whatever the CSV format") {
    for (const char* text : {"arrived_at,Tenant,num_prefill_tokens,num_decode_tokens\n0.0,acme,374,44\n1,,3,4\n",
                             "Timestamp,Request tokens,Response tokens,TENANT\n0,3,4,acme\n1,3,4,\n",
                             "tenant,TIMESTAMP,ContextTokens,GeneratedTokens\n\"acme\",2024-05-10 00:00:00,3,4\n"
                             ",2024-05-10 00:00:01,3,4\n"}) {
        const Read r = read(text);
        CAPTURE(r.format);
        REQUIRE(r.rows.size() == 2);
        CHECK(r.rows[0].tenant == "acme");
        CHECK(r.rows[1].tenant.empty());
    }
    CHECK(failure("tenant,num_prefill_tokens,num_decode_tokens,tenant\n") ==
          "t:1:1: error: the header has the column 'tenant' twice");
}

TEST_CASE("Vidur, with and without arrival times") {
    const Read r = read("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n4.314579,396.0,109\n");
    CHECK(r.format == "vidur");
    REQUIRE(r.rows.size() == 2);
    CHECK(at(r.rows[1]) == 4'314'579'000);
    CHECK(r.rows[1].input_length == 396);
    const auto untimed = open_trace_text("t", "num_prefill_tokens,num_decode_tokens,pd_ratio\n374,44,8.5\n", "", {});
    CHECK(untimed->times() == TraceTimes::none);
}

TEST_CASE("ShareGPT: the first two turns, characters per token or a count field") {
    const std::string text = R"([
  {"id": "a", "conversations": [{"from": "human", "value": "0123456789é"}, {"from": "gpt", "value": "12345"}, {"from": "human"}]},
  {"id": "b", "conversations": [{"from": "human", "value": "alone"}]},
  {"id": 7, "conversations": [{"from": "human", "value": "p", "tokens": 90}, {"from": "gpt", "value": "", "tokens": 5}]}
])";
    const Read r = read(text);
    CHECK(r.format == "sharegpt");
    REQUIRE(r.rows.size() == 1);
    CHECK(r.rows[0].input_length == 3);  // 11 characters
    CHECK(r.rows[0].output_length == 2);
    CHECK(r.rows[0].request_id == "a");
    CHECK(r.notes == std::vector<std::string>{"2 entries without two turns of text are left out"});

    TraceOptions one;
    one.characters_per_token = 1;
    CHECK(read(text, one).rows[0].input_length == 11);

    TraceOptions counted;
    counted.prompt_tokens_field = counted.output_tokens_field = "tokens";
    CHECK(failure(text, counted) == "t:2:3: error: missing key 'tokens'");
    const Read c = read(text.substr(0, 2) + text.substr(text.find("  {\"id\": 7")), counted);
    REQUIRE(c.rows.size() == 1);
    CHECK(c.rows[0].input_length == 90);
    CHECK(c.rows[0].output_length == 5);

    TraceOptions entry;
    entry.prompt_tokens_field = "np";
    entry.output_tokens_field = "no";
    const Read e = read(R"({"np": 12, "conversations": [{"value": "x"}, {"value": "y"}], "no": 34})", entry, "sharegpt");
    CHECK(e.rows.at(0).input_length == 12);
    CHECK(e.rows.at(0).output_length == 34);
    const std::string wrong = R"([{"conversations": [{"value": "x"}, {"value": 5}]}])";
    CHECK(failure(wrong) == "t:1:" + std::to_string(wrong.find("5}") + 1) + ": error: a turn's value must be text, not '5'");
    CHECK(failure(R"([{"conversations": [{"value": "x"}, {"value": "y"}]})").find("the array has no end") != std::string::npos);
}

TEST_CASE("texts that begin alike share the blocks they have in common") {
    const std::string common(16 * 4, 'c');  // one block of 16 tokens at 4 characters each
    const auto line = [](const std::string& prompt) { return "{\"prompt\": \"" + prompt + "\", \"output_tokens\": 9}\n"; };
    const Read r = read(line(common + std::string(64, 'x')) + line(common + std::string(70, 'y')) + line(std::string(64, 'x')));
    CHECK(r.format == "vllm_custom");
    REQUIRE(r.rows.size() == 3);
    CHECK(r.rows[0].block_size == 16);
    REQUIRE(r.rows[0].hash_ids.size() == 2);
    REQUIRE(r.rows[1].hash_ids.size() == 2);
    CHECK(r.rows[1].input_length == 34);
    CHECK(r.rows[0].hash_ids[0] == r.rows[1].hash_ids[0]);
    CHECK(r.rows[0].hash_ids[1] != r.rows[1].hash_ids[1]);
    CHECK(r.rows[2].hash_ids[0] != r.rows[0].hash_ids[1]);  // the same text elsewhere is another block
    CHECK(read("{\"prompt\": \"abc\"}").rows.at(0).output_length == 256);
    CHECK(failure("{\"prompt\": \"\"}") == "t:1:12: error: the prompt must not be empty");
}

TEST_CASE("timed_trace: seconds, 16 tokens a block, the multiplier") {
    const std::string qwen =
        R"({"chat_id": 1, "timestamp": 0.25, "input_length": 40, "output_length": 8, "hash_ids": [9, 4, 7]})";
    const Read r = read(qwen);
    CHECK(r.format == "timed_trace");
    CHECK(at(r.rows.at(0)) == 250'000'000);
    CHECK(r.rows[0].block_size == 16);
    const std::string mooncake =
        R"({"timestamp": 27482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 2366]})";
    TraceOptions milliseconds;
    milliseconds.sec_multiplier = 0.001;
    milliseconds.trace_block_size = 512;
    CHECK(at(read(mooncake, milliseconds, "timed_trace").rows.at(0)) == 27'482'000'000);
    milliseconds.sec_multiplier = 0.5;
    CHECK(at(read(mooncake, milliseconds, "timed_trace").rows.at(0)) == 13'741'000'000'000);
}

TEST_CASE("guidellm: seconds from the first row, either name of a length") {
    const Read r = read(R"({"timestamp": 1700000000.5, "prompt_tokens": 100, "output_tokens": 20})"
                        "\n"
                        R"({"timestamp": 1700000001.75, "prompt_tokens_count": 101, "output_tokens_count": 21})");
    CHECK(r.format == "guidellm");
    REQUIRE(r.rows.size() == 2);
    CHECK(at(r.rows[0]) == 0);
    CHECK(at(r.rows[1]) == 1'250'000'000);
    CHECK(r.rows[1].output_length == 21);
    CHECK(read(R"({"timestamp": 3, "input_length": 5, "output_length": 6})", {}, "guidellm").rows.at(0).input_length == 5);
    CHECK(failure(R"({"timestamp": 3, "prompt_tokens": 5})") == "t:1:1: error: missing key 'output_length'");
}

TEST_CASE("LLMServingSim: requests, token ids, sessions") {
    std::string ids = "1";
    for (int i = 2; i <= 40; ++i) ids += ", " + std::to_string(i);
    const Read r =
        read(R"({"input_toks": 40, "output_toks": 20, "arrival_time_ns": 1000, "input_tok_ids": [)" + ids +
             "], \"output_tok_ids\": [1]}\n" +
             R"({"input_toks": 35, "output_toks": 20, "arrival_time_ns": 1000, "input_tok_ids": [)" +
             ids.substr(0, ids.find(", 36")) + "]}\n" +
             R"({"session_id": "s", "arrival_time_ns": 2000, "sub_requests": [)"
             R"({"input_toks": 10, "output_toks": 5, "tool_duration_ns": 700}, {"input_toks": 30, "output_toks": 6}]})");
    CHECK(r.format == "llmservingsim");
    REQUIRE(r.rows.size() == 4);
    CHECK(at(r.rows[0]) == 1000);
    CHECK(r.rows[0].hash_ids.size() == 2);
    CHECK(r.rows[1].hash_ids == r.rows[0].hash_ids);
    CHECK(r.rows[2].session_id == "s");
    CHECK(!r.rows[2].think);
    CHECK(r.rows[3].think == std::optional(SimDuration(700)));
    CHECK(r.rows[3].output_length == 6);
    CHECK(failure(R"({"arrival_time_ns": 1, "input_toks": 4})") == "t:1:1: error: missing key 'output_toks'");
    CHECK(failure(R"({"arrival_time_ns": 1, "sub_requests": [{"input_toks": 4}]})") ==
          "t:1:41: error: missing key 'output_toks'");
}

TEST_CASE("WEKA sessions: floor rule, nested requests in time order, hash ids of their own") {
    const Read r = read(session);
    CHECK(r.format == "weka");
    REQUIRE(r.rows.size() == 3);
    CHECK(at(r.rows[0]) == 500'000'000);
    CHECK(at(r.rows[1]) == 1'250'000'000);
    CHECK(at(r.rows[2]) == 2'500'000'000);
    CHECK(r.rows[0].block_size == 64);
    CHECK(r.rows[0].hash_ids.size() == 2);
    CHECK(r.rows[1].hash_ids.size() == 3);  // the partial fourth is dropped
    CHECK(r.rows[2].hash_ids[0] == r.rows[0].hash_ids[0]);
    CHECK(r.rows[1].output_length == 1);
    CHECK(r.notes == std::vector<std::string>{"1 requests without output are taken as having one token of it"});

    const Read two = read("[" + std::string(session) + ",\n" + session + "]");
    REQUIRE(two.rows.size() == 6);
    CHECK(two.rows[3].hash_ids[0] != two.rows[0].hash_ids[0]);
    std::string global = session;
    global.replace(global.find("local"), 5, "global");
    const Read shared = read(global + "\n" + global);
    CHECK(shared.rows.at(3).hash_ids[0] == shared.rows.at(0).hash_ids[0]);

    std::string broken = session;
    broken.replace(broken.find("[1, 2]"), 6, "[1]");
    CHECK(failure(broken) == "t:3:3: error: 1 hash_ids for 130 tokens; block_size 64 makes 2");
    broken = session;
    CHECK(failure(broken.substr(0, 200)).find("a value without its end; is the file truncated?") != std::string::npos);

    // Prompts: the ids' tokens, then a tail of one's own.
    const auto w = make_replay(merge_sessions(open_trace_text("t", session, "", {}), nullptr), {{}, 1, {}, {}}, 1);
    const auto a = test::drain(*w);
    REQUIRE(a.size() == 3);
    REQUIRE(a[0].prompt.size() == 2);
    CHECK(a[0].prompt[0].count == 128);
    CHECK(a[0].prompt[1].count == 2);
    CHECK(a[2].prompt.size() == 1);
    CHECK(a[2].prompt[0].first == a[0].prompt[0].first);
}

TEST_CASE("sessions start when arrivals say and mix in time") {
    const auto folder = std::filesystem::temp_directory_path() / "kvsim_weka_test";
    std::filesystem::create_directories(folder);
    for (const char* name : {"b.json", "a.json", "ignored.txt"}) std::ofstream(folder / name) << session;
    std::ofstream(folder / "c.json.gz") << gzip(session);
    const auto w = test::workload("arrivals: {process: constant, rate: 1/s}\ntrace: {path: " + folder.string() + "}");
    const auto a = test::drain(*w);
    std::vector<std::int64_t> times;
    for (const Arrival& arrival : a) times.push_back(test::ns(arrival) / 1'000'000);
    CHECK(times == std::vector<std::int64_t>{1500, 2250, 2500, 3250, 3500, 3500, 4250, 4500, 5500});
    std::filesystem::remove_all(folder);
}

TEST_CASE("gzip: by content, several members, damage") {
    const std::string text = R"({"timestamp": 1, "input_length": 9, "output_length": 2})"
                             "\n";
    const std::string packed = gzip(text);
    CHECK(read(packed).rows.size() == 1);
    CHECK(read(packed + packed).rows.size() == 2);
    CHECK(failure(packed.substr(0, packed.size() - 5)) == "t: error: the gzip data end early; is the file truncated?");
    std::string broken = packed;
    broken[packed.size() / 2] = static_cast<char>(~broken[packed.size() / 2]);
    CHECK(failure(broken).find("t: error: the gzip data are damaged") == 0);
    CHECK(failure(packed + "x") == "t: error: the gzip data are followed by something else");
}

TEST_CASE("arrivals give an untimed trace its times, and replace recorded ones") {
    const auto folder = std::filesystem::temp_directory_path() / "kvsim_untimed_test";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "v.csv") << "num_prefill_tokens,num_decode_tokens\n374,44\n5,6\n7,8\n";
    std::ofstream(folder / "m.jsonl") << R"({"timestamp": 9000, "input_length": 9, "output_length": 2})";
    const std::string path = folder.string();
    const auto a = test::drain(
        *test::workload("arrivals: {process: constant, rate: 2/s}\nrate_scale: 2\ntrace: {path: " + path + "/v.csv}"));
    REQUIRE(a.size() == 3);
    CHECK(test::ns(a[0]) == 250'000'000);
    CHECK(test::ns(a[2]) == 750'000'000);
    CHECK(a[0].prompt_tokens == 374);
    CHECK(test::drain(*test::workload("max_concurrency: 2\ntrace: {path: " + path + "/v.csv}")).size() == 3);
    CHECK(test::workload_error("trace: {path: " + path + "/v.csv}") ==
          "t.yaml:1:8: error: the trace (vidur) has no times: workload needs arrivals or max_concurrency");
    CHECK(test::workload_error("arrivals: all_at_once\ntrace: {path: " + path + "/v.csv, start: 1s}")
              .find("start and end cut a trace by its recorded times") != std::string::npos);
    CHECK(test::ns(test::drain(*test::workload("arrivals: {process: constant, rate: 1/s}\ntrace: {path: " + path +
                                               "/m.jsonl}"))[0]) == 1'000'000'000);
    const auto stretched = test::drain(*test::workload(
        "requests: 3\narrivals: {process: poisson, rate: 2/s, rescale: true}\ntrace: {path: " + path + "/v.csv}"));
    CHECK(test::ns(stretched[2]) == 1'500'000'000);
    std::filesystem::remove_all(folder);
}
