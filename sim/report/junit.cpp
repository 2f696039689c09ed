// JUnit's XML.

#include <algorithm>

#include "kvsim/base/text.hpp"
#include "kvsim/report/gate_report.hpp"

namespace kvsim {
namespace {

using Status = GateCase::Status;

/// In an attribute or in text. Line ends and tabs as references: an attribute's would become blanks.
std::string escaped(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const std::size_t broken = find_invalid_utf8(text);
        const std::string_view whole = text.substr(0, broken);
        for (std::size_t i = 0; i < whole.size(); ++i) {
            const char c = whole[i];
            const auto byte = static_cast<unsigned char>(c);
            // U+FFFE and U+FFFF are characters that XML does not allow either.
            const bool noncharacter = whole.substr(i, 3) == "\xEF\xBF\xBE" || whole.substr(i, 3) == "\xEF\xBF\xBF";
            if (noncharacter) {
                out += '?';
                i += 2;
            } else if (c == '&') {
                out += "&amp;";
            } else if (c == '<') {
                out += "&lt;";
            } else if (c == '>') {
                out += "&gt;";
            } else if (c == '"') {
                out += "&quot;";
            } else if (c == '\n') {
                out += "&#10;";
            } else if (c == '\t') {
                out += "&#9;";
            } else if (c == '\r') {
                out += "&#13;";
            } else {
                out += byte < 0x20 ? '?' : c;
            }
        }
        if (broken == std::string_view::npos) break;
        out += '?';
        text.remove_prefix(broken + 1);
    }
    return out;
}

std::string counts(std::span<const GateCase> cases) {
    const auto count = [&](Status status) {
        return std::to_string(std::count_if(cases.begin(), cases.end(), [&](const GateCase& c) { return c.status == status; }));
    };
    std::string out = " tests=\"";
    out += std::to_string(cases.size());
    out += "\" failures=\"" + count(Status::failed);
    out += "\" errors=\"0\" skipped=\"" + count(Status::skipped);
    return out + "\" time=\"0\"";  // some readers want one
}

}  // namespace

std::int64_t GateReport::count(Status status) const {
    return std::count_if(cases.begin(), cases.end(), [&](const GateCase& c) { return c.status == status; });
}

std::string junit_xml(const GateReport& report) {
    std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"";
    out += escaped(report.title);
    out += '"';
    out += counts(report.cases);
    out += ">\n";
    const std::span<const GateCase> all = report.cases;
    for (std::size_t first = 0; first < all.size();) {
        std::size_t last = first;
        while (last < all.size() && all[last].suite == all[first].suite) ++last;
        const std::span<const GateCase> suite = all.subspan(first, last - first);
        first = last;
        out += "  <testsuite name=\"";
        out += escaped(suite.front().suite);
        out += '"';
        out += counts(suite);
        out += ">\n";
        for (const GateCase& c : suite) {
            out += "    <testcase classname=\"";
            out += escaped(c.suite);
            out += "\" name=\"";
            out += escaped(c.name);
            out += "\" time=\"0\"";
            const std::string message = escaped(c.message);
            if (c.status == Status::failed) {
                out += "><failure type=\"gate\" message=\"" + message;
                out += "\">" + message;
                out += "</failure></testcase>\n";
            } else if (c.status == Status::skipped) {
                out += "><skipped message=\"" + message;
                out += "\"/></testcase>\n";
            } else if (c.status == Status::warned) {
                out += "><system-out>" + message;
                out += "</system-out></testcase>\n";
            } else {
                out += "/>\n";
            }
        }
        out += "  </testsuite>\n";
    }
    return out + "</testsuites>\n";
}

}  // namespace kvsim
