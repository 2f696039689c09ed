#pragma once
// A first-in, first-out queue that keeps the storage of what has left: after warm-up it allocates nothing.

#include <cstddef>
#include <utility>
#include <vector>

namespace kvsim {

template <class T>
class Ring {
public:
    [[nodiscard]] bool empty() const { return size_ == 0; }
    [[nodiscard]] std::size_t size() const { return size_; }
    /// i-th from the front, i < size().
    [[nodiscard]] T& operator[](std::size_t i) { return items_[(first_ + i) & mask()]; }
    [[nodiscard]] const T& operator[](std::size_t i) const { return items_[(first_ + i) & mask()]; }
    [[nodiscard]] T& front() { return items_[first_]; }
    [[nodiscard]] const T& front() const { return items_[first_]; }
    /// A new last item; it holds whatever its place held before.
    T& push_back() {
        if (size_ == capacity_) grow();
        return items_[(first_ + size_++) & mask()];
    }
    T& push_front() {
        if (size_ == capacity_) grow();
        first_ = (first_ - 1) & mask();
        ++size_;
        return items_[first_];
    }
    void pop_front() {
        first_ = (first_ + 1) & mask();
        --size_;
    }
    /// Removes the i-th item; those in front of it move.
    void erase(std::size_t i) {
        for (; i > 0; --i) std::swap((*this)[i], (*this)[i - 1]);
        pop_front();
    }

private:
    [[nodiscard]] std::size_t mask() const { return capacity_ - 1; }
    [[gnu::noinline]] void grow() {
        std::vector<T> larger(capacity_ == 0 ? 64 : capacity_ * 2);
        for (std::size_t i = 0; i < size_; ++i) larger[i] = std::move((*this)[i]);
        items_.swap(larger);
        capacity_ = items_.size();
        first_ = 0;
    }
    std::vector<T> items_;
    std::size_t capacity_ = 0;  // their number, a power of two
    std::size_t first_ = 0;
    std::size_t size_ = 0;
};

}  // namespace kvsim
