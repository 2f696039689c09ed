#include "kvsim/app/sweep_files.hpp"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "kvsim/app/csv_table.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/report/writers.hpp"

namespace kvsim::app {
namespace {

namespace fs = std::filesystem;

struct PlanFile {
    std::string fingerprint, version, header;
    std::string classes_header;
    std::int64_t rows = 0;
    std::int64_t seeds = 0;
    std::vector<std::int64_t> seed_list;
};

PlanFile read_plan(const fs::path& folder) {
    const fs::path path = folder / "plan.json";
    if (!fs::exists(path)) throw UserError("error: " + folder.string() + " holds no sweep (no plan.json)");
    try {
        const nlohmann::json json = nlohmann::json::parse(read_file(path, std::size_t{1} << 24U));
        PlanFile plan;
        plan.fingerprint = json.at("plan").get<std::string>();
        plan.version = json.at("kvsim_version").get<std::string>();
        plan.header = json.at("header").get<std::string>();
        plan.classes_header = json.value("classes_header", std::string());
        plan.rows = json.at("rows").get<std::int64_t>();
        plan.seed_list = json.at("seeds").get<std::vector<std::int64_t>>();
        plan.seeds = static_cast<std::int64_t>(plan.seed_list.size());
        if (plan.rows < 1 || plan.seeds < 1 || plan.rows % plan.seeds != 0)
            throw UserError(path.string() + ": error: not a sweep's plan");
        return plan;
    } catch (const nlohmann::json::exception& e) {
        throw UserError(path.string() + ": error: not a sweep's plan: " + e.what());
    }
}

/// shard-I-of-N.csv or sweep.csv: rows of a part that is done.
bool is_part(const std::string& name) {
    return name == "sweep.csv" || (name.starts_with("shard-") && name.ends_with(".csv"));
}

bool is_companion(const std::string& name) {
    return name == "classes.csv" || (name.starts_with("classes-") && name.ends_with(".csv"));
}

/// What holds the classes of a part's rows.
fs::path companion_of(const fs::path& part) {
    const std::string name = part.filename().string();
    if (name == "sweep.csv") return part.parent_path() / "classes.csv";
    if (is_part(name)) return part.parent_path() / ("classes-" + name.substr(std::string_view("shard-").size()));
    return fs::path(part).replace_extension(".classes");
}

std::vector<fs::path> files_in(const fs::path& folder) {
    std::vector<fs::path> out;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) out.push_back(entry.path());
    std::sort(out.begin(), out.end());
    return out;
}

/// The lines of a part as they were written: a row may have line ends inside quotes.
std::vector<std::string> lines_of(std::string_view text) {
    std::vector<std::string> out;
    bool quoted = false;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '"') quoted = !quoted;
        if (text[i] != '\n' || quoted) continue;
        out.emplace_back(text.substr(begin, i + 1 - begin));
        begin = i + 1;
    }
    if (begin < text.size()) out.emplace_back(text.substr(begin));
    return out;
}

class Merge {
public:
    void add_folder(const fs::path& folder) {
        const PlanFile plan = read_plan(folder);
        if (!plan_) {
            plan_ = plan;
            first_ = folder;
            rows_.resize(static_cast<std::size_t>(plan.rows));
            from_.resize(rows_.size());
            classes_.resize(rows_.size());
        } else if (plan.version != plan_->version) {
            throw UserError("error: " + first_.string() + " is from kvsim " + plan_->version + ", " + folder.string() +
                            " from " + plan.version);
        } else if (plan.fingerprint != plan_->fingerprint || plan.header != plan_->header || plan.rows != plan_->rows) {
            throw UserError("error: " + folder.string() + " holds another sweep than " + first_.string() +
                            " (scenario, grid or seeds differ)");
        }
        for (const fs::path& file : files_in(folder)) {
            if (is_part(file.filename().string())) add_part(file, true);
        }
        for (const fs::path& file : files_in(folder / "points")) {
            if (file.extension() == ".csv") add_part(file, false);
        }
    }

