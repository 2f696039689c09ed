#pragma once
// Which of several choices no other one beats in two figures at once.

#include <optional>
#include <span>
#include <vector>

namespace kvsim {

/// Unset or not finite: the choice takes no part.
struct ParetoPoint {
    std::optional<double> x, y;
};
enum class Better { higher, lower };

/// By point: true where no other point is at least as good in both figures and better in one. Equal points are on the front
/// together; points that take no part are not on it.
std::vector<bool> pareto_front(std::span<const ParetoPoint> points, Better x, Better y);

}  // namespace kvsim
