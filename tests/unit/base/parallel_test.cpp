// Threads take indices; what they do under one does not depend on how many there are. Meant for the tsan preset as well.

#include "kvsim/base/parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

using kvsim::for_each_index;

TEST_CASE("parallel: every index once, whatever the number of threads") {
    for (const std::size_t threads : {0U, 1U, 2U, 3U, 16U}) {
        for (const std::size_t count : {0U, 1U, 2U, 100U}) {
            std::vector<int> calls(count);
            for_each_index(count, threads, [&calls](std::size_t i) { ++calls[i]; });
            CHECK(calls == std::vector<int>(count, 1));
        }
    }
}

TEST_CASE("parallel: the failure of the lowest index is the one that is told") {
    for (const std::size_t threads : {1U, 2U, 4U}) {
        for (int round = 0; round < 50; ++round) {
            std::vector<int> tried(100);
            std::string message;
            try {
                for_each_index(tried.size(), threads, [&tried](std::size_t i) {
                    tried[i] = 1;
                    if (i == 10 || i == 11 || i == 40) throw std::runtime_error("index " + std::to_string(i));
                });
            } catch (const std::runtime_error& e) { message = e.what(); }
            CHECK(message == "index 10");
            for (std::size_t i = 0; i <= 10; ++i) CHECK(tried[i] == 1);
            if (threads == 1) CHECK(tried[12] == 0);
        }
    }
}

TEST_CASE("parallel: two threads work at the same time") {
    std::atomic<int> there{0};
    for_each_index(2, 2, [&there](std::size_t) {
        ++there;
        while (there < 2) {  // a single thread would wait for ever
        }
    });
    CHECK(there == 2);
}
