#pragma once
// The options that kvsim capacity and kvsim tune share.

#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kvsim/app/command.hpp"
#include "kvsim/app/load_search.hpp"
#include "kvsim/app/sweep.hpp"

namespace kvsim::app {

std::vector<Option> load_options();

struct LoadRequest {
    SweepRequest sweep;  ///< a plan of one point where nothing varies; repeat = the seeds
    SearchSettings search;
    std::size_t jobs = 1;
    std::optional<double> gpu_hour_usd;
    std::string format;  ///< table, json, csv or markdown
    std::string out;     ///< DIR
    bool quiet = false;
};
/// Throws UserError, also for an SLO that cannot be read. `command` ends the name of the default folder.
LoadRequest read_load_options(const Arguments& given, std::string_view command, std::int64_t default_seeds);
/// Plans it; a key that is searched does not vary. Throws UserError.
SweepPlan plan_load(const LoadRequest& request);

/// A number above 0, "2%" and "12/s" included. Throws UserError that names the option.
double positive_number(const std::string& option, const std::string& text);

/// How many runs are done, on a terminal; elsewhere a line per point. `points` 0: it is not known how many.
class RunCounter {
public:
    RunCounter(std::int64_t points, bool quiet);
    ~RunCounter();
    RunCounter(const RunCounter&) = delete;
    RunCounter& operator=(const RunCounter&) = delete;
    void run();
    void point(const std::string& line);

private:
    void show();
    std::int64_t points_;
    bool quiet_;
    bool terminal_;
    bool shown_ = false;
    std::int64_t runs_ = 0;
    std::int64_t done_ = 0;
    std::mutex mutex_;
};

}  // namespace kvsim::app
