#include "kvsim/app/result_set.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kvsim/app/csv_table.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/assertion.hpp"
#include "kvsim/report/comparison.hpp"

namespace kvsim::app {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_bytes = std::size_t{1} << 30U;

bool is_file(const fs::path& path) {
    std::error_code error;
    return fs::is_regular_file(path, error);
}

[[noreturn]] void refuse(const std::string& place, const std::string& why) {
    throw UserError(place + ": error: " + why);
}

/// A figure's cell: a finite number, or of the verdict its rank. Nothing for an empty one.
std::optional<double> figure(const std::string& place, const Column& column, const std::string& text,
                             const std::optional<double>& number) {
    if (column.name != "verdict") return number;
    if (text.empty()) return std::nullopt;
    const std::optional<double> rank = verdict_rank(text);
    if (rank) return rank;
    if (text.find(" / ") != std::string::npos) return std::nullopt;  // several seeds' in one row
    refuse(place, "verdict: '" + excerpt(text) + "' is none of stable, saturated, overloaded");
}

/// What a sweep varied: a key's path, or what stands between its points and the columns of summary.csv. Other programs may have
/// written the columns in another order.
std::vector<std::string> varied_keys(const CsvTable& table) {
    std::vector<std::string> out;
    const std::vector<std::string>& columns = table.columns();
    const auto scenario = std::find(columns.begin(), columns.end(), "scenario");
    const auto is_own = [](std::string_view name) {
        if (name.ends_with("_ci95")) name.remove_suffix(5);
        return name == "runs" || name == "error" || name == "class" ||
               std::any_of(summary_columns().begin(), summary_columns().end(), [&](const Column& c) { return c.name == name; });
    };
    for (auto c = columns.begin(); table.has("point") && c != columns.end(); ++c) {
        const bool between = columns.front() == "point" && c != columns.begin() && c < scenario;
        if (c->find('.') != std::string::npos || (between && !is_own(*c))) out.push_back(*c);
    }
    if (table.has("class")) out.emplace_back("class");
    return out;
}

void read_csv(const fs::path& path, std::vector<ResultRow>& rows, std::set<std::string>& versions) {
    const CsvTable table(path.string(), read_file(path, most_bytes));
    table.need({"scenario", "kvsim_version"});
    const std::vector<std::string> keys = varied_keys(table);
    const bool any = std::any_of(summary_columns().begin(), summary_columns().end(),
                                 [&](const Column& c) { return comparable(c) && table.has(c.name); });
    if (!any) refuse(path.string() + ":1", "holds no figure of summary.csv");
    for (const CsvTable::Row& cells : table.rows()) {
        ResultRow& row = rows.emplace_back();
        row.place = path.string() + ":" + std::to_string(cells.line);
        row.scenario = table.text(cells, "scenario");
        row.hash = table.text(cells, "scenario_hash");
        row.error = table.text(cells, "error");
        // Over replications it is the first one's, and the figures are means.
        const std::optional<std::int64_t> seed = table.integer(cells, "seed", 0, INT64_MAX);
        if (!table.has("requests_ci95")) row.seed = seed;
        for (const std::string& key : keys) row.varied[key] = table.text(cells, key);
        for (const Column& column : summary_columns()) {
            if (!comparable(column) || !table.has(column.name)) continue;
            const bool text = column.unit == Unit::text;
            const auto value = figure(row.place, column, text ? table.text(cells, column.name) : std::string(),
                                      text ? std::nullopt : table.number(cells, column.name));
            if (value) row.figures[column.name] = *value;
        }
        if (!row.error.empty()) continue;
        versions.insert(table.text(cells, "kvsim_version"));
        if (row.scenario.empty()) refuse(row.place, "a row without scenario");
        if (row.figures.empty()) refuse(row.place, "a row without figures");
    }
}

void read_json(const fs::path& path, std::vector<ResultRow>& rows, std::set<std::string>& versions) {
    const std::string place = path.string();
    nlohmann::json json;
    try {
        json = nlohmann::json::parse(read_file(path, most_bytes));
    } catch (const nlohmann::json::exception& e) { refuse(place, std::string("no JSON: ") + excerpt(e.what(), 200)); }
    if (!json.is_object() || !json.contains("kvsim") || !json["kvsim"].is_object())
        refuse(place, "no summary.json of kvsim: it has no object 'kvsim'");
    const nlohmann::json& own = json["kvsim"];
    const auto text = [&](const char* key) {
        return own.contains(key) && own[key].is_string() ? own[key].get<std::string>() : std::string();
    };
    ResultRow& row = rows.emplace_back();
    row.place = place;
    row.scenario = text("scenario");
    row.hash = text("scenario_hash");
    versions.insert(text("kvsim_version"));
    // Over replications it holds the first seed's figures and, beside them, the means.
    const bool means = own.contains("replications") && own["replications"].is_object() &&
                       own["replications"].contains("mean") && own["replications"]["mean"].is_object();
    const nlohmann::json& figures = means ? own["replications"]["mean"] : own;
    if (!means && own.contains("seed") && own["seed"].is_number_integer()) row.seed = own["seed"].get<std::int64_t>();
    for (const Column& column : summary_columns()) {
        const std::string name(column.name);
        if (!comparable(column) || !figures.contains(name) || figures[name].is_null()) continue;
        const nlohmann::json& value = figures[name];
        if (column.unit == Unit::text ? !value.is_string() : !value.is_number())
            refuse(place, name + ": " + excerpt(value.dump()) + " is no figure");
        const bool number = value.is_number();
        if (number && !std::isfinite(value.get<double>())) refuse(place, name + ": not a finite number");
        const auto read = figure(place, column, number ? std::string() : value.get<std::string>(),
                                 number ? std::optional(value.get<double>()) : std::nullopt);
        if (read) row.figures[column.name] = *read;
    }
    if (row.scenario.empty() || row.figures.empty()) refuse(place, "holds no scenario or no figures");
}

/// The figures by class that belong to the rows of `path`. Returns their version, empty where there is no such file.
std::string read_classes(const fs::path& path, std::span<ResultRow> rows) {
    const std::string name = path.filename().string();
    constexpr std::array<std::string_view, 5> own{"sweep.csv", "aggregate.csv", "replications.csv", "summary.csv",
                                                  "summary.json"};
    const bool usual = std::find(own.begin(), own.end(), name) != own.end();
    const fs::path beside = usual ? path.parent_path() / "classes.csv" : fs::path(path).replace_extension(".classes.csv");
    if (!is_file(beside)) return {};
    const CsvTable table(beside.string(), read_file(beside, most_bytes));
    table.need({"scenario", "kvsim_version", "seed", "class"});
    std::vector<std::string> keys = varied_keys(table);
    std::erase(keys, "class");
    struct Sum {
        double sum = 0;
        std::int64_t count = 0;
    };
    struct Sums {
        std::map<std::string_view, Sum> figures;
        std::set<std::int64_t> seeds;
    };
    using Point = std::pair<std::string, std::map<std::string, std::string>>;
    using Figures = std::map<std::string, Sums>;
    std::map<std::pair<Point, std::int64_t>, Figures> by_seed;
    std::map<Point, Figures> by_point;
    std::string version;
    for (const CsvTable::Row& cells : table.rows()) {
        const std::string place = beside.string() + ":" + std::to_string(cells.line);
        Point point{table.text(cells, "scenario"), {}};
        for (const std::string& key : keys) point.second[key] = table.text(cells, key);
        const std::optional<std::int64_t> seed = table.integer(cells, "seed", 0, INT64_MAX);
        const std::string own_version = table.text(cells, "kvsim_version");
        if (!seed || point.first.empty() || own_version.empty()) refuse(place, "a row without scenario, version or seed");
        if (!version.empty() && own_version != version)
            refuse(place, "mixes the results of kvsim " + excerpt(version) + ", " + excerpt(own_version));
        version = own_version;
        const std::string& of_class = table.text(cells, "class");
        Figures& figures = by_seed[{point, *seed}];
        if (figures.contains(of_class)) refuse(place, "class '" + excerpt(of_class) + "' of the same run once more");
        Sums& single = figures[of_class];
        Sums& mean = by_point[point][of_class];
        single.seeds.insert(*seed);
        mean.seeds.insert(*seed);
        for (const ClassColumn& column : class_columns()) {
            const std::optional<double> value = table.number(cells, column.name);
            if (!value) continue;
            single.figures[column.name] = {*value, 1};
            mean.figures[column.name].sum += *value;
            ++mean.figures[column.name].count;
        }
    }
    for (ResultRow& row : rows) {
        const Point point{row.scenario, row.varied};
        const Figures* figures = nullptr;
        if (row.seed) {
            const auto at = by_seed.find({point, *row.seed});
            if (at != by_seed.end()) figures = &at->second;
        } else if (const auto at = by_point.find(point); at != by_point.end()) {
            figures = &at->second;
        }
        if (figures == nullptr) continue;
        for (const auto& [of_class, sums] : *figures) {
            std::map<std::string_view, double>& into = row.classes[of_class];
            for (const auto& [column, sum] : sums.figures) into[column] = sum.sum / static_cast<double>(sum.count);
            row.class_seeds[of_class] = sums.seeds;
        }
    }
    return version;
}

/// replications.csv in the folders of several scenarios.
std::vector<fs::path> replications_below(const fs::path& folder) {
    std::vector<fs::path> out;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
        if (is_file(entry.path() / "replications.csv")) out.push_back(entry.path() / "replications.csv");
    }
    std::sort(out.begin(), out.end());
    return out;
}

