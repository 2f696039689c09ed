#include "kvsim/app/output_folder.hpp"

#include <unistd.h>

#include <cerrno>
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
    std::string probe;
    int fd = -1;
    // Another run that fails takes away the empty folders it made, perhaps between our two calls.
    for (int attempt = 0; fd < 0 && attempt < 10; ++attempt) {
        fs::create_directories(path_, error);
        if (error == std::errc::no_such_file_or_directory) continue;
        if (error) fail(error.message());
        if (fs::exists(path_, error) && !fs::is_directory(path_, error)) fail("not a folder");
        probe = (path_ / ".kvsim-XXXXXX").string();
        fd = mkstemp(probe.data());
        if (fd < 0 && errno != ENOENT) fail(std::generic_category().message(errno));
    }
    if (fd < 0) fail(std::generic_category().message(ENOENT));
    created_ = std::move(missing);
    close(fd);
    unlink(probe.c_str());
}

OutputFolder::~OutputFolder() {
    std::error_code ignored;
    for (const fs::path& p : created_) fs::remove(p, ignored);
}

}  // namespace kvsim::app
