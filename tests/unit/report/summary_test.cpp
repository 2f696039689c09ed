#include "kvsim/report/summary.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "kvsim/base/check.hpp"
#include "kvsim/engine/request_totals.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "kvsim/report/output_analysis.hpp"
#include "kvsim/report/quantile.hpp"
#include "kvsim/report/render.hpp"
#include "kvsim/report/windows.hpp"
#include "sample_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

std::map<std::string, std::string> cells(const Summary& s) {
    std::map<std::string, std::string> out;
    for (const Column& c : summary_columns()) out[std::string(c.name)] = cell_text(c.get(s), c.unit);
    return out;
}

bool has_warning(const Summary& s, std::string_view part) {
    for (const std::string& w : s.warnings) {
        if (w.find(part) != std::string::npos) return true;
    }
    return false;
}

}  // namespace

TEST_CASE("summary: every column of a run computed by hand") {
    const std::map<std::string, std::string> expected{
        {"scenario", "sample"},
        {"scenario_hash", "0123456789abcdef"},
        {"kvsim_version", "9.8.7"},
        {"seed", "42"},
        {"model", "org/model-8B"},
        {"gpu", "H100"},
        {"tensor_parallel_size", "2"},
        {"replicas", "1"},
        {"preset", "vllm-v1"},
        {"scheduling_policy", "fcfs"},
        {"kv_policy", "paged_prefix"},
        {"preemption", "recompute"},
        {"step_time_model", "constant"},
        {"block_size", "16"},
        {"num_gpu_blocks", "101"},
        {"kv_bytes_per_token", "65536"},
        {"max_model_len", "800"},
        {"max_num_seqs", "8"},
        {"max_num_batched_tokens", "512"},
        {"requests", "4"},
        {"completed", "3"},
        {"rejected", "1"},
        {"timed_out", "0"},
        {"prompt_tokens_mean", "200"},  // the rejected one's 900 do not count
        {"prompt_tokens_p50", "200"},
        {"prompt_tokens_p99", "298"},  // rank 1.98
        {"output_tokens_mean", "14.333333333333334"},
        {"output_tokens_p50", "11"},
        {"output_tokens_p99", "30.6"},
        {"offered_rate_req_s", "2.6666666666666665"},  // 4 / 1.5 s
        {"concurrency", ""},
        {"duration_s", "2.5"},
        {"request_throughput_req_s", "1.2"},
        {"output_throughput_tok_s", "17.2"},        // 43 / 2.5
        {"total_token_throughput_tok_s", "257.2"},  // 643 / 2.5
        {"goodput_req_s", "0.8"},
        {"slo_attainment", "0.5"},  // 2 of 4
        {"ttft_mean_ms", "110"},
        {"ttft_p50_ms", "80"},
        {"ttft_p90_ms", "176"},  // 80 + 0.8 * 120
        {"ttft_p95_ms", "188"},
        {"ttft_p99_ms", "197.6"},
        {"tpot_mean_ms", "26.666667"},  // of 10 and 43.333333
        {"tpot_p50_ms", "26.666667"},
        {"tpot_p90_ms", "40"},
        {"tpot_p95_ms", "41.666666"},
        {"tpot_p99_ms", "43"},
        {"itl_mean_ms", "0.00125"},
        {"itl_p50_ms", "0.001"},
        {"itl_p90_ms", "0.002"},
        {"itl_p95_ms", "0.002"},
        {"itl_p99_ms", "0.002"},
        {"e2e_mean_ms", "576.666667"},
        {"e2e_p50_ms", "150"},
        {"e2e_p90_ms", "1230"},
        {"e2e_p95_ms", "1365"},
        {"e2e_p99_ms", "1473"},
        {"queue_mean_ms", "53.333333"},
        {"queue_p50_ms", "20"},
        {"queue_p90_ms", "116"},
        {"queue_p95_ms", "128"},
        {"queue_p99_ms", "137.6"},
        {"preemptions", "2"},
        {"preempted_requests", "1"},
        {"recomputed_tokens", "310"},
        {"swapped_tokens", "0"},
        {"recompute_time_share", "0.25"},
        {"prefix_hit_rate", "0.1"},
        {"resume_hit_rate", "0.05"},
        {"kv_usage_mean", "0.25"},
        {"kv_usage_peak", "0.8"},
        {"kv_token_share", "0.625"},
        {"kv_reserved_share", "0.125"},
        {"kv_internal_share", "0.05"},
        {"kv_external_share", "0.2"},
        {"batch_size_mean", "1.5"},
        {"batch_tokens_mean", "25"},
        {"steps", "40"},
        {"bound_seats", "0.1"},
        {"bound_token_budget", "0.05"},
        {"bound_kv_blocks", "0.2"},
        {"bound_no_waiting", "0.65"},
        {"load", "1.3333333333333333"},  // 2 finished in 1 s of waiting: 2.67 / 2
        {"verdict", "stable"},
        {"capacity_req_s", ""},
        {"deviations", "max_num_seqs=8 (vllm-v1: 1024)"},
        {"cancelled", "0"},
        {"retries", "0"},
        {"wasted_tokens", "0"},
        {"wasted_output_tokens", "0"},
        {"client_queue_mean_ms", ""},
        {"client_queue_p99_ms", ""},
        {"served_rate_req_s", "1.3333333333333333"},  // 2 of 4 by the last arrival
        {"unmeasured_requests", "0"},
        {"steady_state", ""},  // three requests tell nothing, nor have they intervals
        {"queue_full", "0"},
        {"kv_sharing_saved", ""},  // its requests have one output each
        {"failed", "0"},
    };
    const Summary s = summarize(sample_info(), sample_outcome());
    auto found = cells(s);
    CHECK(std::erase_if(found, [](const auto& cell) { return cell.first.ends_with("_ci95") && cell.second.empty(); }) == 25);
    CHECK(found.size() == expected.size());
    for (const auto& cell : expected) {
        CAPTURE(cell.first);
        REQUIRE(found.contains(cell.first));
        CHECK(found.at(cell.first) == cell.second);
    }
    CHECK(has_warning(s, "a warning of the configuration"));
    CHECK(has_warning(s, "p99 1000, p95 200, p90 100"));
}

