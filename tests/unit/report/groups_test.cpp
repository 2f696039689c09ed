// Fairness figures and length groups.

#include "kvsim/report/groups.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace kvsim;
using namespace std::chrono_literals;

namespace {

RequestRecord served(std::int32_t prompt, std::int32_t outputs, SimDuration e2e) {
    RequestRecord record;
    record.prompt_tokens = prompt;
    record.output_tokens = outputs;
    record.queue = 0ms;
    record.ttft = e2e / 2;
    record.e2e = e2e;
    record.finish = FinishReason::length;
    return record;
}

}  // namespace

TEST_CASE("Jain's index: 1 for equals, 1/n for one that has everything, in between by hand") {
    CHECK(jain_index(std::vector<double>{3, 3, 3, 3}).value() == doctest::Approx(1));
    CHECK(jain_index(std::vector<double>{0, 5, 0, 0}).value() == doctest::Approx(0.25));
    CHECK(jain_index(std::vector<double>{1, 2, 3}).value() == doctest::Approx(36.0 / 42.0));
    CHECK_FALSE(jain_index(std::vector<double>{}).has_value());
    CHECK_FALSE(jain_index(std::vector<double>{0, 0}).has_value());
}

TEST_CASE("fairness over requests is of the speed each one saw, over tenants of what they got of what they sent") {
    Outcome outcome;
    outcome.requests = {served(10, 10, 1s), served(10, 20, 1s), served(10, 30, 1s)};
    CHECK(request_fairness(outcome).value() == doctest::Approx(36.0 / 42.0));
    CHECK_FALSE(tenant_fairness(outcome).has_value());

    // b sends 80 tokens and gets 40 of them by the last arrival, a all it sent.
    outcome.requests = {served(10, 10, 1s), served(20, 20, 1s), served(20, 20, 9s)};
    outcome.tenants = {{0, "a"}, {1, "b"}, {2, "b"}};
    outcome.last_arrival = SimTime(2s);
    CHECK(tenant_fairness(outcome).value() == doctest::Approx(1.5 * 1.5 / (2 * (1 + 0.25))));
    outcome.requests[2].e2e = 2s;
    CHECK(tenant_fairness(outcome).value() == doctest::Approx(1));
    outcome.requests[2].finish = FinishReason::rejected;
    CHECK(tenant_fairness(outcome).value() < 1);

    // The class is the tenant of requests without one, also where others have one; without either: one without a name.
    outcome.tenants = {{0, "a"}};
    outcome.classes = {{0, "b"}, {1, "b"}, {2, "b"}};
    CHECK(tenant_fairness(outcome).value() == doctest::Approx(1.5 * 1.5 / (2 * (1 + 0.25))));
    outcome.tenants = {{0, "b"}};
    CHECK_FALSE(tenant_fairness(outcome).has_value());
    outcome.classes = {};
    CHECK(tenant_fairness(outcome).value() == doctest::Approx(1.5 * 1.5 / (2 * (1 + 0.25))));
    outcome.tenants = {{0, "a"}, {1, "b"}};
    CHECK(tenant_fairness(outcome).value() == doctest::Approx(2.0 * 2.0 / (3 * (1 + 1))));
}

TEST_CASE("length groups: bounds at the quantiles, every request in one, the same in another run") {
    Outcome base;
    for (int i = 1; i <= 100; ++i) base.requests.push_back(served(i, i, 1s * i));
    base.usable_blocks = 1;
    base.block_size = 16;
    RunInfo info;
    const LengthGroups groups(base);
    const std::vector<ClassSummary> found = groups.summarize(info, base);
    REQUIRE(found.size() == 4);
    CHECK(found[0].name == "up to 101 tokens");
    CHECK(found[1].name == "102 to 180 tokens");
    CHECK(found[3].name == "over 198 tokens");
    CHECK(found[0].requests == 50);
    CHECK(found[1].requests == 40);
    CHECK(found[2].requests == 9);
    CHECK(found[3].requests == 1);
    CHECK(found[0].e2e.mean == doctest::Approx(25'500));

    // Another engine cuts the long ones short: they stay where they were.
    Outcome other = base;
    for (RequestRecord& record : other.requests) record.output_tokens = 1;
    CHECK(groups.summarize(info, other)[1].requests == 40);

    Outcome alike;
    for (int i = 0; i < 5; ++i) alike.requests.push_back(served(7, 3, 1s));
    const std::vector<ClassSummary> one = LengthGroups(alike).summarize(info, alike);
    REQUIRE(one.size() == 1);
    CHECK(one[0].name == "up to 10 tokens");
    CHECK(one[0].requests == 5);
}

TEST_CASE("the same request of two runs: by number where all come in order, else by time, class and prompt of first attempts") {
    Outcome base;
    for (int i = 0; i < 4; ++i) {
        base.requests.push_back(served(10 + i, 5, 1s));
        base.requests.back().arrival = SimTime(1s * i);
    }
    Outcome other = base;
    other.requests[2].arrival = SimTime(5s);  // waited at its client
    using Same = std::vector<std::optional<RequestId>>;
    CHECK(same_requests(base, other) == Same{0, 1, 2, 3});

    // The second is sent again, and the third comes later, behind the fourth.
    other = base;
    other.requests = {base.requests[0], base.requests[1], base.requests[1], base.requests[3], base.requests[2]};
    other.requests[2].arrival = SimTime(2s);
    other.requests[4].arrival = SimTime(4s);
    other.attempts.add(2, 1, 5);
    CHECK(same_requests(base, other) == Same{0, 1, std::nullopt, 3});
    CHECK(same_requests(other, base) == Same{0, 1, std::nullopt, 3, std::nullopt});
    other.classes = {{3, "chat"}};
    CHECK(same_requests(base, other) == Same{0, 1, std::nullopt, std::nullopt});

    // A request that the base does not have is of the group of its own length.
    base.usable_blocks = other.usable_blocks = 1;
    base.block_size = other.block_size = 16;
    other.requests[2].prompt_tokens = 1000;
    const std::vector<ClassSummary> found = LengthGroups(base).summarize(RunInfo{}, other);
    REQUIRE(found.back().name.starts_with("over "));
    CHECK(found.back().requests == 2);
}
