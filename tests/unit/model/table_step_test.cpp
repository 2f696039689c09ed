// The table model against profiles small enough to do by hand.

#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>

#include "kvsim/base/check.hpp"
#include "model_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

struct Profile {
    std::filesystem::path folder = std::filesystem::temp_directory_path() / ("kvsim_profile_" + std::to_string(::getpid()));
    Profile() {
        std::filesystem::create_directories(folder);
        write("dense.csv",
              "layer,tokens,time_us\nembedding,1,2\nembedding,1001,2\nlayernorm,1,1\nlayernorm,1001,1\nqkv_proj,1,10\n"
              "qkv_proj,1001,110\nrotary_emb,1,1\no_proj,1,5\no_proj,1001,5\ngate_up_proj,1,20\ngate_up_proj,1001,20\n"
              "act_fn,1,3\nact_fn,1001,3\ndown_proj,1,7\ndown_proj,1001,7\nfinal_layernorm,1,4\nfinal_layernorm,1001,4\n"
              "rotary_emb,1001,1\n");
        write("per_sequence.csv", "layer,sequences,time_us\nlm_head,1,100\nlm_head,5,140\nsampler,1,10\nsampler,5,10\n");
        write("attention.csv",
              "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,8\n0,0,1,1016,18\n0,0,3,16,10\n0,0,3,1016,40\n"
              "16,0,0,0,12\n1016,0,0,0,112\n16,0,1,16,20\n16,0,1,1016,30\n1016,0,1,16,120\n1016,0,1,1016,130\n");
    }
    ~Profile() { std::filesystem::remove_all(folder); }
    void write(const std::string& name, const std::string& text) const { std::ofstream(folder / name) << text; }
};

std::unique_ptr<StepTimeModel> make(const Profile& p, const std::string& more, config::Diagnostics& diagnostics) {
    Deployment d;
    d.catalog = catalog();
    d.model = model("Llama-3.1-8B");
    d.gpu = gpu("H100");
    d.engine.async_scheduling = true;
    config::Choice choice;
    choice.name = "table";
    choice.params = yaml("{model: table, path: " + p.folder.string() + more + "}");
    return make_step_time(choice, d, diagnostics);
}

double us(const StepTimeModel& m, const StepShape& shape) {
    return static_cast<double>(m.duration(shape).count()) / 1e3;
}

StepShape decode(std::int64_t rows, std::int64_t context) {
    StepShape s;
    s.tokens = s.sequences = s.sampled = s.decode_rows = rows;
    s.decode_context = context;
    return s;
}

}  // namespace

TEST_CASE("table: a decode step is the plain sum of its interpolated layers") {
    const Profile p;
    config::Diagnostics diagnostics;
    const auto m = make(p, "", diagnostics);
    REQUIRE(m);
    // 2 rows at a mean context of 516: between n = 1 (13) and n = 3 (25). Tokens 2.
    const double layer = 2 * 1 + (10 + 0.1) + 1 + 5 + 20 + 3 + 7 + (13 + 25) / 2.0;
    CHECK(us(*m, decode(2, 1032)) == doctest::Approx(2 + 4 + 32 * layer + 110 + 10).epsilon(1e-9));
    // A context below the first point costs what that costs.
    CHECK(us(*m, decode(1, 2)) == us(*m, decode(1, 16)));
}

TEST_CASE("table: a mixed step, and a second chunk adds what it costs beyond the smallest kernel") {
    const Profile p;
    config::Diagnostics diagnostics;
    const auto m = make(p, "", diagnostics);
    REQUIRE(m);
    std::array<PrefillChunk, 2> chunks{{{516, 0}, {316, 0}}};
    StepShape s = decode(1, 516);
    s.chunks = {chunks.data(), 1};
    s.tokens = 517;
    s.sequences = 2;
    s.sampled = 1;
    const auto dense = [](double t) { return 2 * 1 + 10 + 0.1 * (t - 1) + 1 + 5 + 20 + 3 + 7; };
    // chunk 516: half-way between 16 (25 at context 516) and 1016 (125).
    CHECK(us(*m, s) == doctest::Approx(6 + 32 * (dense(517) + 75) + 110).epsilon(1e-9));
    s.chunks = chunks;
    s.tokens = 833;
    s.sequences = 3;
    CHECK(us(*m, s) == doctest::Approx(6 + 32 * (dense(833) + 75 + (12 + 30 - 8)) + 110).epsilon(1e-9));
}

