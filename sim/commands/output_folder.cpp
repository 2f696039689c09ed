#include "kvsim/app/output_folder.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>

#include "kvsim/base/check.hpp"

namespace kvsim::app {
namespace fs = std::filesystem;

OutputFolder::OutputFolder(fs::path path) : path_(std::move(path)) {
    const auto fail = [this](const std::string& reason) {
        throw UserError("error: cannot write results to " + path_.string() + ": " + reason);
    };
    std::vector<fs::path> missing;
    std::error_code error;
    for (fs::path p = fs::absolute(path_).lexically_normal(); !p.empty() && !fs::exists(p, error); p = p.parent_path()) {
        // A trailing separator gives an empty last component.
        if (p.has_filename()) missing.push_back(p);
        if (p == p.root_path()) break;
    }
    fs::create_directories(path_, error);
    if (error) fail(error.message());
    if (!fs::is_directory(path_, error)) fail("not a folder");
    created_ = std::move(missing);

    std::string probe = (path_ / ".kvsim-XXXXXX").string();
    const int fd = mkstemp(probe.data());
    if (fd < 0) fail(std::generic_category().message(errno));
    close(fd);
    unlink(probe.c_str());
}

OutputFolder::~OutputFolder() {
    std::error_code ignored;
    for (const fs::path& p : created_) fs::remove(p, ignored);
}

}  // namespace kvsim::app
