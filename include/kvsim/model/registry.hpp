#pragma once
// Every replaceable piece is an Entry in one of the tables of sim/registry.cpp: one file with a make function, one line there.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/config/diagnostics.hpp"
#include "kvsim/config/schema.hpp"
#include "kvsim/config/value.hpp"

namespace kvsim {

/// A named choice: what `kvsim list` and the schema print, and how to build it.
template <class Make>
struct Entry {
    std::string_view name;
    std::string_view summary;                 ///< one line, with the source it follows
    std::vector<config::FieldDoc> (*docs)();  ///< the keys beside the naming one
    Make make;
};

/// The entry of that name, or null after reporting the unknown name at `at`.
template <class Make>
const Entry<Make>* find_entry(std::span<const Entry<Make>> table, std::string_view kind, std::string_view name,
                              const config::Mark& at, config::Diagnostics& diagnostics) {
    std::vector<std::string_view> names;
    for (const Entry<Make>& entry : table) {
        if (entry.name == name) return &entry;
        names.push_back(entry.name);
    }
    diagnostics.unknown(at, kind, name, names);
    return nullptr;
}

}  // namespace kvsim
