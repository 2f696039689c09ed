#include "kvsim/app/load_options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/parallel.hpp"
#include "kvsim/base/text.hpp"

namespace kvsim::app {
namespace {

constexpr std::array<std::string_view, 4> formats{"table", "json", "csv", "markdown"};
constexpr std::array<std::string_view, 2> kinds{"rate", "concurrency"};

}  // namespace

std::vector<Option> load_options() {
    return {
        {"slo", "'METRIC OP VALUE'", "what must hold, as --assert: 'ttft_p99 <= 2s'; several: separate them by commas", true},
        {"attainment", "SHARE", "without --slo: the share of requests within the scenario's own slo (0.99)"},
        {"by", "LOAD", "what is raised: rate or concurrency (rate)"},
        {"min", "LOAD", "the lowest load that is of interest (1/1024 of the first guess)"},
        {"max", "LOAD", "the highest (64 times the first guess)"},
        {"tolerance", "SHARE", "width of a seed's bracket, relative (0.005; capacity: at most 0.02 where seeds differ more)"},
        {"vary", "KEY=V1,V2,...", "one axis of a grid of points", true},
        {"set", "KEY.PATH=VALUE", "change a key at every point", true},
        {"overlay", "FILE.yaml", "lay this file's keys over the scenario at every point", true},
        {"seed", "N", "the first seed, instead of the scenario's"},
        {"jobs", "N", "threads (all of the machine's)", false, 'j'},
        {"format", "FORMAT", "what is printed: table, json, csv or markdown (table)"},
        {"gpu-hour-cost", "USD", "price of one GPU for an hour, instead of the catalogue's"},
        {"yes", "", "a very large grid is meant"},
        {"catalog", "DIR", "own models.yaml and gpus.yaml, asked before the shipped ones"},
        {"quiet", "", "print nothing but errors"}};
}

double positive_number(const std::string& option, const std::string& text) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const std::string_view unit = trimmed(std::string_view(stop, static_cast<std::size_t>(end - stop)));
    const double scale = unit.empty() || unit == "/s" || unit == "req/s" ? 1
                         : unit == "%"                                   ? 0.01
                         : unit == "/min"                                ? 1.0 / 60
                         : unit == "/h"                                  ? 1.0 / 3600
                                                                         : 0;
    if (error != std::errc{} || scale == 0 || !std::isfinite(value) || value <= 0)
        throw UserError("error: --" + option + " must be a number above 0, not '" + excerpt(text) + "'");
    return value * scale;
}

LoadRequest read_load_options(const Arguments& given, std::string_view command, std::int64_t default_seeds) {
    LoadRequest out;
    out.quiet = given.has("quiet");
    out.format = given.choice("format", formats);
    SearchSettings& search = out.search;
    search.slos = given.all("slo");
    search.attainment = given.text("attainment");
    search.by = given.choice("by", kinds) == "rate" ? LoadBy::rate : LoadBy::concurrency;
    if (!search.slos.empty()) read_targets(search.slos, search.attainment, true, search.by);
    const auto number = [&given](const char* name) {
        const std::optional<std::string> text = given.text(name);
        return text ? std::optional(positive_number(name, *text)) : std::nullopt;
    };
    search.min = number("min");
    search.max = number("max");
    if (search.min && search.max && *search.min >= *search.max)
        throw UserError("error: --min " + *given.text("min") + " is not below --max " + *given.text("max"));
    if (search.by == LoadBy::concurrency &&
        ((search.min && *search.min != std::floor(*search.min)) || (search.max && *search.max != std::floor(*search.max))))
        throw UserError("error: --min and --max are whole numbers with --by concurrency");
    if (search.by == LoadBy::concurrency && search.max && *search.max < 2)
        throw UserError("error: --max must be at least 2 with --by concurrency");
    search.tolerance = number("tolerance").value_or(search.tolerance);
    search.exact = given.has("tolerance");
    if (search.tolerance < 1e-6 || search.tolerance > 0.5)
        throw UserError("error: --tolerance must be between 0.000001 and 0.5, not " + *given.text("tolerance"));
    out.gpu_hour_usd = number("gpu-hour-cost");
    out.jobs = static_cast<std::size_t>(given.integer("jobs", 1, 4096).value_or(usable_threads()));

    SweepRequest& sweep = out.sweep;
    sweep.file = given.positional.front();
    sweep.catalog = given.text("catalog").value_or("");
    sweep.vary = given.all("vary");
    sweep.sets = given.all("set");
    sweep.overlays = given.all("overlay");
    sweep.seed = given.integer("seed", 0, INT64_MAX - 100'000);
    sweep.repeat = given.integer("seeds", 1, 10'000);
    sweep.usual_repeat = default_seeds;
    sweep.large = given.has("yes");
    sweep.single = true;
    out.out = given.text("out").value_or("results/" + sweep.file.stem().string() + "-" + std::string(command));
    if (out.out.empty()) throw UserError("error: --out must name a folder");
    return out;
}

SweepPlan plan_load(const LoadRequest& request) {
    SweepPlan plan = plan_sweep(request.sweep);
    constexpr std::array<std::string_view, 2> rates{"workload.arrivals.rate", "workload.rate_scale"};
    constexpr std::array<std::string_view, 2> concurrencies{"workload.max_concurrency", "workload.users.count"};
    for (const std::string_view searched : request.search.by == LoadBy::rate ? rates : concurrencies) {
        const std::vector<std::string> keys = plan.keys();
        if (std::find(keys.begin(), keys.end(), searched) != keys.end())
            throw UserError("error: " + std::string(searched) + " is searched for, so it cannot vary");
    }
    return plan;
}

RunCounter::RunCounter(std::int64_t points, bool quiet)
    : points_(points), quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

RunCounter::~RunCounter() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
}

void RunCounter::run() {
    const std::lock_guard lock(mutex_);
    ++runs_;
    show();
}

void RunCounter::point(const std::string& line) {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (!quiet_ && !terminal_ && points_ == 0) {
        std::fprintf(stderr, "%s\n", line.c_str());
    } else if (!quiet_ && !terminal_ && points_ > 1) {
        std::fprintf(stderr, "[%lld/%lld] %s\n", static_cast<long long>(done_), static_cast<long long>(points_), line.c_str());
    }
    show();
}

void RunCounter::show() {
    if (quiet_ || !terminal_) return;
    std::fprintf(stderr, "\r%lld runs", static_cast<long long>(runs_));
    if (points_ > 0)
        std::fprintf(stderr, ", %lld of %lld points", static_cast<long long>(done_), static_cast<long long>(points_));
    std::fputs("\x1b[K", stderr);
    shown_ = true;
}

}  // namespace kvsim::app
