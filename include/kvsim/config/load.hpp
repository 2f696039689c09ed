#pragma once
// YAML text -> Value tree, and --set overlays on it.

#include <filesystem>
#include <string>
#include <string_view>

#include "kvsim/config/diagnostics.hpp"
#include "kvsim/config/value.hpp"

namespace kvsim::config {

/// Parses one YAML document of at most 1 MiB. Refused with a position: syntax errors, tabs as indentation, several documents,
/// duplicate keys, non-scalar keys, tags, `<<` merges, more than 100,000 nodes (alias bombs), nesting beyond 64, non-UTF-8, NUL
/// and control bytes. An empty document is an error. After an error that stops the reading the value is null; after duplicate
/// or merge keys it is the tree without them, so that a reader can report what else is wrong. A byte order mark and CRLF are
/// fine.
Value parse_yaml(std::string_view text, std::string name, Diagnostics& diagnostics);

/// read_file + parse_yaml. An unreadable file throws UserError.
Value load_yaml(const std::filesystem::path& path, Diagnostics& diagnostics);

/// Applies `key.path=value` (the value is YAML: a scalar, or a flow list or map) to a map tree, creating maps on the way; keys
/// cannot contain dots. The tree is untouched after an error in the assignment itself. Errors carry the source name `--set
/// key.path=value`.
void apply_set(Value& root, std::string_view assignment, Diagnostics& diagnostics);

/// Lays a map over a map tree: maps merge key by key, anything else replaces what stood there. A `step_time` or any other map
/// that names another piece than the one below it replaces it whole.
void merge(Value& root, const Value& overlay, Diagnostics& diagnostics);

}  // namespace kvsim::config
