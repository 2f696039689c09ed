#pragma once
// JSON lines with a timestamp, two lengths and perhaps hash ids: Mooncake's format and those that copied its keys.

#include <span>
#include <string_view>

#include "json_rows.hpp"

namespace kvsim {

struct LengthFormat {
    std::string_view name;
    std::string_view unit;          ///< of the timestamps, in words
    int exponent = 6;               ///< a timestamp counts 10^exponent ns
    bool from_first = false;        ///< the first row arrives at 0
    bool may_omit_tail = false;     ///< hash ids may leave the last, partial block out
    std::int64_t block_size = 512;  ///< tokens per hash id unless the trace or the user says otherwise
    bool guidellm_names = false;    ///< also prompt_tokens, output_tokens and both with _count
};

std::unique_ptr<TraceReader> open_length_rows(std::unique_ptr<LineReader>, const TraceOptions&, const LengthFormat&,
                                              double multiplier = 1);

}  // namespace kvsim
