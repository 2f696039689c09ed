// kvsim calibrate: the few constants of the step time that a user's own measurements can tell, fitted by replaying them.
//
// At most four parameters, in this order: api (from the TTFT of quiet requests), link_scale, flop_scale, bandwidth_scale
// (sim/step_time/physics.cpp). Loss: mean |log(simulated / measured)| + 0.05 theta^2 for the three scales (theta = log scale),
// minimised by least squares and from there by Nelder-Mead. A parameter the measurements do not move, or that moves them as
// another does, stays as it is and is named; so does one that does not make the held-out error smaller.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "kvsim/app/command.hpp"
#include "kvsim/app/measured_runs.hpp"
#include "kvsim/app/prepare.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/model/pieces.hpp"
#include "kvsim/model/token_ids.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/report/summary.hpp"

namespace kvsim::app {
namespace {

using nlohmann::json;

constexpr std::size_t parameters = 4;
constexpr std::array<std::string_view, parameters> parameter_names{"api", "link_scale", "flop_scale", "bandwidth_scale"};
using Theta = std::array<double, parameters>;

/// One measured figure and whether the fit may see it.
struct Observation {
    std::string what;
    double measured = 0;
    bool held_out = false;
    bool front_end = false;  ///< a time from arrival: front-end time and all
};

/// The measurements, and what the model says for each of them (nullopt: nothing).
struct Problem {
    std::vector<Observation> observations;
    std::function<std::vector<std::optional<double>>(const Theta&)> predict;
    double api_start_ns = 8e6;
    std::string how;  ///< what was read and left out
};

std::unique_ptr<StepTimeModel> scaled_model(const config::Choice& choice, const Deployment& deployment, const Theta& theta) {
    config::Choice scaled = choice;
    config::Value& map = scaled.params;
    map.kind = config::Value::Kind::map;
    const auto set = [&map](std::string_view key, const std::string& text) {
        config::Value value;
        value.kind = config::Value::Kind::scalar;
        value.scalar = text;
        std::erase_if(map.map, [&](const config::Member& m) { return m.key == key; });
        map.map.push_back({std::string(key), {}, std::move(value)});
    };
    if (scaled.name.empty()) {
        const GpuSpec& gpu = *deployment.gpu;
        scaled.name = gpu.constants.empty() && gpu.constants_of_family.empty() ? "roofline" : "fitted";
    }
    set("model", scaled.name);
    for (std::size_t i = 1; i < parameters; ++i) {
        const config::Value* before = choice.params.find(parameter_names[i]);
        const double base = before != nullptr ? std::stod(before->scalar) : 1;
        set(parameter_names[i], shortest(std::clamp(base * std::exp(theta[i]), 0.05, 20.0)));
    }
    config::Diagnostics diagnostics;
    auto model = make_step_time(scaled, deployment, diagnostics);
    diagnostics.throw_if_errors();
    return model;
}

double loss(const Problem& problem, const std::vector<std::optional<double>>& predicted, const Theta& theta, bool held_out) {
    double sum = 0;
    std::int64_t n = 0;
    for (std::size_t i = 0; i < predicted.size(); ++i) {
        if (problem.observations[i].held_out != held_out) continue;
        ++n;
        sum += predicted[i] && *predicted[i] > 0 ? std::abs(std::log(*predicted[i] / problem.observations[i].measured)) : 5;
    }
    double out = n > 0 ? sum / static_cast<double>(n) : 0;
    if (!held_out) {
        for (std::size_t i = 1; i < parameters; ++i) out += 0.05 * theta[i] * theta[i];
    }
    return out;
}

/// MAPE in % by kind of figure ("ttft", "tpot", ...).
std::map<std::string, double> mape(const Problem& problem, const std::vector<std::optional<double>>& predicted, bool held_out) {
    std::map<std::string, std::pair<double, double>> sums;
    for (std::size_t i = 0; i < predicted.size(); ++i) {
        const Observation& o = problem.observations[i];
        if (o.held_out != held_out || !predicted[i]) continue;
        auto& [sum, n] = sums[o.what];
        sum += 100 * std::abs(*predicted[i] / o.measured - 1);
        n += 1;
    }
    std::map<std::string, double> out;
    for (const auto& [what, s] : sums) out[what] = s.first / s.second;
    return out;
}

/// Whether no kind of held-out figure got worse by a tenth and half a point; true when nothing is held out.
bool carries_over(const Problem& problem, const std::vector<std::optional<double>>& before,
                  const std::vector<std::optional<double>>& after) {
    const auto a = mape(problem, before, true);
    const auto b = mape(problem, after, true);
    return std::all_of(a.begin(), a.end(), [&](const auto& error) {
        const auto found = b.find(error.first);
        return found == b.end() || found->second <= 1.1 * error.second + 0.5;
    });
}

/// Which parameters the measurements can tell apart; the reasons for the others go to `notes`.
std::vector<std::size_t> identifiable(const Problem& problem, const std::vector<std::optional<double>>& base,
                                      std::vector<std::string>& notes) {
    std::size_t seen = 0;
    for (const Observation& o : problem.observations) seen += o.held_out ? 0 : 1;
    std::vector<std::size_t> out;
    std::vector<std::vector<double>> directions;
    for (std::size_t p = 0; p < parameters; ++p) {
        constexpr double step = 0.1;
        Theta theta{};
        theta[p] = step;
        const auto moved = problem.predict(theta);
        std::vector<double> s;
        double norm = 0;
        for (std::size_t i = 0; i < base.size(); ++i) {
            if (problem.observations[i].held_out) continue;
            s.push_back(base[i] && moved[i] && *base[i] > 0 && *moved[i] > 0 ? std::log(*moved[i] / *base[i]) / step : 0);
            norm += s.back() * s.back();
        }
        norm = std::sqrt(norm / static_cast<double>(std::max<std::size_t>(1, s.size())));
        if (norm < 0.02) {
            notes.push_back(fmt::format("{} is not identifiable: the measurements do not depend on it", parameter_names[p]));
            continue;
        }
        if (out.size() >= seen) {
            notes.push_back(fmt::format("{} is not identifiable: only {} measured figures", parameter_names[p], seen));
            continue;
        }
        const std::vector<double> whole = s;
        for (const std::vector<double>& d : directions) {
            double dot = 0;
            for (std::size_t i = 0; i < s.size(); ++i) dot += s[i] * d[i];
            for (std::size_t i = 0; i < s.size(); ++i) s[i] -= dot * d[i];
        }
        double left = 0;
        double all = 0;
        for (std::size_t i = 0; i < s.size(); ++i) {
            left += s[i] * s[i];
            all += whole[i] * whole[i];
        }
        if (left < 0.0025 * all) {
            notes.push_back(
                fmt::format("{} is not identifiable: the others move the measurements in the same way", parameter_names[p]));
            continue;
        }
        for (double& x : s) x /= std::sqrt(left);
        directions.push_back(std::move(s));
        out.push_back(p);
    }
    return out;
}

/// A fit: the scales' logarithms, the front-end time, and what follows from them.
struct Point {
    double loss = 0;
    std::vector<double> x;  ///< by scale searched
    double api_ms = 0;      ///< more than at the start
    std::vector<std::optional<double>> predicted;
};

/// Replays the measurements, at most `most` times, and keeps the best that was seen. Only the scales are searched: every
/// request passes the front end, so a longer one shifts the whole run and adds to each TTFT and E2E; the best one follows from
/// a replay.
class Search {
public:
    Search(const Problem& problem, std::vector<std::size_t> fitted) : problem_(problem) { fit(std::move(fitted)); }

