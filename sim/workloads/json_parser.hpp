#pragma once
// A strict reader of one JSON text, written out because a trace is the largest input there is and because what a lenient one
// accepts (a duplicate key, NaN, half a last line) would become a wrong result.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decimal.hpp"
#include "line_reader.hpp"

namespace kvsim {

/// One line or value; every read either advances past a valid token or throws RowError at its column.
class JsonParser {
public:
    explicit JsonParser(const LineReader& lines) : lines_(lines) {}

    void start(std::string_view text) {
        begin_ = p_ = text.data();
        end_ = text.data() + text.size();
    }

    [[noreturn]] void fail(const char* at, const std::string& message) const {
        lines_.fail(static_cast<std::size_t>(at - begin_) + 1, message);
    }
    [[nodiscard]] const char* here() const { return p_; }
    [[nodiscard]] bool at_end() const { return p_ == end_; }
    [[nodiscard]] char peek() const { return p_ == end_ ? '\0' : *p_; }

    void skip_space() {
        while (p_ != end_ && (*p_ == ' ' || *p_ == '\t' || *p_ == '\r' || *p_ == '\n')) ++p_;
    }
    bool accept(char c) {
        if (p_ == end_ || *p_ != c) return false;
        ++p_;
        return true;
    }
    void expect(char c, std::string_view where) {
        if (!accept(c)) missing(c, where);
    }

    /// What stands at the cursor, for "must be X, not Y".
    [[nodiscard]] std::string found() const;

    /// A string's characters: a view into the text when it has no escapes and is ASCII, else into `scratch`.
    std::string_view string(std::string& scratch) {
        const char* open = p_;
        expect('"', "");
        const char* from = p_;
        while (p_ != end_ && *p_ != '"' && *p_ != '\\' && static_cast<unsigned char>(*p_) >= 0x20 &&
               static_cast<unsigned char>(*p_) < 0x80)
            ++p_;
        if (p_ != end_ && *p_ == '"') return {from, static_cast<std::size_t>(p_++ - from)};
        scratch.assign(from, p_);
        return rest_of_string(open, scratch);
    }

    /// A whole number in [low, high].
    std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) {
        const char* from = p_;
        const bool negative = accept('-');
        if (p_ == end_ || !is_digit(*p_)) {
            if (!negative) fail(from, std::string(key) + " must be a whole number, not " + found());
            fail(from, "malformed number");
        }
        if (*p_ == '0' && p_ + 1 != end_ && is_digit(p_[1])) fail(from, "a number must not start with 0");
        std::uint64_t value = 0;
        bool huge = false;
        while (p_ != end_ && is_digit(*p_)) {
            const auto digit = static_cast<std::uint64_t>(*p_++ - '0');
            huge = huge || value > (std::uint64_t{INT64_MAX} - digit) / 10;
            value = value * 10 + digit;
        }
        if (p_ != end_ && (*p_ == '.' || *p_ == 'e' || *p_ == 'E')) fail(from, std::string(key) + " must be a whole number");
        const auto magnitude = static_cast<std::int64_t>(huge ? std::uint64_t{INT64_MAX} : value);
        const std::int64_t result = negative ? -magnitude : magnitude;
        if (huge || result < low || result > high)
            fail(from, std::string(key) + " " + std::string(from, p_) + " is outside [" + std::to_string(low) + ", " +
                           std::to_string(high) + "]");
        return result;
    }

    /// A number >= 0 of `unit` (10^`exponent` ns), whole or fractional, as exact nanoseconds (half up below 1 ns).
    std::int64_t time(std::string_view key, std::string_view unit, int exponent);

    /// Any JSON value, checked and dropped.
    void skip_value(std::string& scratch, int depth = 0);
    /// Exactly this word.
    void word(std::string_view text);
    /// Text, or a whole number kept as text.
    void name(std::string_view key, std::string& out, std::string& scratch);

    /// The ids of a list of whole numbers in [0, high]; `key` names the list, `item` one of them.
    void ids(std::string_view key, std::string_view item, std::vector<std::uint64_t>& out, std::int64_t high) {
        if (peek() != '[') fail(p_, std::string(key) + " must be a list, not " + found());
        ++p_;
        skip_space();
        if (accept(']')) return;
        for (;;) {
            // The usual case without the checks' branches: at most 18 digits, followed by a comma or bracket.
            const char* q = p_;
            std::uint64_t value = 0;
            while (q != end_ && is_digit(*q)) value = value * 10 + static_cast<std::uint64_t>(*q++ - '0');
            const std::ptrdiff_t digits = q - p_;
            if (digits >= 1 && digits <= 18 && q != end_ && (*q == ',' || *q == ']') && (*p_ != '0' || digits == 1) &&
                value <= static_cast<std::uint64_t>(high)) {
                p_ = q;
            } else {
                value = static_cast<std::uint64_t>(integer(item, 0, high));
            }
            out.push_back(value);
            if (accept(',')) {
                if (p_ != end_ && *p_ == ' ') ++p_;
                if (p_ != end_ && is_digit(*p_)) continue;
                skip_space();
                continue;
            }
            skip_space();
            if (accept(']')) return;
            expect(',', "or ']' in " + std::string(key));
            skip_space();
        }
    }

    /// An object: `on(k)` with the cursor at the value of key names[k], `on_unknown(key, mark)` before an unknown one, which is
    /// dropped. A known key twice is refused. Returns the known keys that are there, bit k for names[k].
    template <class On, class OnUnknown>
    std::uint32_t object(std::span<const std::string_view> names, std::string& scratch, On&& on, OnUnknown&& on_unknown) {
        if (!accept('{')) fail(p_, "expected an object, found " + found());
        std::uint32_t seen = 0;
        skip_space();
        if (accept('}')) return seen;
        do {
            skip_space();
            const char* mark = p_;
            if (peek() != '"') {
                if (at_end()) expect('"', "");
                fail(mark, "expected a key, found " + found());
            }
            const std::string_view key = string(scratch);
            std::size_t k = 0;
            while (k < names.size() && names[k] != key) ++k;
            const bool known = k < names.size();
            if (!known) {
                on_unknown(key, mark);
            } else if ((seen >> k & 1U) != 0) {
                fail(mark, "duplicate key '" + std::string(key) + "'");
            } else {
                seen |= std::uint32_t{1} << k;
            }
            skip_space();
            expect(':', "after a key");
            skip_space();
            if (at_end()) expect('"', "");
            if (known) {
                on(k);
            } else {
                skip_value(scratch);
            }
            skip_space();
        } while (accept(','));
        expect('}', "or ','");
        return seen;
    }

    /// A list: `on()` with the cursor at each element. `key` names it in messages.
    template <class On>
    void list(std::string_view key, On&& on) {
        if (peek() != '[') fail(p_, std::string(key) + " must be a list, not " + found());
        ++p_;
        skip_space();
        if (accept(']')) return;
        do {
            skip_space();
            on();
            skip_space();
        } while (accept(','));
        expect(']', "or ','");
    }

private:
    [[noreturn]] void missing(char c, std::string_view where) const;
    std::string_view rest_of_string(const char* open, std::string& scratch);
    Decimal decimal();
    unsigned hex4();
    void escape(std::string& out);
    void utf8(std::string& out);

    const LineReader& lines_;
    const char* begin_ = nullptr;
    const char* p_ = nullptr;
    const char* end_ = nullptr;
};

}  // namespace kvsim
