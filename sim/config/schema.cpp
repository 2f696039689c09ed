#include "kvsim/config/schema.hpp"

#include <algorithm>
#include <cmath>

#include "kvsim/base/text.hpp"

namespace kvsim::config {

namespace {

std::string limit_text(double value) {
    return std::fabs(value) < 1e15 ? decimals(value, 9) : shortest(value);
}

std::string_view kind_name(const Value& value) {
    return value.is_null() ? "nothing" : value.is_list() ? "a list" : "a single value";
}

}  // namespace

std::string describe(const Range& range) {
    const bool has_min = std::isfinite(range.min);
    const bool has_max = std::isfinite(range.max);
    const std::string low = has_min ? limit_text(range.min) : "";
    const std::string high = has_max ? limit_text(range.max) : "";
    if (has_min && has_max) return (range.open_min ? "> " : "") + low + " to " + (range.open_max ? "< " : "") + high;
    if (has_min) return (range.open_min ? "> " : ">= ") + low;
    if (has_max) return (range.open_max ? "< " : "<= ") + high;
    return "";
}

std::vector<int> match_members(const Value& map, const std::vector<FieldRef>& fields, std::string_view where,
                               Diagnostics& diagnostics) {
    if (!map.is_map()) {
        diagnostics.error(map.mark, std::string(where) + " must be a map of keys, got " + std::string(kind_name(map)));
        return {};
    }
    std::vector<std::string_view> keys;
    for (const FieldRef& f : fields) keys.push_back(f.doc->key);

    std::vector<int> out;
    for (const Member& member : map.map) {
        const auto found = std::find(keys.begin(), keys.end(), member.key);
        if (found == keys.end()) {
            std::string message = "unknown key '" + excerpt(member.key) + "' in " + std::string(where);
            if (const std::string_view near = nearest(member.key, keys); !near.empty()) {
                message += "; did you mean '" + std::string(near) + "'?";
            } else {
                message += " (one of: ";
                for (std::size_t i = 0; i < keys.size(); ++i) message += (i > 0 ? ", " : "") + std::string(keys[i]);
                message += ")";
            }
            diagnostics.error(member.key_mark, std::move(message));
            out.push_back(-1);
            continue;
        }
        const auto index = found - keys.begin();
        const FieldDoc& doc = *fields[static_cast<std::size_t>(index)].doc;
        const Value& value = member.value;
        bool usable = true;
        if (value.is_null()) {
            diagnostics.error(value.mark, doc.key + " has no value; give one or remove the key");
            usable = false;
        } else if (!doc.choices.empty() && value.is_scalar() &&
                   std::find(doc.choices.begin(), doc.choices.end(), value.scalar) == doc.choices.end()) {
            const std::vector<std::string_view> names(doc.choices.begin(), doc.choices.end());
            diagnostics.unknown(value.mark, doc.key, value.scalar, names);
            usable = false;
        }
        out.push_back(usable ? static_cast<int>(index) : -1);
    }
    for (const FieldRef& f : fields) {
        if (f.required && map.find(f.doc->key) == nullptr) {
            diagnostics.error(
                map.mark, std::string(where) + " lacks the key '" + f.doc->key + "' (" + f.doc->type + ": " + f.doc->doc + ")");
        }
    }
    return out;
}

}  // namespace kvsim::config