    /// What is fitted from now on; the others are at the start.
    void fit(std::vector<std::size_t> fitted) {
        has_api_ = !fitted.empty() && fitted.front() == 0;
        if (has_api_) fitted.erase(fitted.begin());
        fitted_ = std::move(fitted);
    }
    Point run(std::size_t most) {
        most_ = used_ + most;
        best_ = at(std::vector<double>(fitted_.size(), 0.0));
        search(0.03);
        return best_;
    }
    /// The best from `start` on, for a fit of fewer parameters.
    Point refine(std::vector<double> start, std::size_t most) {
        most_ = used_ + most;
        best_ = at(std::move(start));
        search(0.02);
        return best_;
    }
    Point at(std::vector<double> x) {
        throw_if_stopped();
        ++used_;
        Point p{0, std::move(x), 0, {}};
        p.predicted = problem_.predict(theta(p));
        if (has_api_) p.api_ms = best_front_end(p);
        for (std::size_t i = 0; i < p.predicted.size(); ++i) {
            if (problem_.observations[i].front_end && p.predicted[i]) *p.predicted[i] += p.api_ms;
        }
        p.loss = loss(problem_, p.predicted, theta(p), false);
        return p;
    }
    [[nodiscard]] Theta theta(const Point& p) const {
        Theta out{};
        for (std::size_t i = 0; i < fitted_.size(); ++i) out[fitted_[i]] = std::clamp(p.x[i], -3.0, 3.0);
        out[0] = std::log1p(p.api_ms * 1e6 / problem_.api_start_ns);
        return out;
    }
    [[nodiscard]] const std::vector<std::size_t>& scales() const { return fitted_; }
    [[nodiscard]] bool has_api() const { return has_api_; }
    [[nodiscard]] std::size_t used() const { return used_; }

private:
    void search(double simplex) {
        for (const double step : {0.1, 0.03}) {
            while (least_squares(step)) {}
        }
        if (!fitted_.empty()) nelder_mead(simplex);
    }
    [[nodiscard]] bool may(std::size_t replays) const { return used_ + replays <= most_; }
    bool take(Point p) {
        if (p.loss >= best_.loss - 1e-7) return false;
        best_ = std::move(p);
        return true;
    }

    /// The change of the front-end time with the least mean |log|, which lies where one of the measured TTFT is met.
    [[nodiscard]] double best_front_end(const Point& p) const {
        const double least = -0.95 * problem_.api_start_ns / 1e6;
        const auto off = [&](double change) {
            double sum = 0;
            for (std::size_t i = 0; i < p.predicted.size(); ++i) {
                const Observation& o = problem_.observations[i];
                if (!o.front_end || o.held_out || !p.predicted[i]) continue;
                sum += *p.predicted[i] + change > 0 ? std::abs(std::log((*p.predicted[i] + change) / o.measured)) : 5;
            }
            return sum;
        };
        double best = 0;
        double best_off = off(0);
        for (std::size_t i = 0; i < p.predicted.size(); ++i) {
            const Observation& o = problem_.observations[i];
            if (!o.front_end || o.held_out || !p.predicted[i]) continue;
            const double change = std::max(least, o.measured - *p.predicted[i]);
            if (const double value = off(change); value < best_off) {
                best = change;
                best_off = value;
            }
        }
        return best;
    }

