#include "kvsim/report/writers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kvsim/base/check.hpp"
#include "sample_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

// Sets an environment variable for one scope.
struct Environment {
    std::string name;
    Environment(const char* n, const char* value) : name(n) { ::setenv(n, value, 1); }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;
    ~Environment() { ::unsetenv(name.c_str()); }
};

}  // namespace

TEST_CASE("csv fields are quoted only where RFC 4180 asks for it") {
    const auto quoted = [](std::string_view field) {
        std::string out;
        append_csv_field(out, field);
        return out;
    };
    CHECK(quoted("plain text") == "plain text");
    CHECK(quoted("") == "");
    CHECK(quoted("a,b") == "\"a,b\"");
    CHECK(quoted("say \"hi\"") == "\"say \"\"hi\"\"\"");
    CHECK(quoted("two\nlines") == "\"two\nlines\"");
    CHECK(quoted("cr\r") == "\"cr\r\"");
}

TEST_CASE("requests.csv: every cell") {
    const TemporaryFile file("requests.csv");
    Outcome o = sample_outcome();
    o.external_ids.set(1, "chat,7");
    o.classes.set(2, "long");
    o.sessions.set(0, "s\"1");
    o.requests[0].arrival = SimTime(SimDuration(1));
    o.requests[0].queue = SimDuration(1'500'000);
    o.requests[0].ttft = SimDuration(50'000'001);
    o.requests[0].e2e = SimDuration(150'000'005);
    o.requests[0].measured = false;
    o.requests[2].replica = 3;
    o.requests.push_back(o.requests[3]);
    o.requests[4].finish = FinishReason::unfinished;
    write_requests_csv(file.path, o, sample_info().slo);
    CHECK(file.text() ==
          "request_id,class,session_id,replica,arrival_s,prompt_tokens,output_tokens,cached_prompt_tokens,queue_ms,ttft_ms,"
          "tpot_ms,e2e_ms,preemptions,recomputed_tokens,finish_reason,slo_met,"
          "client_queue_ms,tenant,attempt,gave_up_after_ms,measured\n"
          "0,,\"s\"\"1\",0,0.000000001,100,11,0,1.5,50.000001,10,150.000005,0,0,length,1,,,,,0\n"
          "\"chat,7\",,,0,0.5,200,1,64,20,80,,80,0,0,length,1,,,,,1\n"
          "2,long,,3,1,300,31,0,140,200,43.333333,1500,2,310,length,0,,,,,1\n"
          "3,,,0,1.5,900,0,0,,,,,0,0,rejected,0,,,,,1\n"
          "4,,,0,1.5,900,0,0,,,,,0,0,,,,,,,1\n");
    write_requests_csv(file.path, sample_outcome(), {});
    CHECK(file.text().find("length,,,,,,1\n") != std::string::npos);  // no SLO, no answer
}

TEST_CASE("requests.csv: many rows with long texts pass the buffer unharmed") {
    const TemporaryFile file("many.csv");
    Outcome o;
    o.requests.assign(5000, sample_outcome().requests[2]);
    o.recomputed_tokens.add(4999, 310, 5000);
    for (RequestId i = 0; i < 5000; i += 7) o.external_ids.set(i, std::string(100 + i, 'x'));
    write_requests_csv(file.path, o, {});
    const std::string text = file.text();
    CHECK(std::count(text.begin(), text.end(), '\n') == 5001);
    CHECK(text.find("\n" + std::string(107, 'x') + ",,,0,1,300,") != std::string::npos);
    CHECK(text.find("\n4999,,,0,1,300,31,0,140,200,43.333333,1500,2,310,length,,,,,,1\n") != std::string::npos);
}

TEST_CASE("timeline.csv") {
    const TemporaryFile file("timeline.csv");
    Outcome o = sample_outcome();
    TimelineSample sample;
    sample.at = SimTime(ms(1500));
    sample.replica = 1;
    sample.running = 7;
    sample.waiting = 2;
    sample.kv_blocks_used = 33;
    sample.step = SimDuration(10'250'000);
    sample.batch_tokens = 105;
    sample.prefill_tokens = 100;
    sample.decode_tokens = 5;
    sample.preemptions = 1;
    sample.reserved_slots = 48;
    sample.internal_slots = 16;
    o.slots_per_block = 16;
    o.timeline = {sample, TimelineSample{}};
    write_timeline_csv(file.path, o);
    CHECK(file.text() ==
          "t_s,replica,running,waiting,kv_blocks_used,kv_usage,step_ms,batch_tokens,prefill_tokens,decode_tokens,preemptions,"
          "kv_token_share,kv_reserved_share,kv_internal_share,kv_external_share\n"
          "1.5,1,7,2,33,0.33,10.25,105,100,5,1,0.29,0.03,0.01,0.67\n"
          "0,0,0,0,0,0,0,0,0,0,0,0,0,0,1\n");
}

