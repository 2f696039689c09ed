#include "kvsim/base/units.hpp"

std::int64_t count(kvsim::Blocks blocks) {
#ifdef KVSIM_VIOLATE
    return blocks;
#else
    return blocks.count();
#endif
}
