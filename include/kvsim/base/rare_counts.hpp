#pragma once
// Whole numbers of the rows of a table that are mostly, or all, 0: no memory until one is not.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvsim {

class RareCounts {
public:
    /// 0 unless something was added to the row.
    [[nodiscard]] std::int32_t operator[](std::size_t row) const { return row < counts_.size() ? counts_[row] : 0; }
    /// `rows`: how many there are expected to be.
    void add(std::size_t row, std::int32_t more, std::size_t rows) {
        if (more == 0) return;
        if (row >= counts_.size()) grow(row, rows);
        counts_[row] += more;
    }
    void clear(std::size_t row) {
        if (row < counts_.size()) counts_[row] = 0;
    }
    [[nodiscard]] bool empty() const { return counts_.empty(); }
    /// The same rows have the same counts.
    bool operator==(const RareCounts& other) const {
        for (std::size_t row = 0; row < std::max(counts_.size(), other.counts_.size()); ++row) {
            if ((*this)[row] != other[row]) return false;
        }
        return true;
    }

private:
    [[gnu::noinline]] void grow(std::size_t row, std::size_t rows) {
        if (counts_.empty()) counts_.reserve(rows);
        counts_.resize(std::max(row + 1, std::min(counts_.capacity(), row + 4096)));
    }
    std::vector<std::int32_t> counts_;
};

}  // namespace kvsim
