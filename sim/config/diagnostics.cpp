#include "kvsim/config/diagnostics.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <tuple>
#include <utility>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"

namespace kvsim::config {

namespace {

constexpr std::size_t max_printed_errors = 20;
constexpr std::size_t max_kept = 200;
constexpr std::size_t max_width = 160;  // of a printed source line, in characters
constexpr std::size_t tab_width = 4;

bool is_continuation(char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

std::size_t count_characters(std::string_view text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

// One string per printed column: a character, a blank of an expanded tab, or '?' for what must not reach a terminal.
// `caret` becomes the index of the character that starts at byte `column` (from 0), or one past the end.
std::vector<std::string> printable_columns(std::string_view line, std::size_t column, std::size_t& caret) {
    std::vector<std::string> out;
    caret = std::string_view::npos;
    const bool broken = find_invalid_utf8(line) != std::string_view::npos;
    for (std::size_t i = 0; i < line.size();) {
        std::size_t next = i + 1;
        while (!broken && next < line.size() && is_continuation(line[next])) ++next;
        if (caret == std::string_view::npos && next > column) caret = out.size();
        const auto byte = static_cast<unsigned char>(line[i]);
        if (line[i] == '\t') {
            do out.emplace_back(" ");
            while (out.size() % tab_width != 0);
        } else if (byte < 0x20 || byte == 0x7F || (broken && byte >= 0x80)) {
            out.emplace_back("?");
        } else {
            out.emplace_back(line.substr(i, next - i));
        }
        i = next;
    }
    if (caret == std::string_view::npos) caret = out.size();
    return out;
}

}  // namespace

std::string picture(std::string_view line, std::size_t column) {
    // Bytes far from the caret cannot be printed anyway; a megabyte line is not worth taking apart.
    constexpr std::size_t reach = std::size_t{4} * max_width;
    bool cut_left = column > reach;
    if (cut_left) {
        std::size_t start = column - reach;
        while (start < line.size() && is_continuation(line[start])) ++start;
        line.remove_prefix(std::min(start, line.size()));
        column -= std::min(start, column);
    }
    bool cut_right = line.size() > column + reach;
    if (cut_right) {
        std::size_t end = column + reach;
        while (end > 0 && is_continuation(line[end])) --end;
        line = line.substr(0, end);
    }
    std::size_t caret = 0;
    std::vector<std::string> columns = printable_columns(line, column, caret);
    if (columns.size() > max_width || cut_left || cut_right) {
        const std::size_t start = caret > max_width / 2 ? caret - max_width / 2 : 0;
        const std::size_t end = std::min(columns.size(), start + max_width);
        cut_left = cut_left || start > 0;
        cut_right = cut_right || end < columns.size();
        columns = std::vector<std::string>(columns.begin() + static_cast<std::ptrdiff_t>(start),
                                           columns.begin() + static_cast<std::ptrdiff_t>(end));
        caret -= start;
    }
    std::string out;
    if (cut_left) out += "...";
    for (const std::string& c : columns) out += c;
    while (!out.empty() && out.back() == ' ') out.pop_back();
    if (cut_right) out += "...";
    out += '\n';
    out.append(caret + (cut_left ? 3 : 0), ' ');
    out += '^';
    return out;
}

namespace {

std::string render(const Mark& at, std::string_view severity, const std::string& message) {
    std::string out;
    std::string_view line;
    const bool known = at.source && at.line > 0;
    const bool has_line = known && static_cast<std::size_t>(at.line) <= at.source->lines.size();
    const std::size_t column = at.column > 0 ? static_cast<std::size_t>(at.column) - 1 : 0;
    if (has_line) line = at.source->lines[static_cast<std::size_t>(at.line) - 1];
    if (at.source) {
        out += at.source->name + ":";
        if (known) {
            const std::size_t shown = has_line ? count_characters(line.substr(0, column)) : column;
            out += std::to_string(at.line) + ":" + std::to_string(shown + 1) + ":";
        }
        out += " ";
    }
    out += std::string(severity) + ": " + message;
    if (has_line) {
        out += '\n';
        out += picture(line, column);
    }
    return out;
}

}  // namespace

std::string located_error(std::string_view name, std::int64_t line_number, std::string_view line, std::size_t column,
                          std::string_view message) {
    const std::size_t offset = column - 1;
    const std::size_t shown = offset <= line.size() ? count_characters(line.substr(0, offset)) + 1 : column;
    std::string out(name);
    out += ':';
    out += std::to_string(line_number);
    out += ':';
    out += std::to_string(shown);
    out += ": error: ";
    out += message;
    if (!line.empty()) {
        out += '\n';
        out += picture(line, offset);
    }
    return out;
}

void Diagnostics::error(const Mark& at, std::string message) {
    ++error_count_;
    if (errors_.size() == max_kept) return;
    errors_.push_back(render(at, "error", message));
    places_.push_back({at.source.get(), at.line, at.column});
}

void Diagnostics::warning(const Mark& at, std::string message) {
    if (warnings_.size() == max_kept) return;
    warnings_.push_back(render(at, "warning", message));
}

void Diagnostics::unknown(const Mark& at, std::string_view what, std::string_view word,
                          std::span<const std::string_view> known) {
    std::string message = "unknown " + std::string(what) + " '" + excerpt(word) + "'";
    if (const std::string_view near = nearest(word, known); !near.empty()) {
        message += "; did you mean '" + std::string(near) + "'?";
    } else if (!known.empty()) {
        message += " (one of: ";
        for (const std::string_view& name : known) message += (&name == known.data() ? "" : ", ") + std::string(name);
        message += ")";
    }
    error(at, std::move(message));
}

void Diagnostics::throw_if_errors() const {
    if (ok()) return;
    std::vector<const Source*> sources;  // in the order of their first error, so that no address decides
    const auto rank = [&](const Source* source) { return std::find(sources.begin(), sources.end(), source) - sources.begin(); };
    for (const Place& place : places_) {
        if (std::find(sources.begin(), sources.end(), place.source) == sources.end()) sources.push_back(place.source);
    }
    std::vector<std::size_t> order(errors_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::tuple(rank(places_[a].source), places_[a].line, places_[a].column) <
               std::tuple(rank(places_[b].source), places_[b].line, places_[b].column);
    });
    std::string text;
    for (std::size_t i = 0; i < order.size() && i < max_printed_errors; ++i) {
        if (i > 0) text += "\n";
        text += errors_[order[i]];
    }
    if (error_count_ > max_printed_errors) text += "\n... and " + std::to_string(error_count_ - max_printed_errors) + " more";
    throw UserError(text);
}

}  // namespace kvsim::config
