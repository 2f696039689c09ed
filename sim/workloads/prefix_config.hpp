#pragma once
// The keys of `workload.prefix`.

#include <cstdint>

#include "kvsim/config/schema.hpp"

namespace kvsim {

struct PrefixConfig {
    std::int64_t groups = 1;
    config::Value tokens;
    double share = 1;
    double zipf = 0;
};

const config::Schema<PrefixConfig>& prefix_schema();

}  // namespace kvsim
