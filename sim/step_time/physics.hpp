#pragma once
// The kernel-level step-time model behind `fitted` and `roofline`: a step is the sum of its kernels, each bounded by bandwidth
// and by FLOP rate. Equations and constants were fitted to public kernel measurements (scenarios/catalog/step_time.yaml).
//
// Notation (per GPU): T tokens padded to the CUDA-graph sizes, n sequences, s and c a chunk's new tokens and its context
// before, L a decode row's context, H and G query and KV heads, d head_dim, h hidden, i MLP width, V vocabulary, w bytes per
// weight, B bytes/us, F FLOP/us, |a,b|p = (a^p + b^p)^(1/p). Microseconds.
//   gemm(m, n, k)   t0 + |(w n k + 2 m (n + k)) / (B eb), 2 m n k / (F ef)|p
//   elementwise     et0 per kernel + bytes / (B eeb): two norms 8 h T, rope 4 (H + G) d T, activation 6 i T (dense layers; a
//   plain MLP
//                   4 i T), with qk-norm two of 4 (H + G) d T
//   attention       decode only: at0 + 4 G d sum(L) / (B eb_d) + tb n G / SM
//                   mixed: at0 + sum over chunks of 4 H d s (c + s/2 + dl) / (F ef_a) / min(1, H ceil(s/128) / SM)^w_a
//                   + |4 G d sum(L) / (B eb_d), 4 R H d sum(L) / (F ef_a)|2 + te n H ceil(s_max/128) / SM; packed_gqa: G for H
//                   in the R term; fp8 KV halves the bytes
//   all-reduce      two per layer: ar_a + ar_a2 (tp - 2) + 2 (tp - 1)/tp 2 T h / (link ar_e)
//   experts         mt0 + |(A 3 h i w + 2 T k (2 h + 3 i)) / (B meb), 6 T k h i / (F mef)|mp, A = E (1 - (1 - k/E)^T), and the
//   router
//                   gemm(T, E, h); shared experts are two GEMMs
//   head            gemm(sampled, V, h) + s0 + s1 sampled
//   between steps   0 with asynchronous scheduling, else 1000 us + 22 us n
// fp8 weights: w = 1 and F times fp8_factor in GEMM and experts; head and router stay 16 bit. 4-bit experts (mxfp4, nvfp4) on a
// card without fp4 units are unpacked in the kernel: mt0 and the bytes' time are divided by fp4_expert_speed, the FLOPs' by
// fp4_expert_flops. On a card with fp4 units: F times fp8_factor, assumed.
// Expert parallelism: a rank has E/ranks whole experts (i, not i/tp; ranks = tp dp) and, spread evenly, T k/ranks of the
// token-expert pairs. Data-parallel ranks of a model with experts share them (a slice i/ranks each without expert parallelism)
// and step together: T of the experts is dp T, every rank taken to have as many tokens as this one, and gathering them and
// scattering the sums costs 2 (ar_a + (dp - 1) 2 T h / (link ar_e)). Derived, not fitted.
// Latent attention (MLA) has no fit of its own. Assumed: decode in absorbed form, reading (r + rope) elements and 2 H (2 r +
// rope) FLOP per context token, the larger bound by |.,.|2; prefill in expanded form with 2 H (nope + rope + v) FLOP for 4 H d;
// no R term (decode rows run in a kernel of their own); the projections are GEMMs, those to the latents repeated on every rank.
// Sliding and chunked layers attend to part of the context: L becomes min(L, window), or what of the current chunk is there,
// summed exactly over rows (StepShape::windows; without it from the mean context of the rows), and a chunk's s (c + s/2)
// becomes the sum over its tokens of the same. Not fitted: taken to run at the efficiencies of full attention. Recurrent layers
// (gated delta net, Mamba) have no fit either. Assumed: at0, the state of every sequence read and written once at eb_d, per new
// token 6 H d N FLOP of the state (N its width) at ef_a, and their own projections as GEMMs. Sparse latent
// attention (DeepSeek-V3.2): latent attention to at most 2,048 tokens (index_topk as published), and on every rank an indexer
// that reads one key per context token. Assumed like the rest of MLA. Pipeline stages: pipeline.hpp.

#include <vector>

#include "kvsim/model/deployment.hpp"
#include "kvsim/model/mixed_parts.hpp"

namespace kvsim {

/// The keys of `step_time` beside the model's name.
struct PhysicsOptions {
    std::string model;
    double flop_scale = 1;
    double bandwidth_scale = 1;
    double link_scale = 1;
    config::FineDuration cpu_per_step{1e6};
    config::FineDuration cpu_per_sequence{22e3};
    bool enforce_eager = false;
    config::FineDuration eager_launch{6e3};
    std::vector<std::int64_t> capture_sizes;  ///< empty: the default ones
    std::string leave_out;
};

class PhysicsModel final : public StepTimeModel {
public:
    /// `deployment` has a model with its whole shape; `constants` has no blank but fp8_factor. `tier` opens describe().
    PhysicsModel(const StepTimeConstants& constants, const Deployment& deployment, std::string tier, PhysicsOptions options);

