#pragma once
// Successive halving: every choice gets a little work, the better half more, and so on.

#include <cstddef>
#include <functional>
#include <vector>

namespace kvsim::app {

/// What a choice is worth after the work that was put in; choices without any worth (0) never go on.
using Scores = std::vector<double>;

struct Rung {
    std::size_t effort = 0;            ///< of this rung
    std::vector<std::size_t> choices;  ///< who took part, best first (of equal ones the first)
};

/// `work(choice list, effort)` gives each listed choice that much work in all and returns their scores by place in the list.
/// Efforts are 1, 2, 4, ... up to `most`; after each the better half goes on (rounded up), but not fewer than `finalists`,
/// until all that are left have got `most`. With `finalists` or fewer choices everybody gets `most` at once.
std::vector<Rung> successive_halving(std::size_t choices, std::size_t most, std::size_t finalists,
                                     const std::function<Scores(const std::vector<std::size_t>&, std::size_t effort)>& work);

}  // namespace kvsim::app
