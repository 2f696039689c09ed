#pragma once
// The result files. CSV: LF, RFC 4180 quoting, no locale, shortest round-trip decimals, times in ms with at most 6 decimals.
// No writer knows the host's time. Writing failures are UserErrors of AtomicFile.

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "kvsim/engine/outcome.hpp"
#include "kvsim/report/run_info.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim {

class AtomicFile;

/// Appends one CSV field, quoted only when it contains a comma, a quote or a line end.
void append_csv_field(std::string& out, std::string_view field);

/// "scenario,scenario_hash,...\n" / the run's row, "\n" included.
std::string summary_csv_header();
std::string summary_csv_row(const Summary& summary);
/// Header and one row per run.
std::string summary_csv(std::span<const Summary> summaries);

/// classes.csv: scenario, scenario_hash, kvsim_version, seed, class, then class_columns(); a row per run and class, none of a
/// run without classes. `before`: further fields in front of each row, written, with the comma that ends them.
std::string classes_csv_header(std::string_view before = {});
std::string classes_csv_rows(const Summary& summary, std::string_view before = {});

/// One object as `vllm bench serve --save-result` writes it (all completed requests; its keys in its order, numbers it has as
/// floats keep a decimal point), then `kvsim`: every column of summary.csv (measured requests) and where the figures come from.
/// One line, no line end. `date` comes from SOURCE_DATE_EPOCH, else it is 19700101-000000.
/// `extra`: further members of the object `kvsim`, written.
std::string summary_json(const RunInfo& info, const Outcome& outcome, const Summary& summary, std::string_view extra = {});

std::string_view finish_reason_name(FinishReason reason);  ///< "" while unfinished

/// Every request in id order; points not reached are empty cells; slo_met 1/0, empty where slo_met() has no answer.
void write_requests_csv(const std::filesystem::path& path, const Outcome& outcome, const config::SloConfig& slo);
void write_timeline_csv(const std::filesystem::path& path, const Outcome& outcome);
/// The same into a file that the caller commits.
void write_requests_csv(AtomicFile& file, const Outcome& outcome, const config::SloConfig& slo,
                        const std::map<std::string, config::SloConfig>& class_slos);
void write_timeline_csv(AtomicFile& file, const Outcome& outcome);
void write_summary_csv(const std::filesystem::path& path, std::span<const Summary> summaries);
void write_summary_json(const std::filesystem::path& path, const RunInfo& info, const Outcome& outcome, const Summary& summary);

}  // namespace kvsim