    /// A step of Gauss-Newton on the logarithms, reweighted towards the mean of absolute values, with the same ridge. Small
    /// derivatives drown in the steps of a schedule, so they are taken over a whole `step`. False: hardly better.
    bool least_squares(double step) {
        using Row = std::vector<double>;
        const std::size_t n = fitted_.size();
        if (n == 0 || !may(n + 1)) return false;
        const Point from = best_;
        std::vector<Point> moved;
        for (std::size_t p = 0; p < n; ++p) {
            std::vector<double> there = from.x;
            there[p] += step;
            moved.push_back(at(std::move(there)));
        }
        // (J' W J + ridge) d = -(J' W r + ridge x)
        std::vector<Row> matrix(n, Row(n + 1, 0.0));
        double count = 0;
        for (std::size_t i = 0; i < problem_.observations.size(); ++i) {
            const Observation& o = problem_.observations[i];
            if (o.held_out || !from.predicted[i] || !(*from.predicted[i] > 0)) continue;
            count += 1;
            const double r = std::log(*from.predicted[i] / o.measured);
            const double weight = 1 / std::max(std::abs(r), 0.03);
            Row j(n, 0.0);
            for (std::size_t p = 0; p < n; ++p) {
                const auto& m = moved[p].predicted[i];
                if (m && *m > 0) j[p] = std::log(*m / *from.predicted[i]) / step;
            }
            for (std::size_t p = 0; p < n; ++p) {
                for (std::size_t q = 0; q < n; ++q) matrix[p][q] += weight * j[p] * j[q];
                matrix[p][n] -= weight * j[p] * r;
            }
        }
        for (std::size_t p = 0; p < n; ++p) {
            for (double& value : matrix[p]) value /= std::max(1.0, count);
            constexpr double ridge = 0.1;  // the derivative of 0.05 theta^2
            matrix[p][p] += ridge;
            matrix[p][n] -= ridge * from.x[p];
        }
        for (std::size_t p = 0; p < n; ++p) {  // positive definite: no pivots
            for (std::size_t q = 0; q < n; ++q) {
                if (q == p) continue;
                const double factor = matrix[q][p] / matrix[p][p];
                for (std::size_t k = p; k <= n; ++k) matrix[q][k] -= factor * matrix[p][k];
            }
        }
        bool better = false;
        for (Point& p : moved) better = take(std::move(p)) || better;
        const double before = best_.loss;
        for (double part = 1; part > 0.2 && may(1); part /= 2) {
            std::vector<double> there = from.x;
            for (std::size_t p = 0; p < n; ++p) there[p] += part * matrix[p][n] / matrix[p][p];
            if (take(at(std::move(there)))) return best_.loss < 0.98 * before;
        }
        return false;
    }

    /// From the best point, to the end of the replays allowed.
    void nelder_mead(double step) {
        const std::size_t n = fitted_.size();
        if (!may(n + 1)) return;
        std::vector<Point> simplex{best_};
        for (std::size_t i = 0; i < n; ++i) {
            std::vector<double> x = best_.x;
            x[i] += step;
            simplex.push_back(at(std::move(x)));
        }
        const auto by_loss = [](const Point& a, const Point& b) { return a.loss < b.loss; };
        while (may(2)) {
            std::stable_sort(simplex.begin(), simplex.end(), by_loss);
            double width = 0;
            for (std::size_t k = 0; k < n; ++k) width = std::max(width, std::abs(simplex.back().x[k] - simplex.front().x[k]));
            if (width < 5e-4) break;
            std::vector<double> centre(n, 0.0);
            for (std::size_t i = 0; i < n; ++i) {
                for (std::size_t k = 0; k < n; ++k) centre[k] += simplex[i].x[k] / static_cast<double>(n);
            }
            const auto along = [&](double t) {
                std::vector<double> x(n);
                for (std::size_t k = 0; k < n; ++k) x[k] = centre[k] + t * (simplex.back().x[k] - centre[k]);
                return at(std::move(x));
            };
            Point reflected = along(-1);
            if (reflected.loss < simplex.front().loss) {
                Point expanded = along(-2);
                simplex.back() = expanded.loss < reflected.loss ? std::move(expanded) : std::move(reflected);
            } else if (reflected.loss < simplex[n - 1].loss) {
                simplex.back() = std::move(reflected);
            } else {
                Point inside = along(reflected.loss < simplex.back().loss ? -0.5 : 0.5);
                if (inside.loss < std::min(reflected.loss, simplex.back().loss)) {
                    simplex.back() = std::move(inside);
                    continue;
                }
                if (!may(n)) break;
                for (std::size_t i = 1; i <= n; ++i) {
                    std::vector<double> x = simplex[i].x;
                    for (std::size_t k = 0; k < n; ++k) x[k] = simplex[0].x[k] + 0.5 * (x[k] - simplex[0].x[k]);
                    simplex[i] = at(std::move(x));
                }
            }
        }
        for (Point& p : simplex) take(std::move(p));
    }