    [[nodiscard]] std::string text() const {
        std::string missing;
        std::int64_t count = 0;
        for (std::size_t row = 0; row < rows_.size(); ++row) {
            if (!rows_[row].empty()) continue;
            if (++count <= 10) missing += (missing.empty() ? "" : ", ") + name_of(row);
        }
        if (count > 0) {
            throw UserError("error: " + std::to_string(count) + " of " + std::to_string(rows_.size()) +
                            " runs are missing: " + missing + (count > 10 ? ", ..." : ""));
        }
        std::string out = plan_->header;
        for (const std::string& row : rows_) out += row;
        return out;
    }
    /// Empty where no row has classes.
    [[nodiscard]] std::string classes() const {
        std::string out;
        for (const std::string& rows : classes_) out += rows;
        return out.empty() ? out : plan_->classes_header + out;
    }
    [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(rows_.size()); }
    [[nodiscard]] const PlanFile& plan() const { return *plan_; }

private:
    [[nodiscard]] std::string name_of(std::size_t row) const {
        const auto seeds = static_cast<std::size_t>(plan_->seeds);
        return "point " + std::to_string(row / seeds) +
               (seeds > 1 ? " seed " + std::to_string(plan_->seed_list[row % seeds]) : "");
    }

    void add_part(const fs::path& file, bool with_header) {
        for_each_line(file, with_header, plan_->header, [&](std::size_t row, std::string line) {
            if (!rows_[row].empty())
                throw UserError("error: " + name_of(row) + " is there twice: " + from_[row].string() + " and " + file.string());
            rows_[row] = std::move(line);
            from_[row] = file;
        });
        const fs::path companion = companion_of(file);
        std::error_code error;
        if (!fs::exists(companion, error)) return;
        for_each_line(companion, with_header, plan_->classes_header, [&](std::size_t row, const std::string& line) {
            if (from_[row] != file)
                throw UserError("error: " + companion.string() + " has " + name_of(row) + ", which is not in " + file.string());
            classes_[row] += line;
        });
    }

    template <class Take>
    void for_each_line(const fs::path& file, bool with_header, const std::string& header, Take take) const {
        const std::string text = read_file(file);
        const std::string whole = with_header ? text : header + text;
        if (!whole.starts_with(header)) throw UserError(file.string() + ":1: error: its columns are not the plan's");
        const CsvTable table(file.string(), whole);
        std::vector<std::string> lines = lines_of(whole);
        if (lines.size() != table.rows().size() + 1) throw UserError(file.string() + ": error: damaged: not one line a row");
        for (std::size_t i = 0; i < table.rows().size(); ++i) {
            const CsvTable::Row& cells = table.rows()[i];
            const auto point = table.integer(cells, "point", 0, plan_->rows / plan_->seeds - 1);
            const auto seed = table.integer(cells, "seed", 0, INT64_MAX);
            const auto at = std::find(plan_->seed_list.begin(), plan_->seed_list.end(), seed.value_or(-1));
            if (!point || at == plan_->seed_list.end())
                throw UserError(file.string() + ":" + std::to_string(cells.line) +
                                ": error: no run of this sweep (point or seed)");
            // Empty where the run failed.
            const std::string version = table.text(cells, "kvsim_version");
            if (!version.empty() && version != plan_->version)
                throw UserError(file.string() + ":" + std::to_string(cells.line) + ": error: from kvsim " + excerpt(version) +
                                ", the sweep from " + plan_->version);
            if (lines[i + 1].back() != '\n') throw UserError(file.string() + ": error: damaged: its last line is cut");
            take(static_cast<std::size_t>(*point * plan_->seeds + (at - plan_->seed_list.begin())), std::move(lines[i + 1]));
        }
    }

    std::optional<PlanFile> plan_;
    fs::path first_;
    std::vector<std::string> rows_, classes_;
    std::vector<fs::path> from_;
};

std::string plan_json(const SweepPlan& plan) {
    nlohmann::ordered_json json;
    json["kvsim_version"] = KVSIM_VERSION;
    json["plan"] = plan.fingerprint;
    json["scenario"] = plan.scenario.filename().string();
    json["rows"] = plan.rows();
    json["seeds"] = plan.seeds;
    json["header"] = sweep_header(plan);
    json["classes_header"] = sweep_classes_header(plan);
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void write_whole(const fs::path& path, std::string_view text) {
    AtomicFile file(path);
    file.write(text);
    file.commit();
}

}  // namespace

std::vector<std::string> key_columns(const SweepPlan& plan) {
    std::vector<std::string> out = plan.keys();
    for (std::string& key : out) {
        const auto columns = summary_columns();
        if (std::any_of(columns.begin(), columns.end(), [&key](const Column& c) { return c.name == key; }))
            key.insert(0, "varied.");
    }
    return out;
}

std::string sweep_header(const SweepPlan& plan) {
    std::string out = "point,";
    for (const std::string& key : key_columns(plan)) {
        append_csv_field(out, key);
        out += ',';
    }
    std::string columns = summary_csv_header();
    columns.pop_back();
    return out + columns + ",error\n";
}

std::string sweep_classes_header(const SweepPlan& plan) {
    std::string keys = "point,";
    for (const std::string& key : key_columns(plan)) {
        append_csv_field(keys, key);
        keys += ',';
    }
    return classes_csv_header(keys);
}

