#include "model_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

TEST_CASE("every entry of the catalogue reads without complaint and names its source") {
    CHECK(catalog().model_names().size() >= 49);
    CHECK(catalog().gpu_names().size() >= 22);
    for (const std::string& name : catalog().model_names()) {
        const ModelSpec m = model(name);
        CHECK_MESSAGE(m.name == name, name);
        CHECK_MESSAGE(!m.source.empty(), name);
        CHECK_MESSAGE(m.max_context > 0, name);
        CHECK_MESSAGE(m.missing_shape().empty(), name);
        CHECK_MESSAGE(m.problem().empty(), m.problem());
    }
    for (const std::string& name : catalog().gpu_names()) {
        const GpuSpec g = gpu(name);
        CHECK_MESSAGE(!g.source.empty(), name);
        CHECK_MESSAGE(g.memory.count() > 10 * GiB, name);
        CHECK_MESSAGE(g.bandwidth_gb_s > 0, name);
        CHECK_MESSAGE((g.price_usd_per_hour == 0 || !g.price_source.empty()), name);
        config::Diagnostics diagnostics;
        const auto constants = catalog().fitted_constants(g, {}, diagnostics);
        CHECK_MESSAGE(diagnostics.ok(), name);
        CHECK_MESSAGE(constants.has_value() == (!g.constants.empty() || !g.constants_of_family.empty()), name);
    }
}

TEST_CASE("names match after folding, by alias, and without the organisation when unique") {
    for (const char* name : {"H100-80GB-SXM", "H100-SXM-80GB", "h100_sxm", "H100-80GB (GKE)", "H100", "h100 80gb sxm"}) {
        CHECK_MESSAGE(gpu(name).name == "H100-80GB-SXM", name);
    }
    CHECK(gpu("RTX PRO 6000").name == "RTX-PRO-6000-Server");
    CHECK(model("llama-3.1-8b-instruct").name == "meta-llama/Llama-3.1-8B-Instruct");
    CHECK(model("META_LLAMA/Llama 3.1 8B").name == "meta-llama/Llama-3.1-8B");
    config::Diagnostics diagnostics;
    CHECK_FALSE(catalog().model("Qwen/Llama-3.1-8B", {}, diagnostics).has_value());
    CHECK_FALSE(catalog().model("Llama-3.1-8C", {}, diagnostics).has_value());
    REQUIRE(diagnostics.errors().size() == 2);
    CHECK(diagnostics.errors()[1].find("did you mean 'Llama-3.1-8B'") != std::string::npos);
    CHECK_FALSE(catalog().gpu("H1000", {}, diagnostics).has_value());
    CHECK_FALSE(catalog().gpu("", {}, diagnostics).has_value());
    CHECK(diagnostics.errors().size() == 4);
    CHECK_FALSE(catalog().gpu("H101", {}, diagnostics).has_value());
    CHECK(diagnostics.errors().back().find("did you mean 'H100'?") != std::string::npos);  // an alias
}

TEST_CASE("a model named alike by two organisations is ambiguous without one") {
    const auto folder = std::filesystem::temp_directory_path() / "kvsim_catalog_test";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "models.yaml") << "a/M-7B:\n  {layers: 2, kv_heads: 1, head_dim: 8, source: x}\n"
                                             "b/m7b:\n  layers: 3\n  kv_heads: 1\n  head_dim: 8\n  colour: red\n";
    std::ofstream(folder / "gpus.yaml") << "# none\n";
    std::ofstream(folder / "step_time.yaml") << "# none\n";
    const Catalog own(folder);
    config::Diagnostics diagnostics;
    CHECK(own.model("a/m-7b", {}, diagnostics)->layers == 2);
    CHECK(diagnostics.ok());
    CHECK_FALSE(own.model("M7B", {}, diagnostics).has_value());
    REQUIRE(diagnostics.errors().size() == 1);
    CHECK(diagnostics.errors()[0].find("ambiguous: a/M-7B b/m7b") != std::string::npos);
    // The error of an entry carries the line of the file.
    CHECK_FALSE(own.model("b/m7b", {}, diagnostics).has_value());
    REQUIRE(diagnostics.errors().size() == 2);
    CHECK(diagnostics.errors()[1].find("models.yaml:7:3") != std::string::npos);
    std::filesystem::remove_all(folder);
}

TEST_CASE("memory as the engine sees it, where it is not known, nvidia-smi's less half a GiB") {
    CHECK(static_cast<double>(gpu("H100").memory.count()) / static_cast<double>(GiB) == doctest::Approx(79.18));
    CHECK(gpu("B200").memory.count() == 183359 * MiB - GiB / 2);
}

