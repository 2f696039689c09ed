#pragma once
// The bytes of a trace: a file or memory, plain or gzip (told by its first two bytes), a chunk at a time.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>

namespace kvsim {

class ByteSource {
public:
    /// Throws UserError with the system's reason if the file cannot be opened.
    explicit ByteSource(const std::filesystem::path& path);
    ByteSource(std::string name, std::string bytes);
    ByteSource(const ByteSource&) = delete;
    ByteSource& operator=(const ByteSource&) = delete;
    ~ByteSource();

    /// At most `capacity` > 0 bytes, decompressed; 0 only at the end. Throws UserError when reading fails or the gzip data are
    /// damaged or cut short.
    std::size_t read(char* to, std::size_t capacity);
    [[nodiscard]] const std::string& name() const { return name_; }

private:
    struct Inflater;
    std::size_t raw(char* to, std::size_t capacity);
    std::size_t inflate(char* to, std::size_t capacity);
    std::string name_;
    int fd_ = -1;
    std::string in_;  ///< bytes as stored: all of them without a file, else a chunk; unread are [in_begin_, in_end_)
    std::size_t in_begin_ = 0;
    std::size_t in_end_ = 0;
    bool started_ = false;
    std::unique_ptr<Inflater> inflater_;  ///< null: plain
};

}  // namespace kvsim
