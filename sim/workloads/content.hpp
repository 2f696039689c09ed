#pragma once
// Hash ids of prompts whose content a trace holds: equal beginnings get equal ids, block by block.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvsim {

/// Ids of the full blocks of a text whose tokens are `characters_per_token` characters (code points) each, behind `ids`.
/// Returns the text's tokens, rounded up. A chain of 64-bit hashes: two different beginnings share an id with probability
/// 2^-58 at 16 tokens a block.
std::int64_t text_blocks(std::string_view utf8, double characters_per_token, std::int64_t block_size,
                         std::vector<std::uint64_t>& ids);

/// Ids of the full blocks of token ids.
void token_blocks(std::span<const std::uint64_t> tokens, std::int64_t block_size, std::vector<std::uint64_t>& ids);

}  // namespace kvsim
