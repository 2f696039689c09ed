// THE registration file: one table per kind of piece, one line per piece. A piece's own file defines its make and docs
// functions; they are declared here and nowhere else.

#include "kvsim/model/pieces.hpp"

namespace kvsim {

// ---- step-time models ------------------------------------------------------------------------------------------------

// ---- routers ---------------------------------------------------------------------------------------------------------

// ---- workloads: arrival processes, length distributions, trace formats ------------------------------------------------

}  // namespace kvsim
