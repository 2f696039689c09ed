#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kvsim/config/schema.hpp"
#include "unit/config/helpers.hpp"

using namespace kvsim;
using namespace kvsim::config;
using namespace kvsim::config::test;

namespace {

Value scalar(std::string text, bool quoted = false) {
    Value value;
    value.kind = Value::Kind::scalar;
    value.scalar = std::move(text);
    value.quoted = quoted;
    return value;
}

template <class T>
T good(const std::string& text, const Range& range = any, std::string_view key = "k") {
    T out{};
    Diagnostics diagnostics;
    const bool read = decode(scalar(text), out, key, range, diagnostics);
    CHECK_MESSAGE(read, text << ": " << complaints(diagnostics));
    CHECK(diagnostics.ok());
    return out;
}

template <class T>
std::string bad(const Value& value, const Range& range = any, std::string_view key = "k") {
    T out{};
    Diagnostics diagnostics;
    CHECK_FALSE(decode(value, out, key, range, diagnostics));
    CHECK(diagnostics.error_count() == 1);
    return complaints(diagnostics).substr(std::string_view("error: ").size());
}
template <class T>
std::string bad(const std::string& text, const Range& range = any, std::string_view key = "k") {
    return bad<T>(scalar(text), range, key);
}

}  // namespace

TEST_CASE("integers are plain decimal digits") {
    CHECK(good<std::int64_t>("0") == 0);
    CHECK(good<std::int64_t>("-0") == 0);
    CHECK(good<std::int64_t>("+64") == 64);
    CHECK(good<std::int64_t>("-64") == -64);
    CHECK(good<std::int64_t>("9223372036854775807") == INT64_MAX);
    CHECK(good<std::int64_t>("-9223372036854775808") == INT64_MIN);

    CHECK(bad<std::int64_t>("010") == "k has a leading zero, which YAML may read as octal; write 10");
    CHECK(bad<std::int64_t>("-007") == "k has a leading zero, which YAML may read as octal; write -7");
    CHECK(bad<std::int64_t>("00") == "k has a leading zero, which YAML may read as octal; write 0");
    CHECK(bad<std::int64_t>("1e3") == "k must be an integer, got 1e3; write 1000");
    CHECK(bad<std::int64_t>("3.0") == "k must be an integer, got 3.0; write 3");
    CHECK(bad<std::int64_t>("3.5") == "k must be an integer, got 3.5");
    CHECK(bad<std::int64_t>("1_000") == "k must be an integer, got 1_000; write 1000");
    for (const char* text : {"0x10", "0o7", "12k", "1 2", "", "-", "+-5", "inf", ".nan", "true", "1e999"}) {
        CHECK(contains(bad<std::int64_t>(text), "k must be an integer, got"));
    }
    CHECK(bad<std::int64_t>(scalar("64", true)) == "k must be an integer, got text; remove the quotes around '64'");
    CHECK(bad<std::int64_t>("9223372036854775808") == "k does not fit 64 bits, got 9223372036854775808");
    CHECK(bad<std::int64_t>("99999999999999999999", Range{1, 1e6}) == "k must be at most 1000000, got 99999999999999999999");
    CHECK(bad<std::int64_t>("-99999999999999999999", Range{1, 1e6}) == "k must be at least 1, got -99999999999999999999");
    CHECK(bad<std::int64_t>("0", at_least_one, "max_num_seqs") == "max_num_seqs must be at least 1, got 0");
    CHECK(bad<std::int64_t>("1000001", Range{1, 1e6}) == "k must be at most 1000000, got 1000001");
    CHECK(bad<std::int64_t>("-3", non_negative) == "k must be at least 0, got -3");

    Value list;
    list.kind = Value::Kind::list;
    CHECK(bad<std::int64_t>(list) == "k must be an integer, got a list");
    CHECK(bad<std::int64_t>(Value{}) == "k must be an integer, got nothing");
}

