#pragma once
// Results read back from the files that run and sweep write.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/report/summary.hpp"

namespace kvsim::app {

struct ResultRow {
    std::string place;  ///< "FILE:LINE"
    std::string scenario, hash, error;
    std::optional<std::int64_t> seed;           ///< unset: a mean over seeds
    std::map<std::string, std::string> varied;  ///< by key
    /// By column's name; the verdict by rank. What does not apply is missing.
    std::map<std::string_view, double> figures;
    /// By class, then by column's name. Of a mean over seeds their mean.
    std::map<std::string, std::map<std::string_view, double>, std::less<>> classes;
    std::map<std::string, std::set<std::int64_t>, std::less<>> class_seeds;  ///< that `classes` is a mean over
    [[nodiscard]] std::string point() const;                                 ///< "chat engine.preset=vllm-v1"
};

struct ResultSet {
    std::string name;  ///< as the user wrote it
    std::string version;
    std::string classes_version;  ///< of the figures by class; empty without
    std::vector<ResultRow> rows;
};

/// `path`: sweep.csv, aggregate.csv, replications.csv, summary.csv or summary.json, or a folder with them, of which the one
/// that says most is read: the sweep, else the single replications (also in the folders of several scenarios), else the
/// summary. Throws UserError with file and line: nothing of the kind, no rows, a cell that is no number, rows of several
/// versions, the same point and seed twice.
/// A classes.csv is read as rows with `class` among their varied keys. `with_classes`: the one beside the file gives its rows
/// their figures by class (of FILE.csv with another name FILE.classes.csv).
ResultSet read_results(const std::filesystem::path& path, bool with_classes = false);

}  // namespace kvsim::app
