// A job summary in Markdown and annotations, as GitHub's runners read them.

#include "kvsim/base/text.hpp"
#include "kvsim/report/gate_report.hpp"

namespace kvsim {
namespace {

using Status = GateCase::Status;

constexpr std::size_t most_annotations = 10;

/// Nothing in it opens a cell (`bars`), a tag or a link.
std::string cell(std::string_view text, bool bars = true) {
    std::string out;
    for (const char c : excerpt(text, 300)) {
        if ((c == '|' && bars) || c == '<' || c == '`' || c == '*' || c == '_' || c == '[' || c == '\\') out += '\\';
        out += c;
    }
    return out;
}

std::string_view word(Status status) {
    switch (status) {
        case Status::passed:
            return "pass";
        case Status::failed:
            return "**FAIL**";
        case Status::warned:
            return "warning";
        case Status::skipped:
            return "skipped";
    }
    return "";
}

/// What follows `::` may hold anything but line ends; in a property ':' and ',' end it too.
std::string escaped(std::string_view text, bool property) {
    std::string out;
    for (const char c : text) {
        if (c == '%')
            out += "%25";
        else if (c == '\r')
            out += "%0D";
        else if (c == '\n')
            out += "%0A";
        else if (property && c == ':')
            out += "%3A";
        else if (property && c == ',')
            out += "%2C";
        else
            out += c;
    }
    return out;
}

std::string annotation(std::string_view command, std::string_view title, std::string_view message) {
    std::string out = "::";
    out += command;
    out += " title=";
    out += escaped(title, true);
    out += "::";
    out += escaped(message, false);
    return out + "\n";
}

void append_annotations(std::string& out, const GateReport& report, Status status, std::string_view command) {
    const auto all = static_cast<std::size_t>(report.count(status));
    std::size_t said = 0;
    for (const GateCase& c : report.cases) {
        if (c.status != status) continue;
        if (said + 1 == most_annotations && all > most_annotations) {
            out += annotation(command, report.title, "and " + std::to_string(all - said) + " more");
            return;
        }
        ++said;
        out += annotation(command, c.suite + ": " + c.name, c.message);
    }
}

}  // namespace

std::string gate_markdown(const GateReport& report, std::size_t max_bytes) {
    const std::int64_t failed = report.count(Status::failed);
    const std::int64_t warned = report.count(Status::warned);
    std::string out = "### ";
    out += cell(report.title);
    out += failed > 0 ? ": **failed**\n\n" : ": passed\n\n";
    out += std::to_string(report.cases.size()) + " checks, " + std::to_string(failed) + " failed";
    if (warned > 0) out += ", " + std::to_string(warned) + " uncertain";
    out += ".\n";
    if (!report.table.header.empty()) {
        TextTable table = report.table;
        for (std::vector<std::string>& row : table.rows) {
            for (std::string& text : row) text = cell(text, false);  // markdown() sees to the bars
        }
        if (!table.rows.empty()) {
            out += '\n';
            out += markdown(table);
        }
    } else {
        out += "\n| result | where | check | figures |\n|---|---|---|---|\n";
        for (const Status status : {Status::failed, Status::warned, Status::skipped, Status::passed}) {
            for (const GateCase& c : report.cases) {
                if (c.status != status) continue;
                out += "| ";
                out += word(status);
                for (const std::string* text : {&c.suite, &c.name, &c.message}) {
                    out += " | ";
                    out += cell(*text);
                }
                out += " |\n";
            }
        }
    }
    out += '\n';
    if (!report.note.empty()) {
        out += cell(report.note);
        out += "\n\n";
    }
    if (out.size() <= max_bytes) return out;
    constexpr std::string_view note = "\n*Cut here: the summary would pass GitHub's limit.*\n\n";
    if (max_bytes < note.size()) return {};
    const std::size_t end = out.rfind('\n', max_bytes - note.size());
    out.resize(end == std::string::npos || end + 1 + note.size() > max_bytes ? 0 : end + 1);
    out += note;
    return out;
}

std::string github_annotations(const GateReport& report) {
    std::string out;
    append_annotations(out, report, Status::failed, "error");
    append_annotations(out, report, Status::warned, "warning");
    return out;
}

}  // namespace kvsim
