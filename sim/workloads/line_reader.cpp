#include "line_reader.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kvsim/config/diagnostics.hpp"

namespace kvsim {

namespace {
constexpr std::size_t chunk = std::size_t{1} << 18;
constexpr std::size_t longest_line = std::size_t{64} << 20;

constexpr bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}
}  // namespace

LineReader::LineReader(std::vector<std::filesystem::path> paths) : paths_(std::move(paths)) {
    KVSIM_CHECK(open_next(), "a reader has a file");
}

LineReader::LineReader(std::string name, std::string bytes)
    : source_(std::make_unique<ByteSource>(std::move(name), std::move(bytes))) {}

bool LineReader::open_next() {
    if (next_path_ == paths_.size()) return false;
    source_ = std::make_unique<ByteSource>(paths_[next_path_++]);
    begin_ = end_ = 0;
    at_end_ = started_ = array_closed_ = false;
    first_value_ = true;
    layout_ = Layout::unknown;
    line_number_ = 0;
    at_line_ = 1;
    at_column_ = 1;
    return true;
}

bool LineReader::refill() {
    if (at_end_) return false;
    if (begin_ > 0) {
        std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
        end_ -= begin_;
        begin_ = 0;
    }
    if (end_ > longest_line) {
        line_number_ = std::max(line_number_ + 1, at_line_);
        line_ = {};
        fail_trace(1, "line longer than 64 MiB");
    }
    if (buffer_.size() < end_ + chunk) buffer_.resize(std::max(end_ + chunk, buffer_.size() * 2));
    const std::size_t got = source_->read(buffer_.data() + end_, buffer_.size() - end_);
    end_ += got;
    at_end_ = got == 0;
    if (!started_ && (at_end_ || end_ >= 3)) {
        started_ = true;
        if (end_ >= 3 && std::memcmp(buffer_.data(), "\xEF\xBB\xBF", 3) == 0) begin_ += 3;
    }
    return !at_end_;
}

bool LineReader::find_line(std::size_t& length) {
    std::size_t searched = 0;
    while (!started_ && refill()) {}
    for (;;) {
        if (begin_ + searched < end_) {
            const char* from = buffer_.data() + begin_;
            const void* hit = std::memchr(from + searched, '\n', end_ - begin_ - searched);
            if (hit) {
                length = static_cast<std::size_t>(static_cast<const char*>(hit) - from);
                return true;
            }
            searched = end_ - begin_;
        }
        if (!refill()) {
            length = end_ - begin_;
            return length != 0;
        }
    }
}

