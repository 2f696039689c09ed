#pragma once
// Errors and warnings about the user's input, collected so that one pass reports all of them.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/config/value.hpp"

namespace kvsim::config {

/// `line`, made fit for a terminal and cut to a window around the caret, and below it a caret under byte `column` (from 0).
std::string picture(std::string_view line, std::size_t column);

class Diagnostics {
public:
    /// `file:line:column: error: message`, then the source line and a caret when the mark is known. Tabs are expanded, long
    /// lines cut to a window around the caret.
    void error(const Mark& at, std::string message);
    void warning(const Mark& at, std::string message);
    /// "unknown WHAT 'word'; did you mean 'nearest'?" at `at`, or "... (one of: a, b, c)" when nothing is near.
    void unknown(const Mark& at, std::string_view what, std::string_view word, std::span<const std::string_view> known);

    [[nodiscard]] bool ok() const { return error_count_ == 0; }
    [[nodiscard]] std::size_t error_count() const { return error_count_; }
    /// The first 200 of each, rendered; a file with more mistakes is not worth more memory.
    [[nodiscard]] const std::vector<std::string>& errors() const { return errors_; }
    [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }
    /// Throws one UserError with the errors in the order of their places (at most 20, then "... and N more"), if there are any.
    void throw_if_errors() const;

private:
    struct Place {
        const Source* source;
        int line;
        int column;
    };
    std::size_t error_count_ = 0;
    std::vector<std::string> errors_;
    std::vector<Place> places_;  ///< of errors_
    std::vector<std::string> warnings_;
};

}  // namespace kvsim::config