TEST_CASE("summary.csv: header, a row per run, quoting") {
    RunInfo info = sample_info();
    info.scenario = "a,b";
    const Summary s = summarize(info, sample_outcome());
    const std::vector<Summary> two{s, s};
    const std::string text = summary_csv(two);
    CHECK(std::count(text.begin(), text.end(), '\n') == 3);
    CHECK(text.starts_with("scenario,scenario_hash,kvsim_version,seed,"));
    CHECK(text.find("\n\"a,b\",0123456789abcdef,9.8.7,42,org/model-8B,H100,2,1,vllm-v1,fcfs,") != std::string::npos);
    CHECK(text.find("inf") == std::string::npos);
    CHECK(text.find("nan") == std::string::npos);
    const TemporaryFile file("summary.csv");
    write_summary_csv(file.path, two);
    CHECK(file.text() == text);
}

TEST_CASE("summary.json: the keys of vllm bench serve in its order, then kvsim") {
    const RunInfo info = sample_info();
    const Outcome o = sample_outcome();
    const std::string text = summary_json(info, o, summarize(info, o));
    const auto json = nlohmann::ordered_json::parse(text);
    std::string keys;
    for (const auto& item : json.items()) keys += item.key() + " ";
    CHECK(keys ==
          "date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration "
          "completed failed total_input_tokens total_output_tokens request_throughput request_goodput output_throughput "
          "total_token_throughput max_output_tokens_per_s max_concurrent_requests rtfx "
          "mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms p99_tpot_ms "
          "mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms median_e2el_ms std_e2el_ms p99_e2el_ms kvsim ");
    CHECK(text.find('\n') == std::string::npos);
    CHECK(text.starts_with(R"({"date": "19700101-000000", "endpoint_type": "kvsim", "backend": "kvsim", "label": null, )"));
    CHECK(text.find(R"("request_rate": 4.0, "burstiness": 1.0, "max_concurrency": null, "duration": 2.5, "completed": 3, )") !=
          std::string::npos);
    CHECK(json["model_id"] == "org/model-8B");
    CHECK(json["tokenizer_id"] == "org/model-8B");
    CHECK(json["p99_ttft_ms"].get<double>() == doctest::Approx(197.6));
    CHECK(json["std_ttft_ms"].get<double>() == doctest::Approx(64.807407));
    const auto& own = json["kvsim"];
    for (const Column& column : summary_columns()) CHECK(own.contains(std::string(column.name)));
    CHECK(own["concurrency"].is_null());
    CHECK(own["ttft_p99_ms"].get<double>() == doctest::Approx(197.6));
    CHECK(own["deviations"][0] == "max_num_seqs=8 (vllm-v1: 1024)");
    CHECK(own["derivation"].size() == 2);
    CHECK(own["warnings"].size() == 3);
    CHECK(own["slo"]["ttft_ms"] == 100.0);
    CHECK(own["definitions"].contains("percentile"));
}

TEST_CASE("summary.json: dates, rates and absent goodput") {
    RunInfo info = sample_info();
    const Outcome o = sample_outcome();
    const auto json = [&] { return nlohmann::json::parse(summary_json(info, o, summarize(info, o))); };
    {
        const Environment epoch("SOURCE_DATE_EPOCH", "1709210096");
        CHECK(json()["date"] == "20240229-123456");
    }
    {
        const Environment epoch("SOURCE_DATE_EPOCH", "yesterday");
        CHECK_THROWS_AS(json(), UserError);
    }
    info.request_rate = std::numeric_limits<double>::infinity();
    info.burstiness = std::numeric_limits<double>::infinity();
    info.max_concurrency = 8;
    info.slo = {};
    CHECK(json()["request_rate"] == "inf");
    CHECK(json()["burstiness"] == "inf");
    CHECK(json()["max_concurrency"] == 8);
    CHECK(json()["request_goodput"].is_null());
    info.request_rate.reset();  // a trace: what it offered
    CHECK(json()["request_rate"].get<double>() == doctest::Approx(4 / 1.5));
    info.scenario = "quote \" backslash \\ newline \n bell \x07";
    CHECK(json()["kvsim"]["scenario"] == info.scenario);
}
