#pragma once
// For pieces that a name says all about.

#include "kvsim/config/schema.hpp"
#include "kvsim/model/policy_args.hpp"

namespace kvsim {

struct NoParams {
    std::string policy;
};

/// Reports keys beside the naming one; `key` is the engine's, for the text.
inline void refuse_params(const PieceSource& source, std::string_view key, config::Diagnostics& diagnostics) {
    static const config::Schema<NoParams> schema{config::field("policy", &NoParams::policy, "its name")};
    NoParams none;
    if (source.choice.params.is_map())
        schema.read(source.choice.params, none, std::string("engine.") + std::string(key), diagnostics);
}

}  // namespace kvsim