bool LineReader::next(std::string_view& line) {
    if (again_) {
        again_ = false;
        line = line_;
        return true;
    }
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

std::string_view LineReader::head(std::size_t count) {
    while (end_ - begin_ < count && refill()) {}
    return {buffer_.data() + begin_, std::min(count, end_ - begin_)};
}

void LineReader::consume(std::size_t count) {
    const char* from = buffer_.data() + begin_;
    const char* const to = from + count;
    while (const void* hit = from == to ? nullptr : std::memchr(from, '\n', static_cast<std::size_t>(to - from))) {
        ++at_line_;
        at_column_ = 1;
        from = static_cast<const char*>(hit) + 1;
    }
    at_column_ += static_cast<std::size_t>(to - from);
    begin_ += count;
}

/// False at the end of the file.
bool LineReader::skip_space() {
    while (at_byte()) {
        std::size_t n = 0;
        while (begin_ + n < end_ && is_space(buffer_[begin_ + n])) ++n;
        consume(n);
        if (begin_ < end_) return true;
    }
    return false;
}

/// How far the value at the cursor reaches, over `most` bytes at most; `whole` when its end was found.
std::size_t LineReader::extent(std::size_t most, bool& whole) {
    std::size_t n = 0;
    std::size_t depth = 0;
    bool quoted = false;
    bool escaped = false;
    whole = false;
    for (; n < most; ++n) {
        if (begin_ + n == end_ && !refill()) break;
        const char c = buffer_[begin_ + n];
        if (quoted) {
            if (escaped) {
                escaped = false;
            } else if (c == '\\') {
                escaped = true;
            } else if (c == '"') {
                quoted = false;
                if (depth == 0) {
                    whole = true;
                    return n + 1;
                }
            }
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            ++depth;
        } else if (c == '}' || c == ']') {
            if (depth <= 1) {
                whole = depth == 1;
                return depth == 1 ? n + 1 : n;
            }
            --depth;
        } else if (depth == 0 && (c == ',' || is_space(c))) {
            whole = true;
            return n;
        }
    }
    whole = depth == 0 && !quoted;
    return n;
}

/// Behind an element of the array; leaves the cursor at the next one or closes the array.
void LineReader::separator() {
    if (!skip_space()) fail_trace(1, "the array has no end; is the file truncated?");
    if (buffer_[begin_] == ']') {
        consume(1);
        array_closed_ = true;
        line_ = {};
        if (skip_space()) fail_trace(1, "text after the array");
        return;
    }
    if (first_value_) return;
    if (buffer_[begin_] != ',') {
        line_number_ = at_line_;
        value_column_ = at_column_;
        line_ = {};
        if (buffer_[begin_] != '{') consume(1);  // a comma that is missing loses nothing
        first_value_ = true;
        fail(1, "expected ',' or ']' between the array's elements");
    }
    consume(1);
    if (!skip_space()) fail_trace(1, "the array has no end; is the file truncated?");
}

/// False when there is nothing but white space.
bool LineReader::choose_layout() {
    while (!started_ && refill()) {}
    if (!skip_space()) return false;
    if (buffer_[begin_] == '[') {
        consume(1);
        layout_ = Layout::array;
        return true;
    }
    std::size_t length = 0;
    static_cast<void>(find_line(length));
    bool whole = false;
    std::size_t n = extent(length, whole);
    while (whole && n < length && is_space(buffer_[begin_ + n])) ++n;
    layout_ = whole && n == length ? Layout::lines : Layout::sequence;
    line_number_ = at_line_ - 1;
    return true;
}

bool LineReader::next_value(std::string_view& value) {
    line_ = {};
    do {
        if (layout_ == Layout::unknown && !choose_layout()) continue;
        if (layout_ == Layout::lines) {
            while (next(value)) {
                if (std::all_of(value.begin(), value.end(), is_space)) continue;
                ++values_;
                return true;
            }
            continue;
        }
        if (layout_ == Layout::array && !array_closed_) separator();
        if (array_closed_ || !skip_space()) continue;
        line_number_ = at_line_;
        value_column_ = at_column_;
        bool whole = false;
        const std::size_t length = extent(longest_line, whole);
        if (length == 0) {
            first_value_ = true;
            if (buffer_[begin_] != ']' || layout_ != Layout::array) consume(1);
            fail(1, "expected a value");
        }
        if (!whole) fail_trace(1, "a value without its end; is the file truncated?");
        value = line_ = std::string_view(buffer_.data() + begin_, length);
        consume(length);
        first_value_ = false;
        ++values_;
        return true;
    } while (open_next());
    return false;
}

std::string LineReader::located(std::size_t column, const std::string& message) const {
    const std::size_t offset = std::min(column - 1, line_.size());
    const std::string_view before = line_.substr(0, offset);
    const std::size_t newline = before.rfind('\n');
    const std::int64_t number = std::max<std::int64_t>(1, line_number_);
    if (newline == std::string_view::npos) {
        // Of a value that starts inside a line the rest is not at hand: no picture.
        const std::string_view text = value_column_ == 1 ? line_.substr(0, line_.find('\n')) : std::string_view();
        return config::located_error(source_->name(), number, text, column + value_column_ - 1, message);
    }
    const std::string_view text = line_.substr(newline + 1);
    return config::located_error(source_->name(), number + std::count(before.begin(), before.end(), '\n'),
                                 text.substr(0, text.find('\n')), column - newline - 1, message);
}

void LineReader::fail(std::size_t column, const std::string& message) const {
    throw RowError(located(column, message));
}

void LineReader::fail_trace(std::size_t column, const std::string& message) const {
    throw UserError(located(column, message));
}

}  // namespace kvsim
