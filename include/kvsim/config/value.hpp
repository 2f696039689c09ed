#pragma once
// A configuration file as a plain tree in which every node remembers where it was written. No YAML is visible here.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim::config {

/// A file (or a --set argument) kept for error messages.
struct Source {
    std::string name;                ///< as the user wrote it: path, or "--set key=value"
    std::vector<std::string> lines;  ///< without line ends
};

/// Where something was written; line and column count from 1, 0 = unknown (then only the name is printed). Columns count
/// bytes; messages print characters.
struct Mark {
    std::shared_ptr<const Source> source;
    int line = 0;
    int column = 0;
};

struct Member;

/// One node: nothing, a scalar as written, a list or a map in file order (duplicate keys were already refused).
struct Value {
    enum class Kind { null, scalar, list, map };

    Kind kind = Kind::null;
    bool quoted = false;  ///< the scalar stood in quotes: text, never a number or null
    std::string scalar;
    std::vector<Value> list;
    std::vector<Member> map;
    Mark mark;

    [[nodiscard]] bool is_null() const { return kind == Kind::null; }
    [[nodiscard]] bool is_scalar() const { return kind == Kind::scalar; }
    [[nodiscard]] bool is_list() const { return kind == Kind::list; }
    [[nodiscard]] bool is_map() const { return kind == Kind::map; }
    /// The member's value, or null if this is not a map or has no such key.
    [[nodiscard]] const Value* find(std::string_view key) const;
};

struct Member {
    std::string key;
    Mark key_mark;
    Value value;
};

}  // namespace kvsim::config
