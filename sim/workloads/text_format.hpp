#pragma once
// What the formats that hold text instead of token counts share.

#include <cstdint>
#include <vector>

#include "kvsim/config/schema.hpp"
#include "kvsim/model/trace.hpp"

namespace kvsim {

inline constexpr std::int64_t text_block_size = 16;

/// A count of tokens the trace states may be smaller than what the text's rule gives: ids past its full blocks go.
inline void keep_full_blocks(TraceRow& row) {
    const auto full = static_cast<std::size_t>(row.input_length / row.block_size);
    if (row.hash_ids.size() > full) row.hash_ids.resize(full);
}

std::vector<config::FieldDoc> text_format_docs();

}  // namespace kvsim
