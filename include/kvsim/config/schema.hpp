#pragma once
// One table per struct that parses, checks and documents it: name, type, default, doc and range stand in one place.
//
//   const Schema<Affine>& affine_schema() {
//       static const Schema<Affine> schema{
//           field("c0", &Affine::c0, "fixed time of a step", non_negative),
//           field("per_token", &Affine::per_token, "time per token of the step", non_negative)};
//       return schema;
//   }

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/base/units.hpp"
#include "kvsim/config/diagnostics.hpp"
#include "kvsim/config/value.hpp"

namespace kvsim::config {

/// A fraction or ratio without unit.
using Number = double;
/// Events per second, written `5/s`, `300/min`, `2/h`; `inf` is accepted where the range allows it.
struct Rate {
    double per_second = 0;
};
/// A duration in double nanoseconds, for step-time coefficients below 1 ns (`0.02us`).
struct FineDuration {
    double ns = 0;
};

/// The range a field accepts, in the field's own unit (seconds for durations, bytes, per second for rates).
struct Range {
    double min = -std::numeric_limits<double>::infinity();
    double max = std::numeric_limits<double>::infinity();
    bool open_min = false;  ///< the minimum itself is refused
    bool open_max = false;  ///< the maximum itself is refused
};
inline constexpr Range any{};
inline constexpr Range non_negative{0};
inline constexpr Range positive{0, std::numeric_limits<double>::infinity(), true};
inline constexpr Range at_least_one{1};
inline constexpr Range fraction{0, 1};

/// The range as documents print it: "> 0", ">= 1", "0 to 1", "> 0 to 1"; empty when anything goes.
std::string describe(const Range& range);

// Codecs: read one scalar in the type's written form, report what is wrong at its mark, return false then.
//
//   integer   = [+-] digits; no leading zero (YAML 1.1 reads 010 as 8), no exponent, no separators
//   number    = [+-] decimal [exponent]; finite
//   bool      = true | false
//   text      = any scalar that is not empty
//   duration  = number [blank] (ns | us | ms | s | min | h), rounded to the nearest nanosecond
//   rate      = number [blank] "/" (s | min | h), or inf where the range has no maximum
//   bytes     = number [blank] (B | kB | MB | GB | TB | KiB | MiB | GiB | TiB), rounded to the nearest byte;
//               a bare integer for keys ending in _bytes
//
// Units are case-sensitive. A quoted scalar is text, never a number, duration, rate, size or bool. NaN is refused everywhere.
bool decode(const Value& value, bool& out, std::string_view key, const Range&, Diagnostics&);
bool decode(const Value& value, std::int64_t& out, std::string_view key, const Range&, Diagnostics&);
bool decode(const Value& value, Number& out, std::string_view key, const Range&, Diagnostics&);
bool decode(const Value& value, std::string& out, std::string_view key, const Range&, Diagnostics&);
bool decode(const Value& value, SimDuration& out, std::string_view key, const Range&, Diagnostics&);
bool decode(const Value& value, FineDuration& out, std::string_view key, const Range&, Diagnostics&);
bool decode(const Value& value, Rate& out, std::string_view key, const Range&, Diagnostics&);
bool decode(const Value& value, Bytes& out, std::string_view key, const Range&, Diagnostics&);
bool decode(const Value& value, Value& out, std::string_view key, const Range&, Diagnostics&);
template <class T>
bool decode(const Value& value, std::optional<T>& out, std::string_view key, const Range& range, Diagnostics& diagnostics) {
    T inner{};
    if (!decode(value, inner, key, range, diagnostics)) return false;
    out = std::move(inner);
    return true;
}
template <class T>
bool decode(const Value& value, std::vector<T>& out, std::string_view key, const Range& range, Diagnostics& diagnostics) {
    if (!value.is_list()) {
        diagnostics.error(value.mark, std::string(key) + " must be a list");
        return false;
    }
    out.clear();
    for (const Value& item : value.list) {
        T inner{};
        if (!decode(item, inner, key, range, diagnostics)) return false;
        out.push_back(std::move(inner));
    }
    return true;
}

// The written form's name, for docs: "integer", "duration", ...
template <class T>
struct TypeName {
    static constexpr std::string_view text = T::type_name;
};
template <>
struct TypeName<bool> {
    static constexpr std::string_view text = "true | false";
};
template <>
struct TypeName<std::int64_t> {
    static constexpr std::string_view text = "integer";
};
template <>
struct TypeName<double> {
    static constexpr std::string_view text = "number";
};
template <>
struct TypeName<std::string> {
    static constexpr std::string_view text = "text";
};
template <>
struct TypeName<SimDuration> {
    static constexpr std::string_view text = "duration";
};
template <>
struct TypeName<FineDuration> {
    static constexpr std::string_view text = "duration";
};
template <>
struct TypeName<Rate> {
    static constexpr std::string_view text = "rate";
};
template <>
struct TypeName<Bytes> {
    static constexpr std::string_view text = "bytes";
};
template <>
struct TypeName<Value> {
    static constexpr std::string_view text = "map";
};
template <class T>
struct TypeName<std::optional<T>> : TypeName<T> {};
template <class T>
struct TypeName<std::vector<T>> {
    static constexpr std::string_view text = "list";
};

/// What the documentation prints of one field.
struct FieldDoc {
    std::string key;
    std::string type;
    std::string default_text;  ///< empty: required, or decided by the preset (the doc says which)
    std::string doc;
    Range range;
    std::vector<std::string> choices;  ///< for names chosen from a fixed list
};

template <class T>
struct Field {
    FieldDoc doc;
    bool required = false;
    std::function<bool(T&, const Value&, Diagnostics&)> read;