TEST_CASE("table: outside the grid is an error that says where, or a straight line when asked") {
    const Profile p;
    config::Diagnostics diagnostics;
    const auto strict = make(p, "", diagnostics);
    const auto free = make(p, ", extrapolate: true", diagnostics);
    REQUIRE(strict);
    REQUIRE(free);
    try {
        static_cast<void>(strict->duration(decode(2, 4000)));
        FAIL("a context of 2000 is outside");
    } catch (const UserError& e) {
        const std::string message = e.what();
        CHECK(message.find("kv_decode 2000 is outside the profile's 16 to 1016") != std::string::npos);
        CHECK(message.find("attention.csv") != std::string::npos);
        CHECK(message.find("extrapolate") != std::string::npos);
    }
    CHECK_THROWS_AS(static_cast<void>(strict->duration(decode(4, 400))), UserError);  // n_decode
    const double layer = 2 * 1 + (10 + 0.1 * 0) + 1 + 5 + 20 + 3 + 7 + 28;            // 8 + 10 * 2000 / 1000
    CHECK(free->notes().empty());
    CHECK(us(*free, decode(1, 2016)) == doctest::Approx(6 + 32 * layer + 110).epsilon(1e-9));
    REQUIRE(free->notes().size() == 1);
    CHECK(free->notes().front() == "extrapolated beyond the profile: kv_decode up to 2016, profiled up to 1016");
}

TEST_CASE("table: uneven contexts lie between the mean's time and the longest's by alpha") {
    const Profile p;
    p.write("skew_fit.csv",
            "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples\n0,n<=2,sr<=40%,kvB<=1k,kp=0,0.5,4\n"
            "0,n<=2,sr>70%,kvB<=1k,kp=0,0.25,4\n0,n<=4,sr>70%,kvB<=4k,kp=0,0.1,4\n");
    config::Diagnostics diagnostics;
    const auto m = make(p, "", diagnostics);
    const auto plain = make(p, ", skew: false", diagnostics);
    REQUIRE(m);
    REQUIRE(plain);
    CHECK(m->needs_context_range());
    CHECK_FALSE(plain->needs_context_range());
    StepShape s = decode(2, 1032);
    s.shortest_context = 416;
    s.longest_context = 816;  // (516 - 416) / 400 = 25 %: the first bucket
    const double at_mean = (13 + 25) / 2.0;
    const double at_longest = (16 + 34) / 2.0;
    CHECK(us(*m, s) - us(*plain, s) == doctest::Approx(32 * 0.5 * (at_longest - at_mean)).epsilon(1e-3));
    s.shortest_context = s.longest_context = 516;
    CHECK(us(*m, s) == us(*plain, s));
}

TEST_CASE("table: experts by tokens and experts touched, and all-reduces when tensor parallel") {
    const Profile p;
    // time = 10 + tokens / 10 + 2 touched
    p.write("moe.csv", "tokens,activated_experts,time_us\n1,1,12.1\n1,8,26.1\n1001,1,112.1\n1001,8,126.1\n");
    Deployment d;
    d.catalog = catalog();
    d.model = model("mistralai/Mixtral-8x7B-Instruct-v0.1");
    d.gpu = gpu("H100");
    d.engine.async_scheduling = true;
    const auto with = [&](std::int64_t tp) {
        d.tensor_parallel_size = tp;
        config::Choice choice;
        choice.name = "table";
        choice.params = yaml("{model: table, path: " + p.folder.string() + "}");
        config::Diagnostics diagnostics;
        auto m = make_step_time(choice, d, diagnostics);
        for (const std::string& error : diagnostics.errors()) FAIL_CHECK(error);
        REQUIRE(m);
        return us(*m, decode(2, 1032));
    };
    const double touched = 8 * (1 - std::pow(0.75, 2));
    const double layer = 2 * 1 + 10.1 + 1 + 5 + (13 + 25) / 2.0 + (10 + 0.2 + 2 * touched);
    CHECK(with(1) == doctest::Approx(6 + 32 * layer + 120).epsilon(1e-9));
    // The constants of H100: 4.384 us, 2 (tp - 2) 0.191, 450 GB/s at 0.307.
    const double reduce = 4.384 + 0.191 * 2 + 2 * 0.75 * (2 * 2 * 4096.0) / (450e3 * 0.307);
    CHECK(with(4) - with(1) == doctest::Approx(32 * 2 * reduce).epsilon(1e-4));
}

TEST_CASE("table: what is wrong with a profile") {
    const auto refusal = [](const Profile& p) {
        config::Diagnostics diagnostics;
        CHECK(make(p, "", diagnostics) == nullptr);
        REQUIRE_FALSE(diagnostics.ok());
        return diagnostics.errors().front();
    };
    Profile p;
    p.write("attention.csv", "prefill_chunk,kv_prefill,n_decode,time_us\n0,0,1,8\n");
    CHECK(refusal(p).find("column 'kv_decode' is missing") != std::string::npos);
    p.write("attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,1,16,fast\n");
    CHECK(refusal(p).find("no number") != std::string::npos);
    std::filesystem::remove(p.folder / "per_sequence.csv");
    CHECK(refusal(p).find("per_sequence.csv") != std::string::npos);
}
