// Damaged traces of every format: refused with file:line, or passed over with a count; nothing hangs.

#include <functional>

#include "kvsim/model/trace_filters.hpp"
#include "kvsim/random/stream.hpp"
#include "unit/workload/support.hpp"

using namespace kvsim;

namespace {

struct Sample {
    std::string format;
    std::string header;                             ///< a line, or empty
    std::function<std::string(std::int64_t)> line;  ///< row i's
    std::string number;                             ///< text of row 7's that is its prompt's length
    std::string time;                               ///< text that is its time; empty: none
};

std::string str(std::int64_t i) {
    return std::to_string(i);
}

const std::vector<Sample>& samples() {
    static const std::vector<Sample> all{
        {"mooncake", "",
         [](std::int64_t i) {
             return "{\"timestamp\": " + str(9000 + i) + ", \"input_length\": " + str(4000 + i) + ", \"output_length\": 5}";
         },
         "4007", "9007"},
        {"timed_trace", "",
         [](std::int64_t i) {
             return "{\"chat_id\": 1, \"timestamp\": " + str(9000 + i) + ", \"input_length\": " + str(4000 + i) +
                    ", \"output_length\": 5}";
         },
         "4007", "9007"},
        {"guidellm", "",
         [](std::int64_t i) {
             return "{\"timestamp\": " + str(9000 + i) + ".5, \"prompt_tokens\": " + str(4000 + i) + ", \"output_tokens\": 5}";
         },
         "4007", "9007.5"},
        {"llmservingsim", "",
         [](std::int64_t i) {
             return "{\"arrival_time_ns\": " + str(9000 + i) + ", \"input_toks\": " + str(4000 + i) + ", \"output_toks\": 5}";
         },
         "4007", "9007"},
        {"vllm_custom", "",
         [](std::int64_t i) { return "{\"prompt\": \"abcdefgh\", \"output_tokens\": " + str(4000 + i) + "}"; }, "4007", ""},
        {"weka", "",
         [](std::int64_t i) {
             return "{\"id\": \"s\", \"requests\": [{\"t\": " + str(9000 + i) + ", \"in\": " + str(4000 + i) +
                    ", \"out\": 5}]}";
         },
         "4007", "9007"},
        {"sharegpt", "",
         [](std::int64_t i) {
             return "{\"id\": " + str(4000 + i) + ", \"conversations\": [{\"value\": \"abc\"}, {\"value\": \"def\"}]}";
         },
         "\"abc\"", ""},
        {"azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n",
         [](std::int64_t i) { return "2023-11-16 18:15:" + str(10 + i) + ".6805900," + str(4000 + i) + ",44"; }, "4007",
         "2023-11-16 18:15:17.6805900"},
        {"burstgpt", "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
         [](std::int64_t i) { return str(9000 + i) + ",GPT-4," + str(4000 + i) + ",18,490,API log"; }, "4007", "9007"},
        {"vidur", "arrived_at,num_prefill_tokens,num_decode_tokens\n",
         [](std::int64_t i) { return str(9000 + i) + ".25," + str(4000 + i) + ",44"; }, "4007", "9007.25"},
    };
    return all;
}

constexpr std::int64_t row_count = 20;
constexpr std::int64_t damaged = 7;

std::string file_of(const Sample& s, const std::string& replacement) {
    std::string text = s.header;
    for (std::int64_t i = 0; i < row_count; ++i) text += (i == damaged ? replacement : s.line(i)) + "\n";
    return text;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
    const std::size_t at = text.find(what);
    REQUIRE(at != std::string::npos);
    return text.replace(at, what.size(), with);
}

struct Result {
    std::int64_t rows = 0;
    std::string error;
    std::vector<std::string> notes;
};

Result read(const std::string& text, const std::string& format, bool skip) {
    Result out;
    try {
        auto reader = open_trace_text("t", text, format, {});
        if (skip) reader = skip_wrong_rows(std::move(reader));
        TraceRow row;
        while (reader->next(row)) ++out.rows;
        out.notes = reader->notes();
    } catch (const UserError& e) { out.error = e.what(); }
    return out;
}

}  // namespace

