// Facts of the published traces: Mooncake FAST'25 and Azure 2023.

#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "kvsim/app/selftest.hpp"
#include "kvsim/model/trace_stats.hpp"

namespace kvsim::selftest {
namespace {

struct Fact {
    const char* name;
    double known;
    double tolerance;
    double (*of)(const TraceStats&);
};

double hits(const TraceStats& s, std::int64_t capacity) {
    for (const PrefixHits& h : s.hits) {
        if (h.capacity == capacity) return static_cast<double>(h.hits);
    }
    return -1;
}

struct File {
    const char* file;
    std::vector<Fact> facts;
};

std::vector<File> files() {
    const auto rows = [](const TraceStats& s) { return static_cast<double>(s.rows); };
    const auto blocks = [](const TraceStats& s) { return static_cast<double>(s.blocks); };
    const auto all_hits = [](const TraceStats& s) { return hits(s, 0); };
    const auto hits_100k = [](const TraceStats& s) { return hits(s, 100'000); };
    const auto hits_50k = [](const TraceStats& s) { return hits(s, 50'000); };
    const auto hits_30k = [](const TraceStats& s) { return hits(s, 30'000); };
    const auto hits_10k = [](const TraceStats& s) { return hits(s, 10'000); };
    const auto hits_1k = [](const TraceStats& s) { return hits(s, 1'000); };
    const auto input_mean = [](const TraceStats& s) { return s.input.mean; };
    const auto input_p50 = [](const TraceStats& s) { return s.input.p50; };
    const auto input_p90 = [](const TraceStats& s) { return s.input.p90; };
    const auto output_mean = [](const TraceStats& s) { return s.output.mean; };
    const auto output_p50 = [](const TraceStats& s) { return s.output.p50; };
    return {
        {"conversation_trace.jsonl",
         {{"requests", 12'031, 0, rows},
          {"input tokens", 144'793'823, 0, [](const TraceStats& s) { return static_cast<double>(s.input.total); }},
          {"output tokens", 4'122'048, 0, [](const TraceStats& s) { return static_cast<double>(s.output.total); }},
          {"blocks", 288'500, 0, blocks},
          {"unique blocks", 182'790, 0, [](const TraceStats& s) { return static_cast<double>(s.unique_blocks); }},
          {"prefix hits, unlimited cache", 105'710, 0, all_hits},
          {"prefix hits, 100k blocks", 104'924, 0, hits_100k},
          {"prefix hits, 50k blocks", 102'290, 0, hits_50k},
          {"prefix hits, 30k blocks", 93'967, 0, hits_30k},
          {"prefix hits, 10k blocks", 60'921, 0, hits_10k},
          {"prefix hits, 1k blocks", 12'831, 0, hits_1k}}},
        {"synthetic_trace.jsonl",
         {{"requests", 3'993, 0, rows},
          {"blocks", 121'877, 0, blocks},
          {"prefix hits, unlimited cache", 77'953, 0, all_hits},
          {"prefix hits, 100k blocks", 77'953, 0, hits_100k},
          {"prefix hits, 50k blocks", 77'953, 0, hits_50k},
          {"prefix hits, 30k blocks", 76'077, 0, hits_30k},
          {"prefix hits, 10k blocks", 51'614, 0, hits_10k},
          {"prefix hits, 1k blocks", 10'050, 0, hits_1k}}},
        {"AzureLLMInferenceTrace_conv.csv",
         {{"requests", 19'366, 0, rows},
          {"context mean", 1154.7, 0.05, input_mean},
          {"context p50", 1020, 0, input_p50},
          {"context p90", 2734.5, 0, input_p90},
          {"output mean", 211.1, 0.05, output_mean},
          {"output p50", 129, 0, output_p50}}},
        {"AzureLLMInferenceTrace_code.csv",
         {{"requests", 8'819, 0, rows},
          {"context mean", 2047.8, 0.05, input_mean},
          {"context p50", 1469, 0, input_p50},
          {"output mean", 27.9, 0.05, output_mean},
          {"output p50", 13, 0, output_p50}}},
    };
}

}  // namespace

void add_trace_facts(std::vector<Case>& all, const std::filesystem::path& traces, std::vector<std::string>& missing) {
    for (const File& f : files()) {
        const std::filesystem::path path = traces / f.file;
        std::error_code error;
        if (traces.empty() || !std::filesystem::exists(path, error)) {
            missing.emplace_back(f.file);
            continue;
        }
        const auto stats = std::make_shared<std::optional<TraceStats>>();  // read once, by the first case
        for (const Fact& fact : f.facts) {
            all.push_back({fmt::format("{}: {}", f.file, fact.name), fact.known, fact.tolerance, 1,
                           [path, stats, of = fact.of](std::uint64_t) {
                               if (!*stats) *stats = trace_stats(*open_trace(path, "", {}));
                               return of(**stats);
                           }});
        }
    }
}

}  // namespace kvsim::selftest
