#include "kvsim/base/ring.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>

#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"

using namespace kvsim;

TEST_CASE("Ring: equal to a std::deque at every step of a random history") {
    Stream random(1, "ring_test");
    Ring<std::int64_t> ring;
    std::deque<std::int64_t> deque;
    std::size_t longest = 0;
    for (std::int64_t i = 0; i < 20'000; ++i) {
        // Grows for a while, then shrinks.
        const std::int64_t what = uniform_int(random.uniform(), 0, (i / 2'000) % 2 == 0 ? 5 : 9);
        if (what <= 2) {
            ring.push_back() = i;
            deque.push_back(i);
        } else if (what == 3) {
            ring.push_front() = i;
            deque.push_front(i);
        } else if (what == 4 && !deque.empty()) {
            const std::int64_t at = uniform_int(random.uniform(), 0, static_cast<std::int64_t>(deque.size()) - 1);
            ring.erase(static_cast<std::size_t>(at));
            deque.erase(deque.begin() + at);
        } else if (!deque.empty()) {
            CHECK(ring.front() == deque.front());
            ring.pop_front();
            deque.pop_front();
        }
        REQUIRE(ring.size() == deque.size());
        CHECK(ring.empty() == deque.empty());
        longest = std::max(longest, deque.size());
        if (i % 50 != 0) continue;
        for (std::size_t k = 0; k < deque.size(); ++k) REQUIRE(ring[k] == deque[k]);
    }
    CHECK(longest > 500);
}
