#pragma once
// Whole-file reads, and writes that appear complete or not at all.

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace kvsim {

/// The file's bytes. Throws UserError naming the path and the system's reason (also for a directory).
std::string read_file(const std::filesystem::path& path);

/// Buffered writer to a temporary name beside `path`; commit() flushes, checks every error and renames over `path`.
/// Without commit() (an exception, an interrupted run) the destructor removes the temporary file and `path` is untouched.
/// Every failure (unwritable folder, disk full) throws UserError with the path and the system's reason.
class AtomicFile {
public:
    explicit AtomicFile(std::filesystem::path path);
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;
    ~AtomicFile();

    void write(std::string_view bytes);
    void commit();

private:
    void flush();
    std::filesystem::path path_;
    std::filesystem::path temporary_;
    int fd_ = -1;
    std::string buffer_;
};

}  // namespace kvsim
