#pragma once
// How a piece of a batch policy reads its parameters.

#include <memory>
#include <string>
#include <string_view>

#include "kvsim/config/schema.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/policy_args.hpp"
#include "no_params.hpp"

namespace kvsim {

inline const config::Schema<NoParams>& no_params() {
    static const config::Schema<NoParams> table{config::field("policy", &NoParams::policy, "its name")};
    return table;
}

/// False after reporting errors. A piece named by a plain word has no parameters, and misses those it needs.
template <class Params>
bool read_params(const config::Schema<Params>& schema, const PieceSource& source, Params& out,
                 config::Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    config::Value none;
    none.kind = config::Value::Kind::map;
    none.mark = source.choice.name_mark;
    schema.read(source.choice.params.is_null() ? none : source.choice.params, out, source.choice.name, diagnostics);
    return diagnostics.error_count() == before;
}

/// A piece without parameters that is made from the engine alone.
template <class Piece, class Made>
std::function<std::unique_ptr<Piece>(Engine&)> read_plain(const PieceSource& source, config::Diagnostics& diagnostics) {
    NoParams params;
    if (!read_params(no_params(), source, params, diagnostics)) return nullptr;
    return [](Engine& engine) { return std::make_unique<Made>(engine); };
}

/// The sense of a combination is missing.
inline std::nullptr_t refuse(const PieceSource& source, const std::string& why, config::Diagnostics& diagnostics) {
    diagnostics.error(source.choice.name_mark, source.choice.name + ": " + why);
    return nullptr;
}

}  // namespace kvsim