TEST_CASE("a blank constant is the median of the other rows") {
    config::Diagnostics diagnostics;
    // ef_a of the other seven rows: 0.472 0.5 0.535 0.65 0.652 0.739 0.802.
    CHECK(catalog().fitted_constants(gpu("A40"), {}, diagnostics)->ef_a == 0.65);
    // meb without rtx4090 and a40: 0.728 0.755 0.819 0.821 0.866 0.966.
    CHECK(catalog().fitted_constants(gpu("RTX-4090"), {}, diagnostics)->meb == doctest::Approx((0.819 + 0.821) / 2));
    CHECK(catalog().fitted_constants(gpu("H100"), {}, diagnostics)->eb == 0.863);
    // A family's row keeps its efficiencies and takes the card's own datasheet.
    const auto pcie = catalog().fitted_constants(gpu("H100-PCIe"), {}, diagnostics);
    CHECK(pcie->eb == 0.863);
    CHECK(pcie->bandwidth_gb_s == 2000);
    CHECK(pcie->sm_count == 114);
    CHECK_FALSE(catalog().fitted_constants(gpu("MI300X"), {}, diagnostics).has_value());
    // eb of all eight: 0.748 0.78 0.792 0.803 0.85 0.863 0.935 0.955.
    CHECK(catalog().median_constants(gpu("MI300X"), {}, diagnostics)->eb == doctest::Approx((0.803 + 0.85) / 2));
    CHECK(diagnostics.ok());
    CHECK_FALSE(catalog().median_constants(gpu("TPU-v5e"), {}, diagnostics).has_value());
    REQUIRE(diagnostics.errors().size() == 1);
    CHECK(diagnostics.errors()[0].find("sm_count") != std::string::npos);
}

TEST_CASE("models and GPUs as maps of facts") {
    config::Diagnostics diagnostics;
    const auto m = resolve_model(yaml("{layers: 32, hidden: 4096, heads: 32, kv_heads: 8}"), "", catalog(), diagnostics);
    REQUIRE(m.has_value());
    CHECK(m->head_dim == 128);
    CHECK(m->attention.size() == 1);
    CHECK(m->missing_shape() == std::vector<std::string>{"vocab", "intermediate"});
    const auto g = resolve_gpu(yaml("{name: lab card, memory: 48GiB, bandwidth_gb_s: 900}"), catalog(), diagnostics);
    REQUIRE(g.has_value());
    CHECK(g->name == "lab card");
    CHECK(g->memory.count() == 48 * GiB);
    CHECK(diagnostics.ok());

    CHECK_FALSE(resolve_model(yaml("{layers: 32, kv_heads: 8}"), "", catalog(), diagnostics).has_value());
    CHECK_FALSE(
        resolve_model(yaml("{layers: 4, heads: 6, kv_heads: 4, head_dim: 64}"), "", catalog(), diagnostics).has_value());
    CHECK_FALSE(resolve_model(yaml("{layers: 1000000, hidden: 1000000, heads: 1000000, kv_heads: 1, head_dim: 1000000}"), "",
                              catalog(), diagnostics)
                    .has_value());
    CHECK_FALSE(resolve_model(yaml("no_such/config.json"), "", catalog(), diagnostics).has_value());
    CHECK_FALSE(resolve_gpu(yaml("{memory: 48}"), catalog(), diagnostics).has_value());
    CHECK(diagnostics.errors().size() == 5);
}

TEST_CASE("the catalogue agrees with the shared table of models") {
    const auto data = shared_data();
    if (data.empty()) return;
    int plain = 0;
    int close = 0;
    for (const Row& row : read_csv(data / "models.csv")) {
        const ModelSpec m = model(row.at("hf_id"));
        const double computed = std::stod(row.at("params_total_computed_B"));
        CHECK_MESSAGE(static_cast<double>(parameter_count(m)) / 1e9 == doctest::Approx(computed).epsilon(0.003), m.name);
        const double published = std::stod(row.at("params_total_B"));
        close += std::abs(static_cast<double>(parameter_count(m)) / 1e9 / published - 1) < 0.003;
        if (m.layers_of("full") + m.layers_of("mla") < m.layers) continue;
        ++plain;
        CHECK_MESSAGE(kv_bytes_per_token(m, 1, 1, 2) == std::stoll(row.at("kv_bytes_per_token_bf16_full_layers")), m.name);
    }
    CHECK(plain == 37);
    CHECK(close >= 42);
}
