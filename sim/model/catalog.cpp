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

void report_unknown(const Catalog::File& file, std::string_view kind, std::string_view name,
                    const std::vector<std::string>& aliases, const Mark& at, Diagnostics& diagnostics) {
    std::vector<std::string_view> known(aliases.begin(), aliases.end());
    for (const Catalog::Entry& entry : file.entries) {
        known.push_back(entry.name);
        if (entry.name.find('/') != std::string::npos) known.push_back(without_organisation(entry.name));
    }
    std::string message = "unknown " + std::string(kind) + " '" + std::string(name) + "'";
    const std::string_view close = nearest(name, known);
    if (!close.empty()) {
        message += "; did you mean '" + std::string(close) + "'?";
    } else {
        const std::string folded = fold_name(name);
        std::string similar;
        for (const Catalog::Entry& entry : file.entries) {
            if (folded.size() >= 2 && fold_name(entry.name).find(folded) != std::string::npos) {
                similar += (similar.empty() ? "" : ", ") + entry.name;
            }
        }
        message += similar.empty() ? " (`kvsim list` prints the catalogue)" : "; similar: " + similar;
    }
    diagnostics.error(at, message);
}

// ---- schemas ---------------------------------------------------------------------------------------------------------------

const Schema<AttentionGroup>& attention_schema() {
    static const Schema<AttentionGroup> schema{
        field("kind", &AttentionGroup::kind, "what the layers attend to")
            .need()
            .one_of({"full", "sliding", "chunked", "linear", "mla", "sparse_mla"}),
        field("layers", &AttentionGroup::layers, "number of such layers", config::at_least_one).need(),
        field("window", &AttentionGroup::window, "tokens a sliding or chunked layer sees", config::at_least_one)};
    return schema;
}

const Schema<MoeSpec>& moe_schema() {
    static const Schema<MoeSpec> schema{
        field("experts", &MoeSpec::experts, "routed experts per MoE layer", config::at_least_one).need(),
        field("top_k", &MoeSpec::top_k, "experts a token goes through", config::at_least_one).need(),
        field("intermediate", &MoeSpec::intermediate, "an expert's width", config::at_least_one).need(),
        field("shared_intermediate", &MoeSpec::shared_intermediate, "width of all shared experts together",
              config::non_negative)
            .by_default("0"),
        field("first_dense_layers", &MoeSpec::first_dense_layers, "leading layers with a dense MLP", config::non_negative)
            .by_default("0"),
        field("layer_step", &MoeSpec::layer_step, "every n-th layer is MoE", config::at_least_one).by_default("1")};
    return schema;
}

const Schema<MlaSpec>& mla_schema() {
    static const Schema<MlaSpec> schema{
        field("kv_lora_rank", &MlaSpec::kv_lora_rank, "width of the compressed KV", config::at_least_one).need(),
        field("qk_rope_head_dim", &MlaSpec::qk_rope_head_dim, "rotary part of a key", config::at_least_one).need(),
        field("qk_nope_head_dim", &MlaSpec::qk_nope_head_dim, "position-free part of a key", config::at_least_one).need(),
        field("v_head_dim", &MlaSpec::v_head_dim, "width of a value head", config::at_least_one).need(),
        field("q_lora_rank", &MlaSpec::q_lora_rank, "width of the compressed query (0: not compressed)", config::non_negative)
            .by_default("0")};
    return schema;
}

/// A ModelSpec with its nested maps still unread.
struct ModelFields : ModelSpec {
    Value moe_map, mla_map;
    std::vector<Value> attention_list;
    std::optional<std::int64_t> head_dim_given;
};

