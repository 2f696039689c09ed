#pragma once
// Lines, or JSON values, of a file or of bytes in memory, a chunk at a time.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "byte_source.hpp"
#include "kvsim/base/check.hpp"

namespace kvsim {

/// One row of a trace is wrong and the next one can be read: what `on_error: skip` passes over.
class RowError : public UserError {
public:
    using UserError::UserError;
};

class LineReader {
public:
    /// Several files are read one after the other by next_value(); next() reads the first. Throws UserError with the system's
    /// reason if a file cannot be opened.
    explicit LineReader(std::vector<std::filesystem::path> paths);
    LineReader(std::string name, std::string bytes);

    /// The next line without its `\n` or `\r\n`, valid until the next call; false at the end. A byte order mark at the start
    /// of the file is skipped. Throws UserError when reading fails or a line exceeds 64 MiB.
    bool next(std::string_view& line);
    /// The next JSON value, valid until the next call: an element of the array the file is, else a line when the first line is
    /// a whole value, else a value that white space separates from the next one. Only its extent is looked for (quotes and
    /// brackets); false at the end of the last file. Throws UserError like next() and for a value that has no end.
    bool next_value(std::string_view& value);
    /// The next call of next() gives the same line again.
    void again() { again_ = true; }
    /// At most `count` bytes from the start, fewer only when there are no more. Before the first next() only.
    std::string_view head(std::size_t count);

    [[nodiscard]] std::int64_t line_number() const { return line_number_; }  ///< of the line or value last given; from 1
    /// Which value next_value() gave, over all files; from 0.
    [[nodiscard]] std::int64_t value_index() const { return values_ - 1; }

    /// Throws RowError `name:line:column: error: message` with the line that next() gave and a caret; `column` counts bytes
    /// from 1 in it (or in the value). While that is valid, or after the end.
    [[noreturn]] void fail(std::size_t column, const std::string& message) const;
    /// The same as a UserError: no later row can be read.
    [[noreturn]] void fail_trace(std::size_t column, const std::string& message) const;

private:
    enum class Layout { unknown, lines, array, sequence };

    bool find_line(std::size_t& length);
    bool refill();
    bool open_next();
    [[nodiscard]] bool at_byte() { return begin_ < end_ || refill(); }
    void consume(std::size_t count);
    bool skip_space();
    bool choose_layout();
    void separator();
    [[nodiscard]] std::size_t extent(std::size_t most, bool& whole);
    [[nodiscard]] std::string located(std::size_t column, const std::string& message) const;

    std::vector<std::filesystem::path> paths_;
    std::size_t next_path_ = 0;
    std::unique_ptr<ByteSource> source_;
    std::string buffer_;
    std::size_t begin_ = 0;  ///< unread bytes are [begin_, end_)
    std::size_t end_ = 0;
    bool at_end_ = false;
    bool started_ = false;
    bool again_ = false;
    std::int64_t line_number_ = 0;
    std::string_view line_;
    // Of values: where the unread bytes stand, and the value given last.
    Layout layout_ = Layout::unknown;
    bool array_closed_ = false;
    bool first_value_ = true;
    std::int64_t values_ = 0;
    std::int64_t at_line_ = 1;
    std::size_t at_column_ = 1;
    std::size_t value_column_ = 1;
};

}  // namespace kvsim
