#pragma once
// Names of rows of a table, where many rows share one or have none.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvsim {

/// 4 bytes a row up to the last one with a name; each different name once, with 12 to 24 bytes besides its text.
class NameColumn {
public:
    /// Number of a row without a name.
    static constexpr std::uint32_t nameless = 0;

    NameColumn() = default;
    NameColumn(std::initializer_list<std::pair<std::size_t, std::string_view>> names) {
        for (const auto& [row, name] : names) set(row, name);
    }

    /// No row has a name.
    [[nodiscard]] bool empty() const { return numbers_.empty(); }
    /// "" for a row without one.
    [[nodiscard]] std::string_view operator[](std::size_t row) const { return name(number(row)); }
    /// Rows have equal numbers where they have equal names; 0 to different().
    [[nodiscard]] std::uint32_t number(std::size_t row) const { return row < numbers_.size() ? numbers_[row] : nameless; }
    /// How many different names there are.
    [[nodiscard]] std::uint32_t different() const { return static_cast<std::uint32_t>(ends_.size() - 1); }
    /// Of that number; "" of 0.
    [[nodiscard]] std::string_view name(std::uint32_t number) const {
        if (number == nameless) return {};
        return std::string_view(texts_).substr(ends_[number - 1], ends_[number] - ends_[number - 1]);
    }

    /// Replaces what the row had; `name` is not empty. `rows`: how many there are expected to be.
    void set(std::size_t row, std::string_view name, std::size_t rows = 0);

    /// The same rows have the same names.
    bool operator==(const NameColumn& other) const;

private:
    std::uint32_t number_of(std::string_view name);
    void index(std::uint32_t number);
    [[nodiscard]] std::size_t place(std::string_view name) const;

    std::vector<std::uint32_t> numbers_;   // by row
    std::string texts_;                    // in order of their numbers, one behind the other
    std::vector<std::size_t> ends_{0};     // of their texts, by number
    std::vector<std::uint32_t> table_{0};  // numbers by hash of the name: open addressing, 0 is free
};

}  // namespace kvsim
