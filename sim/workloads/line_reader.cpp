#include "line_reader.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kvsim/base/check.hpp"
#include "kvsim/config/diagnostics.hpp"

namespace kvsim {

namespace {
constexpr std::size_t chunk = std::size_t{1} << 18;
constexpr std::size_t longest_line = std::size_t{64} << 20;
}  // namespace

LineReader::LineReader(const std::filesystem::path& path) : name_(path.string()) {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw UserError(name_ + ": error: cannot open the trace: " + std::strerror(errno));
}

LineReader::LineReader(std::string name, std::string text)
    : name_(std::move(name)), buffer_(std::move(text)), end_(buffer_.size()), at_end_(true) {}

LineReader::~LineReader() {
    if (fd_ >= 0) ::close(fd_);
}

bool LineReader::refill() {
    if (at_end_) return false;
    if (begin_ > 0) {
        std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
    }
    if (end_ > longest_line) {
        ++line_number_;
        fail(1, "line longer than 64 MiB");
    }
    if (buffer_.size() < end_ + chunk) buffer_.resize(std::max(end_ + chunk, buffer_.size() * 2));
    ssize_t got = 0;
    do { got = ::read(fd_, buffer_.data() + end_, buffer_.size() - end_); } while (got < 0 && errno == EINTR);
    if (got < 0) throw UserError(name_ + ": error: cannot read the trace: " + std::strerror(errno));
    end_ += static_cast<std::size_t>(got);
    at_end_ = got == 0;
    return !at_end_;
}

bool LineReader::find_line(std::size_t& length) {
    std::size_t searched = 0;
    for (;;) {
        if (begin_ + searched < end_) {
            const char* from = buffer_.data() + begin_;
            const void* hit = std::memchr(from + searched, '\n', end_ - begin_ - searched);
            if (hit) {
                length = static_cast<std::size_t>(static_cast<const char*>(hit) - from);
                break;
            }
            searched = end_ - begin_;
        }
        if (!refill()) {
            length = end_ - begin_;
            if (length == 0) return false;
            break;
        }
    }
    if (!started_) {
        started_ = true;
        if (length >= 3 && std::memcmp(buffer_.data() + begin_, "\xEF\xBB\xBF", 3) == 0) {
            begin_ += 3;
            length -= 3;
        }
    }
    return true;
}

bool LineReader::next(std::string_view& line) {
    line_ = {};
    std::size_t length = 0;
    if (!find_line(length)) return false;
    line = std::string_view(buffer_.data() + begin_, length);
    begin_ = std::min(end_, begin_ + length + 1);
    ++line_number_;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    line_ = line;
    return true;
}

std::string_view LineReader::peek() {
    std::size_t length = 0;
    return find_line(length) ? std::string_view(buffer_.data() + begin_, length) : std::string_view();
}

void LineReader::fail(std::size_t column, const std::string& message) const {
    throw UserError(name_ + ":" + std::to_string(std::max<std::int64_t>(1, line_number_)) + ":" + std::to_string(column) +
                    ": error: " + message + (line_.empty() ? "" : "\n" + config::picture(line_, column - 1)));
}

}  // namespace kvsim
