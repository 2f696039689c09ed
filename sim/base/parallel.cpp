#include "kvsim/base/parallel.hpp"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace kvsim {

std::int64_t usable_threads() {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1U, std::thread::hardware_concurrency());
}

void parallel_for(std::int64_t count, std::int64_t threads, const std::function<void(std::int64_t)>& work) {
    std::atomic<std::int64_t> next{0};
    std::mutex mutex;
    std::exception_ptr failure;
    const auto worker = [&] {
        for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
            try {
                work(i);
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (!failure) failure = std::current_exception();
                next = count;
            }
        }
    };
    std::vector<std::jthread> others;
    for (std::int64_t t = 1; t < std::min(threads, count); ++t) others.emplace_back(worker);
    worker();
    others.clear();  // joins
    if (failure) std::rethrow_exception(failure);
}

}  // namespace kvsim