TEST_CASE("numbers are finite decimals") {
    CHECK(good<double>("0.9") == 0.9);
    CHECK(good<double>("-1.5e-3") == -1.5e-3);
    CHECK(good<double>("+2") == 2);
    CHECK(good<double>(".5") == 0.5);
    CHECK(good<double>("0") == 0);
    CHECK(bad<double>("90%") == "k must be a number, got 90%; write 0.9");
    CHECK(bad<double>("010") == "k has a leading zero, which YAML may read as octal; write 10");
    CHECK(bad<double>("1e999") == "k is out of range, got 1e999");
    for (const char* text : {".nan", "nan", "NaN", "inf", ".inf", "-.inf", "0x1p3", "1.2.3", "abc", "1,5", "", "5s"}) {
        CHECK(contains(bad<double>(text), "k must be a finite number, got"));
    }
    CHECK(bad<double>(scalar("0.9", true)) == "k must be a number, got text; remove the quotes around '0.9'");
    CHECK(bad<double>("0", Range{0, 1, true}) == "k must be greater than 0, got 0");
    CHECK(bad<double>("1.01", Range{0, 1, true}) == "k must be at most 1, got 1.01");
    CHECK(bad<double>("1", Range{0, 1, false, true}) == "k must be less than 1, got 1");
    CHECK(good<double>("1", Range{0, 1, true}) == 1);
}

TEST_CASE("bool is true or false and nothing YAML 1.1 adds") {
    CHECK(good<bool>("true"));
    CHECK_FALSE(good<bool>("false"));
    for (const char* text : {"yes", "on", "y", "True", "TRUE", "1"}) {
        CHECK(bad<bool>(text) == "k must be true or false, got " + std::string(text) + "; write true");
    }
    for (const char* text : {"no", "Off", "n", "False", "0"}) {
        CHECK(bad<bool>(text) == "k must be true or false, got " + std::string(text) + "; write false");
    }
    CHECK(bad<bool>("maybe") == "k must be true or false, got maybe");
    CHECK(bad<bool>(scalar("true", true)) == "k must be true or false, got text; remove the quotes around 'true'");
}

TEST_CASE("text is any scalar that is not empty") {
    CHECK(good<std::string>("010") == "010");
    CHECK(good<std::string>("yes") == "yes");
    CHECK(bad<std::string>(scalar("", true)) == "k must not be empty");
    Value map;
    map.kind = Value::Kind::map;
    CHECK(bad<std::string>(map) == "k must be text, got a map");
}