SweepFolder::SweepFolder(fs::path folder, const SweepPlan& plan, const Shard& shard, bool resume)
    : folder_(std::move(folder)), shard_(shard), header_(sweep_header(plan)), classes_header_(sweep_classes_header(plan)) {
    std::error_code error;
    const bool whole = shard.count == 1;
    if (fs::exists(folder_ / "plan.json", error)) {
        const bool same = read_plan(folder_).fingerprint == plan.fingerprint;
        if (!same && (resume || !whole)) {
            throw UserError("error: " + folder_.string() +
                            " holds another sweep (scenario, grid, seeds or version differ); take another --out or remove it");
        }
        if (!resume && whole) {
            for (const fs::path& file : files_in(folder_)) {
                const std::string name = file.filename().string();
                if (is_part(name) || is_companion(name)) fs::remove(file, error);
            }
            fs::remove_all(folder_ / "points", error);
        }
    }
    fs::create_directories(folder_ / "points", error);
    if (error) throw UserError("error: cannot make '" + (folder_ / "points").string() + "': " + error.message());
    if (!resume) {
        fs::remove(result(), error);
        fs::remove(classes(), error);
        for (std::int64_t row = shard.index; row < plan.rows(); row += shard.count) fs::remove(point_file(row), error);
    }
    write_whole(folder_ / "plan.json", plan_json(plan));
}

bool SweepFolder::done() const {
    std::error_code error;
    return fs::exists(result(), error);
}

fs::path SweepFolder::point_file(std::int64_t row) const {
    return folder_ / "points" / (std::to_string(row) + ".csv");
}

bool SweepFolder::has(std::int64_t row) const {
    std::error_code error;
    if (!fs::exists(point_file(row), error)) return false;
    // A machine that lost power may have left the name without the content.
    const std::string text = read(row);
    return !text.empty() && text.back() == '\n' && text.find(',') != std::string::npos;
}

fs::path SweepFolder::class_file(std::int64_t row) const {
    return folder_ / "points" / (std::to_string(row) + ".classes");
}

void SweepFolder::add(std::int64_t row, const std::string& line, const std::string& classes) const {
    // First, so that a row is never there without them; a killed process may have left others.
    std::error_code ignored;
    if (classes.empty())
        fs::remove(class_file(row), ignored);
    else
        write_whole(class_file(row), classes);
    write_whole(point_file(row), line);
}

std::string SweepFolder::read(std::int64_t row) const {
    return read_file(point_file(row));
}

fs::path SweepFolder::result() const {
    if (shard_.count == 1) return folder_ / "sweep.csv";
    return folder_ / ("shard-" + std::to_string(shard_.index) + "-of-" + std::to_string(shard_.count) + ".csv");
}

fs::path SweepFolder::classes() const {
    return companion_of(result());
}

void SweepFolder::finish(const std::vector<std::int64_t>& rows) const {
    std::error_code ignored;
    if (!done()) {
        AtomicFile file(result());
        file.write(header_);
        std::optional<AtomicFile> by_class;
        for (const std::int64_t row : rows) {
            file.write(read(row));
            if (!fs::exists(class_file(row), ignored)) continue;
            if (!by_class) by_class.emplace(classes()).write(classes_header_);
            by_class->write(read_file(class_file(row)));
        }
        file.finish();
        if (by_class) by_class->finish();
        if (by_class) by_class->commit();
        file.commit();
    }
    for (const std::int64_t row : rows) {
        fs::remove(point_file(row), ignored);
        fs::remove(class_file(row), ignored);
    }
    if (shard_.count == 1) fs::remove_all(folder_ / "points", ignored);  // a killed process left half a file, perhaps
}

std::int64_t merge_sweeps(const std::vector<fs::path>& folders, const fs::path& out) {
    Merge merge;
    for (const fs::path& folder : folders) merge.add_folder(folder);
    const std::string text = merge.text();
    const std::string classes = merge.classes();
    std::error_code error;
    fs::create_directories(out, error);
    if (error) throw UserError("error: cannot make '" + out.string() + "': " + error.message());
    AtomicFile rows(out / "sweep.csv");
    rows.write(text);
    std::optional<AtomicFile> by_class;
    if (!classes.empty()) by_class.emplace(out / "classes.csv").write(classes);
    rows.finish();
    if (by_class) by_class->finish();
    if (by_class)
        by_class->commit();
    else
        fs::remove(out / "classes.csv", error);
    rows.commit();
    return merge.rows();
}

}  // namespace kvsim::app