TEST_CASE("summary: load is the offered rate over a known capacity") {
    RunInfo info = sample_info();
    info.capacity_req_s = 4;
    const Summary s = summarize(info, sample_outcome());
    REQUIRE(s.offered_rate_req_s);
    CHECK(s.capacity_req_s == 4.0);
    CHECK(*s.load == doctest::Approx(*s.offered_rate_req_s / 4));
}

TEST_CASE("summary: the columns stand in the order of the contract") {
    std::string names;
    for (const Column& c : summary_columns()) names += std::string(c.name) + ",";
    std::string expected =
        "scenario,scenario_hash,kvsim_version,seed,model,gpu,tensor_parallel_size,replicas,preset,scheduling_policy,kv_policy,"
        "preemption,step_time_model,block_size,num_gpu_blocks,kv_bytes_per_token,max_model_len,max_num_seqs,"
        "max_num_batched_tokens,requests,completed,rejected,timed_out,prompt_tokens_mean,prompt_tokens_p50,prompt_tokens_p99,"
        "output_tokens_mean,output_tokens_p50,output_tokens_p99,offered_rate_req_s,concurrency,duration_s,"
        "request_throughput_req_s,output_throughput_tok_s,total_token_throughput_tok_s,goodput_req_s,slo_attainment,";
    for (const char* metric : {"ttft", "tpot", "itl", "e2e", "queue"}) {
        for (const char* statistic : {"mean", "p50", "p90", "p95", "p99"})
            expected += std::string(metric) + "_" + statistic + "_ms,";
    }
    expected +=
        "preemptions,preempted_requests,recomputed_tokens,swapped_tokens,recompute_time_share,prefix_hit_rate,resume_hit_rate,"
        "kv_usage_mean,kv_usage_peak,kv_token_share,kv_reserved_share,kv_internal_share,kv_external_share,batch_size_mean,"
        "batch_tokens_mean,steps,bound_seats,bound_token_budget,bound_kv_blocks,bound_no_waiting,load,verdict,capacity_req_s,"
        "deviations,cancelled,retries,wasted_tokens,wasted_output_tokens,client_queue_mean_ms,client_queue_p99_ms,"
        "served_rate_req_s,unmeasured_requests,steady_state,";
    for (const char* metric : {"ttft", "tpot", "itl", "e2e", "queue"}) {
        for (const char* statistic : {"mean", "p50", "p90", "p95", "p99"})
            expected += std::string(metric) + "_" + statistic + "_ms_ci95,";
    }
    expected += "queue_full,kv_sharing_saved,failed,";
    CHECK(names == expected);
}

