#pragma once
// Field-by-field comparison of two runs.

#include <string>

#include "random_scenarios.hpp"

namespace kvsim::oracle {

/// Empty when equal; else the first difference: step records first (they tell where it began), then the outcome. Everything is
/// compared exactly but recompute_ns (a double whose order of summation is free: 1e-9 relative), warnings (free text) and
/// the wording of stall_report.
std::string first_difference(const Run& expected, const Run& actual);

/// One line, as the step log writes it.
std::string to_string(const StepRecord& record);

}  // namespace kvsim::oracle
