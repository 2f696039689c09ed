#include "content.hpp"

#include <cmath>

#include "kvsim/base/mix.hpp"
#include "kvsim/model/token_ids.hpp"

namespace kvsim {

namespace {

/// A block's id says what stands in it and before it.
class Chain {
public:
    explicit Chain(std::int64_t block_size) : ids_(trace_ids_end / static_cast<std::uint64_t>(block_size)) {}
    void add(std::uint64_t item) { block_ = (block_ ^ item) * 0x100000001B3U; }
    std::uint64_t close() {
        before_ = mix(mix(before_) ^ block_);
        block_ = start;
        return before_ % ids_;
    }

private:
    static constexpr std::uint64_t start = 0xCBF29CE484222325U;  // FNV-1a
    std::uint64_t ids_;
    std::uint64_t before_ = 1;
    std::uint64_t block_ = start;
};

}  // namespace

std::int64_t text_blocks(std::string_view utf8, double characters_per_token, std::int64_t block_size,
                         std::vector<std::uint64_t>& ids) {
    Chain chain(block_size);
    const double characters_per_block = characters_per_token * static_cast<double>(block_size);
    std::int64_t characters = 0;
    std::int64_t blocks = 0;
    double block_end = std::ceil(characters_per_block);
    for (std::size_t i = 0; i < utf8.size(); ++i) {
        const auto byte = static_cast<unsigned char>(utf8[i]);
        chain.add(byte);
        const bool last_of_character = i + 1 == utf8.size() || (static_cast<unsigned char>(utf8[i + 1]) & 0xC0) != 0x80;
        if (!last_of_character || static_cast<double>(++characters) < block_end) continue;
        ids.push_back(chain.close());
        block_end = std::ceil(static_cast<double>(++blocks + 1) * characters_per_block);
    }
    return static_cast<std::int64_t>(std::ceil(static_cast<double>(characters) / characters_per_token));
}

void token_blocks(std::span<const std::uint64_t> tokens, std::int64_t block_size, std::vector<std::uint64_t>& ids) {
    Chain chain(block_size);
    std::int64_t in_block = 0;
    for (const std::uint64_t token : tokens) {
        chain.add(mix(token + 1));
        if (++in_block < block_size) continue;
        ids.push_back(chain.close());
        in_block = 0;
    }
}

}  // namespace kvsim