TEST_CASE("summary: what vllm bench serve would see") {
    const ClientFigures c = summarize(sample_info(), sample_outcome()).client;
    CHECK(c.num_prompts == 4);
    CHECK(c.completed == 3);
    CHECK(c.failed == 1);
    CHECK(c.total_input_tokens == 600);
    CHECK(c.total_output_tokens == 43);
    CHECK(c.request_throughput == doctest::Approx(1.2));
    REQUIRE(c.request_goodput);
    CHECK(*c.request_goodput == doctest::Approx(0.8));
    CHECK(c.ttft.standard_deviation == doctest::Approx(64.807407));  // population: sqrt(4200)
    CHECK(c.max_concurrent_requests == 3);
}

TEST_CASE("summary: warm-up is cut from the summary and kept for the client") {
    Outcome o = sample_outcome();
    o.requests[0].measured = false;
    o.itl_all = o.itl;
    o.itl = LogLinearHistogram();
    o.itl.add(1500, 30);
    const Summary s = summarize(sample_info(), o);
    CHECK(s.requests == 3);
    CHECK(s.completed == 2);
    CHECK(s.ttft.mean == doctest::Approx(140));
    CHECK(s.itl.p50 == doctest::Approx(0.0015));
    CHECK(s.duration_s == 2.0);  // from the first measured arrival
    CHECK(s.request_throughput_req_s == 1.0);
    CHECK(s.client.num_prompts == 4);
    CHECK(s.client.completed == 3);
    CHECK(s.client.duration_s == 2.5);
    CHECK(s.client.ttft.mean == doctest::Approx(110));
    CHECK(s.client.itl.mean == doctest::Approx(0.00125));
}

TEST_CASE("summary: cells that do not apply are empty") {
    RunInfo info = sample_info();
    info.slo = {};
    info.engine.enable_prefix_caching = false;
    info.kv_bytes_per_token = 0;
    info.gpu = "";
    const auto found = cells(summarize(info, Outcome{}));
    for (const char* name :
         {"gpu", "kv_bytes_per_token", "prompt_tokens_mean", "offered_rate_req_s", "concurrency", "request_throughput_req_s",
          "goodput_req_s", "slo_attainment", "ttft_mean_ms", "itl_p99_ms", "recompute_time_share", "prefix_hit_rate",
          "resume_hit_rate", "kv_usage_mean", "kv_usage_peak", "kv_token_share", "batch_size_mean", "bound_seats", "load"}) {
        CAPTURE(name);
        CHECK(found.at(name) == "");
    }
    CHECK(found.at("requests") == "0");
    CHECK(found.at("duration_s") == "0");
    CHECK(found.at("verdict") == "stable");

    Outcome o = sample_outcome();
    CHECK(cells(summarize(info, o)).at("prefix_hit_rate") == "");  // hits counted, but caching is off
    info.engine.enable_prefix_caching = true;
    o.counters.hit_tokens_first = 0;
    CHECK(cells(summarize(info, o)).at("prefix_hit_rate") == "0");
    o.counters.tokens_resume = 0;
    CHECK(cells(summarize(info, o)).at("resume_hit_rate") == "");
}

TEST_CASE("summary: offered rate and load without an arrival window") {
    Outcome o = sample_outcome();
    o.last_arrival = o.first_arrival;  // all at once
    Summary s = summarize(sample_info(), o);
    CHECK_FALSE(s.offered_rate_req_s);
    CHECK_FALSE(s.load);
    o.integrals.any_waiting = ms(100);  // 4 % of the run: the idle share decides
    s = summarize(sample_info(), o);
    REQUIRE(s.load);
    CHECK(*s.load == doctest::Approx(0.8));
    o = sample_outcome();
    o.integrals.finished_while_waiting = 0;
    CHECK_FALSE(summarize(sample_info(), o).load);
}

TEST_CASE("summary: load counts the capacity of all replicas") {
    Outcome o = sample_outcome();
    o.replicas = 2;
    // Each replica has 1 s with waiting requests and finishes 2 in it: the two together can do 4 a second.
    o.integrals.bound = {ms(1000), ms(500), ms(250), ms(3250)};
    o.integrals.any_waiting = ms(2000);
    o.integrals.finished_while_waiting = 4;
    const Summary s = summarize(sample_info(), o);
    REQUIRE(s.load);
    CHECK(*s.load == doctest::Approx(4 / 1.5 / 4));
    CHECK(s.kv_usage_mean == doctest::Approx(0.125));
}

