#include "kvsim/base/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "kvsim/base/check.hpp"

namespace kvsim {

namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 18;
constexpr std::size_t direct_bytes = std::size_t{1} << 16;

[[noreturn]] void fail(const char* action, const std::filesystem::path& path, const std::string& reason) {
    throw UserError(std::string("cannot ") + action + " '" + path.string() + "': " + reason);
}

[[noreturn]] void fail_errno(const char* action, const std::filesystem::path& path, int error) {
    fail(action, path, std::generic_category().message(error));
}

bool is_special_path(const std::filesystem::path& path) {
    const std::string text = path.lexically_normal().string();
    return text.starts_with("/dev/") || text.starts_with("/proc/");
}

/// A short name of its own: NAME plus a suffix could exceed the longest allowed name.
std::filesystem::path temporary_name(const std::filesystem::path& folder) {
    static std::atomic<unsigned> count{0};
    return folder / (".kvsim-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp");
}

/// An open file, of a temporary name of its own in the folder of `path`. -1 and errno on failure.
int create_temporary(std::filesystem::path& path) {
    const std::filesystem::path folder = path.parent_path();
    int fd = -1;
    do {
        path = temporary_name(folder);
        fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST);
    return fd;
}

bool has_no_name(int fd) {
    struct stat status {};
    return ::fstat(fd, &status) == 0 && status.st_nlink == 0;
}

/// Names an unnamed file. Some systems make such files but do not link them: then by a copy. False and errno on failure.
bool give_name(int fd, std::filesystem::path& path) {
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    while (::linkat(AT_FDCWD, link.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0) {
        if (errno == EEXIST) {
            path = temporary_name(path.parent_path());
            continue;
        }
        const int copy = create_temporary(path);
        if (copy < 0) return false;
        struct stat status {};
        if (::fstat(fd, &status) == 0) static_cast<void>(::fchmod(copy, status.st_mode & 07777U));
        std::string block(buffer_bytes, '\0');
        off_t at = 0;
        ssize_t got = 0;
        bool good = true;
        while (good && (got = ::pread(fd, block.data(), block.size(), at)) > 0) {
            at += got;
            for (ssize_t done = 0; good && done < got;) {
                const ssize_t written = ::write(copy, block.data() + done, static_cast<std::size_t>(got - done));
                if (written < 0 && errno == EINTR) continue;
                good = written >= 0;
                done += written;
            }
        }
        const int error = errno;
        good = good && got == 0;
        const bool closed = ::close(copy) == 0 || errno == EINTR;
        if (!good) errno = error;
        return good && closed;
    }
    return true;
}

struct Descriptor {
    int fd;
    explicit Descriptor(int f) : fd(f) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

}  // namespace

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.fd < 0) fail_errno("read", path, errno);
    struct stat status {};
    if (::fstat(file.fd, &status) != 0) fail_errno("read", path, errno);
    if (S_ISDIR(status.st_mode)) fail_errno("read", path, EISDIR);

    std::size_t expected = 0;
    if (S_ISREG(status.st_mode)) {
        const auto size = static_cast<std::size_t>(status.st_size);
        if (size > max_bytes) fail("read", path, "it has more than " + std::to_string(max_bytes) + " bytes");
        expected = size;
    }
    // One byte more than expected shows the end without a second buffer; what has no size, or grows, goes on.
    std::string out(expected + 1, '\0');
    std::size_t filled = 0;
    while (true) {
        if (filled == out.size()) out.resize(filled + std::max(filled, std::size_t{4096}));
        const ssize_t got = ::read(file.fd, out.data() + filled, out.size() - filled);
        if (got < 0) fail_errno("read", path, errno);  // interrupted: the user's wish to stop
        if (got == 0) break;
        filled += static_cast<std::size_t>(got);
        if (filled > max_bytes) fail("read", path, "it has more than " + std::to_string(max_bytes) + " bytes");
    }
    out.resize(filled);
    return out;
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), target_(path_) {
    struct stat status {};
    const bool exists = ::stat(path_.c_str(), &status) == 0;
    if (exists && S_ISDIR(status.st_mode)) fail_errno("write", path_, EISDIR);
    if (is_special_path(path_) || (exists && !S_ISREG(status.st_mode))) {
        // Without O_NONBLOCK a pipe without a reader would hold the run up, perhaps for ever.
        fd_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);
        if (fd_ < 0 && errno == ENXIO) fail("write", path_, "nobody reads this pipe");
        if (fd_ < 0) fail_errno("write", path_, errno);
        ::fcntl(fd_, F_SETFL, ::fcntl(fd_, F_GETFL) & ~O_NONBLOCK);
        return;
    }
    if (path_.filename().empty()) fail("write", path_, "it names no file");
    if (exists) {
        std::error_code error;
        const std::filesystem::path resolved = std::filesystem::canonical(path_, error);
        if (!error) target_ = resolved;
        // A rename would replace even a write-protected file.
        if (::access(target_.c_str(), W_OK) != 0) fail_errno("write", path_, errno);
    }
    const std::filesystem::path parent = target_.parent_path().empty() ? std::filesystem::path(".") : target_.parent_path();
    struct stat folder {};
    if (::stat(parent.c_str(), &folder) != 0) {
        if (errno == ENOENT) fail("write", path_, "the folder '" + parent.string() + "' does not exist");
        fail_errno("write", path_, errno);
    }

    // Without a name until it is finished, where the system can: so a killed process leaves nothing behind.
    temporary_ = temporary_name(parent);
    fd_ = ::open(parent.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    if (fd_ < 0) fd_ = create_temporary(temporary_);
    if (fd_ < 0) fail_errno("write", path_, errno);
    if (exists) static_cast<void>(::fchmod(fd_, status.st_mode & 07777U));  // a courtesy; failing it loses nothing
}

AtomicFile::~AtomicFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
    KVSIM_CHECK(fd_ >= 0, "write after finish or commit");
    if (bytes.size() >= direct_bytes) {  // a writer with a buffer of its own
        flush();
        write_all(bytes);
        return;
    }
    buffer_ += bytes;
    if (buffer_.size() >= buffer_bytes) flush();
}

void AtomicFile::flush() {
    write_all(buffer_);
    buffer_.clear();
}

void AtomicFile::write_all(std::string_view rest) {
    while (!rest.empty()) {
        const ssize_t written = ::write(fd_, rest.data(), rest.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail_errno("write", path_, errno);
        rest.remove_prefix(static_cast<std::size_t>(written));
    }
}

void AtomicFile::finish() {
    KVSIM_CHECK(fd_ >= 0, "a file is finished once");
    flush();
    if (!temporary_.empty() && has_no_name(fd_) && !give_name(fd_, temporary_)) fail_errno("write", path_, errno);
    const int fd = std::exchange(fd_, -1);
    // Network file systems report a full disk only here.
    if (::close(fd) != 0 && errno != EINTR) fail_errno("write", path_, errno);
}

void AtomicFile::commit() {
    KVSIM_CHECK(!committed_, "commit after commit");
    if (fd_ >= 0) finish();
    committed_ = true;
    if (temporary_.empty()) return;
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail_errno("write", path_, errno);
    temporary_.clear();
}

}  // namespace kvsim
