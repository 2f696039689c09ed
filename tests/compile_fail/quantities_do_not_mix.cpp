#include "kvsim/base/units.hpp"

#ifdef KVSIM_VIOLATE
using Other = kvsim::Bytes;
#else
using Other = kvsim::Tokens;
#endif

auto sum() {
    return kvsim::Tokens(1) + Other(2);
}
