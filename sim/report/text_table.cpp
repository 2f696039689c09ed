#include "kvsim/report/text_table.hpp"

#include <algorithm>

namespace kvsim {
namespace {

/// Characters, not bytes: cells are UTF-8.
std::size_t width(const std::string& text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

}  // namespace

std::string plain_text(const TextTable& table) {
    std::vector<std::size_t> widths(table.header.size(), 0);
    const auto measure = [&](const std::vector<std::string>& row) {
        for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
    };
    measure(table.header);
    for (const auto& row : table.rows) measure(row);
    std::string out = table.title.empty() ? "" : table.title + "\n";
    const auto write = [&](const std::vector<std::string>& row) {
        std::string line;
        for (std::size_t i = 0; i < row.size() && i < widths.size(); ++i) {
            const std::string pad(widths[i] - width(row[i]), ' ');
            line += "  " + (i == 0 ? row[i] + pad : pad + row[i]);
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
    };
    write(table.header);
    for (const auto& row : table.rows) write(row);
    return out;
}

std::string markdown(const TextTable& table) {
    std::string out = table.title.empty() ? "" : "**" + table.title + "**\n\n";
    const auto write = [&](const std::vector<std::string>& row) {
        out += "|";
        for (const std::string& cell : row) {
            out += " ";
            for (const char c : cell) {
                if (c == '|') out += '\\';
                out += c;
            }
            out += " |";
        }
        out += "\n";
    };
    write(table.header);
    out += "|";
    for (std::size_t i = 0; i < table.header.size(); ++i) out += i == 0 ? "---|" : "---:|";
    out += "\n";
    for (const auto& row : table.rows) write(row);
    return out;
}

}  // namespace kvsim
