#include "kvsim/config/value.hpp"

namespace kvsim::config {

const Value* Value::find(std::string_view key) const {
    for (const Member& member : map) {
        if (member.key == key) return &member.value;
    }
    return nullptr;
}

}  // namespace kvsim::config
