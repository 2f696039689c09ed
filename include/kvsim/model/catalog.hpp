#pragma once
// Models, GPUs and step-time constants: facts read from scenarios/catalog/*.yaml (or a user's own map or config.json).

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvsim/base/units.hpp"
#include "kvsim/config/diagnostics.hpp"
#include "kvsim/config/schema.hpp"
#include "kvsim/config/value.hpp"

namespace kvsim {

/// Layers that keep the same kind of state. A model's groups cover all its layers.
///   full        keys and values of every token
///   sliding     of the last `window` tokens
///   chunked     of the current chunk of `window` tokens (Llama 4)
///   mla         one latent per token (ModelSpec::mla); sparse_mla: also an indexer's key
///   linear      a fixed recurrent state per sequence (ModelSpec::state): gated delta net, Mamba
///   none        nothing: MLP only, or another layer's KV is used
struct AttentionGroup {
    static constexpr std::string_view type_name = "map";
    std::string kind = "full";
    std::int64_t layers = 0;
    std::int64_t window = 0;    ///< tokens, for sliding and chunked
    std::int64_t kv_heads = 0;  ///< 0: the model's
    std::int64_t head_dim = 0;  ///< 0: the model's
};

/// Recurrent state of a linear layer; heads == 0: none. One sequence keeps, per layer, heads x head_dim x state_size elements
/// and (conv_kernel - 1) x (heads x head_dim + 2 x groups x state_size) of convolution input.
struct StateSpec {
    static constexpr std::string_view type_name = "map";
    std::string kind = "gated_delta";  ///< gated_delta | mamba2 | mamba1: which weights the layer has
    std::int64_t heads = 0;            ///< value heads; Mamba 1: its channels, with head_dim 1
    std::int64_t head_dim = 0;         ///< of a value head
    std::int64_t state_size = 0;       ///< width of a key; Mamba's d_state
    std::int64_t groups = 0;           ///< key heads; Mamba 2's n_groups; Mamba 1: 0
    std::int64_t conv_kernel = 4;
    std::string dtype = "auto";  ///< of the recurrent part: auto (the model's) | float32 | bfloat16 | float16
};

/// Mixture of experts; experts == 0: dense model.
struct MoeSpec {
    static constexpr std::string_view type_name = "map";
    std::int64_t experts = 0;
    std::int64_t top_k = 0;
    std::int64_t intermediate = 0;         ///< per expert
    std::int64_t shared_intermediate = 0;  ///< of all shared experts together; 0: none
    std::int64_t first_dense_layers = 0;   ///< leading layers with a dense MLP
    std::int64_t layer_step = 1;           ///< layer l (from 0) is MoE when (l + 1) % layer_step == 0
    std::int64_t layers = 0;               ///< number of MoE layers; 0: follows from the two above
};

/// Multi-head latent attention; kv_lora_rank == 0: plain multi-head or grouped-query attention.
struct MlaSpec {
    static constexpr std::string_view type_name = "map";
    std::int64_t kv_lora_rank = 0;
    std::int64_t qk_rope_head_dim = 0;
    std::int64_t qk_nope_head_dim = 0;
    std::int64_t v_head_dim = 0;
    std::int64_t q_lora_rank = 0;  ///< 0: queries are not compressed
};

/// A decoder's shape. 0 = not stated (a scenario's own map may give only what its run needs).
struct ModelSpec {
    std::string name;
    std::int64_t layers = 0;
    std::int64_t hidden = 0;
    std::int64_t intermediate = 0;
    std::int64_t heads = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim = 0;
    std::int64_t vocab = 0;
    std::int64_t max_context = 0;
    std::string dtype = "bfloat16";   ///< storage of the linear layers: bfloat16 | float16 | float32 | fp8 | awq | gptq | mxfp4
    double parameters_billion = 0;    ///< published count, for display only
    std::int64_t parameters = 0;      ///< overrides the count computed from the shape
    bool attention_quantized = true;  ///< false: attention stays in 16 bit, whatever dtype
    bool tie_embeddings = false;
    bool qkv_bias = false;
    bool qk_norm = false;
    bool learned_positions = false;  ///< OPT: a table of max_context + 2 positions, no rotary embedding
    std::string mlp = "gated";       ///< gated (gate, up, down) | plain (two matrices)
    MoeSpec moe;
    MlaSpec mla;
    StateSpec state;
    std::int64_t index_heads = 0;           ///< sparse_mla: heads of the indexer
    std::int64_t index_head_dim = 0;        ///< sparse_mla: width of the indexer's key
    bool attention_gate = false;            ///< queries carry an output gate: the projection is twice as wide
    std::int64_t mlp_layers = 0;            ///< layers with a dense or MoE MLP; 0: all
    std::int64_t draft_layers = 0;          ///< multi-token-prediction layers the checkpoint carries (not part of `layers`)
    std::int64_t encoder_parameters = 0;    ///< vision or audio tower, 16 bit; loaded, not part of the decoder's count
    std::vector<AttentionGroup> attention;  ///< empty in a file: all layers full, or mla; filled after reading
    std::string source;
    std::string note;