    [[nodiscard]] SimDuration duration(const StepShape& shape) const override;
    [[nodiscard]] std::optional<DecodeLine> decode_line(std::int64_t rows) const override;
    [[nodiscard]] const MixedParts* mixed_parts() const override { return uniform_ ? &parts_ : nullptr; }
    [[nodiscard]] std::string describe() const override { return description_; }
    [[nodiscard]] SimDuration default_api() const override { return std::chrono::milliseconds(8); }

private:
    /// FLOP rate and bytes per weight of a group of GEMMs.
    struct Precision {
        double weight_bytes;
        double flop_us;
    };
    /// Layers with the same sequence mixer.
    struct Mixer {
        enum class Kind { heads, latent, state, none };
        Kind kind = Kind::heads;
        double layers = 0;
        WindowContext window;  ///< window 0: the whole context
        double kv_heads = 0;   ///< per GPU
        double head_dim = 0;
        double context_us = 0;        ///< per context token of a decode-only step, one layer
        double mixed_context_us = 0;  ///< per context token of the decode rows of a mixed step, one layer
        double chunk_flop = 0;        ///< per (new token x context token) of a chunk, one layer
        double sequence_us = 0;       ///< state: reading and writing one sequence's, one layer
        double token_flop = 0;        ///< state: per new token, one layer
        double index_us = 0;          ///< sparse: the indexer's, per context token, one layer
        double index_flop = 0;        ///< sparse: the indexer's, per (new token x context token), one layer
    };
    template <class Compute>
    double once(std::vector<double> MixedParts::*part, std::int64_t count, const Compute& compute) const;
    [[nodiscard]] double gemm(double m, double n, double k, const Precision& precision) const;
    [[nodiscard]] std::int64_t padded(std::int64_t tokens) const;
    [[nodiscard]] double token_kernels(std::int64_t tokens) const;  ///< everything that depends on T alone, all layers
    [[nodiscard]] double padded_kernels(double t) const;            ///< the same of T as padded
    [[nodiscard]] Mixer make_mixer(const AttentionGroup& group, const Deployment& deployment) const;
    [[nodiscard]] double projections(const Mixer& mixer, double t) const;
    [[nodiscard]] double context_ns() const;
    /// Context tokens the decode rows attend to.
    [[nodiscard]] double decode_context(const Mixer& mixer, const StepShape& shape) const;
    [[nodiscard]] double elementwise(double t, bool dense) const;
    [[nodiscard]] double mlp(double t) const;
    [[nodiscard]] double experts(double t) const;
    [[nodiscard]] double all_reduce(double t) const;
    [[nodiscard]] double head(std::int64_t sampled) const;
    [[nodiscard]] double decode_base(std::int64_t rows, std::int64_t sampled) const;
    static double chunk_context(const Mixer& mixer, const PrefillChunk& chunk);
    [[nodiscard]] double mixed_attention(const Mixer& mixer, const StepShape& shape) const;
    void remember_prompts(const StepShape& shape) const;  ///< in parts_

    StepTimeConstants c_;
    PhysicsOptions options_;
    ModelSpec model_;
    std::string description_;
    double tp_;
    double layers_, dense_layers_, moe_layers_;
    double heads_, kv_heads_, head_dim_, hidden_, vocab_;  // per GPU
    std::vector<Mixer> mixers_;
    bool windowed_ = false;   // some mixer sees only part of a context
    bool uniform_ = false;    // one mixer for all layers, over the whole context: parts_ give the price
    double bandwidth_;        // bytes/us
    double flops_;            // FLOP/us
    double attention_flops_;  // what attention reaches of them
    double link_;             // bytes/us
    Precision linear_, kept_, experts_;
    double expert_speed_ = 1;  // bandwidth of kernels that unpack 4-bit weights, relative to those of 16 bit
    double expert_flops_ = 1;  // and their FLOP rate
    double expert_ranks_ = 1;  // that share the experts: tensor x data parallel
    double data_ranks_ = 1;
    bool whole_experts_ = false;  // expert parallelism
    mutable MixedParts parts_;
};

/// Reports what a physical step time needs and the deployment lacks; then false.
bool check_physics(std::string_view name, const Deployment& deployment, const config::Value& params,
                   config::Diagnostics& diagnostics);
/// The model, or null after reporting that collectives have no link to run over.
std::unique_ptr<StepTimeModel> make_physics(const StepTimeConstants& constants, const Deployment& deployment, std::string tier,
                                            const config::Value& params, config::Diagnostics& diagnostics);
/// The keys of a model without parameters: only the naming one.
std::vector<config::FieldDoc> physics_docs();

/// T -> the CUDA-graph capture size it is padded to: 1, 2, 4, multiples of 8 to 256 and of 16 to 512; above, T itself.
constexpr std::int64_t padded_tokens(std::int64_t tokens) {
    if (tokens <= 2 || tokens > 512) return tokens;
    if (tokens <= 4) return 4;
    return tokens <= 256 ? ceil_div(tokens, 8) * 8 : ceil_div(tokens, 16) * 16;
}

}  // namespace kvsim
