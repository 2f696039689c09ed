#include "physics.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "pipeline.hpp"

namespace kvsim {
namespace {

/// (a^p + b^p)^(1/p) for a, b >= 0, without overflow.
double p_norm(double a, double b, double p) {
    const double high = std::max(a, b);
    const double low = std::min(a, b);
    if (low <= 0) return high;
    return high * std::pow(1 + std::pow(low / high, p), 1 / p);
}

const config::Schema<PhysicsOptions>& schema() {
    using P = PhysicsOptions;
    using config::field;
    constexpr config::Range scale{0.05, 20};
    static const config::Schema<P> table{
        field("model", &P::model, "fitted or roofline"),
        field("flop_scale", &P::flop_scale, "factor on the FLOP efficiencies ef and ef_a, as kvsim calibrate finds it", scale)
            .by_default("1"),
        field("bandwidth_scale", &P::bandwidth_scale, "factor on the memory efficiencies eb and eb_d", scale).by_default("1"),
        field("link_scale", &P::link_scale, "factor on the speed of collectives: ar_e times it, latencies divided by it", scale)
            .by_default("1"),
        field("cpu_per_step", &P::cpu_per_step, "CPU time between synchronous steps", config::non_negative)
            .by_default("1000us"),
        field("cpu_per_sequence", &P::cpu_per_sequence, "CPU time between synchronous steps per sequence", config::non_negative)
            .by_default("22us"),
        field("enforce_eager", &P::enforce_eager, "no CUDA graphs: no padding, and launching a kernel costs eager_launch")
            .by_default("false"),
        field("eager_launch", &P::eager_launch, "CPU time to launch one kernel without CUDA graphs (assumed)",
              config::non_negative)
            .by_default("6us"),
        field(
            "cudagraph_capture_sizes", &P::capture_sizes,
            "tokens that steps are padded to (1, 2, 4, multiples of 8 to 256, of 16 to 512); larger steps run without graphs"),
        field("leave_out", &P::leave_out,
              "roofline: this row of step_time.yaml takes no part in the median, as if nobody had measured the card")};
    return table;
}

}  // namespace

std::vector<config::FieldDoc> physics_docs() {
    return schema().docs();
}

bool check_physics(std::string_view name, const Deployment& deployment, const config::Value& params,
                   config::Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    PhysicsOptions options;
    if (params.is_map()) schema().read(params, options, "step_time", diagnostics);
    for (const std::int64_t size : options.capture_sizes) {
        if (size < 1 || size > 1'000'000) diagnostics.error(params.mark, "cudagraph_capture_sizes must be from 1 to 1000000");
    }
    if (name != "roofline" && !options.leave_out.empty()) diagnostics.error(params.mark, "leave_out goes with roofline only");
    const std::string what = "step-time model " + std::string(name);
    if (!deployment.model) diagnostics.error(params.mark, what + " needs `model`");
    if (!deployment.gpu) diagnostics.error(params.mark, what + " needs `hardware.gpu`");
    if (deployment.model) {
        std::string missing;
        for (const std::string& fact : deployment.model->missing_shape()) missing += (missing.empty() ? "" : ", ") + fact;
        if (!missing.empty()) {
            diagnostics.error(params.mark, what + ": model " + deployment.model->name + " does not state " + missing);
        }
    }
    return diagnostics.error_count() == before;
}

std::unique_ptr<StepTimeModel> make_physics(const StepTimeConstants& constants, const Deployment& deployment, std::string tier,
                                            const config::Value& params, config::Diagnostics& diagnostics) {
    const bool dispatches = deployment.model->moe_layers() > 0 && deployment.data_parallel_size > 1;
    if ((deployment.tensor_parallel_size > 1 || dispatches) && !(constants.link_gb_s > 0)) {
        diagnostics.error(params.mark, "GPU " + deployment.gpu->name + ": a step time with " +
                                           (dispatches ? "experts shared by data-parallel ranks" : "tensor_parallel_size > 1") +
                                           " needs link_gb_s or pcie_gb_s");
        return nullptr;
    }
    PhysicsOptions options;
    config::Diagnostics checked;  // check_physics() has reported
    if (params.is_map()) schema().read(params, options, "step_time", checked);
    StepTimeConstants scaled = constants;
    scaled.ef *= options.flop_scale;
    scaled.ef_a *= options.flop_scale;
    scaled.eb *= options.bandwidth_scale;
    scaled.eb_d *= options.bandwidth_scale;
    scaled.ar_e *= options.link_scale;
    scaled.ar_a /= options.link_scale;
    scaled.ar_a2 /= options.link_scale;
    if (options.flop_scale != 1 || options.bandwidth_scale != 1 || options.link_scale != 1) {
        tier += "; calibrated: flop_scale " + shortest(options.flop_scale) + ", bandwidth_scale " +
                shortest(options.bandwidth_scale) + ", link_scale " + shortest(options.link_scale);
    }
    auto model = std::make_unique<PhysicsModel>(scaled, deployment, std::move(tier), options);
    const std::int64_t stages = deployment.pipeline_parallel_size;
    if (stages <= 1) return model;
    const double link = constants.link_gb_s > 0 ? constants.link_gb_s : deployment.gpu->pcie_gb_s;
    const double per_token = link > 0 ? 2 * static_cast<double>(deployment.model->hidden) / link : 0;
    return make_pipeline(std::move(model), stages, scaled.ar_a * 1e3, per_token);
}

PhysicsModel::PhysicsModel(const StepTimeConstants& constants, const Deployment& deployment, std::string tier,
                           PhysicsOptions options)
    : c_(constants), options_(std::move(options)), model_(*deployment.model), description_(std::move(tier)) {
    std::sort(options_.capture_sizes.begin(), options_.capture_sizes.end());
    const auto d = [](std::int64_t n) { return static_cast<double>(n); };
    const std::int64_t tp = deployment.tensor_parallel_size;
    tp_ = d(tp);
    layers_ = d(model_.layers);
    dense_layers_ = d(model_.dense_layers());
    moe_layers_ = d(model_.moe_layers());
    heads_ = d(model_.heads) / tp_;
    kv_heads_ = model_.is_mla() ? 1 : d(kv_heads_per_rank(model_, tp));
    head_dim_ = d(model_.head_dim);
    hidden_ = d(model_.hidden);
    vocab_ = d(model_.vocab) / tp_;
    bandwidth_ = c_.bandwidth_gb_s * 1e3;
    flops_ = c_.bf16_tflops * 1e6;
    link_ = c_.link_gb_s * 1e3;

    const bool fp8 = model_.dtype == "fp8" && deployment.gpu->fp8_tflops > 0;
    // Between 1.5 and 2 by the few fp8 runs there are; not fitted per GPU.
    const double fp8_factor = std::isnan(c_.fp8_factor) ? 1.5 : c_.fp8_factor;
    const bool four_bit = model_.dtype == "mxfp4" || model_.dtype == "nvfp4";
    const bool fp4_units = four_bit && deployment.gpu->fp4_tflops > 0;  // taken to gain what fp8 gains: nothing was measured
    linear_ = {bytes_per_weight(model_.dtype), fp8 || fp4_units ? flops_ * fp8_factor : flops_};
    kept_ = {model_.dtype == "float32" ? 4.0 : 2.0, flops_};
    experts_ = linear_;
    if (four_bit && !fp4_units && model_.is_moe()) {
        // Fitted on H200 alone.
        const bool assumed = std::isnan(c_.fp4_expert_speed);
        expert_speed_ = assumed ? 0.75 : c_.fp4_expert_speed;
        expert_flops_ = std::isnan(c_.fp4_expert_flops) ? 0.3 : c_.fp4_expert_flops;
        description_ += "; 4-bit experts at " + shortest(expert_speed_) + " of the 16-bit kernels' bandwidth and " +
                        shortest(expert_flops_) + " of their FLOP rate" + (assumed ? ", assumed as on H200" : "");
    }
    if (model_.dtype == "mxfp4") linear_ = kept_;  // only the experts are stored so

    if (moe_layers_ > 0) {
        data_ranks_ = d(deployment.data_parallel_size);
        expert_ranks_ = tp_ * data_ranks_;
        whole_experts_ = deployment.memory.enable_expert_parallel && expert_ranks_ > 1;
        if (whole_experts_) description_ += "; expert parallel over " + shortest(expert_ranks_) + " ranks, derived, not fitted";
        if (data_ranks_ > 1) description_ += "; experts shared by data-parallel ranks that step together, derived, not fitted";
    }

    attention_flops_ = flops_ * c_.ef_a;
    for (const AttentionGroup& group : model_.layer_groups()) {
        mixers_.push_back(make_mixer(group, deployment));
        windowed_ = windowed_ || mixers_.back().window.window > 0;
    }
    const Mixer& first = mixers_.front();
    uniform_ = mixers_.size() == 1 && !windowed_ && (first.kind == Mixer::Kind::heads || first.kind == Mixer::Kind::latent);
    parts_.layers = first.layers;
    parts_.floor = c_.at0;
    parts_.per_context = first.mixed_context_us;
    parts_.chunk_flop = first.chunk_flop;
    parts_.attention_flops = attention_flops_;
    parts_.context_offset = c_.dl;
    for (std::int64_t tiles = 0; heads_ > 0; ++tiles) {
        const double fill = heads_ * d(tiles) / c_.sm_count;
        if (!(fill < 1)) break;
        parts_.fills.push_back(std::pow(fill, c_.w_a));
    }
    parts_.per_row_tile = c_.te;
    parts_.heads = heads_;
    parts_.sm_count = c_.sm_count;
    if (!deployment.engine.async_scheduling) {
        parts_.between_ns = options_.cpu_per_step.ns;
        parts_.between_row_ns = options_.cpu_per_sequence.ns;
    }

    if (model_.is_mla()) description_ += "; latent attention derived, not fitted";
    if (windowed_) description_ += "; windows at the efficiencies of full attention";
    if (model_.layers_of("linear") > 0) description_ += "; recurrent layers derived, not fitted";
    if (fp4_units) description_ += "; 4-bit weights at the FLOP rate of fp8, assumed";
    if (fp8) description_ += "; fp8 factor " + shortest(fp8_factor) + (std::isnan(c_.fp8_factor) ? " assumed" : "");
    if (deployment.pipeline_parallel_size > 1) description_ += "; pipeline stages one after another";
}

double PhysicsModel::gemm(double m, double n, double k, const Precision& precision) const {
    const double bytes = precision.weight_bytes * n * k + 2 * m * (n + k);
    return c_.t0 + p_norm(bytes / (bandwidth_ * c_.eb), 2 * m * n * k / (precision.flop_us * c_.ef), c_.p);
}

PhysicsModel::Mixer PhysicsModel::make_mixer(const AttentionGroup& group, const Deployment& deployment) const {
    const auto d = [](std::int64_t n) { return static_cast<double>(n); };
    const double element = d(deployment.kv_element_bytes);
    Mixer m;
    m.layers = d(group.layers);
    if (group.kind == "none") {
        m.kind = Mixer::Kind::none;
    } else if (group.kind == "linear") {
        m.kind = Mixer::Kind::state;
        const StateSpec& state = model_.state;
        m.sequence_us = 2 * d(state_bytes_per_layer(model_, deployment.tensor_parallel_size)) / (bandwidth_ * c_.eb_d);
        m.token_flop = 6 * d(state.heads) * d(state.head_dim) * d(state.state_size) / tp_;
    } else if (group.kind == "mla" || group.kind == "sparse_mla") {
        m.kind = Mixer::Kind::latent;
        m.kv_heads = 1;
        const double rank = d(model_.mla.kv_lora_rank);
        const double rope = d(model_.mla.qk_rope_head_dim);
        double kv_read = (rank + rope) * element;
        if (group.kind == "sparse_mla") {
            constexpr std::int64_t index_topk = 2048;
            m.window.window = index_topk;
            // vLLM's fp8 layout unless 16 bit is asked for: fp8 values, a 32-bit scale for 128 of them, the rotary part in 16
            // bit.
            if (element == 1 || deployment.kv_cache_dtype == "auto") kv_read = rank + rank / 128 * 4 + 2 * rope;
            m.index_flop = 2 * d(model_.index_heads) * d(model_.index_head_dim);
            m.index_us = p_norm((d(model_.index_head_dim) + 4) / (bandwidth_ * c_.eb_d), m.index_flop / attention_flops_, 2);
        }
        m.context_us = p_norm(kv_read / (bandwidth_ * c_.eb_d), 2 * heads_ * (2 * rank + rope) / attention_flops_, 2);
        m.mixed_context_us = m.context_us;
        m.chunk_flop = 2 * heads_ * (d(model_.mla.qk_nope_head_dim) + rope + d(model_.mla.v_head_dim));
    } else {
        m.kv_heads = group.kv_heads > 0 ? std::max(1.0, std::floor(d(group.kv_heads) / tp_)) : kv_heads_;
        m.head_dim = group.head_dim > 0 ? d(group.head_dim) : head_dim_;
        const double kv_read = 2 * m.kv_heads * m.head_dim * element;
        m.context_us = kv_read / (bandwidth_ * c_.eb_d);
        const double rows = c_.R * (c_.packed_gqa == 1 ? m.kv_heads : heads_);
        m.mixed_context_us = p_norm(m.context_us, 4 * rows * m.head_dim / attention_flops_, 2);
        m.chunk_flop = 4 * heads_ * m.head_dim;
        if (group.kind == "sliding" || group.kind == "chunked") m.window = {group.window, group.kind == "chunked", 0};
    }
    return m;
}

double PhysicsModel::projections(const Mixer& mixer, double t) const {
    if (mixer.kind == Mixer::Kind::none) return 0;
    if (mixer.kind == Mixer::Kind::state) {
        const StateSpec& state = model_.state;
        const double inner = static_cast<double>(state.heads * state.head_dim) / tp_;
        const double keys = static_cast<double>(state.groups * state.state_size) / tp_;
        return gemm(t, 2 * (inner + keys), hidden_, linear_) + gemm(t, hidden_, inner, linear_);
    }
    if (mixer.kind == Mixer::Kind::heads) {
        const double queries = (model_.attention_gate ? 2 : 1) * heads_;
        return gemm(t, (queries + 2 * mixer.kv_heads) * mixer.head_dim, hidden_, linear_) +
               gemm(t, hidden_, heads_ * mixer.head_dim, linear_);
    }
    const auto d = [](std::int64_t n) { return static_cast<double>(n); };
    const MlaSpec& a = model_.mla;
    const double query = heads_ * d(a.qk_nope_head_dim + a.qk_rope_head_dim);
    const double latent = d(a.kv_lora_rank + a.qk_rope_head_dim);
    double us = gemm(t, heads_ * d(a.qk_nope_head_dim + a.v_head_dim), d(a.kv_lora_rank), linear_);
    if (a.q_lora_rank > 0) {
        us += gemm(t, d(a.q_lora_rank) + latent, hidden_, linear_) + gemm(t, query, d(a.q_lora_rank), linear_);
    } else {
        us += gemm(t, query, hidden_, linear_) + gemm(t, latent, hidden_, linear_);
    }
    return us + gemm(t, hidden_, heads_ * d(a.v_head_dim), linear_);
}

double PhysicsModel::elementwise(double t, bool dense) const {
    double kernels = 2;
    double bytes = 2 * 8 * hidden_ * t;
    double head_bytes = 4 * (heads_ + kv_heads_) * head_dim_ * t;
    if (model_.is_mla()) {
        const auto d = [](std::int64_t n) { return static_cast<double>(n); };
        head_bytes = 4 * (heads_ + 1) * d(model_.mla.qk_rope_head_dim) * t;
        kernels += 1;
        bytes += 4 * d(model_.mla.q_lora_rank + model_.mla.kv_lora_rank) * t;
    }
    if (!model_.learned_positions) {
        kernels += 1;
        bytes += head_bytes;
    }
    if (model_.qk_norm) {
        kernels += 2;
        bytes += 2 * head_bytes;
    }
    if (dense) {
        kernels += 1;
        bytes += (model_.mlp == "plain" ? 4 : 6) * static_cast<double>(model_.intermediate) / tp_ * t;
    }
    return kernels * c_.et0 + bytes / (bandwidth_ * c_.eeb);
}

double PhysicsModel::mlp(double t) const {
    const double width = static_cast<double>(model_.intermediate) / tp_;
    return gemm(t, (model_.mlp == "plain" ? 1 : 2) * width, hidden_, linear_) + gemm(t, hidden_, width, linear_);
}

double PhysicsModel::experts(double t) const {
    const auto e = static_cast<double>(model_.moe.experts);
    const auto k = static_cast<double>(model_.moe.top_k);
    // A slice of every expert, or whole experts and the tokens routed to them.
    const double slices = whole_experts_ ? 1 : expert_ranks_;
    const double sharers = whole_experts_ ? expert_ranks_ : 1;
    const double width = static_cast<double>(model_.moe.intermediate) / slices;
    const double all = t * data_ranks_;
    const double touched = e * (1 - std::pow(1 - k / e, all)) / sharers;
    const double pairs = all * k / sharers;
    const double bytes = touched * 3 * hidden_ * width * experts_.weight_bytes + 2 * pairs * (2 * hidden_ + 3 * width);
    double us =
        c_.mt0 / expert_speed_ + p_norm(bytes / (bandwidth_ * c_.meb * expert_speed_),
                                        6 * pairs * hidden_ * width / (experts_.flop_us * c_.mef * expert_flops_), c_.mp);
    us += gemm(t, e, hidden_, kept_);
    if (data_ranks_ > 1) us += 2 * (c_.ar_a + (data_ranks_ - 1) * 2 * t * hidden_ / (link_ * c_.ar_e));
    if (model_.moe.shared_intermediate > 0) {
        const double shared = static_cast<double>(model_.moe.shared_intermediate) / tp_;
        us += gemm(t, 2 * shared, hidden_, linear_) + gemm(t, hidden_, shared, linear_);
    }
    return us;
}

double PhysicsModel::all_reduce(double t) const {
    if (tp_ <= 1) return 0;
    const double bytes = 2 * t * hidden_;
    return 2 * (c_.ar_a + c_.ar_a2 * (tp_ - 2) + 2 * (tp_ - 1) / tp_ * bytes / (link_ * c_.ar_e));
}

std::int64_t PhysicsModel::padded(std::int64_t tokens) const {
    if (options_.enforce_eager) return tokens;
    if (options_.capture_sizes.empty()) return padded_tokens(tokens);
    const auto at = std::lower_bound(options_.capture_sizes.begin(), options_.capture_sizes.end(), tokens);
    return at == options_.capture_sizes.end() ? tokens : *at;
}

/// The table's value for `count`, computed when it is first asked for.
template <class Compute>
double PhysicsModel::once(std::vector<double> MixedParts::*part, std::int64_t count, const Compute& compute) const {
    constexpr std::size_t most = 16385;
    const auto i = static_cast<std::size_t>(count);
    if (i >= most) return compute();
    if (i >= parts_.known) parts_.grow(std::min(most, std::max<std::size_t>(2 * i, 64)));
    if (std::isnan((parts_.*part)[i])) {
        const double value = compute();  // may lengthen the parts
        (parts_.*part)[i] = value;
    }
    return (parts_.*part)[i];
}

double PhysicsModel::token_kernels(std::int64_t tokens) const {
    return once(&MixedParts::kernels, tokens, [&] {
        const std::int64_t size = padded(tokens);
        return size == tokens ? padded_kernels(static_cast<double>(size)) : token_kernels(size);
    });
}

double PhysicsModel::padded_kernels(double t) const {
    double us = 0;
    for (const Mixer& m : mixers_) us += m.layers * (projections(m, t) + all_reduce(t));
    if (dense_layers_ > 0) us += dense_layers_ * (elementwise(t, true) + mlp(t));
    if (moe_layers_ > 0) us += moe_layers_ * (elementwise(t, false) + experts(t));
    if (options_.enforce_eager) {
        // About 11 kernels a layer and rank; whichever is slower, launching or running them.
        us = std::max(us, options_.eager_launch.ns / 1e3 * 11 * layers_);
    }
    return us;
}

double PhysicsModel::head(std::int64_t sampled) const {
    return once(&MixedParts::head, sampled, [&] {
        const auto n = static_cast<double>(sampled);
        return gemm(n, vocab_, hidden_, kept_) + c_.s0 + c_.s1 * n;
    });
}

double PhysicsModel::decode_context(const Mixer& mixer, const StepShape& shape) const {
    if (mixer.window.window == 0 || shape.decode_rows == 0) return static_cast<double>(shape.decode_context);
    for (const WindowContext& window : shape.windows) {
        if (window.window == mixer.window.window && window.chunked == mixer.window.chunked) {
            return static_cast<double>(window.context);
        }
    }
    const std::int64_t mean = std::max<std::int64_t>(1, shape.decode_context / shape.decode_rows);
    return static_cast<double>(shape.decode_rows * mixer.window.attended(mean));
}

/// What a chunk's tokens attend to in the mean, half a token less, as c + s/2 has it.
double PhysicsModel::chunk_context(const Mixer& mixer, const PrefillChunk& chunk) {
    if (mixer.window.window == 0 || chunk.context_before + chunk.new_tokens <= mixer.window.window) {
        return MixedParts::whole_context(chunk);
    }
    const auto s = static_cast<double>(chunk.new_tokens);
    const auto c = static_cast<double>(chunk.context_before);
    const auto w = static_cast<double>(mixer.window.window);
    if (mixer.window.chunked) {
        const auto below = [w](double n) {  // of tokens 0 .. n - 1
            const double whole = std::floor(n / w);
            const double rest = n - whole * w;
            return (whole * w * w + rest * rest) / 2;
        };
        return (below(c + s) - below(c)) / s;
    }
    const double growing = std::max(0.0, w - c);  // tokens that still see everything
    return (growing * (c + growing / 2) + (s - growing) * w) / s;
}

double PhysicsModel::decode_base(std::int64_t rows, std::int64_t sampled) const {
    const auto n = static_cast<double>(rows);
    double attention = 0;
    for (const Mixer& m : mixers_) {
        if (m.kind == Mixer::Kind::none) continue;
        attention += m.layers * (c_.at0 + c_.tb * n * m.kv_heads / c_.sm_count + n * m.sequence_us);
    }
    return (token_kernels(rows) + attention + head(sampled) + parts_.between_us(rows)) * 1e3;
}

double PhysicsModel::mixed_attention(const Mixer& mixer, const StepShape& shape) const {
    if (mixer.kind == Mixer::Kind::none) return 0;
    if (mixer.kind == Mixer::Kind::state) {
        return c_.at0 + static_cast<double>(shape.sequences) * mixer.sequence_us +
               static_cast<double>(shape.tokens) * mixer.token_flop / attention_flops_;
    }
    double us = c_.at0 + mixer.mixed_context_us * decode_context(mixer, shape);
    const bool indexed = mixer.index_flop > 0;  // else what is added for it is 0
    if (indexed) us += mixer.index_us * static_cast<double>(shape.decode_context);
    std::int64_t longest = 0;
    for (const PrefillChunk& chunk : shape.chunks) {
        us += parts_.chunk_us(chunk.new_tokens, chunk_context(mixer, chunk), mixer.chunk_flop);
        if (indexed) {
            us +=
                static_cast<double>(chunk.new_tokens) * MixedParts::whole_context(chunk) * mixer.index_flop / attention_flops_;
        }
        longest = std::max(longest, chunk.new_tokens);
    }
    return us + parts_.rows_us(shape.sequences, longest);
}

SimDuration PhysicsModel::duration(const StepShape& shape) const {
    if (shape.chunks.empty()) {
        double ns = decode_base(shape.decode_rows, shape.sampled);
        if (!windowed_) return round_step(ns + context_ns() * static_cast<double>(shape.decode_context));
        const auto whole = static_cast<double>(shape.decode_context);
        for (const Mixer& m : mixers_) {
            ns += m.layers * 1e3 * (m.context_us * decode_context(m, shape) + m.index_us * whole);
        }
        return round_step(ns);
    }
    double us = token_kernels(shape.tokens);
    for (const Mixer& m : mixers_) us += m.layers * mixed_attention(m, shape);
    us = us + head(shape.sampled) + parts_.between_us(shape.sequences);
    if (uniform_) remember_prompts(shape);
    return round_step(us * 1e3);
}

void PhysicsModel::remember_prompts(const StepShape& shape) const {
    for (const PrefillChunk& chunk : shape.chunks) {
        if (chunk.context_before > 0) continue;
        const double context = MixedParts::whole_context(chunk);
        once(&MixedParts::prompts, chunk.new_tokens,
             [&] { return parts_.chunk_us(chunk.new_tokens, context, parts_.chunk_flop); });
    }
}

std::optional<DecodeLine> PhysicsModel::decode_line(std::int64_t rows) const {
    if (windowed_) return std::nullopt;
    return DecodeLine{decode_base(rows, rows), context_ns()};
}

/// Per context token of a decode-only step without windows.
double PhysicsModel::context_ns() const {
    double ns = 0;
    for (const Mixer& m : mixers_) ns += m.layers * m.context_us * 1e3;
    return ns;
}

}  // namespace kvsim