TEST_CASE("summary: a load above 1 beside a stable run is explained") {
    const auto explained = [](double capacity) {
        RunInfo info = sample_info();
        info.capacity_req_s = capacity;
        const Summary s = summarize(info, sample_outcome());
        REQUIRE(s.verdict == "stable");
        REQUIRE(s.offered_rate_req_s);
        CHECK(*s.load == doctest::Approx(*s.offered_rate_req_s / capacity));
        return std::count_if(s.warnings.begin(), s.warnings.end(), [](const std::string& w) {
            return w.find("of a stable run") != std::string::npos && w.find("all are offered at once") != std::string::npos;
        });
    };
    const double offered = summarize(sample_info(), sample_outcome()).offered_rate_req_s.value();
    CHECK(explained(offered / 1.6) == 1);
    CHECK(explained(offered / 1.04) == 0);
    CHECK(explained(offered * 2) == 0);
}

TEST_CASE("summary: verdicts") {
    Outcome o = sample_outcome();
    o.counters.waiting_at_last_arrival = 11;  // seats are 8, so more than max(10, 8)
    Summary s = summarize(sample_info(), o);
    CHECK(s.verdict == "overloaded");
    CHECK(has_warning(s, "overloaded:"));
    Outcome burst = o;
    burst.last_arrival = burst.first_arrival;
    CHECK(has_warning(summarize(sample_info(), burst), "all requests arrive at once"));
    o.counters.waiting_at_last_arrival = 10;
    CHECK(summarize(sample_info(), o).verdict == "stable");
    o.counters.waiting_at_last_arrival = 100;
    o.counters.completed_by_last_arrival = 4;
    CHECK(summarize(sample_info(), o).verdict == "stable");

    o = sample_outcome();
    o.integrals.bound = {ms(1251), ms(0), ms(0), ms(1249)};
    s = summarize(sample_info(), o);
    CHECK(s.verdict == "saturated");
    CHECK(has_warning(s, "TTFT near saturation"));
    o.integrals.bound = {ms(1250), ms(0), ms(0), ms(1250)};
    CHECK(summarize(sample_info(), o).verdict == "stable");
    o.stall_report = "replica 0: ...";
    CHECK(has_warning(summarize(sample_info(), o), "stalled"));
}

TEST_CASE("summary: a run that turns a good share away is overloaded, one that loses a handful is not") {
    const auto with = [](FinishReason reason, std::size_t count, SimDuration queue, std::int64_t full = 0) {
        Outcome o = sample_outcome();
        const RequestRecord good = o.requests[0];
        o.requests.assign(1000, good);
        for (std::size_t i = 0; i < count; ++i) {
            RequestRecord& r = o.requests[i * 7 % 1000];
            r.finish = reason;
            r.queue = queue;
            r.ttft = r.e2e = SimDuration(-1);
        }
        o.counters.queue_full = full;
        o.counters.arrivals = o.counters.completed_by_last_arrival = 1000;
        return summarize(sample_info(), o);
    };
    const SimDuration not_there(-1);
    CHECK(with(FinishReason::timed_out, 50, ms(1)).verdict == "stable");
    const Summary late = with(FinishReason::timed_out, 51, ms(1));
    CHECK(late.verdict == "overloaded");
    CHECK(late.turns_away);
    CHECK(has_warning(late, "overloaded: 5.1 % of the requests were turned away or gave up (0 found the queue full, 51 timed"));
    CHECK(with(FinishReason::rejected, 50, not_there, 50).verdict == "stable");
    CHECK(with(FinishReason::rejected, 51, not_there, 51).verdict == "overloaded");
    // Their length is no matter of the load.
    for (const FinishReason reason : {FinishReason::rejected, FinishReason::failed}) {
        const Summary s = with(reason, 300, not_there);
        CHECK(s.verdict == "stable");
        CHECK(s.lost == 300);
        CHECK(has_warning(s, "30 % of the requests are too long"));
    }
    // A client that loses interest while it is served does so under any load.
    CHECK(with(FinishReason::cancelled, 300, ms(1)).verdict == "stable");
    CHECK(with(FinishReason::cancelled, 300, ms(1)).lost == 0);
    CHECK(with(FinishReason::cancelled, 300, not_there).verdict == "overloaded");
    Outcome few = sample_outcome();
    few.counters.queue_full = 1;  // a quarter of four
    CHECK(summarize(sample_info(), few).verdict == "stable");
}

