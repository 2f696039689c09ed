#pragma once
// What the commands share of the process they run in: signals, standard output, log, progress.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kvsim/base/units.hpp"

namespace kvsim::app {

/// SIGINT, SIGTERM and SIGHUP set stop_requested(); a second one kills at once.
void install_signal_handlers();
const std::atomic<bool>& stop_requested();
/// The signal that set it; 0 when none did.
int stop_signal();
/// Throws Interrupted if a signal came: before anything becomes visible on disk.
void throw_if_stopped();

/// Writes to standard output. Throws UserError when that fails (disk full, closed).
void print(std::string_view text);
void flush_output();

/// The message with `error: ` before it, unless it carries such a head, perhaps behind its place.
std::string headed(std::string_view message);
/// A headed error on standard error; nothing in it can move the terminal's cursor.
void print_error(std::string_view message);

/// Log lines go to standard error. `level`: trace, debug, info, warn, error, off.
void set_log_level(std::string_view level);
void log_info(std::string_view message);
void log_warning(std::string_view message);
/// A warning that already carries its `file:line:column: warning:` head.
void log_diagnostic(std::string_view message);

/// One line on standard error that overwrites itself, at most ten times a second; removed at the end. Shown only when
/// standard error is a terminal.
class Progress {
public:
    Progress(std::string name, bool enabled);
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    ~Progress();
    void update(SimTime now, std::int64_t finished, std::optional<std::int64_t> total);

private:
    using Clock = std::chrono::steady_clock;
    std::string name_;
    bool enabled_;
    bool shown_ = false;
    Clock::time_point start_;
    Clock::time_point last_;
};

}  // namespace kvsim::app
