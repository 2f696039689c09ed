// The plan of a sweep: from a scenario with --vary, or from a sweep file.

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "kvsim/app/process.hpp"
#include "kvsim/app/sweep.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"
#include "kvsim/model/deployment.hpp"
#include "kvsim/model/pieces.hpp"

namespace kvsim::app {
namespace {

using config::Diagnostics;
using config::Member;
using config::Value;

constexpr std::int64_t most_grid_places = 100'000'000;

/// YAML in one line that reads as the value: what --set takes.
void append_flow(const Value& value, std::string& out) {
    if (value.is_null()) {
        out += "null";
    } else if (value.is_scalar()) {
        const bool plain = !value.quoted && value.scalar.find_first_of(",[]{}#&*!|>'\"%@`\\\n") == std::string::npos &&
                           value.scalar.find(": ") == std::string::npos && !value.scalar.ends_with(':') &&
                           !value.scalar.starts_with("- ") && !value.scalar.starts_with("? ");
        if (plain) {
            out += value.scalar;
            return;
        }
        out += '"';
        for (const char c : value.scalar) {
            if (c == '\n') {
                out += "\\n";
                continue;
            }
            if (c == '"' || c == '\\') out += '\\';
            out += c;
        }
        out += '"';
    } else if (value.is_list()) {
        out += '[';
        for (std::size_t i = 0; i < value.list.size(); ++i) {
            if (i > 0) out += ", ";
            append_flow(value.list[i], out);
        }
        out += ']';
    } else {
        out += '{';
        for (std::size_t i = 0; i < value.map.size(); ++i) {
            if (i > 0) out += ", ";
            out += value.map[i].key + ": ";
            append_flow(value.map[i].value, out);
        }
        out += '}';
    }
}

std::string flow(const Value& value) {
    std::string out;
    append_flow(value, out);
    return out;
}

/// At commas outside brackets and quotes. A quote opens where a value begins; elsewhere it is an apostrophe.
std::vector<std::string> split_choices(std::string_view text) {
    std::vector<std::string> out(1);
    int depth = 0;
    char quote = 0;
    char before = ',';  // the last that is no space
    for (const char c : text) {
        const bool begins = before == ',' || before == '[' || before == '{' || before == ':';
        if (c != ' ') before = c;
        if (quote != 0) {
            if (c == quote) quote = 0;
        } else if ((c == '"' || c == '\'') && begins) {
            quote = c;
        } else if (c == '[' || c == '{') {
            ++depth;
        } else if (c == ']' || c == '}') {
            --depth;
        } else if (c == ',' && depth == 0) {
            out.emplace_back();
            continue;
        }
        out.back() += c;
    }
    for (std::string& choice : out) choice = std::string(trimmed(choice));
    return out;
}

SweepAxis axis_of(const std::string& vary) {
    const std::size_t equals = vary.find('=');
    if (equals == std::string::npos || equals == 0) {
        throw UserError("error: --vary must be key.path=v1,v2,..., not '" + excerpt(vary) + "'");
    }
    SweepAxis axis{{vary.substr(0, equals)}, {}};
    for (std::string& choice : split_choices(std::string_view(vary).substr(equals + 1))) {
        if (choice.empty()) throw UserError("error: --vary " + excerpt(vary) + ": an empty value");
        axis.choices.push_back({std::move(choice)});
    }
    return axis;
}

std::optional<std::int64_t> whole(const Value& value, std::int64_t min, std::int64_t max) {
    std::int64_t out = 0;
    const std::string& text = value.scalar;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (!value.is_scalar() || value.quoted || error != std::errc{} || end != text.data() + text.size() || out < min ||
        out > max)
        return std::nullopt;
    return out;
}

using Exclusion = std::vector<std::pair<std::string, std::string>>;

/// A sweep file, read into the plan.
class SweepFile {
public:
    SweepFile(const Value& root, const std::filesystem::path& file, SweepPlan& plan, Diagnostics& diagnostics)
        : folder_(file.parent_path()), plan_(plan), diagnostics_(diagnostics) {
        constexpr std::array<std::string_view, 8> known{"base", "vary", "zip", "exclude", "set", "overlays", "repeat", "seeds"};
        for (const Member& member : root.map) {
            if (std::find(known.begin(), known.end(), member.key) == known.end())
                diagnostics.unknown(member.key_mark, "key", member.key, known);
        }
        const Value* base = root.find("base");
        if (base == nullptr) {
            diagnostics.error(root.mark, "a sweep file needs `base`, the scenario's path");
        } else if (!base->is_scalar() || base->scalar.empty()) {
            diagnostics.error(base->mark, "base must be a scenario's path");
        } else {
            plan.scenario = folder_ / base->scalar;
        }
        read_sets(root.find("set"));
        read_overlays(root.find("overlays"));
        read_vary(root.find("vary"));
        read_zip(root.find("zip"));
        read_exclude(root.find("exclude"));
        read_seeds(root);
    }
    [[nodiscard]] const std::vector<Exclusion>& exclusions() const { return exclusions_; }
    [[nodiscard]] std::optional<std::int64_t> repeat() const { return repeat_; }
    [[nodiscard]] const std::vector<std::int64_t>& seeds() const { return seeds_; }

private:
    void read_sets(const Value* map) {
        if (map == nullptr) return;
        if (!map->is_map()) return diagnostics_.error(map->mark, "set must be a map from key paths to values");
        for (const Member& member : map->map) plan_.sets.push_back(member.key + "=" + flow(member.value));
    }
    void read_overlays(const Value* list) {
        if (list == nullptr) return;
        if (!list->is_list()) return diagnostics_.error(list->mark, "overlays must be a list of files");
        for (const Value& item : list->list) plan_.overlays.push_back(path_of(item));
    }
    std::string path_of(const Value& item) {
        if (item.is_scalar()) return (folder_ / item.scalar).string();
        diagnostics_.error(item.mark, "a file's path is expected");
        return {};
    }
    std::vector<std::string> choices_of(const std::string& key, const Value& list) {
        std::vector<std::string> out;
        if (!list.is_list() || list.list.empty()) {
            diagnostics_.error(list.mark, "the values of " + key + " must be a list with at least one entry");
            return out;
        }
        for (const Value& item : list.list) out.push_back(key == "overlay" ? path_of(item) : flow(item));
        return out;
    }
    void read_vary(const Value* map) {
        if (map == nullptr) return;
        if (!map->is_map()) return diagnostics_.error(map->mark, "vary must be a map from key paths to lists of values");
        for (const Member& member : map->map) {
            SweepAxis axis{{member.key}, {}};
            for (std::string& choice : choices_of(member.key, member.value)) axis.choices.push_back({std::move(choice)});
            plan_.axes.push_back(std::move(axis));
        }
    }
    void read_zip(const Value* list) {
        if (list == nullptr) return;
        if (!list->is_list())
            return diagnostics_.error(list->mark, "zip must be a list of maps from key paths to lists of values");
        for (const Value& map : list->list) {
            if (!map.is_map() || map.map.empty()) {
                diagnostics_.error(map.mark, "an entry of zip must be a map from key paths to lists of values");
                continue;
            }
            SweepAxis axis;
            for (const Member& member : map.map) {
                const std::vector<std::string> choices = choices_of(member.key, member.value);
                if (choices.empty()) return;
                if (axis.keys.empty()) axis.choices.resize(choices.size());
                if (choices.size() != axis.choices.size()) {
                    return diagnostics_.error(member.key_mark, member.key + " has " + std::to_string(choices.size()) +
                                                                   " values, " + axis.keys.front() + " has " +
                                                                   std::to_string(axis.choices.size()) +
                                                                   "; keys that vary together need as many");
                }
                axis.keys.push_back(member.key);
                for (std::size_t i = 0; i < choices.size(); ++i) axis.choices[i].push_back(choices[i]);
            }
            plan_.axes.push_back(std::move(axis));
        }
    }
    void read_exclude(const Value* list) {
        if (list == nullptr) return;
        if (!list->is_list())
            return diagnostics_.error(list->mark, "exclude must be a list of maps from varied keys to values");
        const std::vector<std::string> keys = plan_.keys();
        for (const Value& map : list->list) {
            if (!map.is_map() || map.map.empty()) {
                diagnostics_.error(map.mark, "an entry of exclude must be a map from varied keys to values");
                continue;
            }
            Exclusion& exclusion = exclusions_.emplace_back();
            for (const Member& member : map.map) {
                if (std::find(keys.begin(), keys.end(), member.key) == keys.end()) {
                    const std::vector<std::string_view> views(keys.begin(), keys.end());
                    diagnostics_.unknown(member.key_mark, "varied key", member.key, views);
                } else if (const std::string value = flow(member.value); !offers(member.key, value)) {
                    diagnostics_.error(member.value.mark, member.key + " never is " + value);
                }
                exclusion.emplace_back(member.key, flow(member.value));
            }
        }
    }
    [[nodiscard]] bool offers(const std::string& key, const std::string& value) const {
        for (const SweepAxis& axis : plan_.axes) {
            for (std::size_t k = 0; k < axis.keys.size(); ++k) {
                if (axis.keys[k] != key) continue;
                for (const auto& choice : axis.choices) {
                    if (choice[k] == value) return true;
                }
            }
        }
        return false;
    }
    void read_seeds(const Value& root) {
        if (const Value* repeat = root.find("repeat")) {
            repeat_ = whole(*repeat, 1, 100'000);
            if (!repeat_) diagnostics_.error(repeat->mark, "repeat must be a whole number from 1 to 100000");
        }
        const Value* seeds = root.find("seeds");
        if (seeds == nullptr) return;
        if (repeat_) diagnostics_.error(seeds->mark, "seeds and repeat exclude each other");
        if (!seeds->is_list() || seeds->list.empty())
            return diagnostics_.error(seeds->mark, "seeds must be a list of whole numbers");
        for (const Value& item : seeds->list) {
            const auto seed = whole(item, 0, INT64_MAX);
            if (!seed) return diagnostics_.error(item.mark, "a seed is a whole number, at least 0");
            if (std::find(seeds_.begin(), seeds_.end(), *seed) != seeds_.end())
                return diagnostics_.error(item.mark, "seed " + std::to_string(*seed) + " stands twice");
            seeds_.push_back(*seed);
        }
    }

    std::filesystem::path folder_;
    SweepPlan& plan_;
    Diagnostics& diagnostics_;
    std::vector<Exclusion> exclusions_;
    std::optional<std::int64_t> repeat_;
    std::vector<std::int64_t> seeds_;
};

bool excluded(const SweepPlan& plan, const std::vector<std::size_t>& choice, const std::vector<Exclusion>& exclusions) {
    if (exclusions.empty()) return false;
    std::map<std::string, std::string, std::less<>> at;
    for (std::size_t a = 0; a < plan.axes.size(); ++a) {
        for (std::size_t k = 0; k < plan.axes[a].keys.size(); ++k)
            at[plan.axes[a].keys[k]] = plan.axes[a].choices[choice[a]][k];
    }
    return std::any_of(exclusions.begin(), exclusions.end(), [&at](const Exclusion& exclusion) {
        return std::all_of(exclusion.begin(), exclusion.end(),
                           [&at](const auto& entry) { return at.find(entry.first)->second == entry.second; });
    });
}

/// The choice of each axis at a place of the full grid, the first axis slowest.
std::vector<std::size_t> choices_at(const SweepPlan& plan, std::int64_t place) {
    std::vector<std::size_t> out(plan.axes.size());
    for (std::size_t a = plan.axes.size(); a-- > 0;) {
        const auto size = static_cast<std::int64_t>(plan.axes[a].choices.size());
        out[a] = static_cast<std::size_t>(place % size);
        place /= size;
    }
    return out;
}

void lay_out(SweepPlan& plan, const std::vector<Exclusion>& exclusions, bool large) {
    std::int64_t places = 1;
    for (const SweepAxis& axis : plan.axes) {
        const auto size = static_cast<std::int64_t>(axis.choices.size());
        if (places > most_grid_places / size)
            throw UserError("error: the grid has more than " + std::to_string(most_grid_places) + " points");
        places *= size;
    }
    const auto seeds = static_cast<std::int64_t>(plan.seeds.size());
    if (!large && exclusions.empty() && places > many_rows / seeds) {
        throw UserError("error: the grid has " + std::to_string(places) + " points" +
                        (seeds > 1 ? " under " + std::to_string(seeds) + " seeds" : "") + ", more than " +
                        std::to_string(many_rows) + " runs; add --yes if that is meant");
    }
    for (std::int64_t place = 0; place < places; ++place) {
        if (!excluded(plan, choices_at(plan, place), exclusions)) plan.grid.push_back(place);
    }
    if (plan.grid.empty()) throw UserError("error: every point of the grid is excluded");
    if (!large && plan.points() > many_rows / seeds) {
        throw UserError("error: the sweep has " + std::to_string(plan.rows()) + " runs, more than " +
                        std::to_string(many_rows) + "; add --yes if that is meant");
    }
}

/// Names no registry or catalogue has. What else the pieces refuse depends on the other values, so it is a row's own failure;
/// so are keys, tenants and the like, which other choices may know.
std::vector<std::string> unknown_names(const config::Scenario& scenario, const std::filesystem::path& catalog) {
    Diagnostics diagnostics;
    const Deployment deployment = resolve_deployment(scenario, Catalog::open(catalog), diagnostics);
    if (diagnostics.ok()) make_step_time(scenario.step_time, deployment, diagnostics);
    const auto seed = static_cast<std::uint64_t>(scenario.seed);
    make_router(scenario.router, seed, diagnostics);
    // A trace would be opened for every value.
    if (scenario.workload.trace.is_null()) make_workload(scenario.workload, seed, scenario.file.parent_path(), diagnostics);
    constexpr std::array<std::string_view, 4> of_others{"key ", "item of ", "tenant ", "earlier step "};
    constexpr std::string_view head = ": error: unknown ";
    std::vector<std::string> out;
    for (const std::string& error : diagnostics.errors()) {
        const std::size_t at = error.find(head);
        if (at == std::string::npos || at > error.find('\n')) continue;
        const std::string_view what = std::string_view(error).substr(at + head.size());
        if (std::none_of(of_others.begin(), of_others.end(), [&](std::string_view o) { return what.starts_with(o); }))
            out.push_back(error);
    }
    return out;
}

/// Each value alone against the schema and the names it may have: a wrong one would spoil every point that has it.
std::int64_t check_values(const SweepPlan& plan) {
    std::string errors;
    const auto note = [&errors](const std::string& message) {
        if (errors.find(message) == std::string::npos) errors += (errors.empty() ? "" : "\n") + message;
    };
    std::int64_t seed = 0;
    const auto check = [&](const std::vector<std::string>& sets, const std::vector<std::string>& overlays) {
        Diagnostics diagnostics;
        Value root = config::load_yaml(plan.scenario, diagnostics);
        if (diagnostics.ok()) {
            for (const std::string& overlay : overlays)
                config::merge(root, config::load_yaml(overlay, diagnostics), diagnostics);
            for (const std::string& assignment : sets) config::apply_set(root, assignment, diagnostics);
            const config::Scenario scenario = config::read_scenario(root, plan.scenario, diagnostics);
            seed = scenario.seed;
            if (diagnostics.ok()) {
                for (const std::string& error : unknown_names(scenario, plan.catalog)) note(error);
            }
        }
        for (const std::string& error : diagnostics.errors()) note(error);
    };
    // What the axes give may be what the scenario alone lacks.
    std::vector<std::string> first;
    for (const SweepAxis& axis : plan.axes) {
        for (std::size_t k = 0; k < axis.keys.size(); ++k) {
            if (axis.keys[k] != "overlay") first.push_back(axis.keys[k] + "=" + axis.choices.front()[k]);
        }
    }
    for (const SweepAxis& axis : plan.axes) {
        for (const std::vector<std::string>& choice : axis.choices) {
            std::vector<std::string> sets = plan.sets;
            std::vector<std::string> overlays = plan.overlays;
            sets.insert(sets.end(), first.begin(), first.end());
            for (const SweepAxis& other : plan.axes) {
                for (std::size_t k = 0; k < other.keys.size() && &other != &axis; ++k) {
                    if (other.keys[k] == "overlay") overlays.push_back(other.choices.front()[k]);
                }
            }
            for (std::size_t k = 0; k < axis.keys.size(); ++k) {
                if (axis.keys[k] == "overlay") {
                    overlays.push_back(choice[k]);
                } else {
                    sets.push_back(axis.keys[k] + "=" + choice[k]);
                }
            }
            check(sets, overlays);
        }
    }
    if (plan.axes.empty()) check(plan.sets, plan.overlays);
    if (!errors.empty()) throw UserError(errors);
    return seed;
}

/// A key below another one that varies would be overwritten by it, or overwrite it, without a word.
void check_clashes(const SweepPlan& plan) {
    const auto inside = [](std::string_view key, std::string_view other) {
        return key.starts_with(other) && (key.size() == other.size() || key[other.size()] == '.');
    };
    const std::vector<std::string> keys = plan.keys();
    for (const std::string& key : keys) {
        for (const std::string& set : plan.sets) {
            const std::string path(trimmed(set.substr(0, set.find('='))));
            if (key != "overlay" && inside(path, key))
                throw UserError("error: " + excerpt(path) + " is set, and " + (path == key ? "it" : excerpt(key)) + " varies");
        }
        for (const std::string& other : keys) {
            if (key != other && inside(other, key))
                throw UserError("error: " + excerpt(other) + " lies inside " + excerpt(key) + ", and both vary");
        }
    }
}

std::string fingerprint_of(const SweepPlan& plan) {
    std::string text;
    const auto add = [&text](std::string_view part) { text += std::to_string(part.size()) + ":" + std::string(part); };
    add(KVSIM_VERSION);
    add(read_file(plan.scenario));
    for (const char* name : {"models.yaml", "gpus.yaml"}) {
        std::error_code none;
        if (!plan.catalog.empty() && std::filesystem::exists(plan.catalog / name, none)) add(read_file(plan.catalog / name));
    }
    for (const std::string& overlay : plan.overlays) add(read_file(overlay));
    for (const std::string& set : plan.sets) add(set);
    for (const SweepAxis& axis : plan.axes) {
        for (std::size_t k = 0; k < axis.keys.size(); ++k) {
            add(axis.keys[k]);
            for (const auto& choice : axis.choices) add(axis.keys[k] == "overlay" ? read_file(choice[k]) : choice[k]);
        }
        add("axis");
    }
    for (const std::int64_t place : plan.grid) add(std::to_string(place));
    for (const std::int64_t seed : plan.seeds) add(std::to_string(seed));
    return fnv1a_hex(text);
}

}  // namespace

std::vector<std::string> SweepPlan::keys() const {
    std::vector<std::string> out;
    for (const SweepAxis& axis : axes) out.insert(out.end(), axis.keys.begin(), axis.keys.end());
    return out;
}

std::vector<std::string> SweepPlan::values(std::int64_t point) const {
    const std::vector<std::size_t> choice = choices_at(*this, grid[static_cast<std::size_t>(point)]);
    std::vector<std::string> out;
    for (std::size_t a = 0; a < axes.size(); ++a)
        out.insert(out.end(), axes[a].choices[choice[a]].begin(), axes[a].choices[choice[a]].end());
    return out;
}

std::string SweepPlan::label(std::int64_t point) const {
    std::string out;
    const std::vector<std::string> names = keys();
    const std::vector<std::string> chosen = values(point);
    for (std::size_t k = 0; k < names.size(); ++k) out += (k > 0 ? " " : "") + names[k] + "=" + chosen[k];
    return out;
}

SweepPlan::Assignment SweepPlan::assignment(std::int64_t point) const {
    Assignment out{sets, overlays};
    const std::vector<std::string> names = keys();
    const std::vector<std::string> chosen = values(point);
    for (std::size_t k = 0; k < names.size(); ++k) {
        if (names[k] == "overlay") {
            out.overlays.push_back(chosen[k]);
        } else {
            out.sets.push_back(names[k] + "=" + chosen[k]);
        }
    }
    return out;
}

SweepPlan plan_sweep(const SweepRequest& request) {
    SweepPlan plan;
    plan.catalog = request.catalog;
    Diagnostics diagnostics;
    const Value root = config::load_yaml(request.file, diagnostics);
    diagnostics.throw_if_errors();
    std::vector<Exclusion> exclusions;
    std::optional<std::int64_t> repeat = request.repeat;
    // No scenario has any of these keys.
    const auto is_sweep_file = [&root] {
        constexpr std::array<std::string_view, 4> telling{"base", "vary", "zip", "exclude"};
        return std::any_of(telling.begin(), telling.end(), [&](std::string_view key) { return root.find(key) != nullptr; });
    };
    if (is_sweep_file()) {
        const SweepFile file(root, request.file, plan, diagnostics);
        diagnostics.throw_if_errors();
        exclusions = file.exclusions();
        plan.seeds = file.seeds();
        if (!repeat) repeat = file.repeat();
        if (request.repeat || request.seed) plan.seeds.clear();
    } else {
        plan.scenario = request.file;
    }
    plan.overlays.insert(plan.overlays.end(), request.overlays.begin(), request.overlays.end());
    plan.sets.insert(plan.sets.end(), request.sets.begin(), request.sets.end());
    for (const std::string& vary : request.vary) plan.axes.push_back(axis_of(vary));
    plan.axes.insert(plan.axes.end(), request.axes.begin(), request.axes.end());

    check_clashes(plan);
    std::set<std::string> seen;
    for (const std::string& key : plan.keys()) {
        if (key == "seed") throw UserError("error: the seed varies by --repeat N, or `repeat` or `seeds` in a sweep file");
        if (!seen.insert(key).second) throw UserError("error: " + excerpt(key) + " varies twice");
    }
    if (plan.axes.empty() && !request.single)
        throw UserError("error: nothing varies: add --vary key.path=v1,v2,... or `vary` in a sweep file");
    for (const SweepAxis& axis : plan.axes) {
        std::set<std::vector<std::string>> choices;
        for (const std::vector<std::string>& choice : axis.choices) {
            if (choices.insert(choice).second) continue;
            std::string text;
            for (std::size_t k = 0; k < choice.size(); ++k)
                text += (k > 0 ? " " : "") + axis.keys[k] + "=" + excerpt(choice[k]);
            throw UserError("error: " + text + " stands twice: its points would be the same");
        }
    }
    const std::int64_t seed = request.seed.value_or(check_values(plan));
    if (plan.seeds.empty()) {
        if (seed > INT64_MAX - repeat.value_or(request.usual_repeat))
            throw UserError("error: seed " + std::to_string(seed) + " leaves no room for more");
        for (std::int64_t n = 0; n < repeat.value_or(request.usual_repeat); ++n) plan.seeds.push_back(seed + n);
    }
    lay_out(plan, exclusions, request.large);
    plan.fingerprint = fingerprint_of(plan);
    return plan;
}

}  // namespace kvsim::app