const Schema<ModelFields>& model_schema() {
    using M = ModelFields;
    const auto f = [](std::string_view key, auto ModelSpec::*member, std::string_view doc, config::Range range = config::any) {
        return field<M>(key, static_cast<std::remove_reference_t<decltype(M{}.*member)> M::*>(member), doc, range);
    };
    static const Schema<M> schema{
        f("name", &ModelSpec::name, "shown in the output"),
        f("layers", &ModelSpec::layers, "decoder layers", config::at_least_one).need(),
        f("hidden", &ModelSpec::hidden, "hidden size", config::at_least_one),
        f("intermediate", &ModelSpec::intermediate, "width of the dense MLP", config::at_least_one),
        f("heads", &ModelSpec::heads, "attention heads", config::at_least_one),
        f("kv_heads", &ModelSpec::kv_heads, "key and value heads", config::at_least_one).need(),
        field("head_dim", &M::head_dim_given, "width of a head", config::at_least_one).by_default("hidden / heads"),
        f("vocab", &ModelSpec::vocab, "vocabulary", config::at_least_one),
        f("max_context", &ModelSpec::max_context, "longest context in tokens, the default of max_model_len",
          config::at_least_one),
        f("dtype", &ModelSpec::dtype, "storage of the linear layers")
            .one_of({"bfloat16", "float16", "float32", "fp8", "int8", "awq", "gptq", "mxfp4"})
            .by_default("bfloat16"),
        f("parameters_billion", &ModelSpec::parameters_billion, "published parameter count, for display", config::positive),
        f("parameters", &ModelSpec::parameters, "parameter count; replaces the one computed from the shape",
          config::at_least_one),
        f("tie_embeddings", &ModelSpec::tie_embeddings, "the head shares the embedding's weights").by_default("false"),
        f("qkv_bias", &ModelSpec::qkv_bias, "query, key and value projections have a bias").by_default("false"),
        f("qk_norm", &ModelSpec::qk_norm, "queries and keys are normalised").by_default("false"),
        f("learned_positions", &ModelSpec::learned_positions, "a table of positions, no rotary embedding").by_default("false"),
        f("mlp", &ModelSpec::mlp, "matrices of the MLP: three or two").one_of({"gated", "plain"}).by_default("gated"),
        field("moe", &M::moe_map,
              "experts: {experts, top_k, intermediate, shared_intermediate, first_dense_layers, layer_step}"),
        field("mla", &M::mla_map,
              "latent attention: {kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim, q_lora_rank}"),
        field("attention", &M::attention_list, "groups of layers: [{kind, layers, window}]"),
        f("source", &ModelSpec::source, "where the facts come from"),
        f("note", &ModelSpec::note, "free text")};
    return schema;
}

const Schema<GpuSpec>& gpu_schema() {
    static const Schema<GpuSpec> schema{
        field("name", &GpuSpec::name, "shown in the output"),
        field("aliases", &GpuSpec::aliases, "further names"),
        field("vendor", &GpuSpec::vendor, "maker"),
        field("architecture", &GpuSpec::architecture, "generation"),
        field("memory", &GpuSpec::memory, "total memory as the engine sees it", config::positive)
            .by_default("memory_reported - 0.5 GiB"),
        field("memory_reported", &GpuSpec::memory_reported, "total memory as nvidia-smi prints it", config::positive),
        field("bandwidth_gb_s", &GpuSpec::bandwidth_gb_s, "memory bandwidth, 10^9 byte/s", config::positive),
        field("bf16_tflops", &GpuSpec::bf16_tflops, "dense 16-bit rate, 10^12 FLOP/s", config::positive),
        field("fp8_tflops", &GpuSpec::fp8_tflops, "dense 8-bit rate; absent: no fp8 units", config::positive),
        field("fp4_tflops", &GpuSpec::fp4_tflops, "dense 4-bit rate", config::positive),
        field("link", &GpuSpec::link, "GPU-to-GPU link, by name"),
        field("link_gb_s", &GpuSpec::link_gb_s, "GPU-to-GPU link per direction, 10^9 byte/s; 0: over PCIe",
              config::non_negative),
        field("pcie_gb_s", &GpuSpec::pcie_gb_s, "PCIe per direction, 10^9 byte/s", config::positive),
        field("sm_count", &GpuSpec::sm_count, "multiprocessors", config::at_least_one),
        field("power_w", &GpuSpec::power_w, "board power, W", config::positive),
        field("price_usd_per_hour", &GpuSpec::price_usd_per_hour, "price per hour, USD", config::non_negative),
        field("price_source", &GpuSpec::price_source, "where and when the price was seen"),
        field("constants", &GpuSpec::constants, "row of step_time.yaml fitted on this card"),
        field("constants_of_family", &GpuSpec::constants_of_family,
              "row of step_time.yaml fitted on a card of the same family"),
        field("source", &GpuSpec::source, "where the facts come from"),
        field("note", &GpuSpec::note, "free text")};
    return schema;
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
                                              {"fp8_factor", &StepTimeConstants::fp8_factor}};

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
        return constant.key != "fp8_factor" && std::isnan(row.*constant.member);
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

// ---- models
// ------------------------------------------------------------------------------------------------------------------

std::int64_t ModelSpec::moe_layers() const {
    if (!is_moe()) return 0;
    // Multiples of layer_step among the layer numbers first_dense_layers + 1 .. layers.
    return std::max<std::int64_t>(0, layers / moe.layer_step - moe.first_dense_layers / moe.layer_step);
}

std::string ModelSpec::unsupported() const {
    for (const AttentionGroup& group : attention) {
        const std::string many = std::to_string(group.layers) + " of " + std::to_string(layers);
        if (group.kind == "sliding") {
            return many + " layers are sliding-window layers (window " + std::to_string(group.window) + ")";
        }
        if (group.kind == "chunked") {
            return many + " layers are chunked-attention layers (chunk " + std::to_string(group.window) + ")";
        }
        if (group.kind == "linear") return many + " layers are linear-attention layers";
        if (group.kind == "sparse_mla") return many + " layers have sparse latent attention with an indexer";
    }
    return "";
}

