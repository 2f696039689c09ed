#include "kvsim/base/name_column.hpp"

#include <algorithm>

#include "kvsim/base/check.hpp"
#include "kvsim/base/mix.hpp"

namespace kvsim {

void NameColumn::set(std::size_t row, std::string_view name, std::size_t rows) {
    KVSIM_DCHECK(!name.empty(), "a row that is not set has no name");
    if (row >= numbers_.size()) {
        if (numbers_.empty()) numbers_.reserve(rows);
        numbers_.resize(row + 1);
    }
    numbers_[row] = number_of(name);
}

std::uint32_t NameColumn::number_of(std::string_view name) {
    const std::uint32_t known = table_[place(name)];
    if (known != 0) return known;
    texts_ += name;
    ends_.push_back(texts_.size());
    if (std::size_t{different()} * 4 > table_.size() * 3) {
        table_.assign(table_.size() * 2, 0);
        for (std::uint32_t number = 1; number < different(); ++number) index(number);
    }
    index(different());
    return different();
}

void NameColumn::index(std::uint32_t number) {
    table_[place(name(number))] = number;
}

/// Where the name stands in the table, or the free place where it would.
std::size_t NameColumn::place(std::string_view name) const {
    std::uint64_t hash = name.size();
    for (const char c : name) hash = mix(hash ^ static_cast<unsigned char>(c));
    std::size_t at = hash & (table_.size() - 1);
    while (table_[at] != 0 && this->name(table_[at]) != name) at = (at + 1) & (table_.size() - 1);
    return at;
}

bool NameColumn::operator==(const NameColumn& other) const {
    for (std::size_t row = 0; row < std::max(numbers_.size(), other.numbers_.size()); ++row) {
        if ((*this)[row] != other[row]) return false;
    }
    return true;
}

}  // namespace kvsim
