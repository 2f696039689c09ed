#include "model_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

std::unique_ptr<Router> router(const std::string& name) {
    config::Diagnostics diagnostics;
    config::Choice choice;
    choice.name = name;
    auto made = make_router(choice, 1, diagnostics);
    CHECK(diagnostics.ok());
    REQUIRE(made);
    return made;
}

}  // namespace

TEST_CASE("round robin takes turns whatever the loads") {
    const auto r = router("");
    const std::vector<ReplicaLoad> loads{{9, 9}, {0, 0}, {5, 5}};
    for (std::size_t i = 0; i < 7; ++i) CHECK(r->pick({}, loads) == i % 3);
}

TEST_CASE("least requests picks the emptiest replica, the first among equals") {
    const auto r = router("least_requests");
    CHECK(r->pick({}, std::vector<ReplicaLoad>{{3, 1}, {2, 9}, {2, 1}}) == 1);
    CHECK(r->pick({}, std::vector<ReplicaLoad>{{0, 0}}) == 0);
}

TEST_CASE("an unknown router is named with the nearest") {
    config::Diagnostics diagnostics;
    config::Choice choice;
    choice.name = "round_robbin";
    CHECK(make_router(choice, 1, diagnostics) == nullptr);
    REQUIRE(diagnostics.errors().size() == 1);
    CHECK(diagnostics.errors()[0].find("round_robin") != std::string::npos);
}