TEST_CASE("summary: the sample size decides which percentiles are warned about") {
    Outcome o = sample_outcome();
    const RequestRecord one = o.requests[0];
    o.requests.assign(999, one);
    CHECK(has_warning(summarize(sample_info(), o), "needed are: p99 1000"));
    o.requests.assign(1000, one);
    CHECK(has_warning(summarize(sample_info(), o),
                      "the ITL percentiles rest on 40 gaps; needed are: p99 1000, p95 200, p90 100"));
    o.itl.add(1500, 960);
    CHECK_FALSE(has_warning(summarize(sample_info(), o), "percentiles rest"));
    for (std::size_t i = 0; i < 801; ++i) o.requests[i].output_tokens = 1;
    CHECK(has_warning(summarize(sample_info(), o),
                      "the TPOT percentiles rest on 199 measured requests with more than one output"));
    o.requests.assign(150, one);
    CHECK(has_warning(summarize(sample_info(), o), "needed are: p99 1000, p95 200"));
    for (RequestRecord& request : o.requests) request.output_tokens = 1;
    CHECK_FALSE(has_warning(summarize(sample_info(), o), "the TPOT percentiles"));
}

TEST_CASE("summary: percentiles from a histogram are close to the exact ones") {
    RunInfo info = sample_info();
    info.exact_percentiles = false;
    const Summary s = summarize(info, sample_outcome());
    CHECK(s.ttft.mean == doctest::Approx(110));
    CHECK(s.ttft.p90 == doctest::Approx(176).epsilon(0.0005));
    CHECK(s.e2e.p99 == doctest::Approx(1473).epsilon(0.0005));
}

