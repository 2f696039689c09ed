#pragma once
// Independent pieces of work on several threads.

#include <cstdint>
#include <functional>

namespace kvsim {

/// Threads of the machine this process may use, >= 1.
std::int64_t usable_threads();

/// Calls work(i) once for every i in [0, count), in order of begin, on up to `threads` threads; returns when all have ended.
/// After the first exception no further piece begins; it is rethrown. The order in which pieces end is not defined, so results
/// belong in places of their own.
void parallel_for(std::int64_t count, std::int64_t threads, const std::function<void(std::int64_t)>& work);

}  // namespace kvsim
