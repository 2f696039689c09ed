#include "json_parser.hpp"

#include <optional>

#include "kvsim/base/text.hpp"

namespace kvsim {

namespace {

constexpr int deepest_nesting = 32;

void append_code_point(std::string& out, unsigned c) {
    const auto put = [&](unsigned byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xC0 | (c >> 6));
        put(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
        put(0xE0 | (c >> 12));
        put(0x80 | ((c >> 6) & 0x3F));
        put(0x80 | (c & 0x3F));
    } else {
        put(0xF0 | (c >> 18));
        put(0x80 | ((c >> 12) & 0x3F));
        put(0x80 | ((c >> 6) & 0x3F));
        put(0x80 | (c & 0x3F));
    }
}

}  // namespace

void JsonParser::missing(char c, std::string_view where) const {
    if (at_end()) fail(p_, "the line ends inside the object; is the file truncated?");
    fail(p_, "expected '" + std::string(1, c) + "' " + std::string(where));
}

std::string JsonParser::found() const {
    if (at_end()) return "the end of the line";
    switch (*p_) {
        case '"':
            return "text";
        case '{':
            return "an object";
        case '[':
            return "a list";
        default:
            break;
    }
    const std::string_view rest(p_, static_cast<std::size_t>(end_ - p_));
    for (const std::string_view word : {"true", "false", "null"}) {
        if (rest.starts_with(word)) return std::string(word);
    }
    if (rest.starts_with("NaN") || rest.starts_with("Infinity")) return "NaN or Infinity";
    std::string quoted(1, '\'');
    quoted += excerpt(rest.substr(0, 1));
    return quoted += '\'';
}

std::string_view JsonParser::rest_of_string(const char* open, std::string& scratch) {
    for (;;) {
        if (at_end()) fail(open, "text without its closing quote");
        const auto c = static_cast<unsigned char>(*p_);
        if (c == '"') {
            ++p_;
            return scratch;
        }
        if (c < 0x20) fail(p_, "control character inside text");
        if (c == '\\') {
            escape(scratch);
        } else if (c < 0x80) {
            scratch.push_back(*p_++);
        } else {
            utf8(scratch);
        }
    }
}

std::int64_t JsonParser::time(std::string_view key, std::string_view unit, int exponent) {
    const char* from = p_;
    if (peek() == '-') fail(from, std::string(key) + " must not be negative");
    if (!is_digit(peek())) fail(from, std::string(key) + " must be a number of " + std::string(unit) + ", not " + found());
    const std::optional<std::int64_t> ns = to_nanoseconds(decimal(), exponent);
    if (!ns) fail(from, std::string(key) + " is too large");
    return *ns;
}

void JsonParser::skip_value(std::string& scratch, int depth) {
    if (depth > deepest_nesting) fail(p_, "nested too deeply");
    switch (peek()) {
        case '"':
            static_cast<void>(string(scratch));
            return;
        case '{':
        case '[': {
            const char close = *p_ == '{' ? '}' : ']';
            ++p_;
            skip_space();
            if (accept(close)) return;
            do {
                skip_space();
                if (close == '}') {
                    if (peek() != '"') fail(p_, "expected a key, found " + found());
                    static_cast<void>(string(scratch));
                    skip_space();
                    expect(':', "after a key");
                    skip_space();
                }
                skip_value(scratch, depth + 1);
                skip_space();
            } while (accept(','));
            expect(close, "or ','");
            return;
        }
        case 't':
            word("true");
            return;
        case 'f':
            word("false");
            return;
        case 'n':
            word("null");
            return;
        default: {
            const char* from = p_;
            accept('-');
            if (!is_digit(peek())) {
                p_ = from;
                fail(p_, "expected a value, found " + found());
            }
            static_cast<void>(decimal());
        }
    }
}

void JsonParser::word(std::string_view text) {
    if (static_cast<std::size_t>(end_ - p_) < text.size() || std::string_view(p_, text.size()) != text)
        fail(p_, "expected " + std::string(text));
    p_ += text.size();
}

void JsonParser::name(std::string_view key, std::string& out, std::string& scratch) {
    if (peek() == '"') {
        out = string(scratch);
    } else {
        const char* from = p_;
        const char* q = p_ != end_ && *p_ == '-' ? p_ + 1 : p_;
        if (q == p_ && (q == end_ || !is_digit(*q)))
            fail(from, std::string(key) + " must be text or a whole number, not " + found());
        while (q != end_ && is_digit(*q)) ++q;
        if (q != end_ && (*q == '.' || *q == 'e' || *q == 'E'))
            fail(from, std::string(key) + " must be text or a whole number");
        static_cast<void>(integer(key, INT64_MIN + 1, INT64_MAX));
        out.assign(from, p_);
    }
}

Decimal JsonParser::decimal() {
    if (*p_ == '0' && p_ + 1 != end_ && is_digit(p_[1])) fail(p_, "a number must not start with 0");
    Decimal d;
    if (!read_decimal(p_, end_, d)) fail(p_, "malformed number");
    return d;
}

unsigned JsonParser::hex4() {
    unsigned value = 0;
    for (int i = 0; i < 4; ++i, ++p_) {
        const char c = peek();
        if (is_digit(c)) {
            value = value * 16 + static_cast<unsigned>(c - '0');
        } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
            value = value * 16 + static_cast<unsigned>((c | 0x20) - 'a' + 10);
        } else {
            fail(p_, "malformed \\u escape");
        }
    }
    return value;
}

void JsonParser::escape(std::string& out) {
    const char* from = p_++;
    const char c = peek();
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    if (c == 'u') {
        ++p_;
        unsigned code = hex4();
        if (code >= 0xD800 && code < 0xDC00 && peek() == '\\' && p_ + 1 != end_ && p_[1] == 'u') {
            p_ += 2;
            const unsigned low = hex4();
            if (low < 0xDC00 || low > 0xDFFF) fail(from, "malformed surrogate pair");
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else if (code >= 0xD800 && code < 0xE000) {
            fail(from, "malformed surrogate pair");
        }
        append_code_point(out, code);
        return;
    }
    const std::size_t i = at_end() ? std::string_view::npos : letters.find(c);
    if (i == std::string_view::npos) fail(from, "malformed escape");
    out.push_back(meanings[i]);
    ++p_;
}

/// One multi-byte sequence; overlong forms, surrogates and code points above 10FFFF are refused.
void JsonParser::utf8(std::string& out) {
    const auto lead = static_cast<unsigned char>(*p_);
    const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
    bool good = lead >= 0xC2 && lead <= 0xF4 && end_ - p_ > more;
    for (int i = 1; good && i <= more; ++i) good = (static_cast<unsigned char>(p_[i]) & 0xC0) == 0x80;
    if (good && more > 1) {
        const auto second = static_cast<unsigned char>(p_[1]);
        good = !(lead == 0xE0 && second < 0xA0) && !(lead == 0xED && second > 0x9F) && !(lead == 0xF0 && second < 0x90) &&
               !(lead == 0xF4 && second > 0x8F);
    }
    if (!good) fail(p_, "not UTF-8");
    out.append(p_, static_cast<std::size_t>(more) + 1);
    p_ += more + 1;
}

}  // namespace kvsim