    /// The field must be present.
    Field need() && {
        required = true;
        return std::move(*this);
    }
    /// The default as the docs print it.
    Field by_default(std::string text) && {
        doc.default_text = std::move(text);
        return std::move(*this);
    }
    /// The value must be one of these names; anything else is an error with the nearest one.
    Field one_of(std::vector<std::string> names) && {
        doc.choices = std::move(names);
        return std::move(*this);
    }
};

template <class T, class M>
Field<T> field(std::string_view key, M T::*member, std::string_view doc, Range range = any) {
    Field<T> f;
    f.doc = FieldDoc{std::string(key), std::string(TypeName<M>::text), "", std::string(doc), range, {}};
    f.read = [key = std::string(key), member, range](T& into, const Value& value, Diagnostics& diagnostics) {
        return decode(value, into.*member, key, range, diagnostics);
    };
    return f;
}

/// A field read by a function of its own: a nested map, or a form no codec covers. `type` is what the docs print.
template <class T, class Read>
Field<T> custom(std::string_view key, std::string_view type, std::string_view doc, Read read, Range range = any) {
    Field<T> f;
    f.doc = FieldDoc{std::string(key), std::string(type), "", std::string(doc), range, {}};
    f.read = std::move(read);
    return f;
}

// The type-erased half of Schema::read: unknown keys, missing required keys, choices. Defined in sim/config/schema.cpp.
struct FieldRef {
    const FieldDoc* doc;
    bool required;
};
/// "engine must be a map" if it is none (then the result is empty). For each member of `map` the index of its field or -1
/// (reported as unknown, with the nearest key). Reports missing required keys at the map's mark, null values, and values
/// outside `choices` (then the index is -1 too).
std::vector<int> match_members(const Value& map, const std::vector<FieldRef>& fields, std::string_view where, Diagnostics&);

template <class T>
class Schema {
public:
    Schema(std::initializer_list<Field<T>> fields) : fields_(fields) {}
    explicit Schema(std::vector<Field<T>> fields) : fields_(std::move(fields)) {}

    /// Reads every known key of `map` into `out`; reports everything wrong. `where` names the map in messages ("engine").
    void read(const Value& map, T& out, std::string_view where, Diagnostics& diagnostics) const {
        std::vector<FieldRef> refs;
        for (const Field<T>& f : fields_) refs.push_back({&f.doc, f.required});
        const std::vector<int> match = match_members(map, refs, where, diagnostics);
        for (std::size_t i = 0; i < match.size(); ++i) {
            if (match[i] >= 0) fields_[static_cast<std::size_t>(match[i])].read(out, map.map[i].value, diagnostics);
        }
    }
    [[nodiscard]] std::vector<FieldDoc> docs() const {
        std::vector<FieldDoc> out;
        for (const Field<T>& f : fields_) out.push_back(f.doc);
        return out;
    }

private:
    std::vector<Field<T>> fields_;
};

/// A nested map with a schema of its own, which must outlive the field; `key` also names the map in messages.
template <class T, class M>
Field<T> group(std::string_view key, M T::*member, const Schema<M>& schema, std::string_view doc) {
    return custom<T>(key, "map", doc,
                     [key = std::string(key), member, &schema](T& into, const Value& value, Diagnostics& diagnostics) {
                         const std::size_t before = diagnostics.error_count();
                         schema.read(value, into.*member, key, diagnostics);
                         return diagnostics.error_count() == before;
                     });
}

}  // namespace kvsim::config