    [[nodiscard]] bool is_moe() const { return moe.experts > 0; }
    [[nodiscard]] bool is_mla() const { return mla.kv_lora_rank > 0; }
    [[nodiscard]] std::int64_t moe_layers() const;
    [[nodiscard]] std::int64_t dense_layers() const {
        return (mlp_layers == no_mlp ? 0 : mlp_layers > 0 ? mlp_layers : layers) - moe_layers();
    }
    static constexpr std::int64_t no_mlp = -1;  ///< mlp_layers of a model without any MLP
    /// `attention`, or all layers full (mla) where a hand-made value has none.
    [[nodiscard]] std::vector<AttentionGroup> layer_groups() const;
    /// Layers of that kind.
    [[nodiscard]] std::int64_t layers_of(std::string_view kind) const;
    /// What contradicts itself or is beyond any model (so that later integer arithmetic cannot overflow); empty: nothing.
    [[nodiscard]] std::string problem() const;
    /// Names of the shape's facts that are not stated and that weights and physical step times need.
    [[nodiscard]] std::vector<std::string> missing_shape() const;
};

/// An accelerator. Bandwidths 10^9 byte/s, rates 10^12 FLOP/s (dense). 0 = not stated.
struct GpuSpec {
    std::string name;
    std::vector<std::string> aliases;
    std::string vendor;
    std::string architecture;
    Bytes memory{};           ///< as the engine sees it
    Bytes memory_reported{};  ///< as nvidia-smi prints it
    double bandwidth_gb_s = 0;
    double bf16_tflops = 0;
    double fp8_tflops = 0;  ///< 0: no fp8 units
    double fp4_tflops = 0;
    std::string link;
    double link_gb_s = 0;  ///< GPU to GPU, per direction; 0: over PCIe
    double pcie_gb_s = 0;
    std::int64_t sm_count = 0;
    double power_w = 0;
    double price_usd_per_hour = 0;
    std::string price_source;
    std::string constants;            ///< row of step_time.yaml fitted on this card
    std::string constants_of_family;  ///< row fitted on another card of the family
    std::string source;
    std::string note;
};

/// Constants of sim/step_time/physics.hpp for one GPU; NaN = not known. Microseconds; efficiencies are relative to bf16_tflops,
/// bandwidth_gb_s and link_gb_s of the same row.
struct StepTimeConstants {
    static constexpr double blank = std::numeric_limits<double>::quiet_NaN();
    std::string gpu;
    double eb = blank, ef = blank, t0 = blank, p = blank;                                     // GEMM
    double et0 = blank, eeb = blank;                                                          // elementwise
    double at0 = blank, eb_d = blank, tb = blank;                                             // attention, decode-only
    double dl = blank, ef_a = blank, w_a = blank, R = blank, packed_gqa = blank, te = blank;  // attention, mixed
    double s0 = blank, s1 = blank;                                                            // sampler
    double ar_a = blank, ar_a2 = blank, ar_e = blank;                                         // all-reduce
    double mt0 = blank, meb = blank, mef = blank, mp = blank;                                 // experts
    double fp8_factor = blank;                                                                // FLOP rate of fp8 kernels
    double fp4_expert_speed = blank, fp4_expert_flops = blank;                                // 4-bit experts, no fp4 units
    double sm_count = blank, bf16_tflops = blank, bandwidth_gb_s = blank, link_gb_s = blank;  // the card
    std::string source;
};

/// An immutable, cheaply copied view of a catalogue folder. Entries are parsed when asked for, so opening costs three file
/// reads.
class Catalog {
public:
    Catalog() = default;  ///< empty: knows no name
    /// Reads models.yaml, gpus.yaml and step_time.yaml of `folder`. Throws UserError when one cannot be read.
    explicit Catalog(const std::filesystem::path& folder);
    /// The folder named by KVSIM_CATALOG, else the source tree's, else the installed one; then, when `own` is not empty, with()
    /// that folder.
    static Catalog open(const std::filesystem::path& own = {});
    /// The same with the entries of `own`/models.yaml and `own`/gpus.yaml before it: they win over entries of the same name.
    /// One of the files may be missing; UserError when both are.
    [[nodiscard]] Catalog with(const std::filesystem::path& own) const;

