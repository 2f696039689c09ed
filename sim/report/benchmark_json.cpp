#include "kvsim/base/text.hpp"
#include "kvsim/report/gate_report.hpp"
#include "number_text.hpp"

namespace kvsim {

std::string benchmark_json(std::span<const BenchmarkFigure> figures) {
    std::string out = "[";
    for (const BenchmarkFigure& f : figures) {
        out += out.size() > 1 ? ",\n {\"name\": " : "\n {\"name\": ";
        append_json_string(out, f.name);
        out += ", \"unit\": ";
        append_json_string(out, f.unit);
        out += ", \"value\": ";
        out += shortest(f.value);
        if (!f.range.empty()) {
            out += ", \"range\": ";
            append_json_string(out, f.range);
        }
        out += ", \"extra\": ";
        append_json_string(out, f.extra);
        out += '}';
    }
    out += figures.empty() ? "]\n" : "\n]\n";
    return out;
}

}  // namespace kvsim
