#include "kvsim/model/trace_writer.hpp"

#include "unit/workload/support.hpp"

using namespace kvsim;

namespace {

std::string write(const std::vector<Arrival>& arrivals, std::int64_t block) {
    TraceWriter writer(block);
    std::string out;
    for (const Arrival& a : arrivals) writer.append(a, out);
    return out;
}

Arrival request(std::int64_t ns, std::vector<TokenRun> prompt, std::int64_t tokens) {
    Arrival a;
    a.time = SimTime(SimDuration(ns));
    a.prompt_tokens = tokens;
    a.output_tokens = 3;
    a.prompt = std::move(prompt);
    return a;
}

}  // namespace

TEST_CASE("times read back to the nanosecond, names to the byte") {
    std::vector<Arrival> all;
    for (const std::int64_t ns : {0L, 1L, 999'999L, 1'000'000L, 1'500'000L, 123'456'789'012'345L, 4'000'000'000'000'000'007L}) {
        all.push_back(request(ns, {}, 5));
        all.back().external_id = std::string("a\"\\\n\xC3\xA9 7");
        all.back().priority = -3;
        all.back().request_class = std::string("c");
        all.back().session_id = std::string("12");
        all.back().tenant = std::string("t, \"1\"");
    }
    const auto back = test::drain(*make_replay(open_trace_text("t", write(all, 16), "", {}), {{}, 1, {}, {}}, 1));
    REQUIRE(back.size() == all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        CHECK(back[i].time == all[i].time);
        CHECK(back[i].external_id == all[i].external_id);
        CHECK(back[i].priority == -3);
        CHECK(back[i].request_class == "c");
        CHECK(back[i].session_id == "12");
        CHECK(back[i].tenant == "t, \"1\"");
        CHECK(back[i].prompt.empty());
    }
}

TEST_CASE("equal blocks, and only those, get equal hash ids") {
    const std::uint64_t shared = prefix_base(3);
    const std::vector<Arrival> all{
        request(0, {{shared, 6}, {own_prompt_base(0), 4}}, 10),
        request(1, {{shared, 3}, {shared + 3, 3}, {own_prompt_base(1), 4}}, 10),  // the same tokens in other runs
        request(2, {{shared, 8}}, 8),
        request(3, {{own_prompt_base(3), 8}}, 8),
        request(4, {{shared + 4, 4}, {shared, 4}}, 8),
    };
    const std::string text = write(all, 2);
    const auto reader = open_trace_text("t", text, "", {});
    std::vector<std::vector<std::uint64_t>> ids;
    TraceRow row;
    while (reader->next(row)) {
        CHECK((row.hash_ids.empty() || row.block_size == 2));
        ids.push_back(row.hash_ids);
    }
    REQUIRE(ids.size() == 5);
    CHECK(ids[0] == std::vector<std::uint64_t>{0, 1, 2, 3, 4});
    CHECK(ids[1] == std::vector<std::uint64_t>{0, 1, 2, 5, 6});
    CHECK(ids[2] == std::vector<std::uint64_t>{0, 1, 2, 7});
    CHECK(ids[3].empty());
    CHECK(ids[4] == std::vector<std::uint64_t>{2, 7, 0, 1});
}
