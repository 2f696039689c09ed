#pragma once
// Values of some rows of a table whose rows come in ascending order: a few bytes a value, found by bisection.

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "kvsim/base/check.hpp"

namespace kvsim {

template <class Key, class T>
class SparseColumn {
public:
    using value_type = std::pair<Key, T>;
    using const_iterator = typename std::vector<value_type>::const_iterator;

    /// `key` is greater than every earlier one.
    void append(Key key, T value) {
        KVSIM_DCHECK(values_.empty() || values_.back().first < key, "rows come in ascending order");
        values_.emplace_back(key, value);
    }
    [[nodiscard]] bool empty() const { return values_.empty(); }
    [[nodiscard]] std::size_t size() const { return values_.size(); }
    [[nodiscard]] const_iterator begin() const { return values_.begin(); }
    [[nodiscard]] const_iterator end() const { return values_.end(); }
    /// end() for a row without a value.
    [[nodiscard]] const_iterator find(Key key) const {
        const auto at = std::lower_bound(values_.begin(), values_.end(), key,
                                         [](const value_type& value, const Key& wanted) { return value.first < wanted; });
        return at != values_.end() && at->first == key ? at : values_.end();
    }
    [[nodiscard]] const T& at(Key key) const {
        const auto found = find(key);
        KVSIM_CHECK(found != end(), "the row has a value");
        return found->second;
    }
    bool operator==(const SparseColumn&) const = default;

private:
    std::vector<value_type> values_;
};

}  // namespace kvsim