TEST_CASE("summary: a histogram's percentiles are within 2^-11 of the exact ones, whatever the law of the latencies") {
    Stream stream(5, "laws");
    for (int law = 0; law < 5; ++law) {
        CAPTURE(law);
        Outcome o = sample_outcome();
        const RequestRecord one = o.requests[0];
        o.requests.assign(20'000, one);
        double drift = 1;
        for (RequestRecord& r : o.requests) {
            const double u = stream.uniform();
            drift += 9.0 / 20'000;
            const double at[] = {lognormal_quantile(u, 18, 1), exponential_quantile(u, 3e8), 1e6 + 1e9 * u,
                                 drift * lognormal_quantile(u, 17, 1), u < 0.98 ? 2e7 : 1e9 * u};
            r.queue = SimDuration(0);
            r.ttft = SimDuration(static_cast<std::int64_t>(at[law]) + 1);
            r.e2e = 3 * r.ttft;
            r.output_tokens = 5;
        }
        RunInfo info = sample_info();
        const Summary exact = summarize(info, o);
        info.exact_percentiles = false;
        const Summary binned = summarize(info, o);
        for (const auto column : {&Summary::ttft, &Summary::e2e, &Summary::tpot}) {
            const Distribution& a = exact.*column;
            const Distribution& b = binned.*column;
            CHECK(b.count == a.count);
            CHECK(b.min == a.min);
            CHECK(b.max == a.max);
            CHECK(b.mean == doctest::Approx(a.mean).epsilon(1e-14));
            CHECK(b.standard_deviation == doctest::Approx(a.standard_deviation).epsilon(2e-3));
            for (const auto p : {&Distribution::p50, &Distribution::p90, &Distribution::p95, &Distribution::p99})
                CHECK(std::abs(b.*p - a.*p) <= a.*p * (0x1p-11 + 1e-12));
        }
    }
}

TEST_CASE("summary: figures and intervals are those of the columns, however many requests there are") {
    Stream stream(7, "columns");
    // The last law has batches of one value each that share a bin: where intervals end cannot be told from the bins.
    for (const std::size_t n : std::initializer_list<std::size_t>{19, 25, 41, 1000, 8192, 8193, 30000}) {
        for (int law = 0; law < 5; ++law) {
            CAPTURE(n);
            CAPTURE(law);
            Outcome o = sample_outcome();
            const RequestRecord one = o.requests[0];
            o.requests.assign(n, one);
            std::vector<std::int64_t> queue, ttft, e2e, tpot;
            for (std::size_t i = 0; i < n; ++i) {
                RequestRecord& r = o.requests[i];
                const double u = stream.uniform();
                const double part = static_cast<double>(i) / static_cast<double>(n);
                const double at[] = {lognormal_quantile(u, 18, 1), exponential_quantile(u, 3e6) * (1 + 3 * part), 5e6,
                                     i % 400 < 200 ? lognormal_quantile(u, 17, 1) : 2e9 * u,
                                     1e6 + (static_cast<int>(part * 20) % 2)};
                r.queue = SimDuration(static_cast<std::int64_t>(at[law]));
                r.ttft = 2 * r.queue + SimDuration(i % 3);
                r.output_tokens = i % 5 == 0 ? 1 : static_cast<std::int32_t>(2 + i % 7);
                r.e2e = r.output_tokens == 1 ? r.ttft : 3 * r.ttft;
                r.measured = i % 11 != 3;
                r.finish = i % 13 == 4 ? FinishReason::timed_out : FinishReason::length;
                if (!r.measured || !completed(r)) continue;
                queue.push_back(r.queue.count());
                ttft.push_back(r.ttft.count());
                e2e.push_back(r.e2e.count());
                if (r.output_tokens > 1) tpot.push_back(time_per_output_token(r)->count());
            }
            const Summary s = summarize(sample_info(), o);
            const auto check = [](const std::vector<std::int64_t>& column, const Distribution& d,
                                  const DistributionInterval& ci) {
                const std::vector<double> at = quantiles(column, std::vector<double>{0.5, 0.9, 0.95, 0.99, 0, 1});
                REQUIRE(d.count == static_cast<std::int64_t>(column.size()));
                CHECK(std::vector<double>{d.p50, d.p90, d.p95, d.p99, d.min, d.max} ==
                      std::vector<double>{at[0] / 1e6, at[1] / 1e6, at[2] / 1e6, at[3] / 1e6, at[4] / 1e6, at[5] / 1e6});
                double sum = 0;
                for (const std::int64_t value : column) sum += static_cast<double>(value);
                CHECK(d.mean == doctest::Approx(sum / static_cast<double>(column.size()) / 1e6).epsilon(1e-12));
                const Confidence c =
                    confidence(column, {std::floor(at[0]), std::floor(at[1]), std::floor(at[2]), std::floor(at[3])});
                const auto same = [](const std::optional<Interval>& a, const std::optional<Interval>& b) {
                    return a.has_value() == b.has_value() && (!a || (a->low == b->low / 1e6 && a->high == b->high / 1e6));
                };
                CHECK(same(ci.mean, c.mean));
                CHECK(same(ci.p50, c.quantile[0]));
                CHECK(same(ci.p90, c.quantile[1]));
                CHECK(same(ci.p95, c.quantile[2]));
                CHECK(same(ci.p99, c.quantile[3]));
            };
            check(queue, s.queue, s.queue_ci95);
            check(ttft, s.ttft, s.ttft_ci95);
            check(e2e, s.e2e, s.e2e_ci95);
            check(tpot, s.tpot, s.tpot_ci95);
        }
    }
}

TEST_CASE("slo: limits are inclusive, TPOT is not rounded, only judged requests count") {
    config::SloConfig slo;
    RequestRecord r = request(ms(0), 10, 4, ms(1), ms(10), SimDuration(10'000'031));
    CHECK(slo_met(r, slo) == std::nullopt);
    slo.tpot = SimDuration(10);  // 31 ns over 3 gaps is above 10 ns, although it rounds to it
    CHECK(time_per_output_token(r) == SimDuration(10));
    CHECK(slo_met(r, slo) == false);
    slo.tpot = SimDuration(11);
    CHECK(slo_met(r, slo) == true);
    slo.ttft = ms(10);
    slo.queue = ms(1);
    slo.e2e = SimDuration(10'000'031);
    CHECK(slo_met(r, slo) == true);
    slo.queue = SimDuration(999'999);
    CHECK(slo_met(r, slo) == false);
    slo.queue.reset();
    slo.e2e = ms(10);
    CHECK(slo_met(r, slo) == false);

    slo = {};
    slo.tpot = SimDuration(1);
    r.output_tokens = 1;
    r.e2e = r.ttft;
    CHECK_FALSE(time_per_output_token(r));
    CHECK(slo_met(r, slo) == true);  // TPOT 0
    for (const FinishReason reason : {FinishReason::unfinished, FinishReason::cancelled}) {
        r.finish = reason;
        CHECK(slo_met(r, slo) == std::nullopt);
    }
    for (const FinishReason reason : {FinishReason::timed_out, FinishReason::failed}) {
        r.finish = reason;
        CHECK(slo_met(r, slo) == false);
    }
}

TEST_CASE("summary: what the engine gives up is counted and misses the SLO, of all and of its class") {
    Outcome o = sample_outcome();
    o.requests[3].finish = FinishReason::failed;
    o.counters.rejected = 0;
    o.counters.dropped = 1;
    o.classes = {{0, "a"}, {1, "a"}, {2, "b"}, {3, "b"}};
    const Summary s = summarize(sample_info(), o);
    CHECK(s.failed == 1);
    CHECK(s.rejected == 0);
    CHECK(s.lost == 1);
    CHECK(s.slo_attainment == 0.5);  // of four, as with a rejected one
    REQUIRE(s.classes.size() == 2);
    CHECK(s.classes[0].failed == 0);
    CHECK(s.classes[1].failed == 1);
    CHECK(s.classes[1].attainment.all == 0.0);
    const std::string text = render(Format::table, sample_info(), o, s);
    CHECK(text.find("0 timed out, 1 failed;") != std::string::npos);
    CHECK(text.find("not finished") == std::string::npos);
    const std::string windows = windows_csv(sample_info(), o);
    CHECK(windows.substr(0, windows.find('\n')).ends_with(",failed"));
}

TEST_CASE("summary: a record that contradicts itself is a bug, not a figure") {
    Outcome o = sample_outcome();
    o.requests[0].e2e = ms(1);  // before its first token
    CHECK_THROWS_AS(summarize(sample_info(), o), InternalError);
}

TEST_CASE("summary: classes are judged by their own limits, attainment by metric, itl_p99") {
    RunInfo info = sample_info();
    Outcome o;
    RequestRecord r;
    r.queue = std::chrono::milliseconds(10);
    r.ttft = std::chrono::milliseconds(100);
    r.e2e = std::chrono::milliseconds(1100);
    r.prompt_tokens = 10;
    r.output_tokens = 11;
    r.finish = FinishReason::length;
    o.requests.assign(4, r);
    o.requests[1].ttft = std::chrono::milliseconds(300);
    o.requests[2].finish = FinishReason::timed_out;
    o.requests[3].finish = FinishReason::cancelled;
    o.end = o.last_arrival = SimTime(std::chrono::seconds(2));
    o.classes = {{0, "chat"}, {1, "chat"}, {2, "batch"}, {3, "batch"}};
    o.itl_p99 = {std::chrono::milliseconds(150), std::chrono::milliseconds(90), SimDuration(-1), SimDuration(-1)};
    info.slo = {};
    info.class_slos["chat"].ttft = std::chrono::milliseconds(200);
    info.class_slos["chat"].itl_p99 = std::chrono::milliseconds(100);
    info.class_slos["batch"].e2e = std::chrono::seconds(5);
    const Summary s = summarize(info, o);
    REQUIRE(s.classes.size() == 2);
    const ClassSummary& batch = s.classes[0];
    const ClassSummary& chat = s.classes[1];
    CHECK(chat.name == "chat");
    CHECK(chat.completed == 2);
    CHECK(chat.attainment.ttft == 0.5);     // the second is late
    CHECK(chat.attainment.itl_p99 == 0.5);  // the first stutters
    CHECK(chat.attainment.all == 0.0);
    CHECK(!chat.attainment.e2e);
    CHECK(batch.timed_out == 1);
    CHECK(batch.cancelled == 1);
    CHECK(batch.attainment.all == 0.0);  // the time-out; a cancelled request is not judged
    CHECK(s.slo_attainment == 0.0);
    CHECK(s.cancelled == 1);
    info.class_slos["chat"].itl_p99.reset();
    CHECK(summarize(info, o).slo_attainment == doctest::Approx(1.0 / 3));
    CHECK(summarize(info, o).classes[1].goodput_req_s == doctest::Approx(1 / 1.1));
}
