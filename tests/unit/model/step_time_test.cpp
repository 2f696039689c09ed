#include <array>
#include <cmath>
#include <numeric>

#include "kvsim/engine/decode_prices.hpp"
#include "kvsim/model/mixed_parts.hpp"
#include "model_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

Deployment deployment(const ModelSpec& m, const std::string& card, std::int64_t tp = 1) {
    Deployment d;
    d.catalog = catalog();
    d.model = m;
    d.gpu = gpu(card);
    d.tensor_parallel_size = tp;
    return d;
}
Deployment deployment(const std::string& name, const std::string& card, std::int64_t tp = 1) {
    return deployment(model(name), card, tp);
}

std::unique_ptr<StepTimeModel> make(const std::string& name, const Deployment& d, const std::string& params = "") {
    config::Diagnostics diagnostics;
    config::Choice choice;
    choice.name = name;
    if (!params.empty()) choice.params = yaml(params);
    auto made = make_step_time(choice, d, diagnostics);
    for (const std::string& error : diagnostics.errors()) FAIL_CHECK(error);
    REQUIRE(made);
    return made;
}

std::vector<std::string> refusal(const std::string& name, const Deployment& d, const std::string& params = "") {
    config::Diagnostics diagnostics;
    config::Choice choice;
    choice.name = name;
    if (!params.empty()) choice.params = yaml(params);
    CHECK(make_step_time(choice, d, diagnostics) == nullptr);
    REQUIRE_FALSE(diagnostics.ok());
    return diagnostics.errors();
}

StepShape decode(std::int64_t rows, std::int64_t context) {
    return {.tokens = rows, .sequences = rows, .sampled = rows, .decode_rows = rows, .decode_context = context, .chunks = {}};
}

StepShape mixed(std::span<const PrefillChunk> chunks, std::int64_t rows, std::int64_t context, std::int64_t sampled) {
    StepShape shape = decode(rows, context);
    for (const PrefillChunk& chunk : chunks) shape.tokens += chunk.new_tokens;
    shape.sequences += static_cast<std::int64_t>(chunks.size());
    shape.sampled = sampled;
    shape.chunks = chunks;
    return shape;
}

double us(const StepTimeModel& model, const StepShape& shape) {
    return static_cast<double>(model.duration(shape).count()) / 1e3;
}

double norm(double a, double b, double p) {
    return std::pow(std::pow(a, p) + std::pow(b, p), 1 / p);
}

/// The H100 row and Llama-2-7B's shape (plain multi-head attention), written out once more.
struct H100 {
    double eb = .863, ef = .8, t0 = 3.893, p = 2.751, et0 = 2.3, eeb = 1, at0 = 9.77, eb_d = .915, tb = 2.236, dl = 413.984,
           ef_a = .739, w_a = .717, R = 64, te = .3, s0 = 20, s1 = .7, ar_a = 4.384, ar_a2 = .191, ar_e = .307, mt0 = 27.204,
           meb = .819, mef = .537, mp = 1.501;
    double B = 3350e3, F = 989e6, Lk = 450e3, SM = 132;
    [[nodiscard]] double gemm(double m, double n, double k, double w = 2, double factor = 1) const {
        return t0 + norm((w * n * k + 2 * m * (n + k)) / (B * eb), 2 * m * n * k / (F * factor * ef), p);
    }
    [[nodiscard]] double elementwise(double bytes, double kernels) const { return kernels * et0 + bytes / (B * eeb); }
};

/// A small deterministic sequence of integers for shapes.
struct Sequence {
    std::uint64_t state = 12345;
    std::int64_t next(std::int64_t low, std::int64_t high) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        return low + static_cast<std::int64_t>((state >> 33) % static_cast<std::uint64_t>(high - low + 1));
    }
};

}  // namespace

TEST_CASE("round_step rounds half up, once, and never below 1 ns") {
    CHECK(round_step(0).count() == 1);
    CHECK(round_step(1.49).count() == 1);
    CHECK(round_step(2.5).count() == 3);
    CHECK(round_step(1e300) == end_of_time.time_since_epoch());
    CHECK(round_step(std::nan("")) == end_of_time.time_since_epoch());
}

