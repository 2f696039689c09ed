// --shard: which part of a sweep this process takes.

#include <array>
#include <charconv>
#include <cstdlib>

#include "kvsim/app/sweep.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"

namespace kvsim::app {
namespace {

std::optional<std::int64_t> whole(std::string_view text) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

/// Unset, empty and Grid Engine's "undefined" are no values.
std::optional<std::int64_t> variable(const char* name) {
    const char* const text = name == nullptr ? nullptr : std::getenv(name);
    if (text == nullptr || *text == '\0' || std::string_view(text) == "undefined") return std::nullopt;
    const std::optional<std::int64_t> value = whole(text);
    if (!value) throw UserError("error: --shard auto: " + std::string(name) + " is '" + excerpt(text) + "', not a number");
    return value;
}

/// Variables of one system. `first`, `last` and `step` describe the indices where `count` does not.
struct System {
    const char* name;
    const char* index;
    const char* count;
    const char* first;
    const char* last;
    const char* step;
    std::int64_t base;     ///< lowest index where `first` is not told
    bool zero_means_none;  ///< index 0 stands for "not an array"
};
constexpr std::array systems{
    System{"Slurm array", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX",
           "SLURM_ARRAY_TASK_STEP", 0, false},
    System{"Kubernetes indexed job", "JOB_COMPLETION_INDEX", nullptr, nullptr, nullptr, nullptr, 0, false},
    System{"Cloud Run", "CLOUD_RUN_TASK_INDEX", "CLOUD_RUN_TASK_COUNT", nullptr, nullptr, nullptr, 0, false},
    System{"AWS Batch", "AWS_BATCH_JOB_ARRAY_INDEX", "AWS_BATCH_JOB_ARRAY_SIZE", nullptr, nullptr, nullptr, 0, false},
    System{"Grid Engine", "SGE_TASK_ID", nullptr, "SGE_TASK_FIRST", "SGE_TASK_LAST", "SGE_TASK_STEPSIZE", 1, false},
    System{"LSF", "LSB_JOBINDEX", nullptr, nullptr, "LSB_JOBINDEX_END", "LSB_JOBINDEX_STEP", 1, true},
    System{"PBS", "PBS_ARRAY_INDEX", nullptr, nullptr, nullptr, nullptr, 0, false},
    System{"Torque", "PBS_ARRAYID", nullptr, nullptr, nullptr, nullptr, 0, false},
    System{"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", nullptr, nullptr, nullptr, 0, false},
    System{"PMI", "PMI_RANK", "PMI_SIZE", nullptr, nullptr, nullptr, 0, false},
    System{"srun", "SLURM_PROCID", "SLURM_NTASKS", nullptr, nullptr, nullptr, 0, false},
};

std::string text_of(const Shard& shard) {
    return std::to_string(shard.index) + "/" + std::to_string(shard.count);
}

std::optional<Shard> shard_of(const System& system, std::optional<std::int64_t> shards) {
    const std::optional<std::int64_t> id = variable(system.index);
    if (!id || (system.zero_means_none && *id == 0)) return std::nullopt;
    const std::int64_t first = variable(system.first).value_or(system.base);
    const std::int64_t step = variable(system.step).value_or(1);
    if (step < 1 || *id < first)
        throw UserError(std::string("error: --shard auto: the variables of ") + system.name + " contradict each other");
    Shard shard{(*id - first) / step, 0};
    if (const auto last = variable(system.last)) shard.count = (*last - first) / step + 1;
    if (const auto count = variable(system.count)) shard.count = *count;
    if (shards) shard.count = *shards;
    if (shard.count == 0) {
        throw UserError(std::string("error: --shard auto: ") + system.name +
                        " does not tell how many tasks there are; add --shards N");
    }
    if (shard.index >= shard.count) {
        throw UserError(std::string("error: --shard auto: task ") + std::to_string(shard.index) + " of " + system.name +
                        " is outside its " + std::to_string(shard.count));
    }
    return shard;
}

/// A single process under srun is rank 0 of 1: that is the whole, and says nothing against an array.
bool trivial(const Shard& shard) {
    return shard.count == 1;
}

Shard automatic(std::optional<std::int64_t> shards) {
    std::optional<Shard> found;
    const char* by = nullptr;
    std::optional<Shard> whole_of;
    for (const System& system : systems) {
        const std::optional<Shard> shard = shard_of(system, shards);
        if (!shard) continue;
        if (trivial(*shard) || (shards && variable(system.count).value_or(0) == 1)) {
            whole_of = Shard{0, 1};
            continue;
        }
        if (found && (found->index != shard->index || found->count != shard->count)) {
            throw UserError(std::string("error: --shard auto: ") + by + " says " + text_of(*found) + ", " + system.name +
                            " says " + text_of(*shard) + "; give --shard i/N");
        }
        found = shard;
        by = system.name;
    }
    if (found) return *found;
    if (whole_of) return *whole_of;
    std::string names;
    for (const System& system : systems) names += (names.empty() ? "" : ", ") + std::string(system.index);
    throw UserError("error: --shard auto finds no batch system (" + names + "); give --shard i/N");
}

}  // namespace

Shard parse_shard(const std::string& text, std::optional<std::int64_t> shards) {
    if (text == "auto") return automatic(shards);
    const std::size_t slash = text.find('/');
    const auto index = slash == std::string::npos ? std::nullopt : whole(std::string_view(text).substr(0, slash));
    const auto count = slash == std::string::npos ? std::nullopt : whole(std::string_view(text).substr(slash + 1));
    if (!index || !count || *index < 0 || *count < 1 || *index >= *count) {
        throw UserError("error: --shard must be i/N with 0 <= i < N, or auto, not '" + excerpt(text) + "'");
    }
    if (shards && *shards != *count)
        throw UserError("error: --shards " + std::to_string(*shards) + " contradicts --shard " + text);
    return {*index, *count};
}

}  // namespace kvsim::app
