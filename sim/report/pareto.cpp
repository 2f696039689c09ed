#include "kvsim/report/pareto.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvsim {

std::vector<bool> pareto_front(std::span<const ParetoPoint> points, Better x, Better y) {
    // Higher is better from here on.
    const auto figure = [](const std::optional<double>& value, Better better) {
        return better == Better::higher ? *value : -*value;
    };
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < points.size(); ++i) {
        const ParetoPoint& p = points[i];
        if (p.x && p.y && std::isfinite(*p.x) && std::isfinite(*p.y)) order.push_back(i);
    }
    const auto at = [&](std::size_t i) { return std::pair(figure(points[i].x, x), figure(points[i].y, y)); };
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return at(a) > at(b); });
    std::vector<bool> out(points.size(), false);
    double best = -std::numeric_limits<double>::infinity();  // y of all with a better x
    for (std::size_t i = 0; i < order.size();) {
        const double here = at(order[i]).first;
        const double top = at(order[i]).second;
        for (; i < order.size() && at(order[i]).first == here; ++i) out[order[i]] = top > best && at(order[i]).second == top;
        best = std::max(best, top);
    }
    return out;
}

}  // namespace kvsim
