#include "byte_source.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kvsim/base/check.hpp"

namespace kvsim {

namespace {
constexpr std::size_t chunk = std::size_t{1} << 18;

bool is_gzip(const char* bytes, std::size_t count) {
    return count >= 2 && bytes[0] == '\x1F' && bytes[1] == '\x8B';
}
}  // namespace

struct ByteSource::Inflater {
    Inflater() {
        constexpr int gzip_only = 16 + MAX_WBITS;
        KVSIM_CHECK(inflateInit2_(&stream, gzip_only, ZLIB_VERSION, static_cast<int>(sizeof stream)) == Z_OK, "zlib starts");
    }
    Inflater(const Inflater&) = delete;
    Inflater& operator=(const Inflater&) = delete;
    ~Inflater() { inflateEnd(&stream); }
    z_stream stream{};
    bool between = false;  ///< a member has ended; another one or the end follows
};

ByteSource::ByteSource(const std::filesystem::path& path) : name_(path.string()) {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw UserError(name_ + ": error: cannot open the trace: " + std::strerror(errno));
}

ByteSource::ByteSource(std::string name, std::string bytes)
    : name_(std::move(name)), in_(std::move(bytes)), in_end_(in_.size()) {}

ByteSource::~ByteSource() {
    if (fd_ >= 0) ::close(fd_);
}

std::size_t ByteSource::raw(char* to, std::size_t capacity) {
    if (fd_ < 0) return 0;
    const ssize_t got = ::read(fd_, to, capacity);  // interrupted: the user's wish to stop
    if (got < 0) throw UserError(name_ + ": error: cannot read the trace: " + std::strerror(errno));
    return static_cast<std::size_t>(got);
}

std::size_t ByteSource::read(char* to, std::size_t capacity) {
    if (!started_) {
        started_ = true;
        if (fd_ >= 0) {
            in_.resize(chunk);
            // A pipe may give one byte at a time; the magic has two.
            while (in_end_ < 2) {
                const std::size_t got = raw(in_.data() + in_end_, in_.size() - in_end_);
                if (got == 0) break;
                in_end_ += got;
            }
        }
        if (is_gzip(in_.data(), in_end_)) inflater_ = std::make_unique<Inflater>();
    }
    if (inflater_) return inflate(to, capacity);
    if (in_begin_ == in_end_) return raw(to, capacity);
    const std::size_t count = std::min(capacity, in_end_ - in_begin_);
    std::memcpy(to, in_.data() + in_begin_, count);
    in_begin_ += count;
    return count;
}

std::size_t ByteSource::inflate(char* to, std::size_t capacity) {
    z_stream& z = inflater_->stream;
    const auto room = static_cast<uInt>(std::min<std::size_t>(capacity, std::size_t{1} << 30));
    z.next_out = reinterpret_cast<Bytef*>(to);
    z.avail_out = room;
    while (z.avail_out == room) {
        if (in_end_ - in_begin_ < 2 && fd_ >= 0) {  // two, so that the next member's magic is never split
            std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
            in_end_ -= in_begin_;
            in_begin_ = 0;
            while (in_end_ < 2) {
                const std::size_t got = raw(in_.data() + in_end_, in_.size() - in_end_);
                if (got == 0) break;
                in_end_ += got;
            }
        }
        if (inflater_->between) {
            if (in_begin_ == in_end_) return 0;
            if (!is_gzip(in_.data() + in_begin_, in_end_ - in_begin_))
                throw UserError(name_ + ": error: the gzip data are followed by something else");
            inflateReset(&z);
            inflater_->between = false;
        }
        if (in_begin_ == in_end_) throw UserError(name_ + ": error: the gzip data end early; is the file truncated?");
        z.next_in = reinterpret_cast<Bytef*>(in_.data() + in_begin_);
        z.avail_in = static_cast<uInt>(std::min<std::size_t>(in_end_ - in_begin_, std::size_t{1} << 30));
        const uInt given = z.avail_in;
        const int result = ::inflate(&z, Z_NO_FLUSH);
        in_begin_ += given - z.avail_in;
        if (result == Z_STREAM_END) {
            inflater_->between = true;
        } else if (result == Z_MEM_ERROR) {
            throw std::bad_alloc();
        } else if (result != Z_OK && !(result == Z_BUF_ERROR && given != z.avail_in)) {
            throw UserError(name_ + ": error: the gzip data are damaged" +
                            (z.msg != nullptr ? " (" + std::string(z.msg) + ")" : std::string()));
        }
    }
    return room - z.avail_out;
}

}  // namespace kvsim
