#pragma once
// A small table of text, aligned for a terminal or as Markdown.

#include <string>
#include <vector>

namespace kvsim {

struct TextTable {
    std::string title;  ///< empty: none
    std::vector<std::string> header;
    std::vector<std::vector<std::string>> rows;  ///< as many cells as the header
};

/// Columns are padded to their widest cell; the first is left-aligned, the others right-aligned.
std::string plain_text(const TextTable& table);
std::string markdown(const TextTable& table);

}  // namespace kvsim
