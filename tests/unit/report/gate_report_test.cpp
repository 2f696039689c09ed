#include "kvsim/report/gate_report.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

using namespace kvsim;

namespace {

using Status = GateCase::Status;

GateReport report(std::vector<GateCase> cases) {
    GateReport out;
    out.title = "gate";
    out.cases = std::move(cases);
    return out;
}

std::size_t count(const std::string& text, std::string_view part) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
    return n;
}

}  // namespace

TEST_CASE("gate reports: JUnit counts suites and cases") {
    const std::string xml = junit_xml(report({{"a", "one", Status::passed, ""},
                                              {"a", "two", Status::failed, "why"},
                                              {"b", "one", Status::warned, "perhaps"},
                                              {"b", "two", Status::skipped, "not run"}}));
    CHECK(count(xml, "<testsuites name=\"gate\" tests=\"4\" failures=\"1\" errors=\"0\" skipped=\"1\" time=\"0\">") == 1);
    CHECK(count(xml, "<testsuite name=\"a\" tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\" time=\"0\">") == 1);
    CHECK(count(xml, "<testsuite name=\"b\" tests=\"2\" failures=\"0\" errors=\"0\" skipped=\"1\" time=\"0\">") == 1);
    CHECK(count(xml, "<failure type=\"gate\" message=\"why\">why</failure>") == 1);
    CHECK(count(xml, "<skipped message=\"not run\"/>") == 1);
}

TEST_CASE("gate reports: nothing in a text breaks the XML") {
    const std::string xml =
        junit_xml(report({{"a<b>&\"'", "x\x01y\x1fz\x7f", Status::failed, "line\nbreak\ttab\r\xff\xC3\xA9\xEF\xBF\xBF."}}));
    CHECK(count(xml, "a&lt;b&gt;&amp;&quot;'") == 2);
    CHECK(count(xml, "x?y?z") == 1);
    CHECK(count(xml, "line&#10;break&#9;tab&#13;?\xC3\xA9?.") == 2);
}

TEST_CASE("gate reports: annotations escape what ends a command") {
    const std::string out = github_annotations(report({{"a:b,c%", "one", Status::failed, "5 % off\r\n::x, y"}}));
    CHECK(out == "::error title=a%3Ab%2Cc%25%3A one::5 %25 off%0D%0A::x, y\n");
    CHECK(github_annotations(report({{"a", "one", Status::passed, ""}})).empty());
    CHECK(github_annotations(report({{"a", "one", Status::warned, "w"}})) == "::warning title=a%3A one::w\n");
}

TEST_CASE("gate reports: at most ten annotations of a kind, the last of which counts the others") {
    const auto many = [](std::size_t n) {
        std::vector<GateCase> cases;
        for (std::size_t i = 0; i < n; ++i) cases.push_back({"s", "c", Status::failed, "m"});
        return github_annotations(report(std::move(cases)));
    };
    CHECK(count(many(10), "::error") == 10);
    CHECK(count(many(10), "more") == 0);
    CHECK(count(many(25), "::error") == 10);
    CHECK(count(many(25), "and 16 more") == 1);
}

TEST_CASE("gate reports: the Markdown keeps to its limit, whole lines and a note") {
    std::vector<GateCase> cases;
    for (int i = 0; i < 1000; ++i) cases.push_back({"suite", "case", i == 999 ? Status::failed : Status::passed, "message"});
    const GateReport r = report(std::move(cases));
    const std::string whole = gate_markdown(r, 1U << 20U);
    CHECK(whole.starts_with("### gate: **failed**\n\n1000 checks, 1 failed.\n"));
    CHECK(count(whole, "Cut here") == 0);
    // What failed stands first.
    CHECK(whole.find("**FAIL**") < whole.find("| pass |"));
    for (const std::size_t limit : {60U, 100U, 500U, 5000U, 5001U, 5002U}) {
        CAPTURE(limit);
        const std::string cut = gate_markdown(r, limit);
        CHECK(cut.size() <= limit);
        CHECK(cut.ends_with("limit.*\n\n"));
        if (limit >= 500) CHECK(count(cut, "**FAIL**") == 1);
    }
    CHECK(gate_markdown(r, 10).empty());
}

TEST_CASE("gate reports: cells of the Markdown cannot open others") {
    GateReport r = report({{"a|b", "c<script>", Status::failed, "`x`\ny"}});
    const std::string cases = gate_markdown(r, 10000);
    CHECK(count(cases, "| **FAIL** | a\\|b | c\\<script> | \\`x\\`?y |") == 1);
    r.table.header = {"h1", "h2"};
    r.table.rows = {{"a|b", "<i>"}};
    CHECK(count(gate_markdown(r, 10000), "| a\\|b | \\<i> |") == 1);
    // A table without rows says that there is nothing to see.
    r.table.rows.clear();
    CHECK(count(gate_markdown(r, 10000), "|") == 0);
}

TEST_CASE("gate reports: benchmark figures read back") {
    const std::vector<BenchmarkFigure> figures{{"a \"quoted\": ttft", "ms", 12.5, "± 1.5", "smaller is better", true},
                                               {"b", "req/s", 1e-7, "", "bigger is better", false}};
    const nlohmann::json json = nlohmann::json::parse(benchmark_json(figures));
    REQUIRE(json.size() == 2);
    CHECK(json[0]["name"] == "a \"quoted\": ttft");
    CHECK(json[0]["value"] == 12.5);
    CHECK(json[0]["range"] == "± 1.5");
    CHECK_FALSE(json[1].contains("range"));
    CHECK(json[1]["value"] == 1e-7);
    CHECK(nlohmann::json::parse(benchmark_json({})).empty());
}
