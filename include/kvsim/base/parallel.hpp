#pragma once
// Independent pieces of work on several threads, for runs that share nothing.

#include <cstddef>
#include <cstdint>
#include <functional>

namespace kvsim {

/// Threads of the machine that this process may use, >= 1.
std::int64_t usable_threads();

/// Calls work(0) ... work(count - 1), each once, on up to `threads` threads, the caller's among them; they start in order. What
/// a call leaves under its index does not depend on the number of threads. Throws what the failing call of the lowest index
/// threw; after a failure no further index is begun, so calls behind it may not have run.
void for_each_index(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work);

}  // namespace kvsim
