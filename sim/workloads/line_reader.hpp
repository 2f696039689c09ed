#pragma once
// Lines of a file or of bytes in memory, a chunk at a time.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace kvsim {

class LineReader {
public:
    /// Throws UserError with the system's reason if the file cannot be opened.
    explicit LineReader(const std::filesystem::path& path);
    LineReader(std::string name, std::string text);
    LineReader(const LineReader&) = delete;
    LineReader& operator=(const LineReader&) = delete;
    ~LineReader();

    /// The next line without its `\n` or `\r\n`, valid until the next call; false at the end. A byte order mark at the start
    /// of the file is skipped. Throws UserError when reading fails or a line exceeds 64 MiB.
    bool next(std::string_view& line);
    /// The first line, without taking it; empty for an empty file. Before the first next() only.
    std::string_view peek();
    [[nodiscard]] std::int64_t line_number() const { return line_number_; }  ///< of the line next() gave; from 1

    /// Throws UserError `name:line:column: error: message`, the line next() gave and a caret; column counts bytes from 1.
    [[noreturn]] void fail(std::size_t column, const std::string& message) const;

private:
    bool find_line(std::size_t& length);
    bool refill();
    std::string name_;
    int fd_ = -1;
    std::string buffer_;
    std::size_t begin_ = 0;  ///< unread bytes are [begin_, end_)
    std::size_t end_ = 0;
    bool at_end_ = false;
    bool started_ = false;
    std::int64_t line_number_ = 0;
    std::string_view line_;  ///< as next() gave it; empty once the buffer may have moved
};

}  // namespace kvsim
