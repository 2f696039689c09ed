// Reading traces: bytes per second and rows per second of files made here.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "kvsim/base/check.hpp"
#include "kvsim/model/trace.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "support.hpp"

namespace kvsim::bench {
namespace {

constexpr std::int64_t rows = 50'000;

/// Rows as in the Mooncake conversation trace: 24 hash ids on average.
std::string mooncake_text() {
    Stream stream(1, "bench");
    std::string text;
    std::int64_t next_id = 1;
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t blocks = uniform_int(stream.uniform(), 1, 47);
        text += R"({"timestamp": )" + std::to_string(row * 300) + R"(, "input_length": )" + std::to_string(blocks * 512 - 100) +
                R"(, "output_length": )" + std::to_string(uniform_int(stream.uniform(), 1, 700)) + R"(, "hash_ids": [0)";
        for (std::int64_t block = 1; block < blocks; ++block) text += ", " + std::to_string(next_id++);
        text += "]}\n";
    }
    return text;
}

std::string azure_text() {
    Stream stream(1, "bench");
    std::string text = "TIMESTAMP,ContextTokens,GeneratedTokens\n";
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t second = row / 20;
        char line[80];
        const int length = std::snprintf(
            line, sizeof line, "2023-11-16 18:%02d:%02d.%07d,%d,%d\n", static_cast<int>(second / 60 % 60),
            static_cast<int>(second % 60), static_cast<int>(row % 20 * 500'000),
            static_cast<int>(uniform_int(stream.uniform(), 1, 4000)), static_cast<int>(uniform_int(stream.uniform(), 1, 700)));
        text.append(line, static_cast<std::size_t>(length));
    }
    return text;
}

/// `header`, then `rows` lines of `line` (a printf format of row / 7 s, prompt and output tokens).
std::string rows_text(const char* header, const char* (*line)(char*, std::size_t, int, int, int)) {
    Stream stream(1, "bench");
    std::string text = header;
    for (std::int64_t row = 0; row < rows; ++row) {
        char buffer[160];
        const auto prompt = static_cast<int>(uniform_int(stream.uniform(), 1, 4000));
        text +=
            line(buffer, sizeof buffer, static_cast<int>(row), prompt, static_cast<int>(uniform_int(stream.uniform(), 1, 700)));
    }
    return text;
}

std::string burstgpt_text() {
    return rows_text("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
                     [](char* to, std::size_t size, int row, int prompt, int output) -> const char* {
                         std::snprintf(to, size, "%d,s%d,3.5,ChatGPT,%d,%d,%d,Conversation log\n", row / 7, row / 3, prompt,
                                       output, prompt + output);
                         return to;
                     });
}

std::string vidur_text() {
    return rows_text("arrived_at,num_prefill_tokens,num_decode_tokens\n",
                     [](char* to, std::size_t size, int row, int prompt, int output) -> const char* {
                         std::snprintf(to, size, "%d.%06d,%d,%d\n", row / 7, row % 7 * 142'857, prompt, output);
                         return to;
                     });
}

std::string llmservingsim_text() {
    return rows_text("", [](char* to, std::size_t size, int row, int prompt, int output) -> const char* {
        std::snprintf(to, size, "{\"input_toks\": %d, \"output_toks\": %d, \"arrival_time_ns\": %d000000}\n", prompt, output,
                      row + 1);
        return to;
    });
}

std::string sharegpt_text() {
    Stream stream(1, "bench");
    std::string text = "[\n";
    for (std::int64_t row = 0; row < rows; ++row) {
        const auto turn = [&](const char* from, std::int64_t most) {
            return std::string(R"({"from": ")") + from + R"(", "value": ")" +
                   std::string(static_cast<std::size_t>(uniform_int(stream.uniform(), 1, most)), 'x') + "\"}";
        };
        text += (row == 0 ? "{\"id\": \"" : ",\n{\"id\": \"") + std::to_string(row) + "\", \"conversations\": [" +
                turn("human", 800) + ", " + turn("gpt", 1600) + "]}";
    }
    return text + "]\n";
}

void read_trace(benchmark::State& state, const char* name, std::string (*make)()) {
    const std::string text = make();
    const std::filesystem::path path = scratch_file(name, text);
    TraceRow row;
    for (auto _ : state) {
        const auto reader = open_trace(path, "", TraceOptions{});
        std::int64_t read = 0;
        while (reader->next(row)) ++read;
        KVSIM_CHECK(read == rows, "every row is read");
    }
    state.SetItemsProcessed(state.iterations() * rows);
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK_CAPTURE(read_trace, mooncake, "mooncake.jsonl", mooncake_text)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_trace, azure, "azure.csv", azure_text)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_trace, burstgpt, "burstgpt.csv", burstgpt_text)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_trace, vidur, "vidur.csv", vidur_text)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_trace, llmservingsim, "llmservingsim.jsonl", llmservingsim_text)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(read_trace, sharegpt, "sharegpt.json", sharegpt_text)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvsim::bench