TEST_CASE("durations have a unit") {
    const std::vector<std::pair<std::string, std::int64_t>> table{{"1ns", 1},
                                                                  {"1us", 1'000},
                                                                  {"1ms", 1'000'000},
                                                                  {"1s", 1'000'000'000},
                                                                  {"1min", 60'000'000'000},
                                                                  {"1h", 3'600'000'000'000},
                                                                  {"0.1s", 100'000'000},
                                                                  {"1.5ms", 1'500'000},
                                                                  {"10 s", 10'000'000'000},
                                                                  {"1e3ms", 1'000'000'000},
                                                                  {"0s", 0},
                                                                  {"-5ms", -5'000'000},
                                                                  {"0.6ns", 1},
                                                                  {"20min", 1'200'000'000'000},
                                                                  {".5h", 1'800'000'000'000}};
    for (const auto& row : table) CHECK_MESSAGE(good<SimDuration>(row.first).count() == row.second, row.first);
    CHECK(good<FineDuration>("0.02us").ns == doctest::Approx(20));
    CHECK(good<FineDuration>("0.25ns").ns == 0.25);

    CHECK(bad<SimDuration>("10") == "k needs a unit: write `10s`");
    CHECK(bad<SimDuration>("0") == "k needs a unit: write `0s`");
    CHECK(bad<FineDuration>("2.5") == "k needs a unit: write `2.5ms`");
    CHECK(bad<SimDuration>("5m") == "k has the unknown unit 'm' (one of: ns, us, ms, s, min, h)");
    CHECK(bad<SimDuration>("5 S") == "k has the unknown unit 'S'; did you mean 's'? (one of: ns, us, ms, s, min, h)");
    CHECK(bad<SimDuration>("1h30min") == "k has the unknown unit 'h30min' (one of: ns, us, ms, s, min, h)");
    for (const char* text : {"s", "inf", "nan", "-", "", "ten s", "infs", "nans"}) {
        CHECK(contains(bad<SimDuration>(text), "k must be a duration such as `10s`, got"));
    }
    CHECK(bad<SimDuration>("010s") == "k has a leading zero, which YAML may read as octal; write 10s");
    CHECK(bad<SimDuration>("0.1ns") == "k is below the resolution of 1ns, got 0.1ns");
    CHECK(bad<SimDuration>("1e9h") == "k is out of range: simulated time ends at 292 years, got 1e9h");
    CHECK(bad<SimDuration>("1e999s") == "k is out of range, got 1e999s");
    CHECK(bad<SimDuration>(scalar("10s", true)) ==
          "k must be a duration such as `10s`, got text; remove the quotes around '10s'");
    CHECK(bad<SimDuration>("0s", positive) == "k must be greater than 0, got 0s");
    CHECK(bad<SimDuration>("2min", Range{0, 60}) == "k must be at most 60s, got 2min");
    CHECK(good<SimDuration>("60s", Range{0, 60}).count() == 60'000'000'000);
}

TEST_CASE("rates are per second, minute or hour, or inf") {
    CHECK(good<Rate>("5/s").per_second == 5);
    CHECK(good<Rate>("300/min").per_second == 5);
    CHECK(good<Rate>("7200/h").per_second == 2);
    CHECK(good<Rate>("0.5 /s").per_second == 0.5);
    CHECK(std::isinf(good<Rate>("inf", positive).per_second));
    CHECK(std::isinf(good<Rate>(".inf", positive).per_second));
    CHECK(bad<Rate>("inf", Range{0, 100}) == "k must be a finite rate such as `5/s`, got inf");
    CHECK(bad<Rate>("5") == "k needs a unit: write `5/s`");
    CHECK(bad<Rate>("5rps") == "k has the unknown unit 'rps' (one of: /s, /min, /h)");
    CHECK(bad<Rate>("0/s", positive) == "k must be greater than 0, got 0/s");
    CHECK(bad<Rate>("-inf") == "k must be a rate such as `5/s`, got -inf");
    CHECK(bad<Rate>(".nan") == "k must be a rate such as `5/s`, got .nan");
}

TEST_CASE("sizes: GB is not GiB, a bare integer only under ..._bytes") {
    const std::vector<std::pair<std::string, std::int64_t>> table{
        {"1B", 1},      {"1kB", 1'000},    {"1MB", 1'000'000},        {"80GB", 80'000'000'000},    {"1TB", 1'000'000'000'000},
        {"1KiB", 1024}, {"1MiB", 1 << 20}, {"80GiB", 85'899'345'920}, {"1TiB", 1'099'511'627'776}, {"12.3GiB", 13'207'024'435},
        {"0.5 kB", 500}};
    for (const auto& row : table) CHECK_MESSAGE(good<Bytes>(row.first).count() == row.second, row.first);
    CHECK(good<Bytes>("4096", any, "kv_cache_memory_bytes").count() == 4096);
    CHECK(good<Bytes>("12.3GiB", any, "kv_cache_memory_bytes").count() == 13'207'024'435);
    CHECK(bad<Bytes>("4096", any, "memory") == "memory needs a unit: write `4096GiB`");
    CHECK(bad<Bytes>("12.5", any, "x_bytes") == "x_bytes needs a unit: write `12.5GiB`");
    CHECK(bad<Bytes>("1KB") ==
          "k has the unknown unit 'KB'; did you mean 'kB'? (one of: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)");
    CHECK(bad<Bytes>("1G") == "k has the unknown unit 'G' (one of: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB)");
    CHECK(bad<Bytes>("0", positive, "x_bytes") == "x_bytes must be greater than 0, got 0");
    CHECK(bad<Bytes>("1e30TiB") == "k is out of range, got 1e30TiB");
    CHECK(bad<Bytes>("010", any, "x_bytes") == "x_bytes has a leading zero, which YAML may read as octal; write 10");
}

TEST_CASE("optionals and lists use their element's codec") {
    std::optional<std::int64_t> optional;
    std::vector<std::int64_t> list;
    Diagnostics diagnostics;
    CHECK(decode(scalar("5"), optional, "k", any, diagnostics));
    CHECK(optional == 5);
    Value items;
    items.kind = Value::Kind::list;
    items.list = {scalar("1"), scalar("2")};
    CHECK(decode(items, list, "k", any, diagnostics));
    CHECK(list == std::vector<std::int64_t>{1, 2});
    CHECK_FALSE(decode(scalar("1"), list, "k", any, diagnostics));
    CHECK(complaints(diagnostics) == "error: k must be a list");
}

TEST_CASE("ranges describe themselves") {
    CHECK(describe(any).empty());
    CHECK(describe(positive) == "> 0");
    CHECK(describe(at_least_one) == ">= 1");
    CHECK(describe(Range{1, 1e6}) == "1 to 1000000");
    CHECK(describe(Range{0, 1, true}) == "> 0 to 1");
    CHECK(describe(Range{0, 1, false, true}) == "0 to < 1");
}
