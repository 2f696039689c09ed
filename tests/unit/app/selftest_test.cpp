#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "unit/app/cli.hpp"

namespace kvsim::test {

TEST_CASE("selftest prints each case with what it measured") {
    const Finished table = run_program({"selftest", "--only", "OPT-13B: token slots"});
    CHECK(table.exit == 0);
    CHECK(table.out.find("OPT-13B: token slots in 12 GiB") != std::string::npos);
    CHECK(table.out.find("15728       15728") != std::string::npos);
    CHECK(table.out.find("PASS") != std::string::npos);
    CHECK(table.out.find("1 of 1 passed\n") != std::string::npos);

    const Finished json = run_program({"selftest", "--only", "M/G/infinity, constant", "--format", "json"});
    CHECK(json.exit == 0);
    const auto root = nlohmann::json::parse(json.out);
    REQUIRE(root.at("cases").size() == 1);
    const auto& row = root["cases"][0];
    CHECK(row.at("expected") == 1.025);
    CHECK(row.at("result") == "PASS");
    CHECK(row.at("ci95_low").get<double>() < row.at("measured").get<double>());
    CHECK(row.at("measured").get<double>() < row.at("ci95_high").get<double>());
    CHECK(row.at("seconds").get<double>() > 0);
    CHECK(root.at("failed") == 0);
    CHECK(root.at("not_run").size() == 4);

    CHECK(run_program({"selftest", "--only", "nothing like it"}).exit == 2);
}

}  // namespace kvsim::test