std::string ModelSpec::problem() const {
    for (const std::int64_t size :
         {layers, hidden, intermediate, heads, kv_heads, head_dim, vocab, moe.experts, moe.top_k, moe.intermediate,
          moe.shared_intermediate, moe.first_dense_layers, moe.layer_step, mla.kv_lora_rank, mla.qk_rope_head_dim,
          mla.qk_nope_head_dim, mla.v_head_dim, mla.q_lora_rank}) {
        if (size > 10'000'000) return "a size of " + std::to_string(size) + " is beyond any model";
    }
    const auto d = [](std::int64_t n) { return static_cast<double>(n); };
    const double widest = d(intermediate) + d(moe.shared_intermediate) + (d(moe.experts) + 1) * (d(moe.intermediate) + 1) +
                          4 * d(heads) * (d(head_dim) + d(mla.q_lora_rank) + d(mla.kv_lora_rank) + d(mla.v_head_dim));
    if (d(layers) * (d(hidden) + d(mla.kv_lora_rank) + d(mla.q_lora_rank) + 1) * widest > 1e16 ||
        d(layers) * d(kv_heads) * d(head_dim) > 1e12 || parameters > 1'000'000'000'000'000) {
        return "its shape is beyond any model";
    }
    if (max_context > 1'000'000'000) return "max_context " + std::to_string(max_context) + " is beyond any model";
    if (kv_heads < 1 || head_dim < 1) return "kv_heads and head_dim must be at least 1";
    if (heads > 0 && heads % kv_heads != 0) {
        return "heads " + std::to_string(heads) + " is not a multiple of kv_heads " + std::to_string(kv_heads);
    }
    if (is_moe() && moe.top_k > moe.experts) {
        return "moe.top_k " + std::to_string(moe.top_k) + " exceeds experts " + std::to_string(moe.experts);
    }
    return "";
}

std::vector<std::string> ModelSpec::missing_shape() const {
    std::vector<std::string> missing;
    if (hidden == 0) missing.emplace_back("hidden");
    if (heads == 0) missing.emplace_back("heads");
    if (vocab == 0) missing.emplace_back("vocab");
    if (intermediate == 0 && dense_layers() > 0) missing.emplace_back("intermediate");
    return missing;
}

std::optional<ModelSpec> read_model(const Value& map, std::string name, Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    ModelFields m;
    model_schema().read(map, m, "model", diagnostics);
    if (!m.moe_map.is_null()) moe_schema().read(m.moe_map, m.moe, "moe", diagnostics);
    if (!m.mla_map.is_null()) mla_schema().read(m.mla_map, m.mla, "mla", diagnostics);
    for (const Value& item : m.attention_list) {
        AttentionGroup group;
        attention_schema().read(item, group, "attention", diagnostics);
        m.attention.push_back(std::move(group));
    }
    if (diagnostics.error_count() != before) return std::nullopt;
    if (m.name.empty()) m.name = std::move(name);

    if (m.head_dim_given) {
        m.head_dim = *m.head_dim_given;
    } else if (m.hidden > 0 && m.heads > 0 && m.hidden % m.heads == 0) {
        m.head_dim = m.hidden / m.heads;
    } else {
        diagnostics.error(map.mark, "model needs head_dim (or hidden and heads that divide)");
        return std::nullopt;
    }
    if (const std::string problem = m.problem(); !problem.empty()) diagnostics.error(map.mark, "model: " + problem);
    if (m.attention.empty()) {
        m.attention.push_back({m.is_mla() ? "mla" : "full", m.layers, 0});
    } else {
        std::int64_t sum = 0;
        for (const AttentionGroup& group : m.attention) sum += group.layers;
        if (sum != m.layers) {
            diagnostics.error(map.mark, "attention groups have " + std::to_string(sum) + " layers, the model has " +
                                            std::to_string(m.layers));
        }
    }
    if (diagnostics.error_count() != before) return std::nullopt;
    return ModelSpec(std::move(m));
}

std::optional<GpuSpec> read_gpu(const Value& map, std::string name, Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    GpuSpec gpu;
    gpu_schema().read(map, gpu, "gpu", diagnostics);
    if (diagnostics.error_count() != before) return std::nullopt;
    if (gpu.name.empty()) gpu.name = std::move(name);
    if (gpu.memory.count() == 0) {
        // torch sees about 0.5 GiB less than nvidia-smi on every card that was observed with both.
        gpu.memory = Bytes(std::max<std::int64_t>(0, gpu.memory_reported.count() - GiB / 2));
    }
    return gpu;
}

std::vector<config::FieldDoc> model_docs() {
    return model_schema().docs();
}
std::vector<config::FieldDoc> gpu_docs() {
    return gpu_schema().docs();
}

// ---- catalogue
// -----------------------------------------------------------------------------------------------------------------

Catalog::Catalog(const std::filesystem::path& folder) {
    auto data = std::make_shared<Data>();
    data->models = index_file(folder / "models.yaml");
    data->gpus = index_file(folder / "gpus.yaml");
    data->step_time = index_file(folder / "step_time.yaml");
    data_ = std::move(data);
}

Catalog Catalog::open() {
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

std::vector<std::string> Catalog::model_names() const {
    return data_ ? names_of(data_->models) : std::vector<std::string>{};
}
std::vector<std::string> Catalog::gpu_names() const {
    return data_ ? names_of(data_->gpus) : std::vector<std::string>{};
}

std::optional<ModelSpec> Catalog::model(std::string_view name, const Mark& at, Diagnostics& diagnostics) const {
    if (!data_) {
        diagnostics.error(at, "unknown model '" + std::string(name) + "'");
        return std::nullopt;
    }
    const std::string wanted = fold_name(name);
    const bool organisation = name.find('/') != std::string_view::npos;
    std::vector<const Entry*> found;
    for (const Entry& entry : data_->models.entries) {
        if (fold_name(entry.name) == wanted) {
            found.assign(1, &entry);
            break;
        }
        if (!organisation && fold_name(without_organisation(entry.name)) == wanted) found.push_back(&entry);
    }
    if (found.empty()) {
        report_unknown(data_->models, "model", name, {}, at, diagnostics);
        return std::nullopt;
    }
    if (found.size() > 1) {
        std::string message = "model '" + std::string(name) + "' is ambiguous:";
        for (const Entry* entry : found) message += " " + entry->name;
        diagnostics.error(at, message);
        return std::nullopt;
    }
    const std::size_t before = diagnostics.error_count();
    const Value map = parse_entry(data_->models, *found[0], diagnostics);
    if (diagnostics.error_count() != before) return std::nullopt;
    return read_model(map, found[0]->name, diagnostics);
}

std::optional<GpuSpec> Catalog::gpu(std::string_view name, const Mark& at, Diagnostics& diagnostics) const {
    if (!data_) {
        diagnostics.error(at, "unknown GPU '" + std::string(name) + "'");
        return std::nullopt;
    }
    const std::string wanted = fold_name(name);
    const File& file = data_->gpus;
    const std::size_t before = diagnostics.error_count();
    const auto read = [&](const Entry& entry) -> std::optional<GpuSpec> {
        const Value map = parse_entry(file, entry, diagnostics);
        if (diagnostics.error_count() != before) return std::nullopt;
        return read_gpu(map, entry.name, diagnostics);
    };
    for (const Entry& entry : file.entries) {
        if (fold_name(entry.name) == wanted) return read(entry);
    }
    for (const Entry& entry : file.entries) {
        // Cheap necessary condition, so that only entries that mention the name are parsed.
        const std::string_view text = std::string_view(file.text).substr(entry.begin, entry.end - entry.begin);
        if (wanted.empty() || fold_name(text).find(wanted) == std::string::npos) continue;
        std::optional<GpuSpec> gpu = read(entry);
        if (diagnostics.error_count() != before) return std::nullopt;
        for (const std::string& alias : gpu->aliases) {
            if (fold_name(alias) == wanted) return gpu;
        }
    }
    std::vector<std::string> aliases;
    for (const Entry& entry : file.entries) {
        const std::optional<GpuSpec> gpu = read(entry);
        if (diagnostics.error_count() != before) return std::nullopt;
        aliases.insert(aliases.end(), gpu->aliases.begin(), gpu->aliases.end());
    }
    report_unknown(file, "GPU", name, aliases, at, diagnostics);
    return std::nullopt;
}

std::optional<StepTimeConstants> Catalog::fitted_constants(const GpuSpec& gpu, const Mark& at, Diagnostics& diagnostics) const {
    const bool own = !gpu.constants.empty();
    const std::string& wanted = own ? gpu.constants : gpu.constants_of_family;
    if (wanted.empty() || !data_) return std::nullopt;
    const File& file = data_->step_time;
    const auto entry = std::find_if(file.entries.begin(), file.entries.end(), [&](const Entry& e) { return e.name == wanted; });
    if (entry == file.entries.end()) {
        report_unknown(file, "row of step-time constants", wanted, {}, at, diagnostics);
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
        report_unknown(data_->step_time, "row of step-time constants", left_out, {}, at, diagnostics);
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
