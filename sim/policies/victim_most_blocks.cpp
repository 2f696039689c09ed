// The request whose going makes most room.

#include <algorithm>

#include "victims.hpp"

namespace kvsim {
namespace {

struct BlocksHeld {
    static std::size_t of(const LiveRequest& request) {
        std::size_t blocks = request.table.size() + static_cast<std::size_t>(request.range.count);
        for (const std::vector<std::int32_t>& table : request.tables) {
            blocks += table.size() - static_cast<std::size_t>(std::count(table.begin(), table.end(), 0));  // outside the window
        }
        return blocks;
    }
};

}  // namespace

std::function<std::unique_ptr<VictimRule>(Engine&)> read_most_blocks_victim(const PieceSource& source,
                                                                            config::Diagnostics& diagnostics) {
    return read_plain<VictimRule, LargestKey<BlocksHeld>>(source, diagnostics);
}

}  // namespace kvsim