std::vector<fs::path> files_of(const fs::path& path) {
    std::error_code error;
    if (!fs::exists(path, error)) throw UserError("error: there is no '" + path.string() + "'");
    if (!fs::is_directory(path, error)) return {path};
    if (is_file(path / "sweep.csv")) return {path / "sweep.csv"};
    if (is_file(path / "plan.json"))
        throw UserError("error: the sweep in " + path.string() +
                        " is not finished: run it with --resume, or join its shards with kvsim merge");
    if (is_file(path / "replications.csv")) return {path / "replications.csv"};
    if (std::vector<fs::path> several = replications_below(path); !several.empty()) return several;
    for (const char* const name : {"summary.csv", "summary.json"}) {
        if (is_file(path / name)) return {path / name};
    }
    throw UserError("error: " + path.string() + " holds no results (sweep.csv, replications.csv, summary.csv or summary.json)");
}

}  // namespace

std::string ResultRow::point() const {
    std::string out = scenario;
    for (const auto& [key, value] : varied) out += (out.empty() ? "" : " ") + key + "=" + value;
    return out;
}

ResultSet read_results(const fs::path& path, bool with_classes) {
    ResultSet out;
    out.name = path.string();
    std::set<std::string> versions;
    for (const fs::path& file : files_of(path)) {
        const std::size_t before = out.rows.size();
        if (file.extension() == ".json")
            read_json(file, out.rows, versions);
        else
            read_csv(file, out.rows, versions);
        if (!with_classes) continue;
        const std::string version = read_classes(file, std::span(out.rows).subspan(before));
        if (!out.classes_version.empty() && !version.empty() && version != out.classes_version)
            refuse(path.string(),
                   "the figures by class mix the results of kvsim " + excerpt(out.classes_version) + ", " + excerpt(version));
        if (!version.empty()) out.classes_version = version;
    }
    if (out.rows.empty()) throw UserError("error: " + path.string() + " holds no rows");
    if (versions.size() > 1) {
        std::string list;
        for (const std::string& version : versions)
            list += (list.empty() ? "" : ", ") + (version.empty() ? std::string("(unnamed)") : excerpt(version));
        throw UserError("error: " + path.string() + " mixes the results of kvsim " + list);
    }
    if (!versions.empty()) out.version = *versions.begin();
    // A point that failed has no scenario name: its neighbours' stands in, if they agree.
    std::set<std::string> names;
    for (const ResultRow& row : out.rows) {
        if (row.error.empty()) names.insert(row.scenario);
    }
    std::map<std::pair<std::string, std::int64_t>, std::string> seen;
    for (ResultRow& row : out.rows) {
        if (row.scenario.empty() && names.size() == 1) row.scenario = *names.begin();
        const auto [at, fresh] = seen.emplace(std::pair(row.point(), row.seed.value_or(-1)), row.place);
        if (fresh) continue;
        std::string why = "the same point as " + at->second + " once more: " + row.point();
        if (row.seed) why += " seed " + std::to_string(*row.seed);
        refuse(row.place, why);
    }
    return out;
}

}  // namespace kvsim::app
