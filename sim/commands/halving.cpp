#include "kvsim/app/halving.hpp"

#include <algorithm>
#include <numeric>

namespace kvsim::app {

std::vector<Rung> successive_halving(std::size_t choices, std::size_t most, std::size_t finalists,
                                     const std::function<Scores(const std::vector<std::size_t>&, std::size_t)>& work) {
    std::vector<Rung> rungs;
    std::vector<std::size_t> left(choices);
    std::iota(left.begin(), left.end(), std::size_t{0});
    for (std::size_t effort = 1; !left.empty();) {
        if (left.size() <= finalists) effort = most;
        std::sort(left.begin(), left.end());
        const Scores scores = work(left, effort);
        std::vector<std::size_t> order(left.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
        Rung& rung = rungs.emplace_back();
        rung.effort = effort;
        std::vector<std::size_t> next;
        const std::size_t keep = std::max(finalists, (left.size() + 1) / 2);
        for (const std::size_t place : order) {
            rung.choices.push_back(left[place]);
            if (next.size() < keep && scores[place] > 0) next.push_back(left[place]);
        }
        if (effort >= most) break;
        effort = std::min(effort * 2, most);
        left = std::move(next);
    }
    return rungs;
}

}  // namespace kvsim::app
