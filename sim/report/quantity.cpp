// Figures with units as users write them, and the columns they name.

#include <array>
#include <charconv>
#include <cmath>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/assertion.hpp"

namespace kvsim {
namespace {

constexpr std::array<std::string_view, 4> suffixes{"_req_s", "_tok_s", "_ms", "_s"};

struct Scale {
    std::string_view unit;
    double factor;  // multiply (divide, if `divides`) to get the column's unit
    bool divides = false;
};

constexpr std::array<Scale, 6> to_ms_scales{
    {{"ns", 1e6, true}, {"us", 1e3, true}, {"ms", 1}, {"s", 1e3}, {"min", 6e4}, {"h", 3.6e6}}};
constexpr std::array<Scale, 6> to_s_scales{
    {{"ns", 1e9, true}, {"us", 1e6, true}, {"ms", 1e3, true}, {"s", 1}, {"min", 60}, {"h", 3600}}};
constexpr std::array<Scale, 6> to_rate_scales{
    {{"", 1}, {"/s", 1}, {"/min", 60, true}, {"/h", 3600, true}, {"req/s", 1}, {"tok/s", 1}}};
constexpr std::array<Scale, 2> to_share_scales{{{"", 1}, {"%", 100, true}}};
constexpr std::array<Scale, 5> to_bytes_scales{{{"", 1}, {"B", 1}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}}};
constexpr std::array<Scale, 1> bare_scale{{{"", 1}}};

std::span<const Scale> scales(Unit unit) {
    switch (unit) {
        case Unit::ms:
            return to_ms_scales;
        case Unit::seconds:
            return to_s_scales;
        case Unit::per_second:
            return to_rate_scales;
        case Unit::share:
            return to_share_scales;
        case Unit::bytes:
            return to_bytes_scales;
        case Unit::count:
        case Unit::tokens:
        case Unit::text:
            return bare_scale;
    }
    KVSIM_CHECK(false, "unit out of range");
}

/// req/s for a token rate (and the other way round) is a misunderstanding, not a unit.
bool is_other_rate(std::string_view unit, std::string_view column) {
    return (unit == "req/s" && !column.ends_with("_req_s")) || (unit == "tok/s" && !column.ends_with("_tok_s"));
}

std::string unit_names(Unit unit, std::string_view column) {
    std::string names;
    for (const Scale& scale : scales(unit)) {
        if (scale.unit.empty() || is_other_rate(scale.unit, column)) continue;
        names += names.empty() ? "" : ", ";
        names += scale.unit;
    }
    return names;
}

std::string_view without_suffix(std::string_view name) {
    for (const std::string_view suffix : suffixes) {
        if (name.size() > suffix.size() && name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
    }
    return name;
}

template <class C>
const C* find_column(std::span<const C> columns, std::string_view name) {
    for (const C& column : columns) {
        if (name == column.name || name == without_suffix(column.name)) return &column;
    }
    return nullptr;
}

template <class C>
std::string nearest_column(std::span<const C> columns, std::string_view name) {
    std::vector<std::string_view> known;
    for (const C& column : columns) {
        known.push_back(column.name);
        if (without_suffix(column.name) != column.name) known.push_back(without_suffix(column.name));
    }
    return std::string(nearest(name, known));
}

}  // namespace

double parse_quantity(std::string_view value, std::string_view name, Unit of, bool bare) {
    const std::string column(name);
    double number = 0;
    const auto read = std::from_chars(value.data(), value.data() + value.size(), number);
    if (read.ec != std::errc{} || !std::isfinite(number)) throw UserError("'" + excerpt(value) + "' is not a number");
    const std::string_view unit = trimmed(value.substr(static_cast<std::size_t>(read.ptr - value.data())));
    if (unit.empty() && bare && of != Unit::share) return number;
    if (of == Unit::share && unit.empty() && number > 1 && name != "load")
        throw UserError(column + " is a share of 1: write 0.95 or 95%");
    for (const Scale& scale : scales(of)) {
        if (scale.unit == unit && !is_other_rate(unit, name))
            return scale.divides ? number / scale.factor : number * scale.factor;
    }
    const std::string known = unit_names(of, name);
    if (unit.empty()) throw UserError(column + " needs a unit (" + known + ")");
    throw UserError("unit '" + excerpt(unit) + "' does not fit " + column +
                    (known.empty() ? ", which has none" : " (one of: " + known + ")"));
}

const Column* find_summary_column(std::string_view name) {
    return find_column(summary_columns(), name);
}

std::string nearest_summary_column(std::string_view name) {
    return nearest_column(summary_columns(), name);
}

const ClassColumn* find_class_column(std::string_view name) {
    return find_column(class_columns(), name);
}

std::string nearest_class_column(std::string_view name) {
    return nearest_column(class_columns(), name);
}

std::string text_with_unit(const Cell& cell, std::string_view column, Unit unit) {
    const std::string text = cell_text(cell, unit);
    if (text.empty()) return "not applicable";
    switch (unit) {
        case Unit::ms:
            return text + " ms";
        case Unit::seconds:
            return text + " s";
        case Unit::per_second:
            return text + (column.ends_with("_tok_s") ? " tok/s" : " req/s");
        default:
            return text;
    }
}

}  // namespace kvsim
