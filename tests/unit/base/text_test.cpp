#include "kvsim/base/text.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "kvsim/base/check.hpp"

using namespace kvsim;

TEST_CASE("shortest prints the fewest digits that read back") {
    CHECK(shortest(0.1) == "0.1");
    CHECK(shortest(0) == "0");
    CHECK(shortest(-0.0) == "0");
    CHECK(shortest(3) == "3");
    CHECK(shortest(100000) == "100000");
    CHECK(shortest(1e15) == "1000000000000000");
    CHECK(shortest(1e16) == "1e+16");
    CHECK(shortest(1e30) == "1e+30");
    CHECK(shortest(0.00001) == "0.00001");
    CHECK(shortest(0.000001) == "1e-06");
    CHECK(shortest(-2.5) == "-2.5");
    for (const double value : {1.0 / 3, 123456.789, 5e-324, std::numeric_limits<double>::max(), 0.1 + 0.2}) {
        CHECK(std::strtod(shortest(value).c_str(), nullptr) == value);
    }
    CHECK_THROWS_AS(static_cast<void>(shortest(std::nan(""))), InternalError);
    CHECK_THROWS_AS(static_cast<void>(shortest(std::numeric_limits<double>::infinity())), InternalError);
}

TEST_CASE("decimals drops trailing zeros and never prints -0") {
    CHECK(decimals(12.5, 3) == "12.5");
    CHECK(decimals(3, 6) == "3");
    CHECK(decimals(100, 0) == "100");
    CHECK(decimals(100, 2) == "100");
    CHECK(decimals(0.0004, 3) == "0");
    CHECK(decimals(-0.0004, 3) == "0");
    CHECK(decimals(2.0 / 3, 4) == "0.6667");
    CHECK(decimals(1e300, 9).size() == 301);
}

TEST_CASE("nearest finds a typo but not another word") {
    constexpr std::array<std::string_view, 4> words{"max_num_seqs", "max_num_batched_tokens", "ttft", "block_size"};
    CHECK(nearest("max_num_seq", words) == "max_num_seqs");
    CHECK(nearest("MAX_NUM_SEQS", words) == "max_num_seqs");
    CHECK(nearest("blok_sise", words) == "block_size");
    CHECK(nearest("tftt", words) == "ttft");
    CHECK(nearest("abcd", words).empty());  // distance 4 is more than 3
    CHECK(nearest("xy", words).empty());    // as far as it is long
    CHECK(nearest("max_num_seqs1234", words).empty());
    CHECK(nearest("", words).empty());
    CHECK(nearest("ttft", {}).empty());
}

TEST_CASE("fold_name keeps lower-cased letters and digits") {
    CHECK(fold_name("H100-SXM-80GB") == "h100sxm80gb");
    CHECK(fold_name("h100_sxm 80gb") == "h100sxm80gb");
    CHECK(fold_name("H100-80GB (GKE)") == "h10080gbgke");
    CHECK(fold_name("é-_").empty());
}

TEST_CASE("excerpt makes text safe for one line and cuts at characters") {
    CHECK(excerpt("plain") == "plain");
    CHECK(excerpt("a\tb\nc\x1B[31m") == "a?b?c?[31m");
    CHECK(excerpt("abcdef", 3) == "abc...");
    CHECK(excerpt("a\xFF") == "a?");
    CHECK(excerpt("aéé", 4) == "aé...");
}

TEST_CASE("find_invalid_utf8 knows the edges of the encoding") {
    constexpr auto none = std::string_view::npos;
    CHECK(find_invalid_utf8("") == none);
    CHECK(find_invalid_utf8("aé€\xF0\x9F\x98\x80\xF4\x8F\xBF\xBF") == none);
    CHECK(find_invalid_utf8("a\xFF") == 1);
    CHECK(find_invalid_utf8("\x80") == 0);
    CHECK(find_invalid_utf8("ab\xC3") == 2);            // cut off
    CHECK(find_invalid_utf8("\xC0\xAF") == 0);          // overlong
    CHECK(find_invalid_utf8("\xE0\x80\xAF") == 0);      // overlong
    CHECK(find_invalid_utf8("\xED\xA0\x80") == 0);      // surrogate
    CHECK(find_invalid_utf8("\xF4\x90\x80\x80") == 0);  // above U+10FFFF
}