    const Problem& problem_;
    std::vector<std::size_t> fitted_;  // scales
    bool has_api_ = false;
    std::size_t most_ = 0;
    std::size_t used_ = 0;
    Point best_;
};

// ---- what may be measured

Outcome run_with(const Prepared& base, const Theta& theta, double api_start, Workload& workload) {
    const auto model = scaled_model(base.scenario.step_time, base.deployment, theta);
    SimulationOptions options = base.options;
    options.timeline_interval = {};
    options.api = SimDuration(std::llround(api_start * std::exp(theta[0])));
    return simulate(options, *model, *base.router, workload);
}

/// Rows of a CSV file as kvsim validate reads them; every third run is held out.
Problem from_rows(const std::string& file, const Prepared& scenario, const std::vector<std::string>& where, double api_start) {
    const CsvTable table(file, read_file(file, std::size_t{1} << 28));
    struct Part {
        MeasuredRun run;
        BuiltRun built;
    };
    auto parts = std::make_shared<std::vector<Part>>();
    std::size_t other = 0;
    MeasuredRuns read = read_measured_runs(table, std::filesystem::path(file).parent_path(), 1, where);
    for (const std::string& why : read.skipped) log_warning(why);
    for (MeasuredRun& run : read.runs) {
        BuiltRun built = build(run, {}, {});
        if (built.deployment.gpu_name != scenario.deployment.gpu_name) {
            ++other;
            continue;
        }
        parts->push_back({std::move(run), std::move(built)});
    }
    if (parts->empty()) throw UserError("error: " + file + ": no rows measured on " + scenario.deployment.gpu_name);
    Problem out;
    out.api_start_ns = api_start;
    out.how = fmt::format("{} runs on {}{}", parts->size(), scenario.deployment.gpu_name,
                          other > 0 ? fmt::format(" ({} on other GPUs left out)", other) : "");
    static constexpr std::array<Metric, 3> used{Metric::ttft_mean, Metric::tpot_mean, Metric::e2e_mean};
    for (std::size_t i = 0; i < parts->size(); ++i) {
        for (const MeasuredStage& stage : (*parts)[i].run.stages) {
            for (const Metric m : used) {
                const auto at = static_cast<std::size_t>(m);
                if (!stage.measured[at]) continue;
                out.observations.push_back({std::string(metric_names[at]), *stage.measured[at],
                                            parts->size() >= 3 && i % 3 == 2, m != Metric::tpot_mean});
            }
        }
    }
    const config::Choice choice = scenario.scenario.step_time;
    out.predict = [parts, choice, api_start](const Theta& theta) {
        std::vector<std::optional<double>> all;
        for (const Part& part : *parts) {
            throw_if_stopped();
            const auto model = scaled_model(choice, part.built.deployment, theta);
            const Outcome outcome =
                replay_requests(part.run, part.built, *model, SimDuration(std::llround(api_start * std::exp(theta[0]))));
            for (const MeasuredStage& stage : part.run.stages) {
                const Metrics simulated = stage_metrics(outcome.requests, stage);
                for (const Metric m : used) {
                    const auto at = static_cast<std::size_t>(m);
                    if (stage.measured[at]) all.push_back(simulated[at]);
                }
            }
        }
        return all;
    };
    return out;
}

/// Request by request: means over groups of consecutive requests; the first third of the run is fitted.
struct TimedRequest {
    double arrival_s = 0;
    std::int64_t prompt = 1, output = 1;
    double ttft_ms = 0, e2e_ms = 0;
};
Problem from_requests(std::vector<TimedRequest> requests, const std::shared_ptr<Prepared>& scenario,
                      std::optional<std::int64_t> concurrency, double skip_s, double api_start) {
    std::stable_sort(requests.begin(), requests.end(),
                     [](const TimedRequest& a, const TimedRequest& b) { return a.arrival_s < b.arrival_s; });
    auto list = std::make_shared<std::vector<Arrival>>();
    for (const TimedRequest& r : requests) {
        Arrival& a = list->emplace_back();
        a.time = SimTime{SimDuration(std::llround((r.arrival_s - requests.front().arrival_s) * 1e9))};
        a.prompt_tokens = r.prompt;
        a.output_tokens = r.output;
        a.output_base = own_output_base(static_cast<RequestId>(list->size() - 1));
    }
    std::size_t first = 0;
    while (first < requests.size() && requests[first].arrival_s - requests.front().arrival_s < skip_s) ++first;
    if (requests.size() - first < std::max<std::size_t>(4, requests.size() / 2)) first = 0;
    const std::size_t group = std::max<std::size_t>(1, (requests.size() - first) / 24);
    struct Group {
        std::size_t begin, end;
    };
    auto groups = std::make_shared<std::vector<Group>>();
    for (std::size_t i = first; i + group <= requests.size(); i += group) groups->push_back({i, i + group});
    // The front end shows where nothing else delays a request: the quarter of the fitted ones that met the fewest others.
    const std::size_t fitted_groups = groups->size() >= 3 ? (groups->size() + 2) / 3 : groups->size();
    auto quiet = std::make_shared<std::vector<std::size_t>>();
    for (std::size_t i = first; i < first + fitted_groups * group; ++i) quiet->push_back(i);
    std::vector<std::size_t> met(requests.size(), 0);
    {
        std::vector<double> ends;  // of the requests before i
        for (std::size_t i = 0; i < requests.size(); ++i) {
            std::erase_if(ends, [&](double end) { return end <= requests[i].arrival_s; });
            met[i] = ends.size();
            ends.push_back(requests[i].arrival_s + requests[i].e2e_ms / 1e3);
        }
    }
    std::stable_sort(quiet->begin(), quiet->end(), [&](std::size_t a, std::size_t b) { return met[a] < met[b]; });
    quiet->resize((quiet->size() + 3) / 4);

    Problem out;
    out.api_start_ns = api_start;
    out.how = fmt::format("{} requests, the first {} dropped as warm-up, {} groups", requests.size(), first, groups->size());
    double quiet_ttft = 0;
    for (const std::size_t i : *quiet) quiet_ttft += requests[i].ttft_ms / static_cast<double>(quiet->size());
    if (!(quiet_ttft > 0)) throw UserError("error: a measured time is not above 0");
    // As heavy as a third of the fitted groups together: a few requests, each met by the step in progress in a phase of its
    // own.
    const std::size_t copies = (fitted_groups + 2) / 3;
    for (std::size_t i = 0; i < copies; ++i) out.observations.push_back({"low-load ttft", quiet_ttft, false, true});
    for (std::size_t g = 0; g < groups->size(); ++g) {
        double ttft = 0, e2e = 0, tpot = 0, n = 0;
        for (std::size_t i = (*groups)[g].begin; i < (*groups)[g].end; ++i) {
            ttft += requests[i].ttft_ms / static_cast<double>(group);
            e2e += requests[i].e2e_ms / static_cast<double>(group);
            if (requests[i].output > 1) {
                tpot += (requests[i].e2e_ms - requests[i].ttft_ms) / static_cast<double>(requests[i].output - 1);
                n += 1;
            }
        }
        const bool held_out = groups->size() >= 3 && g >= (groups->size() + 2) / 3;
        if (!(ttft > 0 && e2e > 0)) throw UserError("error: a measured time is not above 0");
        out.observations.push_back({"ttft", ttft, held_out, true});
        out.observations.push_back({"tpot", n > 0 && tpot > 0 ? tpot / n : e2e, held_out});
        out.observations.push_back({"e2e", e2e, held_out, true});
    }
    out.predict = [list, groups, quiet, copies, scenario, concurrency, api_start](const Theta& theta) {
        ListedRequests workload(list);
        Prepared& p = *scenario;
        p.options.max_concurrency = concurrency;
        const Outcome outcome = run_with(p, theta, api_start, workload);
        std::vector<std::optional<double>> all;
        double low = 0;
        double n = 0;
        for (const std::size_t i : *quiet) {
            if (!completed(outcome.requests[i])) continue;
            low += to_ms(outcome.requests[i].ttft);
            n += 1;
        }
        all.assign(copies, n > 0 ? std::optional(low / n) : std::nullopt);
        for (const Group& g : *groups) {
            MeasuredStage stage;
            stage.first = g.begin;
            stage.last = g.end;
            const Metrics m = stage_metrics(outcome.requests, stage);
            all.push_back(m[static_cast<std::size_t>(Metric::ttft_mean)]);
            const auto& tpot = m[static_cast<std::size_t>(Metric::tpot_mean)];
            const auto& e2e = m[static_cast<std::size_t>(Metric::e2e_mean)];
            all.push_back(tpot ? tpot : e2e);
            all.push_back(e2e);
        }
        return all;
    };
    return out;
}

double number_of(const json& value, const std::string& file, std::string_view key) {
    if (!value.is_number()) throw UserError("error: " + file + ": " + std::string(key) + " must be numbers");
    return value.get<double>();
}

/// A result of `vllm bench serve --save-result`, with --save-detailed request by request.
Problem from_vllm(const std::string& file, const json& result, const std::shared_ptr<Prepared>& scenario, double skip_s,
                  double api_start) {
    const auto has = [&](const char* key) { return result.contains(key) && !result[key].is_null(); };
    if (has("input_lens") && has("output_lens") && has("ttfts") && has("itls")) {
        const auto& in = result["input_lens"];
        const std::size_t n = in.size();
        for (const char* key : {"input_lens", "output_lens", "ttfts", "itls"}) {
            if (!result[key].is_array() || result[key].size() != n || n == 0) {
                throw UserError("error: " + file + ": " + key + " must be a list as long as input_lens");
            }
        }
        std::optional<std::int64_t> concurrency;
        if (has("max_concurrency")) {
            concurrency =
                std::max<std::int64_t>(1, std::llround(number_of(result["max_concurrency"], file, "max_concurrency")));
        }
        const bool starts = has("start_times") && result["start_times"].is_array() && result["start_times"].size() == n;
        double rate = 0;
        if (has("request_rate") && result["request_rate"].is_number()) rate = result["request_rate"].get<double>();
        const StreamKey gaps(static_cast<std::uint64_t>(scenario->scenario.seed), "arrivals");
        std::vector<TimedRequest> requests;
        double at = 0;
        for (std::size_t i = 0; i < n; ++i) {
            TimedRequest r;
            r.prompt = std::clamp<std::int64_t>(std::llround(number_of(in[i], file, "input_lens")), 1, max_request_tokens);
            const std::int64_t output = std::llround(number_of(result["output_lens"][i], file, "output_lens"));
            if (output < 1) continue;  // it failed
            r.output = std::min(output, max_request_tokens);
            r.ttft_ms = 1e3 * number_of(result["ttfts"][i], file, "ttfts");
            r.e2e_ms = r.ttft_ms;
            for (const json& gap : result["itls"][i]) r.e2e_ms += 1e3 * number_of(gap, file, "itls");
            if (starts) {
                r.arrival_s = number_of(result["start_times"][i], file, "start_times");
            } else if (std::isfinite(rate) && rate > 0) {
                at += exponential_quantile(gaps.first_uniform(i), 1 / rate);
                r.arrival_s = at;
            }
            requests.push_back(r);
        }
        if (requests.empty()) throw UserError("error: " + file + ": no request completed");
        return from_requests(std::move(requests), scenario, concurrency, skip_s, api_start);
    }
    Problem out;
    out.api_start_ns = api_start;
    out.how = "means of a whole run against the scenario's own workload; nothing can be held out";
    struct Key {
        const char* key;
        const char* what;
    };
    auto used = std::make_shared<std::vector<Metric>>();
    for (const auto& [key, metric] :
         {std::pair{Key{"mean_ttft_ms", "ttft"}, Metric::ttft_mean}, std::pair{Key{"mean_tpot_ms", "tpot"}, Metric::tpot_mean},
          std::pair{Key{"mean_e2el_ms", "e2e"}, Metric::e2e_mean}}) {
        if (!has(key.key)) continue;
        const double value = number_of(result[key.key], file, key.key);
        if (!(value > 0)) throw UserError("error: " + file + ": " + key.key + " must be above 0");
        out.observations.push_back({key.what, value, false, metric != Metric::tpot_mean});
        used->push_back(metric);
    }
    if (used->empty()) {
        throw UserError("error: " + file +
                        ": neither mean_ttft_ms, mean_tpot_ms, mean_e2el_ms nor the lists of --save-detailed");
    }
    out.predict = [scenario, used, api_start](const Theta& theta) {
        config::Diagnostics diagnostics;
        const auto workload = make_workload(scenario->scenario.workload, static_cast<std::uint64_t>(scenario->scenario.seed),
                                            scenario->scenario.file.parent_path(), diagnostics);
        diagnostics.throw_if_errors();
        const Outcome outcome = run_with(*scenario, theta, api_start, *workload);
        MeasuredStage stage;
        stage.last = outcome.requests.size();
        const Metrics m = stage_metrics(outcome.requests, stage);
        std::vector<std::optional<double>> all;
        for (const Metric metric : *used) all.push_back(m[static_cast<std::size_t>(metric)]);
        return all;
    };
    return out;
}

/// A step log (`kvsim --steps`, or an engine's own in the same form): durations of steps; the last third is held out.
Problem from_steps(const std::string& file, const std::string& text, const std::shared_ptr<Prepared>& scenario) {
    struct Step {
        StepShape shape;
        std::vector<PrefillChunk> chunks;
        double ns = 0;
    };
    auto steps = std::make_shared<std::vector<Step>>();
    std::map<std::int64_t, std::size_t> by_number;
    std::size_t line = 0;
    for (std::size_t at = 0; at < text.size();) {
        ++line;
        std::size_t end = text.find('\n', at);
        if (end == std::string::npos) end = text.size();
        const std::string one = text.substr(at, end - at);
        at = end + 1;
        if (one.find_first_not_of(" \r\t") == std::string::npos) continue;
        const auto bad = [&](const std::string& message) -> UserError {
            return UserError(file + ":" + std::to_string(line) + ": error: " + message);
        };
        const json record = json::parse(one, nullptr, false);
        if (!record.is_object()) throw bad("not a JSON object");
        if (record.contains("upd") && record["upd"].is_number_integer() && record.contains("tok") && record["tok"].is_array()) {
            const auto found = by_number.find(record["upd"].get<std::int64_t>());
            if (found != by_number.end())
                (*steps)[found->second].shape.sampled = static_cast<std::int64_t>(record["tok"].size());
        }
        if (!record.contains("sched") || !record.contains("duration_ns")) continue;
        if (!record["sched"].is_array() || !record["duration_ns"].is_number())
            throw bad("sched must be a list, duration_ns a number");
        Step s;
        s.ns = record["duration_ns"].get<double>();
        if (record["sched"].empty() || !(s.ns > 0)) continue;
        for (const json& row : record["sched"]) {
            if (!row.is_object() || !row.contains("n") || !row.contains("c") || !row["n"].is_number_integer() ||
                !row["c"].is_number_integer()) {
                throw bad("a scheduled row needs n and c");
            }
            const auto n = row["n"].get<std::int64_t>();
            const auto c = row["c"].get<std::int64_t>();
            if (n < 1 || c < 0) throw bad("n must be above 0 and c not below 0");
            s.shape.tokens += n;
            ++s.shape.sequences;
            if (n == 1) {
                ++s.shape.decode_rows;
                s.shape.decode_context += c + 1;
            } else {
                s.chunks.push_back({n, c});
            }
        }
        s.shape.sampled = s.shape.sequences;
        if (record.contains("step") && record["step"].is_number_integer())
            by_number[record["step"].get<std::int64_t>()] = steps->size();
        steps->push_back(std::move(s));
    }
    if (steps->size() < 2) throw UserError("error: " + file + ": no steps with sched and duration_ns");
    Problem out;
    for (std::size_t i = 0; i < steps->size(); ++i) {
        const bool held_out = steps->size() >= 6 && i >= steps->size() * 2 / 3;
        out.observations.push_back({(*steps)[i].chunks.empty() ? "decode step" : "mixed step", (*steps)[i].ns, held_out});
    }
    out.how = fmt::format("{} steps", steps->size());
    out.predict = [steps, scenario](const Theta& theta) {
        const auto model = scaled_model(scenario->scenario.step_time, scenario->deployment, theta);
        std::vector<std::optional<double>> all;
        for (const Step& s : *steps) {
            StepShape shape = s.shape;
            shape.chunks = s.chunks;
            all.push_back(static_cast<double>(model->duration(shape).count()));
        }
        return all;
    };
    return out;
}

/// Requests of a CSV file with a line per request: ours (requests.csv) or timings from arrival in ms.
std::optional<std::vector<TimedRequest>> requests_of(const CsvTable& table) {
    const bool ours = table.has("arrival_s") && table.has("ttft_ms") && table.has("e2e_ms");
    const bool other = table.has("arrival_us") && table.has("ttft_from_arrival_ms") && table.has("e2e_from_arrival_ms");
    if (!ours && !other) return std::nullopt;
    table.need({"prompt_tokens", "output_tokens"});
    std::vector<TimedRequest> out;
    for (const CsvTable::Row& row : table.rows()) {
        const auto ttft = table.number(row, ours ? "ttft_ms" : "ttft_from_arrival_ms");
        const auto e2e = table.number(row, ours ? "e2e_ms" : "e2e_from_arrival_ms");
        const auto prompt = table.integer(row, "prompt_tokens", 1, max_request_tokens);
        const auto output = table.integer(row, "output_tokens", 0, max_request_tokens);
        if (!ttft || !e2e || !prompt || output.value_or(0) < 1) continue;  // it did not complete
        out.push_back({table.number(row, ours ? "arrival_s" : "arrival_us").value_or(0) * (ours ? 1 : 1e-6), *prompt, *output,
                       *ttft, *e2e});
    }
    if (out.empty()) throw UserError(table.name() + ": error: no request completed");
    return out;
}

Problem read_problem(const std::string& file, const std::shared_ptr<Prepared>& scenario, const std::vector<std::string>& where,
                     double skip_s) {
    const double api =
        std::max(1e6, static_cast<double>(scenario->deployment.api.value_or(scenario->step_time->default_api()).count()));
    const std::string text = read_file(file, std::size_t{1} << 28);
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string::npos) throw UserError("error: " + file + " is empty");
    if (text[begin] == '{') {
        const json whole = json::parse(text, nullptr, false);
        if (whole.is_object() && !whole.contains("sched")) return from_vllm(file, whole, scenario, skip_s, api);
        if (whole.is_discarded() && text.substr(begin, text.find('\n', begin) - begin).find("\"sched\"") == std::string::npos) {
            throw UserError("error: " + file + " is neither JSON as vllm bench serve writes it nor a step log");
        }
        return from_steps(file, text, scenario);
    }
    const CsvTable table(file, text);
    if (auto requests = requests_of(table))
        return from_requests(std::move(*requests), scenario, scenario->options.max_concurrency, skip_s, api);
    return from_rows(file, *scenario, where, api);
}

}  // namespace

