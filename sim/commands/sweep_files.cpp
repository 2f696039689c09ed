#include "kvsim/app/sweep_files.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "kvsim/app/csv_table.hpp"
#include "kvsim/app/process.hpp"
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
    return name == "classes.csv" || name == "classes.done" ||
           (name.starts_with("classes-") && (name.ends_with(".csv") || name.ends_with(".done")));
}

/// What holds the classes of a part's rows.
fs::path companion_of(const fs::path& part) {
    const std::string name = part.filename().string();
    if (name == "sweep.csv") return part.parent_path() / "classes.csv";
    if (is_part(name)) return part.parent_path() / ("classes-" + name.substr(std::string_view("shard-").size()));
    return fs::path(part).replace_extension(".classes");
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

/// Where the proofs of a part's rows stand.
fs::path proofs_of(const fs::path& part) {
    return companion_of(part).replace_extension(".done");
}

/// What tells a run's rows by class complete: how many, and of which classes. "0" of none.
std::string proof(const std::vector<std::string>& classes) {
    if (classes.empty()) return "0";
    std::string text;
    for (const std::string& name : classes) text += std::to_string(name.size()) + ":" + name;
    return std::to_string(classes.size()) + " " + fnv1a_hex(text);
}

/// Of each run that has any, as they stand; a run's rows are neighbours. Nothing of a text that is damaged.
std::optional<std::vector<std::string>> proofs_in(const std::string& name, const std::string& text) {
    if (text.empty() || text.back() != '\n') return std::nullopt;
    std::optional<CsvTable> read;
    try {
        read.emplace(name, text);
    } catch (const UserError&) { return std::nullopt; }
    const CsvTable& table = *read;
    std::vector<std::string> out, names;
    std::pair<std::string, std::string> run;
    for (const CsvTable::Row& row : table.rows()) {
        std::pair<std::string, std::string> own{table.text(row, "point"), table.text(row, "seed")};
        if (own != run && !names.empty()) {
            out.push_back(proof(names));
            names.clear();
        }
        run = std::move(own);
        names.push_back(table.text(row, "class"));
    }
    if (!names.empty()) out.push_back(proof(names));
    return out;
}

/// The last line of a single row's file is its proof: "#classes 2 HEX".
constexpr std::string_view proof_mark = "\n#classes ";

/// The row and its proof; nothing of a file that is not whole.
std::optional<std::pair<std::string, std::string>> read_point(const fs::path& file) {
    std::string text = read_file(file);
    const std::size_t at = text.rfind(proof_mark);
    if (at == std::string::npos || text.back() != '\n') return std::nullopt;
    std::string last = text.substr(at + proof_mark.size());
    last.pop_back();
    text.resize(at + 1);
    return std::pair(std::move(text), std::move(last));
}

/// By row of a part: lines "ROWS PROOF" of neighbours with the same. Nothing where the file is missing or is none.
std::optional<std::vector<std::string>> read_proofs(const fs::path& file, std::int64_t most) {
    std::error_code error;
    if (!fs::exists(file, error)) return std::nullopt;
    std::vector<std::string> out;
    for (const std::string& line : lines_of(read_file(file))) {
        std::int64_t count = 0;
        const auto [end, bad] = std::from_chars(line.data(), line.data() + line.size(), count);
        const auto digits = static_cast<std::size_t>(end - line.data());
        if (bad != std::errc{} || count < 1 || count > most - static_cast<std::int64_t>(out.size()) ||
            digits + 2 >= line.size() || line[digits] != ' ' || line.back() != '\n')
            return std::nullopt;
        out.insert(out.end(), static_cast<std::size_t>(count), line.substr(digits + 1, line.size() - digits - 2));
    }
    return out;
}

std::string proofs_text(const std::vector<std::string>& proofs) {
    std::string out;
    for (std::size_t i = 0; i < proofs.size();) {
        std::size_t end = i;
        while (end < proofs.size() && proofs[end] == proofs[i]) ++end;
        out += std::to_string(end - i) + " " + proofs[i] + "\n";
        i = end;
    }
    return out;
}

std::vector<fs::path> files_in(const fs::path& folder) {
    std::vector<fs::path> out;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) out.push_back(entry.path());
    std::sort(out.begin(), out.end());
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
            names_.resize(rows_.size());
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
        std::optional<std::vector<std::string>> proofs;
        std::string text;
        if (with_header) {
            text = read_file(file);
            proofs = read_proofs(proofs_of(file), static_cast<std::int64_t>(rows_.size()));
        } else if (auto point = read_point(file)) {
            text = std::move(point->first);
            proofs.emplace({std::move(point->second)});
        } else {
            return;  // as if it had not run
        }
        std::vector<std::size_t> added;
        for_each_line(file, with_header ? text : plan_->header + text, plan_->header, [&](std::size_t row, std::string line) {
            if (!rows_[row].empty())
                throw UserError("error: " + name_of(row) + " is there twice: " + from_[row].string() + " and " + file.string());
            rows_[row] = std::move(line);
            from_[row] = file;
            added.push_back(row);
        });
        const fs::path companion = companion_of(file);
        std::error_code error;
        const bool there = fs::exists(companion, error);
        if (there) {
            const std::string rows = read_file(companion);
            for_each_line(companion, with_header ? rows : plan_->classes_header + rows, plan_->classes_header,
                          [&](std::size_t row, const std::string& line, const std::string& name) {
                              if (from_[row] != file)
                                  throw UserError("error: " + companion.string() + " has " + name_of(row) +
                                                  ", which is not in " + file.string());
                              classes_[row] += line;
                              names_[row].push_back(name);
                          });
        }
        const std::string again = "; kvsim sweep --resume makes it anew";
        if (!proofs || proofs->size() != added.size()) {
            throw UserError("error: whether the rows by class of " + file.string() + " are complete is not known: " +
                            proofs_of(file).string() + (proofs ? " is of another part" : " is missing or damaged") + again);
        }
        for (std::size_t i = 0; i < added.size(); ++i) {
            const std::string& wanted = (*proofs)[i];
            const std::string found = proof(names_[added[i]]);
            if (found == wanted) continue;
            if (!there) {
                throw UserError("error: " + companion.string() + " is missing: " + name_of(added[i]) + " in " + file.string() +
                                " has rows by class" + again);
            }
            const std::string have = found.substr(0, found.find(' '));
            const std::string want = wanted.substr(0, wanted.find(' '));
            throw UserError("error: " + companion.string() + ": the rows by class of " + name_of(added[i]) +
                            (have == want ? " are not those of its run" : " are " + have + " of " + want) + again);
        }
    }

    /// `take`: the row's number, its line and, if it wants it, its class.
    template <class Take>
    void for_each_line(const fs::path& file, const std::string& whole, const std::string& header, Take take) const {
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
            const auto row = static_cast<std::size_t>(*point * plan_->seeds + (at - plan_->seed_list.begin()));
            if constexpr (std::is_invocable_v<Take, std::size_t, std::string, std::string>)
                take(row, std::move(lines[i + 1]), table.text(cells, "class"));
            else
                take(row, std::move(lines[i + 1]));
        }
    }

    std::optional<PlanFile> plan_;
    fs::path first_;
    std::vector<std::string> rows_, classes_;
    std::vector<std::vector<std::string>> names_;  ///< of the classes, by row
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
        fs::remove(proofs_of(result()), error);
        for (std::int64_t row = shard.index; row < plan.rows(); row += shard.count) fs::remove(point_file(row), error);
    }
    write_whole(folder_ / "plan.json", plan_json(plan));
    if (!fs::exists(result(), error)) return;
    done_ = whole_part((plan.rows() - shard.index + shard.count - 1) / shard.count);
    if (!done_) log_warning(result().string() + ": its rows by class are not complete, so its runs start again");
}

