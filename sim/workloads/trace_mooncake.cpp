// Mooncake JSON lines, kvsim's own trace format: one object per line with timestamp (ms since the start of the run, whole or
// fractional), input_length, output_length, hash_ids, and optionally request_id, priority, class, session_id.
//
// The parser is written out because a trace is the largest input there is and because it must be strict: what a lenient one
// accepts (a duplicate key, NaN, half a last line) would become a wrong result.

#include <algorithm>
#include <array>
#include <string>

#include "kvsim/base/text.hpp"
#include "kvsim/config/schema.hpp"
#include "kvsim/model/token_ids.hpp"
#include "kvsim/model/trace.hpp"
#include "line_reader.hpp"

namespace kvsim {

namespace {

struct MooncakeParams {
    std::int64_t trace_block_size = 512;
};

const config::Schema<MooncakeParams>& schema() {
    static const config::Schema<MooncakeParams> table{
        config::field("trace_block_size", &MooncakeParams::trace_block_size, "tokens per hash id", config::at_least_one)
            .by_default("512")};
    return table;
}

enum Key : unsigned {
    timestamp,
    input_length,
    output_length,
    hash_ids,
    request_id,
    priority,
    request_class,
    session_id,
    think_ms,
    n,
    timeout_ms,
    unknown
};
constexpr std::array<std::string_view, unknown> key_names{
    "timestamp", "input_length", "output_length", "hash_ids", "request_id", "priority",
    "class",     "session_id",   "think_ms",      "n",        "timeout_ms"};

constexpr bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

constexpr int deepest_nesting = 32;

/// One line; every read either advances past a valid token or throws at its column.
class Parser {
public:
    explicit Parser(const LineReader& lines) : lines_(lines) {}

    void start(std::string_view line) {
        begin_ = p_ = line.data();
        end_ = line.data() + line.size();
    }

    [[noreturn]] void fail(const char* at, const std::string& message) const {
        lines_.fail(static_cast<std::size_t>(at - begin_) + 1, message);
    }
    [[nodiscard]] const char* here() const { return p_; }
    [[nodiscard]] bool at_end() const { return p_ == end_; }
    [[nodiscard]] char peek() const { return p_ == end_ ? '\0' : *p_; }

    void skip_space() {
        while (p_ != end_ && (*p_ == ' ' || *p_ == '\t')) ++p_;
    }
    bool accept(char c) {
        if (p_ == end_ || *p_ != c) return false;
        ++p_;
        return true;
    }
    void expect(char c, std::string_view where) {
        if (accept(c)) return;
        if (at_end()) fail(p_, "the line ends inside the object; is the file truncated?");
        fail(p_, "expected '" + std::string(1, c) + "' " + std::string(where));
    }

