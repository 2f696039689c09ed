#pragma once
// What a sweep leaves in its folder, and how parts become one file.
//
//   plan.json          what is swept: fingerprint, number of rows, the header; one line
//   points/ROW.csv     a finished row while the sweep is under way
//   shard-I-of-N.csv   the rows of a shard that is done, in order
//   sweep.csv          all rows, in order
//
// Where requests have classes, each has its companion with a row per class: points/ROW.classes, classes-I-of-N.csv,
// classes.csv. How many rows it has for each run, and of which classes, stands in the last line of points/ROW.csv, in
// classes-I-of-N.done and in classes.done.
//
// Every file appears complete or not at all.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "kvsim/app/sweep.hpp"

namespace kvsim::app {

/// The columns of the varied keys: `varied.KEY` where summary.csv has a column KEY.
std::vector<std::string> key_columns(const SweepPlan& plan);

/// point, the varied keys, the columns of summary.csv, error; "\n" included.
std::string sweep_header(const SweepPlan& plan);

/// Of a companion: point, the varied keys, the columns of classes.csv.
std::string sweep_classes_header(const SweepPlan& plan);

class SweepFolder {
public:
    /// Makes the folder and writes plan.json. `resume`: what is finished of the same plan stays. Without it the shard's earlier
    /// results are removed. The results of another plan are removed only by a whole sweep that does not resume; else they are
    /// refused, as other shards may be at work here. Throws UserError.
    SweepFolder(std::filesystem::path folder, const SweepPlan& plan, const Shard& shard, bool resume);

    /// The shard's rows stood in their file, and all of their classes in its companion, when this was made.
    [[nodiscard]] bool done() const;
    /// The row is finished, with all of its classes.
    [[nodiscard]] bool has(std::int64_t row) const;
    /// `classes`: the rows of the companion, perhaps none.
    void add(std::int64_t row, const std::string& line, const std::string& classes) const;
    /// All rows of the shard as one file; the single ones go.
    void finish(const std::vector<std::int64_t>& rows) const;
    /// sweep.csv or the shard's file.
    [[nodiscard]] std::filesystem::path result() const;
    /// Its companion, which need not be there.
    [[nodiscard]] std::filesystem::path classes() const;

private:
    [[nodiscard]] std::filesystem::path point_file(std::int64_t row) const;
    [[nodiscard]] std::filesystem::path class_file(std::int64_t row) const;
    [[nodiscard]] std::string proof_of_rows(std::int64_t row, const std::string& classes) const;
    [[nodiscard]] bool whole_part(std::int64_t rows) const;
    std::filesystem::path folder_;
    Shard shard_;
    std::string header_, classes_header_;
    bool done_ = false;
};

/// The parts in `folders` as one sweep.csv in `out`, and their companions as one classes.csv. Throws UserError unless they are
/// of one plan and every row is there exactly once, with all of its classes. Returns the number of rows.
std::int64_t merge_sweeps(const std::vector<std::filesystem::path>& folders, const std::filesystem::path& out);

}  // namespace kvsim::app