TEST_CASE("constant and affine") {
    const Deployment none;
    const auto constant = make("constant", none, "{model: constant, step: 10ms}");
    CHECK(constant->duration(decode(7, 900)) == std::chrono::milliseconds(10));
    CHECK(constant->default_api() == SimDuration::zero());
    const auto affine =
        make("affine", none, "{model: affine, c0: 5ms, per_token: 20us, per_sequence: 1us, per_context_token: 0.02us}");
    CHECK(affine->duration(decode(3, 1000)).count() == 5'000'000 + 3 * 20'000 + 3 * 1'000 + 20'000);
    const std::array<PrefillChunk, 1> chunk{{{100, 50}}};
    CHECK(affine->duration(mixed(chunk, 3, 1000, 4)).count() == 5'000'000 + 103 * 20'000 + 4 * 1'000 + 1150 * 20);

    CHECK(refusal("constant", none, "{model: constant}")[0].find("step") != std::string::npos);
    CHECK(refusal("constant", none, "{model: constant, step: 10}").size() == 1);
    CHECK(refusal("constant", none).size() == 1);
    CHECK(refusal("affine", none, "{model: affine, c1: 5ms}").size() == 1);
    CHECK(refusal("affine", none, "{model: affine}").size() == 1);
    CHECK(refusal("table", none)[0].find("needs its folder") != std::string::npos);
    CHECK(refusal("rooflin", none)[0].find("roofline") != std::string::npos);
    CHECK(refusal("fitted", none).size() == 2);
    CHECK(refusal("fitted", deployment("Llama-3.1-8B", "MI300X"))[0].find("roofline") != std::string::npos);
    CHECK(refusal("fitted", deployment("Llama-3.1-8B", "H100"), "{model: fitted, api: 8ms}").size() == 1);
}

TEST_CASE("decode step of a dense model, by hand") {
    const auto m = make("fitted", deployment("Llama-2-7b-hf", "H100"));
    const H100 g;
    const double n = 6, T = 8, h = 4096, d = 128, H = 32, i = 11008, S = 3000;
    const double layer = g.gemm(T, 3 * H * d, h) + g.gemm(T, h, H * d) + g.gemm(T, 2 * i, h) + g.gemm(T, h, i) +
                         g.elementwise(2 * 8 * h * T + 4 * 2 * H * d * T + 6 * i * T, 4) + g.at0 +
                         4 * H * d * S / (g.B * g.eb_d) + g.tb * n * H / g.SM;
    const double step = 32 * layer + g.gemm(n, 32000, h) + g.s0 + g.s1 * n;
    CHECK(us(*m, decode(6, 3000)) == doctest::Approx(step).epsilon(1e-6));
    CHECK(m->default_api() == std::chrono::milliseconds(8));
    CHECK(m->describe().find("h100") != std::string::npos);

    Deployment synchronous = deployment("Llama-2-7b-hf", "H100");
    synchronous.engine.async_scheduling = false;
    CHECK(us(*make("fitted", synchronous), decode(6, 3000)) == doctest::Approx(step + 1000 + 22 * n).epsilon(1e-6));
}

TEST_CASE("mixed step of a dense model, by hand") {
    const auto m = make("fitted", deployment("Llama-3.1-8B", "H100"));
    const H100 g;
    const double h = 4096, d = 128, H = 32, G = 8, i = 14336, S = 9000;
    const std::array<PrefillChunk, 2> chunks{{{600, 100}, {20, 0}}};
    const double T = 600 + 20 + 5;  // above 512: not padded
    const double n = 7;
    const auto chunk = [&](double s, double c) {
        const double fill = std::min(1.0, H * std::ceil(s / 128) / g.SM);
        return 4 * H * d * s * (c + s / 2 + g.dl) / (g.F * g.ef_a) / std::pow(fill, g.w_a);
    };
    const double attention = g.at0 + chunk(600, 100) + chunk(20, 0) +
                             norm(4 * G * d * S / (g.B * g.eb_d), 4 * g.R * G * d * S / (g.F * g.ef_a), 2) +
                             g.te * n * H * 5 / g.SM;
    const double layer = g.gemm(T, (H + 2 * G) * d, h) + g.gemm(T, h, H * d) + g.gemm(T, 2 * i, h) + g.gemm(T, h, i) +
                         g.elementwise(2 * 8 * h * T + 4 * (H + G) * d * T + 6 * i * T, 4) + attention;
    const double step = 32 * layer + g.gemm(6, 128256, h) + g.s0 + g.s1 * 6;
    CHECK(us(*m, mixed(chunks, 5, 9000, 6)) == doctest::Approx(step).epsilon(1e-6));
}

TEST_CASE("tensor parallelism: dimensions per GPU and two all-reduces a layer") {
    const auto m = make("fitted", deployment("Llama-2-7b-hf", "H100", 4));
    const H100 g;
    const double n = 6, T = 8, h = 4096, d = 128, H = 8, i = 2752, S = 3000;
    const double reduce = g.ar_a + g.ar_a2 * 2 + 2 * 3.0 / 4 * (2 * T * h) / (g.Lk * g.ar_e);
    const double layer = g.gemm(T, 3 * H * d, h) + g.gemm(T, h, H * d) + g.gemm(T, 2 * i, h) + g.gemm(T, h, i) +
                         g.elementwise(2 * 8 * h * T + 4 * 2 * H * d * T + 6 * i * T, 4) + g.at0 +
                         4 * H * d * S / (g.B * g.eb_d) + g.tb * n * H / g.SM + 2 * reduce;
    CHECK(us(*m, decode(6, 3000)) == doctest::Approx(32 * layer + g.gemm(n, 8000, h) + g.s0 + g.s1 * n).epsilon(1e-6));
}

TEST_CASE("experts, shared experts, qk-norm and fp8, by hand") {
    ModelSpec spec = model("Qwen/Qwen3-30B-A3B");
    spec.moe.shared_intermediate = 1024;
    spec.moe.first_dense_layers = 1;
    spec.dtype = "fp8";
    Deployment dep = deployment(spec, "H100");
    dep.kv_element_bytes = 1;
    const auto m = make("fitted", dep);
    const H100 g;
    const double f = 1.5;  // the assumed fp8 factor
    const double n = 30, T = 32, h = 2048, d = 128, H = 32, G = 4, i = 768, E = 128, k = 8, S = 50000;
    const double touched = E * (1 - std::pow(1 - k / E, T));
    const double experts =
        g.mt0 +
        norm((touched * 3 * h * i + 2 * T * k * (2 * h + 3 * i)) / (g.B * g.meb), 6 * T * k * h * i / (g.F * f * g.mef), g.mp) +
        g.gemm(T, E, h) + g.gemm(T, 2048, h, 1, f) + g.gemm(T, h, 1024, 1, f);
    const double attention = g.at0 + 2 * G * d * S / (g.B * g.eb_d) + g.tb * n * G / g.SM;
    const double common = g.gemm(T, (H + 2 * G) * d, h, 1, f) + g.gemm(T, h, H * d, 1, f) + attention;
    const double norms = 2 * 8 * h * T + 3 * 4 * (H + G) * d * T;
    const double sparse = common + g.elementwise(norms, 5) + experts;
    const double dense =
        common + g.elementwise(norms + 6 * 6144 * T, 6) + g.gemm(T, 2 * 6144, h, 1, f) + g.gemm(T, h, 6144, 1, f);
    const double step = 47 * sparse + dense + g.gemm(n, 151936, h) + g.s0 + g.s1 * n;
    CHECK(us(*m, decode(30, 50000)) == doctest::Approx(step).epsilon(1e-6));
}

TEST_CASE("expert parallelism and experts shared by data-parallel ranks, by hand") {
    const H100 g;
    const double T = 32, h = 4096, i = 14336, E = 8, k = 2;  // Mixtral
    const auto kernel = [&](double bytes, double flop) {
        return g.mt0 + norm(bytes / (g.B * g.meb), flop / (g.F * g.mef), g.mp);
    };
    const auto cost = [&](std::int64_t tp, std::int64_t dp, bool whole) {
        Deployment d = deployment("mistralai/Mixtral-8x7B-Instruct-v0.1", "H100", tp);
        d.data_parallel_size = dp;
        d.memory.enable_expert_parallel = whole;
        return us(*make("fitted", d), decode(32, 32000));
    };
    const auto touched = [&](double t) { return E * (1 - std::pow(1 - k / E, t)); };
    const double slice = kernel(touched(T) * 3 * h * i / 4 * 2 + 2 * T * k * (2 * h + 3 * i / 4), 6 * T * k * h * i / 4);
    const double whole = kernel(touched(T) / 4 * 3 * h * i * 2 + 2 * T * k / 4 * (2 * h + 3 * i), 6 * T * k / 4 * h * i);
    CHECK(cost(4, 1, true) - cost(4, 1, false) == doctest::Approx(32 * (whole - slice)).epsilon(1e-3));
    // Two data-parallel ranks of TP 2: as many experts a rank, twice the tokens, gathered and scattered.
    const double t = 2 * T;
    const double gather = 2 * (g.ar_a + 2 * T * h / (g.Lk * g.ar_e));
    const double alone = kernel(touched(T) * 3 * h * i / 2 * 2 + 2 * T * k * (2 * h + 3 * i / 2), 6 * T * k * h * i / 2);
    const double shared = kernel(touched(t) * 3 * h * i / 4 * 2 + 2 * t * k * (2 * h + 3 * i / 4), 6 * t * k * h * i / 4);
    CHECK(cost(2, 2, false) - cost(2, 1, false) == doctest::Approx(32 * (shared + gather - alone)).epsilon(1e-3));
    const double both = kernel(touched(t) / 4 * 3 * h * i * 2 + 2 * t * k / 4 * (2 * h + 3 * i), 6 * t * k / 4 * h * i);
    CHECK(cost(2, 2, true) - cost(2, 2, false) == doctest::Approx(32 * (both - shared)).epsilon(1e-3));
}

TEST_CASE("4-bit experts are slower where the card has no fp4 units") {
    const ModelSpec four_bit = model("openai/gpt-oss-120b");
    ModelSpec plain = four_bit;
    plain.dtype = "bfloat16";
    const auto h200 = make("fitted", deployment(four_bit, "H200"));
    CHECK(h200->describe().find("4-bit experts") != std::string::npos);
    CHECK(make("fitted", deployment(four_bit, "H100"))->describe().find("assumed as on H200") != std::string::npos);
    CHECK(make("fitted", deployment(four_bit, "B200"))->describe().find("4-bit experts") == std::string::npos);
    CHECK(make("fitted", deployment(plain, "H200"))->describe().find("4-bit experts") == std::string::npos);
    // Never slower than the same weights unpacked, where reading them decides.
    const auto unpacked = make("fitted", deployment(plain, "H200"));
    CHECK(us(*h200, decode(64, 64000)) < us(*unpacked, decode(64, 64000)));
    // Where computing decides they are: unpacking takes the multipliers' time.
    const std::array<PrefillChunk, 1> prompt{{{8192, 0}}};
    CHECK(us(*h200, mixed(prompt, 0, 0, 1)) > 1.5 * us(*unpacked, mixed(prompt, 0, 0, 1)));
}

TEST_CASE("link_scale scales what all-reduces cost and nothing else") {
    const Deployment d = deployment("Llama-2-7b-hf", "H100", 4);
    const H100 g;
    const double reduce = g.ar_a + g.ar_a2 * 2 + 2 * 3.0 / 4 * (2 * 8 * 4096.0) / (g.Lk * g.ar_e);
    CHECK(us(*make("fitted", d), decode(6, 3000)) - us(*make("fitted", d, "{model: fitted, link_scale: 2}"), decode(6, 3000)) ==
          doctest::Approx(32 * 2 * reduce / 2).epsilon(1e-3));
    const Deployment one = deployment("Llama-2-7b-hf", "H100");
    CHECK(make("fitted", one)->duration(decode(6, 3000)) ==
          make("fitted", one, "{model: fitted, link_scale: 2}")->duration(decode(6, 3000)));
}

TEST_CASE("capture sizes pad, eager mode does not and pays for its launches") {
    const Deployment d = deployment("Llama-2-7b-hf", "H100");
    const H100 g;
    const auto tokens = [&](double T) {
        const double h = 4096, H = 32, d2 = 128, i = 11008;
        return 32 * (g.gemm(T, 3 * H * d2, h) + g.gemm(T, h, H * d2) + g.gemm(T, 2 * i, h) + g.gemm(T, h, i) +
                     g.elementwise(2 * 8 * h * T + 4 * 2 * H * d2 * T + 6 * i * T, 4));
    };
    const double usual = us(*make("fitted", d), decode(70, 70000));  // padded to 72
    const std::string sizes = "{model: fitted, cudagraph_capture_sizes: [64, 1, 100]}";
    CHECK(us(*make("fitted", d, sizes), decode(70, 70000)) - usual == doctest::Approx(tokens(100) - tokens(72)).epsilon(1e-3));
    CHECK(us(*make("fitted", d, sizes), decode(101, 0)) ==
          us(*make("fitted", d, "{model: fitted, enforce_eager: true, eager_launch: 0us}"), decode(101, 0)));
    CHECK(us(*make("fitted", d, "{model: fitted, enforce_eager: true, eager_launch: 0us}"), decode(70, 70000)) - usual ==
          doctest::Approx(tokens(70) - tokens(72)).epsilon(1e-2));
    // 11 launches a layer of 40 us: more than the kernels take.
    CHECK(us(*make("fitted", d, "{model: fitted, enforce_eager: true, eager_launch: 40us}"), decode(70, 70000)) - usual ==
          doctest::Approx(32 * 11 * 40 - tokens(72)).epsilon(1e-3));
}

TEST_CASE("pipeline stages: as many micro-batches as stages, the heaviest sets the pace, and a hop each") {
    Deployment d = deployment("Llama-2-7b-hf", "H100");
    const auto whole = make("fitted", d);
    d.pipeline_parallel_size = 4;
    const auto piped = make("fitted", d);
    const H100 g;
    const auto hops = [&](double tokens) { return 3 * (g.ar_a + 2 * 4096 * tokens / g.Lk); };
    // 32 rows: four micro-batches of 8, each through all layers while the others fill the other stages.
    CHECK(us(*piped, decode(32, 32000)) == doctest::Approx(us(*whole, decode(8, 8000)) + hops(8)).epsilon(1e-5));
    // One row fills one stage: the bubble is the other three.
    CHECK(us(*piped, decode(1, 1000)) == doctest::Approx(us(*whole, decode(1, 1000)) + hops(1)).epsilon(1e-5));
    // A long chunk goes through alone and sets the pace.
    const std::array<PrefillChunk, 1> chunk{{{2000, 0}}};
    const std::array<PrefillChunk, 1> own{{{2000, 0}}};
    CHECK(us(*piped, mixed(chunk, 3, 3000, 4)) >= us(*whole, mixed(own, 0, 0, 0)));
    CHECK(us(*piped, mixed(chunk, 3, 3000, 4)) < us(*whole, mixed(chunk, 3, 3000, 4)) + hops(2001));
}

TEST_CASE("roofline: a row that is left out takes no part in the median") {
    const Deployment d = deployment("Llama-3.1-8B", "H100");
    const auto with = make("roofline", d);
    const auto without = make("roofline", d, "{model: roofline, leave_out: h100}");
    CHECK(with->duration(decode(8, 8000)) != without->duration(decode(8, 8000)));
    CHECK(without->describe().find("but h100") != std::string::npos);
    CHECK(refusal("roofline", d, "{model: roofline, leave_out: h10}")[0].find("h100") != std::string::npos);
    CHECK(refusal("fitted", d, "{model: fitted, leave_out: h100}").size() == 1);
}

TEST_CASE("latent attention reads the latent once per token, whatever the TP") {
    const auto slope = [](std::int64_t tp) {
        return make("fitted", deployment("DeepSeek-V2-Lite", "H100", tp))->decode_line(8)->per_context_ns;
    };
    const H100 g;
    const double read = 576 * 2 / (g.B * g.eb_d);
    const double flop = 2 * 16 * (2 * 512 + 64) / (g.F * g.ef_a);
    CHECK(slope(1) == doctest::Approx(27 * 1e3 * norm(read, flop, 2)));
    CHECK(slope(16) == doctest::Approx(27 * 1e3 * norm(read, flop / 16, 2)));
    CHECK(make("fitted", deployment("DeepSeek-V2-Lite", "H100"))->describe().find("latent attention derived") !=
          std::string::npos);
}

TEST_CASE("tokens up to 512 are padded to the CUDA-graph sizes") {
    const auto m = make("fitted", deployment("Qwen/Qwen3-30B-A3B", "H100"));
    // Same padded T: only the unpadded head and the per-row terms differ, far less than the touched experts of one more token.
    const auto base = [&](std::int64_t rows) { return m->decode_line(rows)->base_ns; };
    CHECK(base(12) - base(9) < 0.2 * (base(9) - base(8)));
    CHECK(base(4) - base(3) < 0.2 * (base(5) - base(4)));
    CHECK(base(272) - base(258) < base(273) - base(272));
}

TEST_CASE("decode_line is duration() to the bit, for every GPU and model") {
    Sequence sequence;
    int checked = 0;
    for (const std::string& card : catalog().gpu_names()) {
        if (gpu(card).sm_count == 0) continue;
        for (const char* name : {"Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "DeepSeek-V3", "opt-66b", "Qwen3-32B"}) {
            const Deployment d = deployment(name, card, sequence.next(0, 1) == 0 ? 1 : 8);
            for (const char* tier : {"", "roofline"}) {
                const auto m = make(tier, d);
                for (int i = 0; i < 40; ++i) {
                    const std::int64_t rows = sequence.next(1, i < 30 ? 300 : 20000);
                    const std::int64_t context = rows * sequence.next(1, 100000);
                    const auto line = m->decode_line(rows);
                    REQUIRE(line.has_value());
                    CHECK(m->duration(decode(rows, context)) ==
                          round_step(line->base_ns + line->per_context_ns * static_cast<double>(context)));
                    ++checked;
                }
            }
        }
    }
    const Deployment none;
    const auto affine =
        make("affine", none, "{model: affine, c0: 5ms, per_token: 20.3us, per_sequence: 1.7us, per_context_token: 0.0213us}");
    for (int i = 0; i < 1000; ++i) {
        const std::int64_t rows = sequence.next(1, 5000);
        const std::int64_t context = sequence.next(1, 10'000'000);
        const auto line = affine->decode_line(rows);
        CHECK(affine->duration(decode(rows, context)) ==
              round_step(line->base_ns + line->per_context_ns * static_cast<double>(context)));
    }
    CHECK(checked >= 5000);
}

TEST_CASE("a second object, or asking in another order, gives the same durations") {
    const Deployment d = deployment("Qwen/Qwen3-30B-A3B", "H100", 2);
    const auto forward = make("fitted", d);
    const auto backward = make("fitted", d);
    std::vector<SimDuration> up;
    for (std::int64_t rows = 1; rows <= 700; rows += 3) up.push_back(forward->duration(decode(rows, rows * 100)));
    for (std::int64_t rows = 700; rows >= 1; --rows) static_cast<void>(backward->decode_line(rows));
    std::size_t at = 0;
    for (std::int64_t rows = 1; rows <= 700; rows += 3) CHECK(backward->duration(decode(rows, rows * 100)) == up[at++]);
}

namespace {

/// The price of a mixed step of a dense model in its plain form: nothing is kept from one price to the next, and every sum is
/// taken in the model's order.
struct PlainPhysics {
    ModelSpec m;
    StepTimeConstants c;
    double tp;
    double heads = static_cast<double>(m.heads) / tp;
    double kv_heads = std::max(1.0, std::floor(static_cast<double>(m.kv_heads) / tp));
    double d = static_cast<double>(m.head_dim);
    double hidden = static_cast<double>(m.hidden);
    double width = static_cast<double>(m.intermediate) / tp;
    double layers = static_cast<double>(m.layers);
    double B = c.bandwidth_gb_s * 1e3;
    double F = c.bf16_tflops * 1e6;
    bool plain = m.mlp == "plain";

    static double p_norm(double a, double b, double p) {
        const double high = std::max(a, b);
        return high * std::pow(1 + std::pow(std::min(a, b) / high, p), 1 / p);
    }
    [[nodiscard]] double gemm(double rows, double n, double k) const {
        return c.t0 + p_norm((2.0 * n * k + 2 * rows * (n + k)) / (B * c.eb), 2 * rows * n * k / (F * c.ef), c.p);
    }
    [[nodiscard]] double kernels(double t) const {
        const double bytes = 2 * t * hidden;
        const double reduce =
            tp <= 1 ? 0 : 2 * (c.ar_a + c.ar_a2 * (tp - 2) + 2 * (tp - 1) / tp * bytes / (c.link_gb_s * 1e3 * c.ar_e));
        const double projections = gemm(t, (heads + 2 * kv_heads) * d, hidden) + gemm(t, hidden, heads * d);
        double launches = 2;
        double moved = 2 * 8 * hidden * t;
        const double head_bytes = 4 * (heads + kv_heads) * d * t;
        if (!m.learned_positions) {
            launches += 1;
            moved += head_bytes;
        }
        if (m.qk_norm) {
            launches += 2;
            moved += 2 * head_bytes;
        }
        launches += 1;
        moved += (plain ? 4 : 6) * width * t;
        double us = layers * (projections + reduce);
        us += layers *
              (launches * c.et0 + moved / (B * c.eeb) + (gemm(t, (plain ? 1 : 2) * width, hidden) + gemm(t, hidden, width)));
        return us;
    }
    [[nodiscard]] double attention(const StepShape& shape) const {
        const double read = 2 * kv_heads * d * 2;
        const double rows = c.R * (c.packed_gqa == 1 ? kv_heads : heads);
        const double context_us = p_norm(read / (B * c.eb_d), 4 * rows * d / (F * c.ef_a), 2);
        double us = c.at0 + context_us * static_cast<double>(shape.decode_context);
        double most_tiles = 0;
        for (const PrefillChunk& chunk : shape.chunks) {
            const auto s = static_cast<double>(chunk.new_tokens);
            const double mean = static_cast<double>(chunk.context_before) + s / 2;
            const double tiles = std::ceil(s / 128);
            const double fill = heads * tiles / c.sm_count;
            us += s * (mean + c.dl) * (4 * heads * d) / (F * c.ef_a) / (fill < 1 ? std::pow(fill, c.w_a) : 1);
            most_tiles = std::max(most_tiles, tiles);
        }
        return us + c.te * static_cast<double>(shape.sequences) * heads * most_tiles / c.sm_count;
    }
    [[nodiscard]] SimDuration price(const StepShape& shape) const {
        const std::int64_t t = shape.tokens;
        const std::int64_t size = t <= 2 || t > 512 ? t : t <= 4 ? 4 : t <= 256 ? (t + 7) / 8 * 8 : (t + 15) / 16 * 16;
        double us = kernels(static_cast<double>(size));
        us += layers * attention(shape);
        const auto n = static_cast<double>(shape.sampled);
        const double head = gemm(n, static_cast<double>(m.vocab) / tp, hidden) + c.s0 + c.s1 * n;
        return round_step((us + head) * 1e3);
    }
};

}  // namespace

TEST_CASE("mixed steps cost what the plain form says, to the nanosecond, whatever was asked before") {
    Sequence sequence;
    for (const char* name : {"Llama-3.1-8B", "Llama-2-7b-hf", "opt-66b", "Qwen3-32B"}) {
        for (const char* card : {"H100", "A100-SXM4-80GB", "L40S"}) {
            for (const std::int64_t tp : {1, 2, 4}) {
                config::Diagnostics diagnostics;
                const auto constants = catalog().fitted_constants(gpu(card), {}, diagnostics);
                REQUIRE(constants);
                const PlainPhysics plain{model(name), *constants, static_cast<double>(tp)};
                const auto fitted = make("fitted", deployment(name, card, tp));
                int differing = 0;
                for (int i = 0; i < 400; ++i) {
                    std::vector<PrefillChunk> chunks(static_cast<std::size_t>(sequence.next(1, i % 4 == 0 ? 5 : 1)));
                    for (PrefillChunk& chunk : chunks)
                        chunk = {sequence.next(2, i % 3 == 0 ? 8192 : 300), i % 2 == 0 ? 0 : sequence.next(1, 20'000)};
                    const std::int64_t rows = sequence.next(0, 255);
                    const auto finished = sequence.next(0, static_cast<std::int64_t>(chunks.size()));
                    const StepShape shape = mixed(chunks, rows, rows * sequence.next(1, 5000), rows + finished);
                    differing += fitted->duration(shape) != plain.price(shape);
                    static_cast<void>(fitted->duration(decode(rows + 1, 100 * rows + 100)));
                }
                CAPTURE(name);
                CAPTURE(card);
                CAPTURE(tp);
                CHECK(differing == 0);
            }
        }
    }
}

TEST_CASE("prices put together from parts are those of the plain form to the bit, for every model and GPU") {
    Sequence sequence;
    std::vector<std::string> cards;
    for (const std::string& card : catalog().gpu_names()) {
        if (gpu(card).sm_count > 0) cards.push_back(card);
    }
    const std::vector<std::string> models = catalog().model_names();
    const auto any = [&](const std::vector<std::string>& of) {
        return of[static_cast<std::size_t>(sequence.next(0, static_cast<std::int64_t>(of.size()) - 1))];
    };
    int with_parts = 0, without = 0, missing = 0;
    const auto compare = [&](const std::string& name, const std::string& card) {
        CAPTURE(name);
        CAPTURE(card);
        if (!model(name).missing_shape().empty()) return;
        Deployment d = deployment(name, card, std::int64_t{1} << sequence.next(0, 3));
        d.engine.async_scheduling = sequence.next(0, 1) == 0;
        const char* const tier = sequence.next(0, 1) == 0 ? "fitted" : "roofline";
        config::Diagnostics diagnostics;
        config::Choice choice;
        choice.name = tier;
        const auto priced = make_step_time(choice, d, diagnostics);
        const auto plain = make_step_time(choice, d, diagnostics);
        if (!priced) return;  // no constants, or no link
        DecodePrices prices(*priced);
        const MixedParts* const parts = priced->mixed_parts();
        (parts ? with_parts : without) += 1;
        int differing = 0;
        for (int i = 0; i < 40; ++i) {
            const std::int64_t rows = sequence.next(0, i % 4 == 0 ? 1000 : 60);
            std::vector<PrefillChunk> chunks(static_cast<std::size_t>(sequence.next(i % 8 == 0 ? 0 : 1, i % 3 == 0 ? 5 : 1)));
            for (PrefillChunk& chunk : chunks) {
                chunk = {sequence.next(2, i % 5 == 0 ? 9000 : 700), sequence.next(0, 1) == 0 ? 0 : sequence.next(1, 20'000)};
            }
            if (rows + static_cast<std::int64_t>(chunks.size()) == 0) continue;
            const StepShape shape = mixed(chunks, rows, rows * sequence.next(1, 5000),
                                          rows + sequence.next(0, static_cast<std::int64_t>(chunks.size())));
            const SimDuration expected = plain->duration(shape);
            differing += prices.price(shape) != expected;  // the first time asked
            differing += prices.price(shape) != expected;
            differing += priced->duration(shape) != expected;
            if (!parts || chunks.empty()) continue;
            const double us = parts->us(shape);
            missing += std::isnan(us) != (shape.tokens > 16384);
            differing += !std::isnan(us) && round_step(us * 1e3) != expected;
        }
        CHECK(differing == 0);
    };
    for (const std::string& name : models) {
        for (int i = 0; i < 3; ++i) compare(name, any(cards));
    }
    for (const std::string& card : cards) compare(any(models), card);
    CHECK(missing == 0);
    CHECK(with_parts >= 50);
    CHECK(without >= 10);
}

TEST_CASE("more work never takes less time") {
    for (const char* name : {"Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "DeepSeek-V3"}) {
        for (const char* card : {"H100", "L40S", "MI300X", "A100"}) {
            const auto m = make("", deployment(name, card, 4));
            SimDuration last{};
            for (std::int64_t rows = 1; rows <= 1024; rows += 7) {
                const SimDuration now = m->duration(decode(rows, 100000));
                CHECK(now >= last);
                last = now;
            }
            last = {};
            for (std::int64_t context = 1000; context < 5'000'000; context *= 2) {
                const SimDuration now = m->duration(decode(16, context));
                CHECK(now >= last);
                last = now;
            }
            last = {};
            for (std::int64_t before = 0; before <= 65536; before += 4096) {
                const std::array<PrefillChunk, 1> chunk{{{1024, before}}};
                const SimDuration now = m->duration(mixed(chunk, 8, 8000, 9));
                CHECK(now >= last);
                last = now;
            }
            // One mixed batch is cheaper than its two halves apart.
            const std::array<PrefillChunk, 1> chunk{{{512, 0}}};
            CHECK(m->duration(mixed(chunk, 8, 8000, 9)) < m->duration(mixed(chunk, 0, 0, 1)) + m->duration(decode(8, 8000)));
        }
    }
}

TEST_CASE("a step whose decode rows are not all sampled costs no head for the others") {
    const auto m = make("fitted", deployment("Llama-3.1-8B", "H100"));
    StepShape shape = decode(8, 8000);
    const double all = us(*m, shape);
    shape.sampled = 7;
    CHECK(us(*m, shape) < all);
    CHECK(us(*m, shape) > all - 10);
}

TEST_CASE("the default model is the best tier there is") {
    CHECK(make("", deployment("Llama-3.1-8B", "H100"))->describe().find("fitted:") == 0);
    CHECK(make("", deployment("Llama-3.1-8B", "H100-PCIe"))->describe().find("same family") != std::string::npos);
    CHECK(make("", deployment("Llama-3.1-8B", "MI300X"))->describe().find("roofline:") == 0);
}

TEST_CASE("decode at low load has the magnitude of the measured H100 runs") {
    const auto data = shared_data();
    if (data.empty()) return;
    int seen = 0;
    for (const Row& row : read_csv(data / "accuracy" / "train.csv")) {
        if (row.at("dataset") != "1-inference-sim" || row.at("stage") != "0" || row.at("gpu") != "H100-SXM-80GB") continue;
        const auto known = [&](const char* key) { return !row.at(key).empty(); };
        if (!known("tpot_mean_ms") || !known("e2e_mean_ms") || !known("request_rate") || !known("output_len_mean")) continue;
        config::Diagnostics diagnostics;
        const auto spec = catalog().model(row.at("model"), {}, diagnostics);
        if (!spec || row.at("workload") == "reasoning") continue;
        const auto m = make("fitted", deployment(*spec, "H100", std::stoll(row.at("tp"))));
        const double tpot = std::stod(row.at("tpot_mean_ms"));
        // Little's law gives the rows that decode at once; contexts are half-way through the output.
        const double rows = std::stod(row.at("request_rate")) * std::stod(row.at("e2e_mean_ms")) / 1e3;
        const double context = std::stod(row.at("prompt_len_mean")) + std::stod(row.at("output_len_mean")) / 2;
        const auto n = std::max<std::int64_t>(1, std::llround(rows));
        const double predicted = us(*m, decode(n, std::llround(static_cast<double>(n) * context))) / 1e3;
        INFO(row.at("exp_id"), ": ", predicted, " ms, measured ", tpot);
        CHECK(predicted == doctest::Approx(tpot).epsilon(0.2));
        ++seen;
    }
    CHECK(seen >= 5);
}

TEST_CASE("sliding layers attend to their window: beyond it only full layers pay for context") {
    ModelSpec gemma = model("google/gemma-3-27b-it");
    ModelSpec whole = gemma;
    whole.attention = {AttentionGroup{}};
    whole.attention[0].layers = 62;
    const auto windowed = make("fitted", deployment(gemma, "H100"));
    const auto full = make("fitted", deployment(whole, "H100"));
    CHECK_FALSE(windowed->decode_line(8).has_value());
    CHECK(full->decode_line(8).has_value());
    const auto at = [](const StepTimeModel& m, std::int64_t context) {
        StepShape shape = decode(8, 8 * context);
        const std::array<WindowContext, 1> windows{WindowContext{1024, false, 8 * std::min<std::int64_t>(context, 1024)}};
        shape.windows = windows;
        return us(m, shape);
    };
    CHECK(at(*windowed, 1000) == doctest::Approx(at(*full, 1000)).epsilon(1e-9));
    const double slope = at(*full, 16384) - at(*full, 8192);
    CHECK(at(*windowed, 16384) - at(*windowed, 8192) == doctest::Approx(slope * 10 / 62).epsilon(1e-4));
    // Without sums by window the rows' mean context stands for them: the same when all are equal.
    CHECK(us(*windowed, decode(8, 8 * 5000)) == doctest::Approx(at(*windowed, 5000)).epsilon(1e-9));
    // fp8 KV halves what context costs.
    Deployment fp8 = deployment(whole, "H100");
    fp8.kv_element_bytes = 1;
    const auto half = make("fitted", fp8);
    CHECK(at(*half, 16384) - at(*half, 8192) == doctest::Approx(slope / 2).epsilon(1e-4));
}

TEST_CASE("a chunk's tokens attend to their window or to their chunk of the context") {
    // One long chunk, long enough that the occupancy term is 1; what it costs beyond a short context is pairs of tokens.
    ModelSpec shape = model("google/gemma-3-27b-it");
    const auto cost = [&shape](const std::string& kind, std::int64_t window, std::int64_t before, std::int64_t tokens) {
        shape.attention = {AttentionGroup{}};
        shape.attention[0].kind = kind;
        shape.attention[0].layers = 62;
        shape.attention[0].window = window;
        const std::array<PrefillChunk, 1> chunks{PrefillChunk{tokens, before}};
        return us(*make("fitted", deployment(shape, "H100")), mixed(chunks, 0, 0, 1));
    };
    constexpr std::int64_t n = 4096;
    const double pair = (cost("full", 0, n, n) - cost("full", 0, 0, n)) / static_cast<double>(n * n);
    // A window no longer than the context before: every token sees 1,024.
    const double none = cost("full", 0, 0, n) - pair * n * n / 2;
    CHECK(cost("sliding", 1024, 8192, n) == doctest::Approx(none + pair * n * 1024).epsilon(1e-6));
    // From an empty context the first 1,024 tokens see what there is, the rest 1,024.
    CHECK(cost("sliding", 1024, 0, n) == doctest::Approx(none + pair * (1024 * 512 + 3072 * 1024)).epsilon(1e-6));
    // A window longer than everything is full attention.
    CHECK(cost("sliding", 100'000, n, n) == doctest::Approx(cost("full", 0, n, n)).epsilon(1e-9));
    // Four chunks of 1,024: each token sees 512 in the mean.
    CHECK(cost("chunked", 1024, 8192, n) == doctest::Approx(none + pair * n * 512).epsilon(1e-6));
}

TEST_CASE("recurrent layers cost the same at every context") {
    const auto next = make("fitted", deployment("Qwen/Qwen3-Next-80B-A3B-Instruct", "H100", 2));
    ModelSpec whole = model("Qwen/Qwen3-Next-80B-A3B-Instruct");
    whole.attention = {AttentionGroup{}};
    whole.attention[0].layers = 48;
    const auto full = make("fitted", deployment(whole, "H100", 2));
    const double slope = us(*full, decode(8, 8 * 30'000)) - us(*full, decode(8, 8 * 10'000));
    CHECK(us(*next, decode(8, 8 * 30'000)) - us(*next, decode(8, 8 * 10'000)) == doctest::Approx(slope / 4).epsilon(1e-3));
    CHECK(next->decode_line(8).has_value());
}

TEST_CASE("sparse latent attention pays for 2,048 latents and an index key per context token") {
    const auto sparse = make("fitted", deployment("deepseek-ai/DeepSeek-V3.2", "H100", 8));
    ModelSpec dense_model = model("deepseek-ai/DeepSeek-V3.2");
    dense_model.attention = {AttentionGroup{}};
    dense_model.attention[0].kind = "mla";
    dense_model.attention[0].layers = 61;
    const auto dense = make("fitted", deployment(dense_model, "H100", 8));
    const auto slope = [](const StepTimeModel& m, std::int64_t low, std::int64_t high) {
        return (us(m, decode(4, 4 * high)) - us(m, decode(4, 4 * low))) / static_cast<double>(high - low);
    };
    CHECK(slope(*sparse, 20'000, 40'000) < slope(*dense, 20'000, 40'000) / 2);
    CHECK(slope(*sparse, 20'000, 40'000) > 0);
    CHECK(slope(*sparse, 500, 1'500) > slope(*sparse, 20'000, 40'000));
}
