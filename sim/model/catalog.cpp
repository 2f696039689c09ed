#include "kvsim/model/catalog.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>
#include <system_error>

#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/config/load.hpp"

namespace kvsim {
namespace {

using config::Diagnostics;
using config::field;
using config::Mark;
using config::Schema;
using config::Value;

// ---- index: which lines belong to which entry ------------------------------------------------------------------------------

/// An entry starts with a key in column 1 and reaches to the next one.
Catalog::File index_file(const std::filesystem::path& path) {
    Catalog::File file;
    file.name = path.string();
    file.text = read_file(path);
    int line = 0;
    for (std::size_t at = 0; at < file.text.size();) {
        ++line;
        const std::size_t stop = std::min(file.text.find('\n', at), file.text.size());
        const std::string_view row(file.text.data() + at, stop - at);
        if (!row.empty() && row[0] != ' ' && row[0] != '#' && row[0] != '\r') {
            if (!file.entries.empty()) file.entries.back().end = at;
            file.entries.push_back({std::string(row.substr(0, row.rfind(':'))), at, file.text.size(), line});
        }
        at = stop + 1;
    }
    return file;
}

/// The entry's map, or null after reporting; its marks are the file's own lines.
Value parse_entry(const Catalog::File& file, const Catalog::Entry& entry, Diagnostics& diagnostics) {
    std::string text(static_cast<std::size_t>(entry.line - 1), '\n');
    text.append(file.text, entry.begin, entry.end - entry.begin);
    Value root = config::parse_yaml(text, file.name, diagnostics);
    if (!root.is_map() || root.map.size() != 1) return Value{};
    return std::move(root.map[0].value);
}

std::vector<std::string> names_of(const Catalog::File& file) {
    std::vector<std::string> names;
    for (const Catalog::Entry& entry : file.entries) names.push_back(entry.name);
    return names;
}

std::string_view without_organisation(std::string_view name) {
    const std::size_t slash = name.rfind('/');
    return slash == std::string_view::npos ? name : name.substr(slash + 1);
}

void report_unknown(const std::vector<std::string>& names, std::string_view kind, std::string_view name,
                    const std::vector<std::string>& aliases, const Mark& at, Diagnostics& diagnostics) {
    std::vector<std::string_view> known(aliases.begin(), aliases.end());
    for (const std::string& entry : names) {
        known.push_back(entry);
        if (entry.find('/') != std::string::npos) known.push_back(without_organisation(entry));
    }
    std::string message = "unknown " + std::string(kind) + " '" + std::string(name) + "'";
    const std::string_view close = nearest(name, known);
    if (!close.empty()) {
        message += "; did you mean '" + std::string(close) + "'?";
    } else if (!names.empty()) {
        const std::string folded = fold_name(name);
        std::string similar;
        for (const std::string& entry : names) {
            if (folded.size() >= 2 && fold_name(entry).find(folded) != std::string::npos) {
                similar += (similar.empty() ? "" : ", ") + entry;
            }
        }
        message += similar.empty() ? " (`kvsim list` prints the catalogue)" : "; similar: " + similar;
    }
    diagnostics.error(at, message);
}

// ---- step-time constants
// -----------------------------------------------------------------------------------------------------

using Constant = double StepTimeConstants::*;
struct NamedConstant {
    std::string_view key;
    Constant member;
};
/// Those that a median may fill; the card's own figures are not among them.
constexpr NamedConstant kernel_constants[] = {{"eb", &StepTimeConstants::eb},
                                              {"ef", &StepTimeConstants::ef},
                                              {"t0", &StepTimeConstants::t0},
                                              {"p", &StepTimeConstants::p},
                                              {"et0", &StepTimeConstants::et0},
                                              {"eeb", &StepTimeConstants::eeb},
                                              {"at0", &StepTimeConstants::at0},
                                              {"eb_d", &StepTimeConstants::eb_d},
                                              {"tb", &StepTimeConstants::tb},
                                              {"dl", &StepTimeConstants::dl},
                                              {"ef_a", &StepTimeConstants::ef_a},
                                              {"w_a", &StepTimeConstants::w_a},
                                              {"R", &StepTimeConstants::R},
                                              {"te", &StepTimeConstants::te},
                                              {"packed_gqa", &StepTimeConstants::packed_gqa},
                                              {"s0", &StepTimeConstants::s0},
                                              {"s1", &StepTimeConstants::s1},
                                              {"ar_a", &StepTimeConstants::ar_a},
                                              {"ar_a2", &StepTimeConstants::ar_a2},
                                              {"ar_e", &StepTimeConstants::ar_e},
                                              {"mt0", &StepTimeConstants::mt0},
                                              {"meb", &StepTimeConstants::meb},
                                              {"mef", &StepTimeConstants::mef},
                                              {"mp", &StepTimeConstants::mp},
                                              {"fp8_factor", &StepTimeConstants::fp8_factor},
                                              {"fp4_expert_speed", &StepTimeConstants::fp4_expert_speed},
                                              {"fp4_expert_flops", &StepTimeConstants::fp4_expert_flops}};

const Schema<StepTimeConstants>& constants_schema() {
    const auto f = [](std::string_view key, Constant member) { return field(key, member, "", config::non_negative); };
    using C = StepTimeConstants;
    static const Schema<C> schema{f("eb", &C::eb),
                                  f("ef", &C::ef),
                                  f("t0", &C::t0),
                                  f("p", &C::p),
                                  f("et0", &C::et0),
                                  f("eeb", &C::eeb),
                                  f("at0", &C::at0),
                                  f("eb_d", &C::eb_d),
                                  f("tb", &C::tb),
                                  f("dl", &C::dl),
                                  f("ef_a", &C::ef_a),
                                  f("w_a", &C::w_a),
                                  f("R", &C::R),
                                  f("packed_gqa", &C::packed_gqa),
                                  f("te", &C::te),
                                  f("s0", &C::s0),
                                  f("s1", &C::s1),
                                  f("ar_a", &C::ar_a),
                                  f("ar_a2", &C::ar_a2),
                                  f("ar_e", &C::ar_e),
                                  f("mt0", &C::mt0),
                                  f("meb", &C::meb),
                                  f("mef", &C::mef),
                                  f("mp", &C::mp),
                                  f("fp8_factor", &C::fp8_factor),
                                  f("fp4_expert_speed", &C::fp4_expert_speed),
                                  f("fp4_expert_flops", &C::fp4_expert_flops),
                                  f("sm_count", &C::sm_count).need(),
                                  f("bf16_tflops", &C::bf16_tflops).need(),
                                  f("bandwidth_gb_s", &C::bandwidth_gb_s).need(),
                                  f("link_gb_s", &C::link_gb_s).need(),
                                  field("source", &C::source, "").need()};
    return schema;
}

StepTimeConstants read_constants(const Value& map, std::string name, Diagnostics& diagnostics) {
    StepTimeConstants row;
    constants_schema().read(map, row, name, diagnostics);
    row.gpu = std::move(name);
    return row;
}

std::vector<StepTimeConstants> read_all_constants(const Catalog::File& file, Diagnostics& diagnostics) {
    std::vector<StepTimeConstants> rows;
    const Value root = config::parse_yaml(file.text, file.name, diagnostics);
    for (const config::Member& member : root.map) rows.push_back(read_constants(member.value, member.key, diagnostics));
    return rows;
}

/// Fills blanks of `row` with the median of the other rows (the mean of the middle two when even).
void fill_blanks(StepTimeConstants& row, std::span<const StepTimeConstants> rows) {
    for (const NamedConstant& constant : kernel_constants) {
        if (!std::isnan(row.*constant.member)) continue;
        std::vector<double> values;
        for (const StepTimeConstants& other : rows) {
            if (other.gpu != row.gpu && !std::isnan(other.*constant.member)) values.push_back(other.*constant.member);
        }
        if (values.empty()) continue;
        std::sort(values.begin(), values.end());
        const std::size_t half = values.size() / 2;
        row.*constant.member = values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
    }
    // A median of flags and row counts between two camps is no card's: take the plainer kernel.
    if (row.packed_gqa != 1) row.packed_gqa = 0;
}

bool has_blank(const StepTimeConstants& row) {
    return std::any_of(std::begin(kernel_constants), std::end(kernel_constants), [&](const NamedConstant& constant) {
        return !constant.key.starts_with("fp") && std::isnan(row.*constant.member);
    });
}

/// Puts the card's datasheet into the row; false after reporting what is not stated.
bool set_datasheet(StepTimeConstants& row, const GpuSpec& gpu, const Mark& at, Diagnostics& diagnostics) {
    std::string missing;
    const auto take = [&](double value, double& into, std::string_view key) {
        if (value <= 0) missing += (missing.empty() ? "" : ", ") + std::string(key);
        into = value;
    };
    take(gpu.bf16_tflops, row.bf16_tflops, "bf16_tflops");
    take(gpu.bandwidth_gb_s, row.bandwidth_gb_s, "bandwidth_gb_s");
    take(static_cast<double>(gpu.sm_count), row.sm_count, "sm_count");
    row.link_gb_s = gpu.link_gb_s > 0 ? gpu.link_gb_s : gpu.pcie_gb_s;
    if (missing.empty()) return true;
    diagnostics.error(at, "GPU " + gpu.name + ": a step time from the datasheet needs " + missing);
    return false;
}

}  // namespace

// ---- catalogue
// -----------------------------------------------------------------------------------------------------------------

Catalog::Catalog(const std::filesystem::path& folder) {
    auto data = std::make_shared<Data>();
    data->models = index_file(folder / "models.yaml");
    data->gpus = index_file(folder / "gpus.yaml");
    data->step_time = index_file(folder / "step_time.yaml");
    data_ = std::move(data);
}

Catalog Catalog::open(const std::filesystem::path& own) {
    Catalog catalog = open_shipped();
    return own.empty() ? catalog : catalog.with(own);
}

Catalog Catalog::with(const std::filesystem::path& own) const {
    auto data = std::make_shared<Data>();
    std::error_code ignored;
    const auto read = [&](const char* name, File& into) {
        const std::filesystem::path file = own / name;
        if (!std::filesystem::exists(file, ignored)) return false;
        into = index_file(file);
        return true;
    };
    const bool models = read("models.yaml", data->models);
    const bool gpus = read("gpus.yaml", data->gpus);
    if (!models && !gpus) throw UserError("error: no models.yaml or gpus.yaml in the catalogue folder '" + own.string() + "'");
    data->under = data_;
    if (data_) data->step_time = data_->step_time;
    Catalog out;
    out.data_ = std::move(data);
    return out;
}

Catalog Catalog::open_shipped() {
    if (const char* chosen = std::getenv("KVSIM_CATALOG"); chosen != nullptr && *chosen != '\0') return Catalog(chosen);
    const std::filesystem::path places[] = {std::filesystem::path(KVSIM_SOURCE_DIR) / "scenarios" / "catalog",
                                            std::filesystem::path(KVSIM_INSTALL_DIR) / "share" / "kvsim" / "catalog"};
    for (const std::filesystem::path& place : places) {
        std::error_code ignored;
        if (std::filesystem::exists(place / "models.yaml", ignored)) return Catalog(place);
    }
    throw UserError("no catalogue of models and GPUs at " + places[0].string() + " or " + places[1].string() +
                    "; set KVSIM_CATALOG to the folder that has models.yaml");
}

std::vector<std::string> Catalog::names(File Data::*kind) const {
    std::vector<std::string> out;
    for (const Data* layer = data_.get(); layer != nullptr; layer = layer->under.get()) {
        for (std::string& name : names_of(layer->*kind)) {
            if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(std::move(name));
        }
    }
    return out;
}

std::vector<std::string> Catalog::model_names() const {
    return names(&Data::models);
}
std::vector<std::string> Catalog::gpu_names() const {
    return names(&Data::gpus);
}

std::optional<ModelSpec> Catalog::model(std::string_view name, const Mark& at, Diagnostics& diagnostics) const {
    const std::string wanted = fold_name(name);
    const bool organisation = name.find('/') != std::string_view::npos;
    for (const Data* layer = data_.get(); layer != nullptr; layer = layer->under.get()) {
        std::vector<const Entry*> found;
        for (const Entry& entry : layer->models.entries) {
            if (fold_name(entry.name) == wanted) {
                found.assign(1, &entry);
                break;
            }
            if (!organisation && fold_name(without_organisation(entry.name)) == wanted) found.push_back(&entry);
        }
        if (found.empty()) continue;
        if (found.size() > 1) {
            std::string message = "model '" + std::string(name) + "' is ambiguous:";
            for (const Entry* entry : found) message += " " + entry->name;
            diagnostics.error(at, message);
            return std::nullopt;
        }
        const std::size_t before = diagnostics.error_count();
        const Value map = parse_entry(layer->models, *found[0], diagnostics);
        if (diagnostics.error_count() != before) return std::nullopt;
        return read_model(map, found[0]->name, diagnostics);
    }
    report_unknown(model_names(), "model", name, {}, at, diagnostics);
    return std::nullopt;
}

std::optional<GpuSpec> Catalog::gpu(std::string_view name, const Mark& at, Diagnostics& diagnostics) const {
    const std::string wanted = fold_name(name);
    const std::size_t before = diagnostics.error_count();
    std::vector<std::string> aliases;
    const auto read = [&](const File& file, const Entry& entry) -> std::optional<GpuSpec> {
        const Value map = parse_entry(file, entry, diagnostics);
        if (diagnostics.error_count() != before) return std::nullopt;
        return read_gpu(map, entry.name, diagnostics);
    };
    for (const Data* layer = data_.get(); layer != nullptr; layer = layer->under.get()) {
        const File& file = layer->gpus;
        for (const Entry& entry : file.entries) {
            if (fold_name(entry.name) == wanted) return read(file, entry);
        }
        for (const Entry& entry : file.entries) {
            // Cheap necessary condition, so that only entries that mention the name are parsed.
            const std::string_view text = std::string_view(file.text).substr(entry.begin, entry.end - entry.begin);
            if (wanted.empty() || fold_name(text).find(wanted) == std::string::npos) continue;
            std::optional<GpuSpec> gpu = read(file, entry);
            if (diagnostics.error_count() != before) return std::nullopt;
            for (const std::string& alias : gpu->aliases) {
                if (fold_name(alias) == wanted) return gpu;
            }
        }
    }
    for (const Data* layer = data_.get(); layer != nullptr; layer = layer->under.get()) {
        for (const Entry& entry : layer->gpus.entries) {
            const std::optional<GpuSpec> gpu = read(layer->gpus, entry);
            if (diagnostics.error_count() != before) return std::nullopt;
            aliases.insert(aliases.end(), gpu->aliases.begin(), gpu->aliases.end());
        }
    }
    report_unknown(gpu_names(), "GPU", name, aliases, at, diagnostics);
    return std::nullopt;
}

std::optional<StepTimeConstants> Catalog::fitted_constants(const GpuSpec& gpu, const Mark& at, Diagnostics& diagnostics) const {
    const bool own = !gpu.constants.empty();
    const std::string& wanted = own ? gpu.constants : gpu.constants_of_family;
    if (wanted.empty() || !data_) return std::nullopt;
    const File& file = data_->step_time;
    const auto entry = std::find_if(file.entries.begin(), file.entries.end(), [&](const Entry& e) { return e.name == wanted; });
    if (entry == file.entries.end()) {
        report_unknown(names_of(file), "row of step-time constants", wanted, {}, at, diagnostics);
        return std::nullopt;
    }
    const std::size_t before = diagnostics.error_count();
    const Value map = parse_entry(file, *entry, diagnostics);
    if (diagnostics.error_count() != before) return std::nullopt;
    StepTimeConstants row = read_constants(map, entry->name, diagnostics);
    if (has_blank(row)) fill_blanks(row, read_all_constants(file, diagnostics));
    if (diagnostics.error_count() != before) return std::nullopt;
    if (!own && !set_datasheet(row, gpu, at, diagnostics)) return std::nullopt;
    return row;
}

std::optional<StepTimeConstants> Catalog::median_constants(const GpuSpec& gpu, const Mark& at, Diagnostics& diagnostics,
                                                           std::string_view left_out) const {
    if (!data_) {
        diagnostics.error(at, "no catalogue of step-time constants");
        return std::nullopt;
    }
    const std::size_t before = diagnostics.error_count();
    StepTimeConstants row;
    std::vector<StepTimeConstants> all = read_all_constants(data_->step_time, diagnostics);
    if (!left_out.empty() && std::erase_if(all, [&](const StepTimeConstants& r) { return r.gpu == left_out; }) == 0) {
        report_unknown(names_of(data_->step_time), "row of step-time constants", left_out, {}, at, diagnostics);
        return std::nullopt;
    }
    fill_blanks(row, all);
    row.source = left_out.empty() ? "median of the fitted GPUs" : "median of the fitted GPUs but " + std::string(left_out);
    if (diagnostics.error_count() != before || !set_datasheet(row, gpu, at, diagnostics)) return std::nullopt;
    return row;
}

// ---- what a scenario may write
// ---------------------------------------------------------------------------------------------------

std::optional<ModelSpec> resolve_model(const Value& value, const std::filesystem::path& base, const Catalog& catalog,
                                       Diagnostics& diagnostics) {
    if (value.is_map()) return read_model(value, "custom", diagnostics);
    if (!value.is_scalar()) {
        diagnostics.error(value.mark, "model must be a name, the path of a config.json, or a map of facts");
        return std::nullopt;
    }
    const std::string& name = value.scalar;
    const bool json = name.size() > 5 && name.compare(name.size() - 5, 5, ".json") == 0;
    if (json || name.find('/') != std::string::npos) {
        for (const std::filesystem::path& place : {base / name, std::filesystem::path(name)}) {
            std::error_code ignored;
            std::filesystem::path file = place;
            if (std::filesystem::is_directory(file, ignored)) file /= "config.json";
            if (!std::filesystem::is_regular_file(file, ignored)) continue;
            return read_hf_config(read_file(file), file.lexically_normal().string(), value.mark, diagnostics);
        }
        if (json) {
            diagnostics.error(value.mark, "no file '" + name + "'");
            return std::nullopt;
        }
    }
    return catalog.model(name, value.mark, diagnostics);
}

std::optional<GpuSpec> resolve_gpu(const Value& value, const Catalog& catalog, Diagnostics& diagnostics) {
    if (value.is_map()) return read_gpu(value, "custom", diagnostics);
    if (!value.is_scalar()) {
        diagnostics.error(value.mark, "gpu must be a name or a map of facts");
        return std::nullopt;
    }
    return catalog.gpu(value.scalar, value.mark, diagnostics);
}

}  // namespace kvsim
