#pragma once
// When the objectives of a scenario say that a request must have its next milestone.

#include <optional>
#include <utility>
#include <vector>

#include "kvsim/config/scenario.hpp"
#include "kvsim/engine/engine.hpp"
#include "piece.hpp"

namespace kvsim {

/// The scenario's slo and those of its classes.
class Deadlines {
public:
    struct Objectives {
        config::SloConfig all;
        std::vector<std::pair<std::string, config::SloConfig>> classes;  ///< those with an slo of their own

        /// Whether `holds` for any of them.
        template <class Predicate>
        [[nodiscard]] bool any(Predicate&& holds) const {
            bool found = holds(all);
            for (const auto& [name, slo] : classes) found = found || holds(slo);
            return found;
        }
    };
    static Objectives objectives(const config::Scenario& scenario) {
        Objectives out{scenario.slo, {}};
        for (const config::ClassConfig& c : scenario.workload.classes) {
            if (c.slo) out.classes.emplace_back(c.name, *c.slo);
        }
        return out;
    }
    /// Some request has one.
    static bool exist(const Objectives& objectives) {
        return objectives.any([](const config::SloConfig& slo) { return slo.ttft || slo.e2e; });
    }

    Deadlines(const Objectives& objectives, Engine& engine) : all_(objectives.all) {
        for (const auto& [name, slo] : objectives.classes) classes_.emplace_back(engine.label(name), slo);
    }

    /// Whichever comes first: of the first token (slo.ttft) or, when that is there or has none, of the last (slo.e2e).
    /// Never: it has neither.
    [[nodiscard]] SimTime of(const LiveRequest& request) const {
        const config::SloConfig& slo = slo_of(request);
        const bool first = slo.ttft && (request.outputs == 0 || !slo.e2e);
        if (first) return request.arrival + *slo.ttft;
        return slo.e2e ? request.arrival + *slo.e2e : never;
    }
    /// Whether of() is of its last token.
    [[nodiscard]] bool of_last(const LiveRequest& request) const {
        const config::SloConfig& slo = slo_of(request);
        return slo.e2e && (request.outputs > 0 || !slo.ttft);
    }
    [[nodiscard]] const config::SloConfig& slo_of(const LiveRequest& request) const {
        for (const auto& [label, slo] : classes_) {
            if (label == request.request_class) return slo;
        }
        return all_;
    }

private:
    config::SloConfig all_;
    std::vector<std::pair<std::int32_t, config::SloConfig>> classes_;
};

/// The objectives of a piece that goes by deadlines alone and has no parameters; unset after reporting that there are none.
inline std::optional<Deadlines::Objectives> read_deadlines(const PieceSource& source, config::Diagnostics& diagnostics) {
    NoParams params;
    if (!read_params(no_params(), source, params, diagnostics)) return std::nullopt;
    Deadlines::Objectives objectives = Deadlines::objectives(source.scenario);
    if (Deadlines::exist(objectives)) return objectives;
    refuse(source, "no request has a deadline: slo.ttft or slo.e2e, of the scenario or of a class, sets one", diagnostics);
    return std::nullopt;
}

}  // namespace kvsim
