#pragma once
// A grid of runs of one scenario. Row r of a sweep is a pure function of the plan: every process that has the plan agrees on
// it.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvsim/config/diagnostics.hpp"

namespace kvsim::app {

/// What varies together: one key, or several by `zip`. The key `overlay` names files laid over the scenario.
struct SweepAxis {
    std::vector<std::string> keys;
    std::vector<std::vector<std::string>> choices;  ///< [choice][key]: the value as --set takes it
};

struct SweepPlan {
    std::filesystem::path scenario;
    std::filesystem::path catalog;
    std::vector<std::string> overlays, sets;
    std::vector<SweepAxis> axes;      ///< the first varies slowest
    std::vector<std::int64_t> grid;   ///< places in the full grid that are not excluded, ascending; by point
    std::vector<std::int64_t> seeds;  ///< every point runs under each
    std::string fingerprint;          ///< of all of the above, the files' content and kvsim's version

    [[nodiscard]] std::int64_t points() const { return static_cast<std::int64_t>(grid.size()); }
    [[nodiscard]] std::int64_t rows() const { return points() * static_cast<std::int64_t>(seeds.size()); }
    [[nodiscard]] std::vector<std::string> keys() const;
    /// The value of every key at a point.
    [[nodiscard]] std::vector<std::string> values(std::int64_t point) const;
    /// "key=value key=value"; empty when nothing varies.
    [[nodiscard]] std::string label(std::int64_t point) const;
    /// The whole assignment of a point: `sets` and its own, and the overlays.
    struct Assignment {
        std::vector<std::string> sets, overlays;
    };
    [[nodiscard]] Assignment assignment(std::int64_t point) const;
};

/// What the command line adds to the scenario or sweep file.
struct SweepRequest {
    std::filesystem::path file;
    std::filesystem::path catalog;
    std::vector<std::string> vary, sets, overlays;
    std::vector<SweepAxis> axes;  ///< behind those of `vary`
    std::optional<std::int64_t> repeat, seed;
    std::int64_t usual_repeat = 1;  ///< where neither `repeat` nor the file says
    bool large = false;             ///< more than `many_rows` rows are meant
    bool single = false;            ///< nothing need vary: a plan of one point
};
inline constexpr std::int64_t many_rows = 100'000;

/// `file` is a scenario, or a sweep file: a map with `base` and any of `vary`, `zip`, `exclude`, `set`, `overlays`, `repeat`,
/// `seeds`. Every value is tried against the scenario's schema. Throws UserError with everything that is wrong.
SweepPlan plan_sweep(const SweepRequest& request);

/// Which rows a process takes: those with row % count == index.
struct Shard {
    std::int64_t index = 0;
    std::int64_t count = 1;
};
/// "i/N" with 0 <= i < N, or "auto": from the variables of the batch system this process runs under (Slurm array, Kubernetes
/// indexed job, Cloud Run, AWS Batch, Grid Engine, LSF, PBS, MPI or srun ranks, in that order). `shards`: N where the system
/// does not tell it. Throws UserError for a malformed text, when none or two that disagree are found, when N is unknown.
Shard parse_shard(const std::string& text, std::optional<std::int64_t> shards);

}  // namespace kvsim::app
