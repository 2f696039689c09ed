// SGLang's batch policy against the naive form of its rules, on random inputs of the recordings' format.

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvsim/engine/conformance.hpp"
#include "naive_sglang.hpp"
#include "unit/app/cli.hpp"

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace kvsim::oracle {
namespace {

/// SplitMix64: the same inputs everywhere.
class Dice {
public:
    explicit Dice(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ULL + 1) {}
    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31);
    }
    std::int64_t range(std::int64_t low, std::int64_t high) {
        return low + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(high - low + 1));
    }
    bool percent(std::int64_t share) { return range(0, 99) < share; }
    template <class T>
    T pick(std::initializer_list<T> of) {
        return of.begin()[range(0, static_cast<std::int64_t>(of.size()) - 1)];
    }

private:
    std::uint64_t state_;
};

/// Optimism and mixed chunks: what makes the real engine run out of memory, or retract again and again.
void overload(Dice& dice, Json& config, Json& requests) {
    config["max_total_num_tokens"] = config["page_size"].get<std::int64_t>() * dice.range(60, 90);
    config["chunked_prefill_size"] = 8;
    config["max_running_requests"] = 16;
    config["schedule_conservativeness"] = 0.0;
    config["enable_mixed_chunk"] = dice.percent(70);
    config.erase("context_len");
    std::int64_t i = 0;
    for (Json& request : requests) {
        const bool large = i % 4 == 3;
        request["prompt"] = Json::array({Json::array({7'000'000 + 1000 * i, large ? 40 : 4})});
        request["arrival_step"] = i++;
        request["output_len"] = large ? 2 : 30;
        request["max_new_tokens"] = large ? 2 : 30;
    }
}

