#pragma once
// One line of a CSV file, field by field.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim::app {

class CsvRow {
public:
    CsvRow& add(std::string_view field);
    CsvRow& add(const std::optional<double>& value);  ///< unset: an empty cell
    CsvRow& add(const std::vector<std::string>& fields);
    [[nodiscard]] std::string line() const { return text_ + "\n"; }

private:
    std::string text_;
    bool first_ = true;
};

}  // namespace kvsim::app
