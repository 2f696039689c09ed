// What a model or GPU may state: the schemas of models.yaml and gpus.yaml, and what follows from the facts.

#include <algorithm>

#include "kvsim/model/catalog.hpp"

namespace kvsim {
namespace {

using config::Diagnostics;
using config::field;
using config::Schema;
using config::Value;

/// How a checkpoint may store its linear layers; bytes_per_weight() knows each.
std::vector<std::string> weight_dtypes() {
    return {"bfloat16", "float16", "float32", "fp8",          "int8",      "awq",
            "gptq",     "mxfp4",   "nvfp4",   "bitsandbytes", "gguf_q8_0", "gguf_q4_k_m"};
}

const Schema<AttentionGroup>& attention_schema() {
    static const Schema<AttentionGroup> schema{
        field("kind", &AttentionGroup::kind, "what the layers attend to")
            .need()
            .one_of({"full", "sliding", "chunked", "linear", "mla", "sparse_mla", "none"}),
        field("layers", &AttentionGroup::layers, "number of such layers", config::at_least_one).need(),
        field("window", &AttentionGroup::window, "tokens a sliding or chunked layer sees", config::at_least_one),
        field("kv_heads", &AttentionGroup::kv_heads, "where it differs from the model's", config::at_least_one),
        field("head_dim", &AttentionGroup::head_dim, "where it differs from the model's", config::at_least_one)};
    return schema;
}

const Schema<StateSpec>& state_schema() {
    static const Schema<StateSpec> schema{
        field("kind", &StateSpec::kind, "which weights the layer has")
            .one_of({"gated_delta", "mamba2", "mamba1"})
            .by_default("gated_delta"),
        field("heads", &StateSpec::heads, "value heads (Mamba 1: channels)", config::at_least_one).need(),
        field("head_dim", &StateSpec::head_dim, "width of a value head (Mamba 1: 1)", config::at_least_one).need(),
        field("state_size", &StateSpec::state_size, "width of a key; Mamba's d_state", config::at_least_one).need(),
        field("groups", &StateSpec::groups, "key heads; Mamba 2's n_groups; Mamba 1: 0", config::non_negative).by_default("0"),
        field("conv_kernel", &StateSpec::conv_kernel, "width of the convolution", config::at_least_one).by_default("4"),
        field("dtype", &StateSpec::dtype, "of the recurrent part")
            .one_of({"auto", "float32", "bfloat16", "float16"})
            .by_default("auto")};
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
        field("layer_step", &MoeSpec::layer_step, "every n-th layer is MoE", config::at_least_one).by_default("1"),
        field("layers", &MoeSpec::layers, "number of MoE layers", config::at_least_one)
            .by_default("from first_dense_layers and layer_step")};
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
    Value moe_map, mla_map, state_map;
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
        f("dtype", &ModelSpec::dtype, "storage of the linear layers").one_of(weight_dtypes()).by_default("bfloat16"),
        f("parameters_billion", &ModelSpec::parameters_billion, "published parameter count, for display", config::positive),
        f("parameters", &ModelSpec::parameters, "parameter count; replaces the one computed from the shape",
          config::at_least_one),
        f("attention_quantized", &ModelSpec::attention_quantized, "false: attention stays in 16 bit, whatever `dtype`")
            .by_default("true"),
        f("tie_embeddings", &ModelSpec::tie_embeddings, "the head shares the embedding's weights").by_default("false"),
        f("qkv_bias", &ModelSpec::qkv_bias, "query, key and value projections have a bias").by_default("false"),
        f("qk_norm", &ModelSpec::qk_norm, "queries and keys are normalised").by_default("false"),
        f("learned_positions", &ModelSpec::learned_positions, "a table of positions, no rotary embedding").by_default("false"),
        f("mlp", &ModelSpec::mlp, "matrices of the MLP: three or two").one_of({"gated", "plain"}).by_default("gated"),
        field("moe", &M::moe_map,
              "experts: {experts, top_k, intermediate, shared_intermediate, first_dense_layers, layer_step, layers}"),
        field("mla", &M::mla_map,
              "latent attention: {kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim, q_lora_rank}"),
        field("state", &M::state_map,
              "recurrent state of linear layers: {kind, heads, head_dim, state_size, groups, conv_kernel, dtype}"),
        f("index_heads", &ModelSpec::index_heads, "heads of the sparse-attention indexer", config::at_least_one),
        f("index_head_dim", &ModelSpec::index_head_dim, "width of the sparse-attention indexer's key", config::at_least_one),
        f("draft_layers", &ModelSpec::draft_layers, "multi-token-prediction layers beyond `layers`", config::non_negative)
            .by_default("0"),
        f("attention_gate", &ModelSpec::attention_gate, "queries carry an output gate (twice the projection)")
            .by_default("false"),
        f("mlp_layers", &ModelSpec::mlp_layers, "layers that have an MLP", config::at_least_one).by_default("all"),
        f("encoder_parameters", &ModelSpec::encoder_parameters, "parameters of a vision or audio tower, kept in 16 bit",
          config::non_negative)
            .by_default("0"),
        field("attention", &M::attention_list, "groups of layers: [{kind, layers, window, kv_heads, head_dim}]"),
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

}  // namespace

std::int64_t ModelSpec::moe_layers() const {
    if (!is_moe()) return 0;
    if (moe.layers > 0) return moe.layers;
    // Multiples of layer_step among the layer numbers first_dense_layers + 1 .. layers.
    return std::max<std::int64_t>(0, layers / moe.layer_step - moe.first_dense_layers / moe.layer_step);
}

std::vector<AttentionGroup> ModelSpec::layer_groups() const {
    if (!attention.empty()) return attention;
    AttentionGroup all;
    all.kind = is_mla() ? "mla" : "full";
    all.layers = layers;
    return {all};
}

std::int64_t ModelSpec::layers_of(std::string_view kind) const {
    std::int64_t sum = 0;
    for (const AttentionGroup& group : attention) {
        if (group.kind == kind) sum += group.layers;
    }
    return sum;
}

std::string ModelSpec::problem() const {
    for (const std::int64_t size : {layers,
                                    hidden,
                                    intermediate,
                                    heads,
                                    kv_heads,
                                    head_dim,
                                    vocab,
                                    moe.experts,
                                    moe.top_k,
                                    moe.intermediate,
                                    moe.shared_intermediate,
                                    moe.first_dense_layers,
                                    moe.layer_step,
                                    mla.kv_lora_rank,
                                    mla.qk_rope_head_dim,
                                    mla.qk_nope_head_dim,
                                    mla.v_head_dim,
                                    mla.q_lora_rank,
                                    moe.layers,
                                    mlp_layers,
                                    draft_layers,
                                    index_heads,
                                    index_head_dim,
                                    state.heads,
                                    state.head_dim,
                                    state.state_size,
                                    state.groups,
                                    state.conv_kernel}) {
        if (size > 10'000'000) return "a size of " + std::to_string(size) + " is beyond any model";
    }
    const auto d = [](std::int64_t n) { return static_cast<double>(n); };
    const double widest = d(intermediate) + d(moe.shared_intermediate) + (d(moe.experts) + 1) * (d(moe.intermediate) + 1) +
                          4 * d(heads) * (d(head_dim) + d(mla.q_lora_rank) + d(mla.kv_lora_rank) + d(mla.v_head_dim));
    if (d(layers) * (d(hidden) + d(mla.kv_lora_rank) + d(mla.q_lora_rank) + 1) * widest > 1e16 ||
        d(layers) * d(kv_heads) * d(head_dim) > 1e12 || parameters > 1'000'000'000'000'000) {
        return "its shape is beyond any model";
    }
    if (moe.first_dense_layers > layers) {
        return "moe.first_dense_layers " + std::to_string(moe.first_dense_layers) + " exceeds layers " + std::to_string(layers);
    }
    if (max_context > 1'000'000'000) return "max_context " + std::to_string(max_context) + " is beyond any model";
    if (kv_heads < 1 || head_dim < 1) return "kv_heads and head_dim must be at least 1";
    if (heads > 0 && heads % kv_heads != 0) {
        return "heads " + std::to_string(heads) + " is not a multiple of kv_heads " + std::to_string(kv_heads);
    }
    if (is_moe() && (moe.layers > layers || mlp_layers > layers || moe_layers() > (mlp_layers > 0 ? mlp_layers : layers))) {
        return "it has more MLP or MoE layers than layers";
    }
    if (d(state.heads) * d(state.head_dim) * (d(state.state_size) + 1) > 1e12 || encoder_parameters > 1'000'000'000'000) {
        return "its recurrent state or encoder is beyond any model";
    }
    for (const AttentionGroup& group : attention) {
        if ((group.kind == "sliding" || group.kind == "chunked") && group.window < 1) {
            return "a " + group.kind + " group needs its window";
        }
        if (group.kind == "linear" && state.heads < 1) return "linear layers need `state`: heads, head_dim, state_size";
        if ((group.kind == "mla" || group.kind == "sparse_mla") && !is_mla()) return "an " + group.kind + " group needs `mla`";
        if (group.kind == "sparse_mla" && index_head_dim < 1) return "a sparse_mla group needs index_head_dim";
        const std::int64_t own_heads = group.kv_heads > 0 ? group.kv_heads : kv_heads;
        if (own_heads > 10'000'000 || group.head_dim > 10'000'000 || group.window > 1'000'000'000) {
            return "an attention group is beyond any model";
        }
        if (heads > 0 && heads % own_heads != 0) {
            return "heads " + std::to_string(heads) + " is not a multiple of a group's kv_heads " + std::to_string(own_heads);
        }
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
    if (!m.state_map.is_null()) state_schema().read(m.state_map, m.state, "state", diagnostics);
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
    if (m.attention.empty()) {
        m.attention = m.layer_groups();
    } else {
        std::int64_t sum = 0;
        for (const AttentionGroup& group : m.attention) sum += group.layers;
        if (sum != m.layers) {
            diagnostics.error(map.mark, "attention groups have " + std::to_string(sum) + " layers, the model has " +
                                            std::to_string(m.layers));
        }
    }
    if (const std::string problem = m.problem(); !problem.empty()) diagnostics.error(map.mark, "model: " + problem);
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

}  // namespace kvsim
