#include "kvsim/base/units.hpp"

kvsim::Tokens one() {
#ifdef KVSIM_VIOLATE
    return 1;
#else
    return kvsim::Tokens(1);
#endif
}
