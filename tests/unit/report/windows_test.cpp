#include "kvsim/report/windows.hpp"

#include <doctest/doctest.h>

#include "sample_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

TEST_CASE("windows.csv: every cell") {
    Outcome o = sample_outcome();  // arrivals at 0, 0.5, 1, 1.5 s; completions at 0.15, 0.58, 2.5 s
    o.requests[0].measured = false;
    o.classes.set(1, "a,b");
    const auto mark = [](std::int64_t at_ms, std::int64_t blocks_s, std::int64_t steps, std::int64_t rows,
                         std::int64_t tokens) {
        WindowMark m;
        m.at = SimTime(ms(at_ms));
        m.blocks_used_dt = static_cast<Int128>(blocks_s) * 1'000'000'000;
        m.in_system_dt = static_cast<Int128>(2 * blocks_s) * 100'000'000;
        m.slots_busy_dt = 20 * m.blocks_used_dt;
        m.slots_token_dt = 10 * m.blocks_used_dt;
        m.slots_reserved_dt = 5 * m.blocks_used_dt;
        m.slots_internal_dt = 3 * m.blocks_used_dt;
        m.steps = steps;
        m.rows = rows;
        m.tokens = tokens;
        return m;
    };
    o.window_marks = {mark(0, 0, 0, 0, 0), mark(1000, 20, 10, 15, 400), mark(2000, 60, 30, 45, 900),
                      mark(2500, 60, 30, 45, 900)};
    const std::string text = windows_csv(sample_info(), o);  // SLO: TTFT 100 ms, TPOT 20 ms
    CHECK(text.substr(text.find('\n') + 1) ==
          "0,0,1,,2,1,2,0,0,0,2,2,12,312,10,19.8,65,79.7,10,10,115,149.3,1,1,,,1,0.2,4,1.5,40,10,0,,0.5,0.25,0.15,0.1,0\n"
          "0,0,1,\"a,b\",1,1,1,0,0,0,1,1,1,201,20,20,80,80,,,80,80,1,1,,,1,,,,,,,,,,,,0\n"
          "1,1,1,,2,2,0,1,0,0,2,0,0,0,140,140,200,200,43.333333,43.333333,1500,1500,0,0,,,0,0.4,8,1.5,25,20,0,,0.5,0.25,0.15,0."
          "1,0\n"
          "1,1,1,\"a,b\",0,0,0,0,0,0,0,0,0,0,,,,,,,,,,,,,,,,,,,,,,,,,0\n"
          "2,2,0.5,,0,0,1,0,0,0,0,2,62,662,,,,,,,,,,,,,,0,0,,,0,0,,,,,,0\n"
          "2,2,0.5,\"a,b\",0,0,0,0,0,0,0,0,0,0,,,,,,,,,,,,,,,,,,,,,,,,,0\n");
}

TEST_CASE("windows.csv: without marks there is the header alone") {
    const std::string text = windows_csv(sample_info(), sample_outcome());
    CHECK(text.find('\n') + 1 == text.size());
}
