#pragma once
// The program's commands and how each of them reads its command line.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim::app {

// Exit codes. A signal's is 128 + its number.
inline constexpr int exit_done = 0;
inline constexpr int exit_gate_failed = 1;  ///< an assertion or a comparison failed
inline constexpr int exit_bad_input = 2;    ///< UserError
inline constexpr int exit_bug = 3;          ///< InternalError or anything unexpected

/// A long option. Without `argument` it is a flag.
struct Option {
    std::string_view name;      ///< without the dashes
    std::string_view argument;  ///< the placeholder help prints: "DIR"
    std::string_view doc;
    bool repeatable = false;
    char letter = 0;  ///< `-j 4` beside `--jobs 4`; 0: none
};

/// What one command accepts; help text and parser come from the same table. Every command also has --help.
struct Usage {
    std::string_view command;   ///< its name in the table of commands
    std::string_view synopsis;  ///< "kvsim memory [SCENARIO.yaml] [options]"
    std::string_view description;
    std::vector<Option> options;
    std::string_view positional;  ///< one of them, for messages: "a scenario file"
    std::size_t min_positional = 0;
    std::size_t max_positional = 0;
};

class Arguments {
public:
    [[nodiscard]] bool has(std::string_view name) const { return values.contains(name); }
    [[nodiscard]] std::optional<std::string> text(std::string_view name) const;
    [[nodiscard]] std::vector<std::string> all(std::string_view name) const;
    /// Decimal digits with an optional minus. Throws UserError for anything else and outside [min, max].
    [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name, std::int64_t min, std::int64_t max) const;
    /// The same of every value of a repeatable option.
    [[nodiscard]] std::vector<std::int64_t> integers(std::string_view name, std::int64_t min, std::int64_t max) const;
    /// One of `names`, the first when the option is absent. Throws UserError with the nearest name.
    [[nodiscard]] std::string choice(std::string_view name, std::span<const std::string_view> names) const;

    std::map<std::string, std::vector<std::string>, std::less<>> values;
    std::vector<std::string> positional;
};

/// Options are matched in full only and take exactly one value (`--out DIR` or `--out=DIR`). Throws UserError, with the
/// nearest name for an unknown option. Nullopt: --help was asked for and has been printed.
std::optional<Arguments> parse(const Usage& usage, const std::vector<std::string>& args);

struct Command {
    std::string_view name;
    std::string_view summary;
    int (*run)(const std::vector<std::string>& args);  ///< `args` without the command's name; returns the exit code
};

// One file each under sim/commands/.
int run_command(const std::vector<std::string>& args);
int memory_command(const std::vector<std::string>& args);
int from_vllm_command(const std::vector<std::string>& args);
int policies_command(const std::vector<std::string>& args);
int conformance_command(const std::vector<std::string>& args);
int check_command(const std::vector<std::string>& args);
int list_command(const std::vector<std::string>& args);
int schema_command(const std::vector<std::string>& args);
int selftest_command(const std::vector<std::string>& args);
int workload_command(const std::vector<std::string>& args);
int calibrate_command(const std::vector<std::string>& args);
int validate_command(const std::vector<std::string>& args);
int sweep_command(const std::vector<std::string>& args);
int merge_command(const std::vector<std::string>& args);
int compare_command(const std::vector<std::string>& args);
int capacity_command(const std::vector<std::string>& args);
int tune_command(const std::vector<std::string>& args);

}  // namespace kvsim::app
