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

void for_each_index(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work) {
    std::atomic<std::size_t> next{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::exception_ptr error;
    std::size_t error_index = count;
    const auto take_turns = [&] {
        // Indices are taken in order and one that was taken is finished, so every index below a failing one is tried.
        while (!failed.load(std::memory_order_relaxed)) {
            const std::size_t index = next.fetch_add(1, std::memory_order_relaxed);
            if (index >= count) return;
            try {
                work(index);
            } catch (...) {
                const std::lock_guard lock(mutex);
                if (index < error_index) {
                    error_index = index;
                    error = std::current_exception();
                }
                failed.store(true, std::memory_order_relaxed);
            }
        }
    };
    {
        std::vector<std::jthread> others;
        const std::size_t most = std::min(threads, count);
        others.reserve(most);
        for (std::size_t i = 1; i < most; ++i) others.emplace_back(take_turns);
        take_turns();
    }
    if (error) std::rethrow_exception(error);
}

}  // namespace kvsim
