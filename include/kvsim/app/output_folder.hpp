#pragma once
// The folder results go to, made and tried before the run so that a wrong one costs no simulation.

#include <filesystem>
#include <vector>

namespace kvsim::app {

/// Creates `path` with its parents and checks that a file can be written there. Folders it created and that are still
/// empty when it is destroyed are removed again. Throws UserError with the path and the system's reason.
class OutputFolder {
public:
    explicit OutputFolder(std::filesystem::path path);
    OutputFolder(OutputFolder&&) = default;
    OutputFolder& operator=(OutputFolder&&) = delete;
    ~OutputFolder();

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
    std::vector<std::filesystem::path> created_;  ///< children first
};

}  // namespace kvsim::app
