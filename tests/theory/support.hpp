#pragma once
// Pieces by their scenario text, and estimates with honest intervals.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kvsim/app/selftest.hpp"
#include "kvsim/engine/simulation.hpp"
#include "kvsim/model/step_time.hpp"
#include "kvsim/model/workload.hpp"

namespace kvsim::theory {

using selftest::mean_e2e;
using selftest::plain_options;
using selftest::run;
using selftest::step_time;
using selftest::workload;

/// Asserts that the known value lies within the 99.9 % interval and that the mean differs from it by at most `relative`.
void check_known(const std::string& what, double known, const std::vector<double>& samples, double relative);

}  // namespace kvsim::theory
