#include "support.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "kvsim/base/file.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/engine/simulation.hpp"

namespace kvsim::bench {
namespace {

namespace fs = std::filesystem;

constexpr auto scenario = R"(name: speed
model: meta-llama/Llama-3.1-8B-Instruct
hardware: {gpu: H100-SXM-80GB}
engine: {preset: vllm-v1, max_num_seqs: 256, enable_prefix_caching: false}
workload:
  requests: 20000
  arrivals: {process: poisson, rate: 40/s}
  prompt_tokens: {distribution: lognormal, p50: 400, p90: 1000}
  output_tokens: {distribution: lognormal, p50: 150, p90: 380}
output: {requests: false, timeline: false}
)";

class Scratch {
public:
    Scratch() : path_(fs::temp_directory_path() / ("kvsim-bench-" + std::to_string(getpid()))) {
        fs::create_directories(path_);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    [[nodiscard]] const fs::path& path() const { return path_; }

private:
    fs::path path_;
};

[[noreturn]] void fail(const config::Diagnostics& diagnostics) {
    for (const std::string& error : diagnostics.errors()) std::fprintf(stderr, "%s\n", error.c_str());
    std::abort();
}

}  // namespace

config::Value yaml(const std::string& text) {
    config::Diagnostics diagnostics;
    config::Value value = config::parse_yaml(text, "benchmark", diagnostics);
    if (!diagnostics.ok()) fail(diagnostics);
    return value;
}

const fs::path& scratch() {
    static const Scratch folder;
    return folder.path();
}

fs::path scratch_file(const std::string& name, const std::string& text) {
    const fs::path path = scratch() / name;
    AtomicFile file(path);
    file.write(text);
    file.commit();
    return path;
}

app::Prepared prepared(const std::vector<std::string>& sets) {
    static const fs::path file = scratch_file("speed.yaml", scenario);
    config::Diagnostics diagnostics;
    app::Prepared p = app::prepare(file, sets, diagnostics);
    if (!diagnostics.ok()) fail(diagnostics);
    return p;
}

Outcome finished_run(std::int64_t requests) {
    const app::Prepared p = prepared({"workload.requests=" + std::to_string(requests)});
    return simulate(p.options, *p.step_time, *p.router, *p.workload);
}

}  // namespace kvsim::bench