TEST_CASE("every format reads its sample, also with a byte order mark and CRLF") {
    for (const Sample& s : samples()) {
        CAPTURE(s.format);
        const std::string text = file_of(s, s.line(damaged));
        CHECK(open_trace_text("t", text, "", {})->format() == s.format);
        CHECK(read(text, "", false).rows == row_count);
        std::string windows = "\xEF\xBB\xBF";
        for (const char c : text) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
        CHECK(read(windows, "", false).rows == row_count);
        CHECK(read(text.substr(0, text.size() - 1), "", false).rows == row_count);
    }
}

TEST_CASE("a wrong row is refused at its line, or left out and counted") {
    int cases = 0;
    for (const Sample& s : samples()) {
        const std::string good = s.line(damaged);
        std::vector<std::string> bad;
        for (const char* number : {"-5", "NaN", "nan", "inf", "1e400", "99999999999999999999", "0x10", "3.5", "", "null", "[]",
                                   "\"\xFF\"", "\xC0\xAF", "--1", "1 2", "true"})
            bad.push_back(replaced(good, s.number, number));
        if (!s.time.empty()) {
            for (const char* time : {"-5", "NaN", "1e400", "99999999999999999999999999", "x", "\xFF", "1:2", "1e", "0"})
                bad.push_back(replaced(good, s.time, time));
        }
        bad.push_back(good.substr(0, good.size() / 2));  // truncated
        bad.push_back(good + (s.header.empty() ? "}" : ",1"));
        bad.push_back(good.substr(3));
        bad.push_back("garbage");
        const std::int64_t line = damaged + (s.header.empty() ? 1 : 2);
        for (const std::string& row : bad) {
            // A first time of 0 is in order only where times are since a session's start.
            if (s.format == "weka" && row.find("\"t\": 0,") != std::string::npos) continue;
            CAPTURE(s.format);
            CAPTURE(row);
            const std::string text = file_of(s, row);
            const Result strict = read(text, s.format, false);
            CHECK(strict.error.find("t:" + str(line) + ":") == 0);
            CHECK(strict.error.find(": error: ") != std::string::npos);
            const Result lenient = read(text, s.format, true);
            CHECK(lenient.error.empty());
            CHECK(lenient.rows == row_count - 1);
            REQUIRE(lenient.notes.size() == 1);
            CHECK(lenient.notes[0].find("1 wrong row is skipped, the first: t:" + str(line) + ":") == 0);
            ++cases;
        }
    }
    CHECK(cases > 250);
}

TEST_CASE("thousands of random damages: rows, or an error with file and line") {
    Stream stream(1, "damage");
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(stream.next_u64() % n); };
    static constexpr std::string_view bytes = "{}[]\",:0-.eE\n\r\t \\x\xFF\x80N";
    int refused = 0;
    int skipped = 0;
    for (const Sample& s : samples()) {
        const std::string good = file_of(s, s.line(damaged));
        for (int i = 0; i < 400; ++i) {
            std::string text = good;
            const std::size_t edits = 1 + below(3);
            for (std::size_t e = 0; e < edits && !text.empty(); ++e) {
                const std::size_t at = below(text.size());
                switch (below(4)) {
                    case 0:
                        text[at] = bytes[below(bytes.size())];
                        break;
                    case 1:
                        text.erase(at, 1 + below(6));
                        break;
                    case 2:
                        text.insert(at, 1, bytes[below(bytes.size())]);
                        break;
                    default:
                        text.resize(at);
                }
            }
            CAPTURE(s.format);
            CAPTURE(text);
            const Result strict = read(text, s.format, false);
            if (!strict.error.empty()) {
                ++refused;
                const bool placed = strict.error.size() > 2 && strict.error.compare(0, 2, "t:") == 0 &&
                                    strict.error[2] >= '1' && strict.error[2] <= '9';
                CHECK(placed);
            }
            const Result lenient = read(text, s.format, true);
            CHECK(lenient.rows >= strict.rows);
            if (lenient.error.empty() && !strict.error.empty()) {
                ++skipped;
                CHECK(!lenient.notes.empty());
            }
        }
    }
    CHECK(refused > 2000);
    CHECK(skipped > 1000);
}

TEST_CASE("nothing usable is an error even when wrong rows are skipped") {
    const Result r = read("{\"timestamp\": -1}\n{\"timestamp\": -2}\n", "mooncake", true);
    CHECK(r.error.find("the trace has no rows") != std::string::npos);
    CHECK(r.error.find("2 wrong rows are skipped, the first: t:1:15: error: timestamp must not be negative") !=
          std::string::npos);
}
