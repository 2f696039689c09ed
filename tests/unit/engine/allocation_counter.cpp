// In a file of its own, so that the compiler cannot inline half of a new-delete pair.

#include "allocation_counter.hpp"

#include <cstdlib>
#include <new>

namespace {
std::int64_t count = 0;
}

std::int64_t allocations() {
    return count;
}

void* operator new(std::size_t size) {
    ++count;
    if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
    throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
    std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
    std::free(p);
}