Json random_input(std::uint64_t seed) {
    Dice dice(seed);
    const std::int64_t page = dice.pick<std::int64_t>({1, 1, 1, 2, 4, 16});
    const std::int64_t total = page * dice.pick<std::int64_t>({25, 32, 40, 64, 100, 200, 400});
    Json config{{"max_total_num_tokens", total + dice.range(0, page - 1)},
                {"page_size", page},
                {"chunked_prefill_size", nullptr},
                {"max_prefill_tokens", dice.pick<std::int64_t>({8, 32, 64, 16384})},
                {"max_running_requests", dice.pick<std::int64_t>({1, 2, 3, 8, 64})},
                {"schedule_policy", dice.pick<const char*>({"fcfs", "fcfs", "lpm", "dfs-weight", "lof"})},
                {"schedule_conservativeness", dice.pick<double>({0, 0, 0.1, 0.3, 1, 1.7})},
                {"enable_mixed_chunk", dice.percent(35)},
                {"disable_radix_cache", dice.percent(25)},
                {"overlap", dice.percent(45)}};
    if (dice.percent(75)) config["chunked_prefill_size"] = dice.pick<std::int64_t>({-1, 4, 8, 16, 40, 64, 128});
    if (dice.percent(25)) config["clip_max_new_tokens"] = dice.pick<std::int64_t>({1, 4, 10});
    if (dice.percent(25)) config["retract_decode_steps"] = dice.pick<std::int64_t>({1, 4});
    if (dice.percent(30)) config["new_token_ratio_decay_steps"] = dice.pick<std::int64_t>({3, 10});
    if (dice.percent(10)) config["context_len"] = dice.range(12, total);
    if (dice.percent(15)) config["evict"] = "shortfall";
    if (dice.percent(50)) {
        config["in_batch_check"] = dice.pick<std::int64_t>({0, 4, 8});
        config["in_batch_deprioritize"] = dice.pick<std::int64_t>({2, 4, 8});
    }
    const bool eos = dice.percent(40);
    const bool crowd = dice.percent(4);  // more than lpm sorts
    const std::int64_t count = crowd ? dice.range(129, 140) : dice.range(2, 24);
    const std::int64_t spread = dice.pick<std::int64_t>({0, 3, 20, 80});
    const std::int64_t longest = crowd ? total / 4 : total;
    const std::int64_t outputs = crowd ? 4 : dice.pick<std::int64_t>({1, 4, 12, 40});
    Json requests = Json::array();
    for (std::int64_t i = 0; i < count; ++i) {
        Json prompt = Json::array();
        std::int64_t left =
            dice.percent(3) ? dice.range(1, total + 4) : dice.range(1, std::max<std::int64_t>(2, longest / dice.range(1, 12)));
        if (dice.percent(60)) {  // shared beginnings, some in two pieces
            const std::int64_t shared = dice.range(1, left);
            const std::uint64_t family = 1000 + 5000 * static_cast<std::uint64_t>(dice.range(0, 2));
            const std::int64_t cut = dice.range(1, shared);
            prompt.push_back({family, cut});
            if (cut < shared) prompt.push_back({family + static_cast<std::uint64_t>(cut), shared - cut});
            left -= shared;
        } else if (i > 0 && dice.percent(40)) {  // a later turn of an earlier request
            const Json& before = requests.at(static_cast<std::size_t>(dice.range(0, i - 1)));
            prompt = before.at("prompt");
            prompt.push_back({before.at("output_base"), before.at("output_len")});
            left = dice.range(0, 4);
        }
        if (left > 0) prompt.push_back({5'000'000 + 10'000 * static_cast<std::uint64_t>(i), left});
        const std::int64_t length = dice.range(1, outputs);
        const bool to_the_end = eos && dice.percent(60);
        requests.push_back({{"id", std::string("r").append(std::to_string(i))},
                            {"arrival_step", dice.range(0, spread)},
                            {"prompt", prompt},
                            {"output_len", length},
                            {"max_new_tokens", to_the_end || dice.percent(40) ? length : length + dice.range(0, 20)},
                            {"output_base", 500'000'000 + 100'000 * static_cast<std::uint64_t>(i)},
                            {"ignore_eos", to_the_end}});
    }
    if (dice.percent(8)) overload(dice, config, requests);
    return {{"name", std::string("random ").append(std::to_string(seed))},
            {"config", config},
            {"requests", requests},
            {"max_steps", 600}};
}

class Replays {
public:
    /// Empty: the policy's record is this one.
    std::string difference(const Json& input, const std::vector<Json>& lines) {
        const fs::path path = folder_.write("x.in.json", input.dump());
        std::string text;
        for (const Json& line : lines) text += line.dump() + "\n";
        folder_.write("x.out.jsonl", text);
        return replay(path, "").difference;
    }

private:
    test::TemporaryFolder folder_;
};

std::uint64_t number(const char* variable, std::uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST_CASE("oracle: SGLang's policy takes every decision of the naive one on random scenarios") {
    const std::uint64_t first = number("KVSIM_ORACLE_SEED", 1);
    const std::uint64_t count = number("KVSIM_ORACLE_SCENARIOS", 200);
    Replays replays;
    std::int64_t retractions = 0;
    std::int64_t crashes = 0;
    std::int64_t stalls = 0;
    std::int64_t hits = 0;
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        const Json input = random_input(seed);
        const std::vector<Json> lines = naive_sglang(input);
        const std::string difference = replays.difference(input, lines);
        CHECK_MESSAGE(difference.empty(), "seed " << seed << ": " << difference);
        if (!difference.empty() && std::getenv("KVSIM_ORACLE_PRINT") != nullptr) MESSAGE(input.dump());
        retractions += lines.back().at("retractions").get<std::int64_t>();
        hits += lines.back().at("hit_tokens").get<std::int64_t>() > 0 ? 1 : 0;
        crashes += lines.back().at("end") == "crash" ? 1 : 0;
        stalls += lines.back().at("end") == "stalled" ? 1 : 0;
    }
    if (count < 200) return;
    CHECK(retractions > 30);
    CHECK(crashes > 3);
    CHECK(stalls > 5);
    CHECK(hits > 50);
}

TEST_CASE("oracle: the naive form of SGLang's rules takes every recorded decision") {
    const char* variable = std::getenv("KVSIM_SHARED");
    const fs::path shared = variable != nullptr ? fs::path(variable) : fs::path(KVSIM_SOURCE_DIR) / ".." / "shared";
    const fs::path folder = shared / "golden" / "sglang";
    if (!fs::is_directory(folder)) {
        const char* ci = std::getenv("CI");
        REQUIRE_MESSAGE((ci == nullptr || std::string(ci) != "true"), "no recorded decisions at " << folder.string());
        MESSAGE("skipped: no recorded decisions at " << folder.string());
        return;
    }
    Replays replays;
    int replayed = 0;
    for (const fs::path& path : conformance_inputs(folder)) {
        CAPTURE(path.filename().string());
        const ConformanceResult result = replay(path, "");
        CHECK_MESSAGE(result.same, result.difference);
        if (result.name != "b_lpm") {  // its size makes the naive form slow
            const Json input = Json::parse(test::slurp(path));
            CHECK(replays.difference(input, naive_sglang(input)) == "");
        }
        ++replayed;
    }
    CHECK(replayed == 107);
}

TEST_CASE("oracle: no rule of SGLang can be changed unnoticed") {
    Replays replays;
    std::vector<SglangMutation> unnoticed;
    for (int m = 1; m < static_cast<int>(SglangMutation::count); ++m) unnoticed.push_back(static_cast<SglangMutation>(m));
    constexpr std::uint64_t rare[] = {355, 296, 230, 91};  // those that tell the rarest mistakes come first
    for (std::uint64_t i = 0; i < 3000 && !unnoticed.empty(); ++i) {
        const Json input = random_input(i < std::size(rare) ? rare[i] : i - std::size(rare) + 1);
        const std::vector<Json> right = naive_sglang(input);
        std::vector<SglangMutation> still;
        for (const SglangMutation mutation : unnoticed) {
            try {
                if (naive_sglang(input, mutation) == right) still.push_back(mutation);
            } catch (const std::exception&) {}  // it broke an invariant
        }
        unnoticed = still;
    }
    for (const SglangMutation mutation : unnoticed) FAIL_CHECK("nothing tells mutation " << static_cast<int>(mutation));
    // A record that a changed rule made differs from the policy's.
    const Json input = random_input(2);
    CHECK(replays.difference(input, naive_sglang(input)) == "");
}

TEST_CASE("conformance: a falsified field of SGLang's records is noticed, with its place") {
    Replays replays;
    int falsified = 0;
    for (const std::uint64_t seed : {2U, 8U}) {
        const Json input = random_input(seed);
        const std::vector<Json> right = naive_sglang(input);
        for (std::size_t line = 0; line < right.size(); line += 1 + right.size() / 5) {
            for (const auto& member : right[line].items()) {
                const std::string key = member.key();
                const Json& value = member.value();
                std::vector<Json> wrong = right;
                Json& field = wrong[line][key];
                if (value.is_number_float()) {
                    field = value.get<double>() + 1e-15 + value.get<double>() * 1e-15;
                } else if (value.is_number()) {
                    field = value.get<std::int64_t>() + 1;
                } else if (value.is_boolean()) {
                    field = !value.get<bool>();
                } else if (value.is_array()) {
                    field.push_back("nobody");
                } else {
                    field = "nobody";
                }
                const bool recorders = key == "steps" || key == "idle" || key == "last_step" || key == "error";
                const std::string difference = replays.difference(input, wrong);
                CAPTURE(key);
                CHECK(difference.empty() == recorders);
                if (!recorders) CHECK(difference.find(key) != std::string::npos);
                ++falsified;
            }
        }
        std::vector<Json> shorter = right;
        shorter.pop_back();
        CHECK(replays.difference(input, shorter) != "");
        shorter.erase(shorter.begin());
        CHECK(replays.difference(input, shorter) != "");
    }
    CHECK(falsified > 120);
}

}  // namespace
}  // namespace kvsim::oracle
