#include "cli.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace kvsim::test {
namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "kvsim-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

fs::path TemporaryFolder::write(const fs::path& name, std::string_view text) const {
    const fs::path path = path_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
}

std::vector<std::string> TemporaryFolder::files() const {
    std::vector<std::string> out;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path_)) {
        if (entry.is_regular_file()) out.push_back(entry.path().lexically_relative(path_).string());
    }
    std::sort(out.begin(), out.end());
    return out;
}

std::string slurp(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
}

Finished run_program(const std::vector<std::string>& args, const Launch& launch) {
    const TemporaryFolder streams;
    const fs::path out_path = launch.output.empty() ? streams.path() / "out" : launch.output;
    const fs::path err_path = streams.path() / "err";
    std::vector<std::string> words{KVSIM_BINARY};
    words.insert(words.end(), args.begin(), args.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);

    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child == 0) {
        const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
        const int out = open(out_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        const int err = open(err_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (in < 0 || out < 0 || err < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0) _exit(126);
        if (chdir(launch.folder.c_str()) != 0) _exit(126);
        execv(argv[0], argv.data());
        _exit(127);
    }
    int status = 0;
    bool sent = false;
    while (true) {
        const bool poll = launch.interrupt_when && !sent;
        const pid_t done = waitpid(child, &status, poll ? WNOHANG : 0);
        if (done == child) break;
        if (done < 0 && errno != EINTR) throw std::runtime_error("waitpid failed");
        if (poll && launch.interrupt_when()) {
            kill(child, launch.signal);
            sent = true;
        } else if (poll) {
            usleep(1000);
        }
    }
    Finished finished;
    finished.exit = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (launch.output.empty()) finished.out = slurp(out_path);
    finished.err = slurp(err_path);
    return finished;
}

Finished run_in(const TemporaryFolder& folder, const std::vector<std::string>& args) {
    Launch launch;
    launch.folder = folder.path();
    return run_program(args, launch);
}

std::string small_scenario(std::string_view more) {
    return "name: small\n"
           "model: meta-llama/Llama-3.1-8B-Instruct\n"
           "engine: {preset: vllm-v1, max_model_len: 4096, max_num_seqs: 16, max_num_batched_tokens: 512, "
           "num_gpu_blocks_override: 400, block_size: 16}\n"
           "step_time: {model: affine, c0: 5ms, per_token: 20us, per_sequence: 10us, per_context_token: 1us}\n"
           "workload:\n"
           "  requests: 60\n"
           "  arrivals: {process: poisson, rate: 5/s}\n"
           "  prompt_tokens: {distribution: lognormal, p50: 200, p90: 800, max: 2000}\n"
           "  output_tokens: {distribution: lognormal, p50: 40, p90: 120, max: 400}\n" +
           std::string(more);
}

}  // namespace kvsim::test