    [[nodiscard]] std::vector<std::string> model_names() const;  ///< in file order
    [[nodiscard]] std::vector<std::string> gpu_names() const;

    /// Names match when equal after fold_name. A model matches with or without its organisation when unique. Unknown (with the
    /// nearest names) and ambiguous (with the candidates) names are reported at `at`.
    [[nodiscard]] std::optional<ModelSpec> model(std::string_view name, const config::Mark& at, config::Diagnostics&) const;
    [[nodiscard]] std::optional<GpuSpec> gpu(std::string_view name, const config::Mark& at, config::Diagnostics&) const;

    /// Constants for the fitted model: the GPU's own row (or its family's efficiencies with this card's datasheet figures),
    /// blanks from the median of the other rows. nullopt when the GPU names no row.
    [[nodiscard]] std::optional<StepTimeConstants> fitted_constants(const GpuSpec&, const config::Mark& at,
                                                                    config::Diagnostics&) const;
    /// Constants for the datasheet model: the median of all rows with this card's datasheet figures.
    /// `left_out`: a row that takes no part, as if nobody had measured that card.
    [[nodiscard]] std::optional<StepTimeConstants> median_constants(const GpuSpec&, const config::Mark& at,
                                                                    config::Diagnostics&, std::string_view left_out = {}) const;

    struct Entry {
        std::string name;
        std::size_t begin = 0;  ///< bytes in the text
        std::size_t end = 0;
        int line = 0;
    };
    struct File {
        std::string name;
        std::string text;
        std::vector<Entry> entries;
    };

private:
    struct Data {
        File models, gpus, step_time;
        std::shared_ptr<const Data> under;  ///< asked where this one knows nothing
    };
    static Catalog open_shipped();
    [[nodiscard]] std::vector<std::string> names(File Data::*kind) const;
    std::shared_ptr<const Data> data_;
};

/// A model from its facts (the keys of models.yaml): for `model: {...}` in a scenario and for the catalogue.
std::optional<ModelSpec> read_model(const config::Value& map, std::string name, config::Diagnostics&);
/// A GPU from its facts (the keys of gpus.yaml).
std::optional<GpuSpec> read_gpu(const config::Value& map, std::string name, config::Diagnostics&);

/// A model from the text of a Hugging Face config.json. `name` is used in messages and as the model's name. Dense (llama,
/// mistral, qwen2, qwen3, phi3, opt, ...), MoE (mixtral, qwen3_moe, glm4_moe), MLA (deepseek_v2, v3 and v32, kimi_k2,
/// glm_moe_dsa), windowed (gemma2, gemma3, gemma4, gpt_oss, llama4) and recurrent (qwen3_next, qwen3_5, jamba, bamba,
/// nemotron_h, mamba) configurations are understood, also nested in text_config; every problem is one error at `at`.
std::optional<ModelSpec> read_hf_config(std::string_view json, std::string name, const config::Mark& at, config::Diagnostics&);

/// A scenario's `model:`: a map of facts, an existing path (one that has a '/' or ends in .json; relative to `base`, then to
/// the current folder; a folder means its config.json), or a catalogue name.
std::optional<ModelSpec> resolve_model(const config::Value&, const std::filesystem::path& base, const Catalog&,
                                       config::Diagnostics&);
/// A scenario's `hardware.gpu`: a map of facts or a catalogue name.
std::optional<GpuSpec> resolve_gpu(const config::Value&, const Catalog&, config::Diagnostics&);

std::vector<config::FieldDoc> model_docs();
std::vector<config::FieldDoc> gpu_docs();

}  // namespace kvsim
