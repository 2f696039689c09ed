#pragma once
// Runs the built program as a user does, without a shell.

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim::test {

/// A folder of its own, removed with everything in it.
class TemporaryFolder {
public:
    TemporaryFolder();
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    ~TemporaryFolder();
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    /// Writes a file below the folder and returns its path.
    std::filesystem::path write(const std::filesystem::path& name, std::string_view text) const;
    /// Every regular file below it, relative, sorted.
    [[nodiscard]] std::vector<std::string> files() const;

private:
    std::filesystem::path path_;
};

struct Finished {
    int exit = -1;  ///< 128 + signal if it was killed
    std::string out;
    std::string err;
};

struct Launch {
    std::filesystem::path folder = ".";    ///< the working directory
    std::filesystem::path output;          ///< where standard output goes; empty: captured
    std::function<bool()> interrupt_when;  ///< polled every millisecond; once true, `signal` is sent
    int signal = 0;
};

Finished run_program(const std::vector<std::string>& args, const Launch& launch = {});
Finished run_in(const TemporaryFolder& folder, const std::vector<std::string>& args);

std::string slurp(const std::filesystem::path& path);

/// A scenario that runs in milliseconds and needs no catalogue GPU: affine step time, a fixed number of blocks.
std::string small_scenario(std::string_view more = "");

}  // namespace kvsim::test
