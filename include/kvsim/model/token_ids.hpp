#pragma once
// The 64-bit token id space (model/workload.hpp, TokenRun): who may use which ids, so that tokens which differ never collide.
//
//   bit 63  bit 62   bits 61..0
//   0       0        content of a trace: hash id * trace_block_size + offset in the block
//   0       1        shared prefixes: group (31 bits) above the offset (31 bits)
//   1       request (32 bits) above the offset (31 bits): its own prompt tokens from offset 0, its output tokens from 2^30

#include <cstdint>

#include "kvsim/model/workload.hpp"

namespace kvsim {

/// The longest prompt part or output, in tokens, a workload may ask for; it fits the offsets above.
inline constexpr std::int64_t max_request_tokens = (std::int64_t{1} << 30) - 1;
inline constexpr std::int64_t max_prefix_groups = std::int64_t{1} << 31;
/// Ids of trace content end here (exclusive): (hash id + 1) * trace_block_size must not exceed it.
inline constexpr std::uint64_t trace_ids_end = std::uint64_t{1} << 62;

/// First of the prompt tokens no other request has.
constexpr std::uint64_t own_prompt_base(RequestId request) {
    return (std::uint64_t{1} << 63) | (std::uint64_t{request} << 31);
}
/// First output token.
constexpr std::uint64_t own_output_base(RequestId request) {
    return own_prompt_base(request) | (std::uint64_t{1} << 30);
}
/// First token of output k of a request that asks for several; output 0 starts at `base`. The ids of output_tokens >= 1 of each
/// stay in the request's own as long as (k + 1) x output_tokens <= 2^30.
constexpr std::uint64_t branch_output_base(std::uint64_t base, std::int64_t k, std::int64_t output_tokens) {
    return base + static_cast<std::uint64_t>(k) * static_cast<std::uint64_t>(output_tokens);
}
/// The most outputs a request may ask for.
inline constexpr std::int64_t max_branches = 10'000;
/// First token of a shared prefix; group < max_prefix_groups.
constexpr std::uint64_t prefix_base(std::int64_t group) {
    return (std::uint64_t{1} << 62) | (static_cast<std::uint64_t>(group) << 31);
}

}  // namespace kvsim