int calibrate_command(const std::vector<std::string>& args) {
    const Usage usage{
        "calibrate",
        "kvsim calibrate MEASURED --scenario S.yaml [options]",
        "Fits at most four constants of the step time (api, link_scale, flop_scale, bandwidth_scale) to measurements:\n"
        "a CSV file of runs (as kvsim validate reads it) or of requests (requests.csv), the JSON of vllm bench serve, or a\n"
        "step log. Prints the error before and after, on what was fitted and on what was held out, and writes an overlay:\n"
        "kvsim S.yaml --overlay FILE.",
        {{"scenario", "S.yaml", "the deployment that was measured"},
         {"out", "FILE.yaml", "where the overlay goes (calibration.yaml)"},
         {"where", "COLUMN=VALUE", "of a CSV file of runs, only these rows (also COLUMN!=VALUE)", true},
         {"skip", "SECONDS", "requests of the first seconds are slower on real engines and not compared (5)"},
         {"evaluations", "N", "replays the search may take (26); a few more find what is identifiable and what carries over"},
         {"set", "KEY.PATH=VALUE", "change a key of the scenario first", true}},
        "a file of measurements",
        1,
        1};
    const std::optional<Arguments> given = parse(usage, args);
    if (!given) return exit_done;
    if (!given->has("scenario")) throw UserError("error: --scenario S.yaml is needed: the deployment that was measured");
    const std::string file = given->positional.front();
    config::Diagnostics diagnostics;
    const auto scenario = std::make_shared<Prepared>(prepare(*given->text("scenario"), given->all("set"), diagnostics));
    diagnostics.throw_if_errors();
    const std::string tier = scenario->info.step_time_model;
    if (tier != "fitted" && tier != "roofline") {
        throw UserError("error: step-time model " + tier + " has nothing to calibrate; use fitted or roofline");
    }
    const double skip = static_cast<double>(given->integer("skip", 0, 1'000'000).value_or(5));
    const Problem problem = read_problem(file, scenario, given->all("where"), skip);

    const std::vector<std::optional<double>> before = problem.predict({});
    std::vector<std::string> notes;
    const std::vector<std::size_t> fitted = identifiable(problem, before, notes);
    if (fitted.empty()) {
        std::string why;
        for (const std::string& note : notes) why += "\n  " + note;
        throw UserError("error: " + file + ": nothing can be fitted" + why);
    }
    std::size_t replays = 0;
    const auto most = static_cast<std::size_t>(given->integer("evaluations", 4, 100'000).value_or(26));
    Search search(problem, fitted);
    Point best = search.run(most);
    // What does not help where it was not fitted has fitted the noise: such parameters go back, the least useful one first.
    const bool holds_out =
        std::any_of(problem.observations.begin(), problem.observations.end(), [](const Observation& o) { return o.held_out; });
    const auto held_out_loss = [&problem](const Point& p) { return loss(problem, p.predicted, {}, true); };
    const auto stays = [&notes](std::size_t p) {
        notes.push_back(
            fmt::format("{} stays as it was: fitting it did not make the held-out error smaller", parameter_names[p]));
    };
    const auto no_better = [](double with, double without) { return with > 0.95 * without - 0.0005; };
    std::vector<std::size_t> kept = fitted;
    if (holds_out && no_better(held_out_loss(best), loss(problem, before, {}, true))) {
        for (const std::size_t p : std::exchange(kept, {})) stays(p);
        search.fit(kept);
        best = {0, {}, 0, before};
    }
    while (holds_out && !kept.empty()) {
        const double with = held_out_loss(best);
        std::optional<std::size_t> least;
        Point then;
        for (const std::size_t p : kept) {
            std::vector<std::size_t> others;
            std::copy_if(kept.begin(), kept.end(), std::back_inserter(others), [p](std::size_t other) { return other != p; });
            std::vector<double> x;
            for (std::size_t i = 0; i < search.scales().size(); ++i) {
                if (search.scales()[i] != p) x.push_back(best.x[i]);
            }
            Search fewer(problem, others);
            Point without = fewer.at(std::move(x));
            ++replays;
            const double loss_without = held_out_loss(without);
            if (!no_better(with, loss_without) || (least && loss_without >= held_out_loss(then))) continue;
            least = p;
            then = std::move(without);
        }
        if (!least) break;
        stays(*least);
        std::erase(kept, *least);
        search.fit(kept);
        best = search.refine(then.x, 7);
    }
    Theta theta = search.theta(best);
    replays += 1 + parameters + search.used();
    const auto predict = [&](const Theta& at) {
        ++replays;
        return problem.predict(at);
    };
    std::vector<std::optional<double>> after = predict(theta);
    // Nor may one kind of figure pay for another.
    std::vector<Theta> smaller;
    for (const double part : {0.5, 0.25}) {
        smaller.push_back(theta);
        for (double& x : smaller.back()) x *= part;
    }
    smaller.push_back({theta[0]});
    smaller.push_back({});
    std::size_t refused = 0;
    while (refused < smaller.size() && !carries_over(problem, before, after)) {
        theta = smaller[refused++];
        after = predict(theta);
    }
    if (refused > 0) {
        constexpr std::array<std::string_view, 4> parts{"half of it is kept", "a quarter of it is kept", "only api is kept",
                                                        "everything stays as it was"};
        notes.push_back(fmt::format("the whole fit made the held-out error worse: {}", parts[refused - 1]));
    }

    std::string report = problem.how + "\n\nMAPE in %          before     after\n";
    std::string comment;
    for (const bool held_out : {false, true}) {
        const auto a = mape(problem, before, held_out);
        const auto b = mape(problem, after, held_out);
        if (a.empty()) report += held_out ? "held out: nothing (too few measurements)\n" : "";
        for (const auto& [what, error] : a) {
            const std::string line = fmt::format("{:<9} {:<9} {:>6} {:>9}", held_out ? "held out" : "fitted", what,
                                                 decimals(error, 2), decimals(b.at(what), 2));
            report += line + "\n";
            comment += "#   " + line + "\n";
        }
    }
    report += "\n";
    const auto value = [&](std::size_t p) {
        const config::Value* given_scale = p == 0 ? nullptr : scenario->scenario.step_time.params.find(parameter_names[p]);
        const double base = given_scale != nullptr ? std::stod(given_scale->scalar) : 1;
        return p == 0 ? decimals(problem.api_start_ns * std::exp(theta[0]) / 1e6, 4) + "ms"
                      : decimals(std::clamp(base * std::exp(theta[p]), 0.05, 20.0), 5);
    };
    std::string step_time = "step_time: {model: " + tier;
    std::string engine;
    report += fmt::format("{} replays\n", replays);
    for (const std::size_t p : fitted) {
        report += fmt::format("{} = {}\n", parameter_names[p], value(p));
        if (p == 0) {
            engine = "engine: {api: " + value(p) + "}\n";
        } else {
            step_time += fmt::format(", {}: {}", parameter_names[p], value(p));
        }
    }
    for (const std::string& note : notes) report += note + "\n";
    const std::string out = given->text("out").value_or("calibration.yaml");
    AtomicFile overlay(out);
    overlay.write("# kvsim calibrate " + std::filesystem::path(file).filename().string() + ": " + problem.how + "\n#   " +
                  "MAPE in %          before     after\n" + comment + engine + step_time + "}\n");
    overlay.commit();
    print(report + "written to " + out + "\n");
    return exit_done;
}

}  // namespace kvsim::app
