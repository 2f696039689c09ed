#pragma once

#include <cstdint>

/// Calls of operator new so far. The program that links allocation_counter.cpp has its own.
std::int64_t allocations();