bool SweepFolder::whole_part(std::int64_t rows) const {
    const std::optional<std::vector<std::string>> proofs = read_proofs(proofs_of(result()), rows);
    if (!proofs || static_cast<std::int64_t>(proofs->size()) != rows) return false;
    std::vector<std::string> wanted;
    std::copy_if(proofs->begin(), proofs->end(), std::back_inserter(wanted), [](const std::string& p) { return p != "0"; });
    std::error_code error;
    if (!fs::exists(classes(), error)) return wanted.empty();
    const std::string text = read_file(classes());
    return text.starts_with(classes_header_) && proofs_in(classes().string(), text) == wanted;
}

bool SweepFolder::done() const {
    return done_;
}

fs::path SweepFolder::point_file(std::int64_t row) const {
    return folder_ / "points" / (std::to_string(row) + ".csv");
}

bool SweepFolder::has(std::int64_t row) const {
    std::error_code error;
    if (!fs::exists(point_file(row), error)) return false;
    // A machine that lost power may have left the name without the content.
    const auto point = read_point(point_file(row));
    if (!point || point->first.find(',') == std::string::npos) return false;
    const bool there = fs::exists(class_file(row), error);
    if (point->second == "0") return !there;
    return there && proof_of_rows(row, read_file(class_file(row))) == point->second;
}

std::string SweepFolder::proof_of_rows(std::int64_t row, const std::string& classes) const {
    if (classes.empty()) return proof({});
    const auto proofs = proofs_in(class_file(row).string(), classes_header_ + classes);
    return proofs && proofs->size() == 1 ? proofs->front() : "damaged";
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
    std::string text = line;
    text.pop_back();
    text += proof_mark;
    text += proof_of_rows(row, classes);
    write_whole(point_file(row), text + "\n");
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
        std::vector<std::string> proofs;
        for (const std::int64_t row : rows) {
            auto point = read_point(point_file(row));
            if (!point) throw UserError("error: " + point_file(row).string() + " was damaged while the sweep ran");
            file.write(point->first);
            proofs.push_back(std::move(point->second));
            if (!fs::exists(class_file(row), ignored)) continue;
            if (!by_class) by_class.emplace(classes()).write(classes_header_);
            by_class->write(read_file(class_file(row)));
        }
        file.finish();
        if (by_class) by_class->finish();
        if (by_class)
            by_class->commit();
        else
            fs::remove(classes(), ignored);
        write_whole(proofs_of(result()), proofs_text(proofs));
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
