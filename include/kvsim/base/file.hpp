#pragma once
// Whole-file reads, and writes that appear complete or not at all.

#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>

namespace kvsim {

/// The file's bytes. Throws UserError naming the path and the system's reason (also for a directory), and when the file has
/// more than `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes = std::numeric_limits<std::size_t>::max());

/// Buffered writer to a temporary file beside `path`; commit() flushes, checks every error and renames over `path`.
/// Without commit() (an exception, an interrupted run) the destructor removes the temporary file and `path` is untouched.
/// Until finish() or commit() it has no name and goes with the process, however that ends; on file systems without unnamed
/// files (NFS) a killed process leaves .kvsim-PID-N.tmp.
/// A symbolic link is followed; a device, a pipe or anything under /dev or /proc is written in place, as it cannot be renamed
/// over. Every failure (missing or unwritable folder, disk full) throws UserError with the path and the system's reason.
class AtomicFile {
public:
    explicit AtomicFile(std::filesystem::path path);
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;
    ~AtomicFile();

    void write(std::string_view bytes);
    /// Everything is written and checked but not yet visible: several files that belong together are finished before the first
    /// is committed. No write() follows.
    void finish();
    void commit();

private:
    void flush();
    void write_all(std::string_view bytes);
    std::filesystem::path path_;       ///< as given, for messages
    std::filesystem::path target_;     ///< links resolved
    std::filesystem::path temporary_;  ///< empty when written in place, and after commit()
    int fd_ = -1;                      ///< -1 after finish()
    bool committed_ = false;
    std::string buffer_;
};

}  // namespace kvsim
