#pragma once
// Independent runs of one scenario under different seeds, as one result.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvsim/report/render.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim {

/// One column over the replications.
struct ReplicatedColumn {
    const Column* column = nullptr;
    Cell value;  ///< a figure: its mean over the runs that have it; another column: the runs' value, joined by " / " if they
                 ///< differ
    bool figure = false;  ///< numeric and measured, not a setting; the *_ci95 columns of single runs are no figures
    std::optional<double> half_width;  ///< of the mean's 95 % interval (Student t); unset below two runs that have it
    double min = 0, max = 0;           ///< over the runs; figures with a value only
};

/// Every column of summary.csv but the within-run *_ci95 ones, in order. The seed is the first run's.
std::vector<ReplicatedColumn> replicated(std::span<const Summary> runs);

/// What `column` holds over the replications; for an interval column its figure's half width.
Cell replicated_cell(std::span<const ReplicatedColumn> columns, const Column& column);

/// Header and one row: the columns above, then for every figure COLUMN_ci95.
std::string replicated_csv(std::span<const Summary> runs);
std::string replicated_csv_header();
std::string replicated_csv_row(std::span<const Summary> runs);

/// table and markdown: mean, interval, least and greatest of each figure; csv: as above; json: one object. vllm: not here.
std::string render_replications(Format format, std::span<const Summary> runs);

/// "replications": {"count", "seeds", "mean": {...}, "ci95": {...}}, without braces around it.
std::string replications_json(std::span<const Summary> runs);

/// What the runs say together: no difference between seeds.
std::vector<std::string> replication_warnings(std::span<const Summary> runs);

}  // namespace kvsim
