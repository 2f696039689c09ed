#include "kvsim/app/experiment.hpp"

#include <algorithm>

#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/model/workload_pieces.hpp"
#include "kvsim/report/output_analysis.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim::app {
namespace {

std::int64_t share_of(double share, std::int64_t count) {
    return static_cast<std::int64_t>(share * static_cast<double>(count));
}

/// Requests before the first that MSER-5 keeps; the series is the E2E of the completed ones in order of arrival.
std::int64_t automatic_warmup(const Outcome& pilot, std::vector<std::string>& warnings) {
    std::vector<std::int64_t> series;
    std::vector<std::int64_t> ids;
    for (std::size_t id = 0; id < pilot.requests.size(); ++id) {
        if (!completed(pilot.requests[id])) continue;
        series.push_back(pilot.requests[id].e2e.count());
        ids.push_back(static_cast<std::int64_t>(id));
    }
    const WarmUp found = mser5(series);
    if (!found.found) {
        warnings.emplace_back(
            "measure.warmup: auto finds no end of the warm-up in the first half of the run (MSER-5 over E2E), so nothing is "
            "cut: "
            "the run is too short, or never becomes steady");
        return 0;
    }
    return found.values == 0 ? 0 : ids[found.values];
}

}  // namespace

Pieces fresh_pieces(const Prepared& p, std::uint64_t seed) {
    config::Diagnostics diagnostics;  // everything was checked when it was prepared
    Pieces out{make_workload(p.scenario.workload, seed, p.scenario.file.parent_path(), diagnostics),
               make_router(p.scenario.router, seed, diagnostics)};
    KVSIM_CHECK(out.workload && out.router, "what was prepared once can be prepared again");
    return out;
}

void resolve_measured(const Prepared& p, std::uint64_t seed, SimulationOptions& options, std::vector<std::string>& warnings) {
    const config::MeasureConfig& m = p.scenario.measure;
    const bool cooldown = m.cooldown_time || m.cooldown_requests || m.cooldown_share;
    if (!m.warmup_auto && !m.warmup_share && !cooldown) return;

    SimulationOptions plain = options;
    plain.warmup_time.reset();
    plain.warmup_requests.reset();
    plain.measured_end.reset();
    plain.timeline_interval = {};
    plain.window = {};
    plain.on_step = nullptr;
    plain.on_progress = nullptr;
    const Pieces pieces = fresh_pieces(p, seed);
    const Outcome pilot = simulate(plain, *p.step_time, *pieces.router, *pieces.workload);
    throw_if_stopped();
    const auto count = static_cast<std::int64_t>(pilot.requests.size());
    if (m.warmup_auto) options.warmup_requests = automatic_warmup(pilot, warnings);
    if (m.warmup_share) options.warmup_requests = share_of(*m.warmup_share, count);
    if (m.cooldown_requests) options.measured_end = std::max<std::int64_t>(0, count - *m.cooldown_requests);
    if (m.cooldown_share) options.measured_end = count - share_of(*m.cooldown_share, count);
    if (m.cooldown_time) {
        const auto late = std::find_if(pilot.requests.begin(), pilot.requests.end(), [&](const RequestRecord& r) {
            return pilot.last_arrival - r.arrival < *m.cooldown_time;
        });
        options.measured_end = late - pilot.requests.begin();
    }
}

}  // namespace kvsim::app