    /// What stands at the cursor, for "must be X, not Y".
    [[nodiscard]] std::string found() const {
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

    /// A string's characters: a view into the line when it has no escapes, else into `scratch`.
    std::string_view string(std::string& scratch) {
        const char* open = p_;
        expect('"', "");
        const char* from = p_;
        while (p_ != end_ && *p_ != '"' && *p_ != '\\' && static_cast<unsigned char>(*p_) >= 0x20 &&
               static_cast<unsigned char>(*p_) < 0x80)
            ++p_;
        if (p_ != end_ && *p_ == '"') return {from, static_cast<std::size_t>(p_++ - from)};
        scratch.assign(from, p_);
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

    /// Milliseconds >= 0, whole or fractional, as exact nanoseconds (half up below 1 ns).
    std::int64_t milliseconds(std::string_view key) {
        const char* from = p_;
        if (peek() == '-') fail(from, std::string(key) + " must not be negative");
        if (!is_digit(peek())) fail(from, std::string(key) + " must be a number of milliseconds, not " + found());
        const Decimal d = decimal();
        // 2^62 ns are 146 years: room for the run after the last arrival.
        constexpr std::uint64_t limit = std::uint64_t{1} << 62;
        std::uint64_t ns = d.digits;
        int exponent = d.exponent + 6;
        for (; exponent > 0 && ns != 0; --exponent) {
            if (ns > limit / 10) fail(from, std::string(key) + " is too large");
            ns *= 10;
        }
        bool up = false;
        for (; exponent < 0 && (ns != 0 || up); ++exponent) {
            up = ns % 10 >= 5;
            ns /= 10;
        }
        if (ns > limit) fail(from, std::string(key) + " is too large");
        return static_cast<std::int64_t>(ns + (up ? 1 : 0));
    }

    /// Any JSON value, checked and dropped.
    void skip_value(std::string& scratch, int depth = 0) {
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

    void word(std::string_view text) {
        if (static_cast<std::size_t>(end_ - p_) < text.size() || std::string_view(p_, text.size()) != text)
            fail(p_, "expected " + std::string(text));
        p_ += text.size();
    }

    /// The ids of a list of whole numbers in [0, high].
    void ids(std::vector<std::uint64_t>& out, std::int64_t high) {
        if (peek() != '[') fail(p_, "hash_ids must be a list, not " + found());
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
                value = static_cast<std::uint64_t>(integer("hash id", 0, high));
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
            expect(',', "or ']' in hash_ids");
            skip_space();
        }
    }

private:
    /// digits * 10^exponent; 19 significant digits are kept, the rest cannot move a nanosecond.
    struct Decimal {
        std::uint64_t digits = 0;
        int exponent = 0;
    };

    Decimal decimal() {
        constexpr std::uint64_t full = 1'000'000'000'000'000'000ULL;
        Decimal d;
        if (*p_ == '0' && p_ + 1 != end_ && is_digit(p_[1])) fail(p_, "a number must not start with 0");
        const auto take = [&](bool fraction) {
            while (p_ != end_ && is_digit(*p_)) {
                if (d.digits < full) {
                    d.digits = d.digits * 10 + static_cast<std::uint64_t>(*p_ - '0');
                    if (fraction) --d.exponent;
                } else if (!fraction) {
                    ++d.exponent;
                }
                ++p_;
            }
        };
        take(false);
        if (accept('.')) {
            if (!is_digit(peek())) fail(p_, "malformed number");
            take(true);
        }
        if (peek() == 'e' || peek() == 'E') {
            ++p_;
            const bool negative = peek() == '-';
            if (negative || peek() == '+') ++p_;
            if (!is_digit(peek())) fail(p_, "malformed number");
            int exponent = 0;
            while (is_digit(peek())) exponent = std::min(10'000, exponent * 10 + (*p_++ - '0'));
            d.exponent += negative ? -exponent : exponent;
        }
        return d;
    }

    unsigned hex4() {
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

    static void append_code_point(std::string& out, unsigned c) {
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

    void escape(std::string& out) {
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
    void utf8(std::string& out) {
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

    const LineReader& lines_;
    const char* begin_ = nullptr;
    const char* p_ = nullptr;
    const char* end_ = nullptr;
};

class Mooncake : public TraceReader {
public:
    Mooncake(std::unique_ptr<LineReader> lines, const TraceOptions& options)
        : lines_(std::move(lines)), parser_(*lines_), block_size_(options.trace_block_size) {}

    [[nodiscard]] std::string_view format() const override { return "mooncake"; }
    [[nodiscard]] std::vector<std::string> unknown_keys() const override { return unknown_; }

    bool next(TraceRow& row) override {
        std::string_view line;
        if (!lines_->next(line)) return end();
        if (line.find_first_not_of(" \t") == std::string_view::npos) {
            const std::int64_t blank = lines_->line_number();
            while (lines_->next(line)) {
                if (line.find_first_not_of(" \t") != std::string_view::npos)
                    lines_->fail(1, "a row after blank line " + std::to_string(blank));
            }
            return end();
        }
        parse(line, row);
        any_row_ = true;
        return true;
    }

private:
    bool end() const {
        if (!any_row_) lines_->fail(1, "the trace has no rows");
        return false;
    }

    void parse(std::string_view line, TraceRow& row) {
        row.hash_ids.clear();
        row.priority = 0;
        row.request_id.clear();
        row.request_class.clear();
        row.session_id.clear();
        row_unknown_.clear();
        unsigned seen = 0;
        const char* hash_mark = nullptr;
        const char* time_mark = nullptr;

        Parser& p = parser_;
        p.start(line);
        p.skip_space();
        if (!p.accept('{')) p.fail(p.here(), "expected an object, found " + p.found());
        p.skip_space();
        if (!p.accept('}')) {
            do {
                p.skip_space();
                const char* key_mark = p.here();
                if (p.peek() != '"') {
                    if (p.at_end()) p.expect('"', "");
                    p.fail(key_mark, "expected a key, found " + p.found());
                }
                const std::string_view key = p.string(scratch_);
                const Key k = find_key(key);
                if (k == unknown) {
                    remember_unknown(key, key_mark);
                } else {
                    if (seen & (1U << k)) p.fail(key_mark, "duplicate key '" + std::string(key) + "'");
                    seen |= 1U << k;
                }
                p.skip_space();
                p.expect(':', "after a key");
                p.skip_space();
                if (p.at_end()) p.expect('"', "");
                if (k == hash_ids) hash_mark = p.here();
                if (k == timestamp) time_mark = p.here();
                if (k > hash_ids && p.peek() == 'n') {
                    p.word("null");
                } else {
                    value(k, row);
                }
                p.skip_space();
            } while (p.accept(','));
            p.expect('}', "or ','");
        }
        p.skip_space();
        if (!p.at_end()) p.fail(p.here(), "text after the object");
        for (const Key k : {timestamp, input_length, output_length}) {
            if (!(seen & (1U << k))) lines_->fail(1, "missing key '" + std::string(key_names[k]) + "'");
        }
        if (hash_mark) {
            const std::int64_t blocks = ceil_div(row.input_length, block_size_);
            if (static_cast<std::int64_t>(row.hash_ids.size()) != blocks)
                p.fail(hash_mark, std::to_string(row.hash_ids.size()) + " hash_ids for an input_length of " +
                                      std::to_string(row.input_length) + "; trace_block_size " + std::to_string(block_size_) +
                                      " makes " + std::to_string(blocks));
        }
        if (row.time < last_)
            p.fail(time_mark, "timestamp " + decimals(to_ms(row.time.time_since_epoch()), 6) +
                                  " is before the previous row's " + decimals(to_ms(last_.time_since_epoch()), 6) +
                                  "; rows must be sorted");
        last_ = row.time;
    }

    static Key find_key(std::string_view key) {
        unsigned k = 0;
        while (k < unknown && key_names[k] != key) ++k;
        return static_cast<Key>(k);
    }

    void remember_unknown(std::string_view key, const char* mark) {
        for (const std::string& other : row_unknown_) {
            if (other == key) parser_.fail(mark, "duplicate key '" + other + "'");
        }
        row_unknown_.emplace_back(key);
        constexpr std::size_t enough = 16;
        if (unknown_.size() < enough && std::find(unknown_.begin(), unknown_.end(), key) == unknown_.end())
            unknown_.emplace_back(key);
    }

    void value(Key k, TraceRow& row) {
        Parser& p = parser_;
        switch (k) {
            case timestamp:
                row.time = SimTime(SimDuration(p.milliseconds("timestamp")));
                return;
            case input_length:
                row.input_length = p.integer("input_length", 1, max_request_tokens);
                return;
            case output_length:
                row.output_length = p.integer("output_length", 1, max_request_tokens);
                return;
            case hash_ids:
                p.ids(row.hash_ids, static_cast<std::int64_t>(trace_ids_end / static_cast<std::uint64_t>(block_size_)) - 1);
                return;
            case request_id:
                name("request_id", row.request_id);
                return;
            case priority:
                row.priority = p.integer("priority", INT64_MIN + 1, INT64_MAX);
                return;
            case request_class:
                name("class", row.request_class);
                return;
            case session_id:
                name("session_id", row.session_id);
                return;
            case n: {
                const char* from = p.here();
                if (p.integer("n", 1, INT64_MAX) != 1) p.fail(from, "'n' other than 1 is not supported by this version");
                return;
            }
            case think_ms:
            case timeout_ms:
                p.fail(p.here(), "'" + std::string(key_names[k]) + "' is not supported by this version");
            case unknown:
                p.skip_value(scratch_);
                return;
        }
    }

    /// Text, or a whole number kept as text.
    void name(std::string_view key, std::string& out) {
        if (parser_.peek() == '"') {
            out = parser_.string(scratch_);
        } else {
            const char* from = parser_.here();
            static_cast<void>(parser_.integer(key, INT64_MIN + 1, INT64_MAX));
            out.assign(from, parser_.here());
        }
    }

    std::unique_ptr<LineReader> lines_;
    Parser parser_;
    std::int64_t block_size_;
    bool any_row_ = false;
    SimTime last_{};
    std::string scratch_;
    std::vector<std::string> row_unknown_;
    std::vector<std::string> unknown_;
};

}  // namespace

std::vector<config::FieldDoc> mooncake_docs() {
    return schema().docs();
}

std::unique_ptr<TraceReader> open_mooncake(std::unique_ptr<LineReader> lines, const TraceOptions& options) {
    return std::make_unique<Mooncake>(std::move(lines), options);
}

}  // namespace kvsim
