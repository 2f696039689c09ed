// Step times from layers profiled inside the engine (the profiles of LLMServingSim: one folder per GPU, model and TP degree).
//
// A step is the plain sum of its layers: embedding + layers x (2 layernorm, qkv_proj, qk_norm, rotary_emb, attention, o_proj,
// then gate_up_proj, act_fn, down_proj or moe) + final_layernorm + lm_head and sampler at the sampled rows. Dense layers and
// moe are taken at the tokens padded to the CUDA-graph sizes. Everything is interpolated linearly, dimension by dimension.
//   attention  the largest chunk together with all decode rows at their mean context; every further chunk adds what it costs
//              alone beyond the smallest kernel
//   skew       t(mean) + alpha (t(max) - t(mean)); alpha of the bucket of (prefill chunk, decode rows, (mean - min) / (max -
//              min) of their contexts, max, kv before the chunk), the median alpha where the bucket is empty
//   moe        by tokens and experts touched, E (1 - (1 - k/E)^T)
// The profiles hold no collectives and no CPU time: all-reduces come from the GPU's fitted constants, the time between
// synchronous steps is that of `fitted`.

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"
#include "physics.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

struct Table {
    std::string model;
    std::string path;
    bool extrapolate = false;
    bool skew = true;
};

const config::Schema<Table>& schema() {
    static const config::Schema<Table> table{
        config::field("model", &Table::model, "table"),
        config::field("path", &Table::path,
                      "folder with dense.csv, attention.csv, per_sequence.csv (moe.csv, skew_fit.csv), or "
                      "the one above with tp1, tp2, ...; relative to the scenario's folder")
            .need(),
        config::field("extrapolate", &Table::extrapolate,
                      "go on linearly beyond the largest profiled value instead of stopping")
            .by_default("false"),
        config::field("skew", &Table::skew, "correct for uneven context lengths (skew_fit.csv)").by_default("true")};
    return table;
}

struct Csv {
    std::string name;
    std::vector<std::string> header;
    std::vector<std::vector<std::string>> rows;

    explicit Csv(const fs::path& path) : name(path.string()) {
        const std::string text = read_file(path, std::size_t{1} << 28);
        std::size_t line = 1;
        for (std::size_t at = 0; at < text.size(); ++line) {
            std::size_t end = text.find('\n', at);
            if (end == std::string::npos) end = text.size();
            std::string_view rest = std::string_view(text).substr(at, end - at);
            at = end + 1;
            if (rest.ends_with('\r')) rest.remove_suffix(1);
            if (rest.empty()) continue;
            std::vector<std::string> cells;
            while (true) {
                const std::size_t comma = rest.find(',');
                cells.emplace_back(rest.substr(0, comma));
                if (comma == std::string_view::npos) break;
                rest.remove_prefix(comma + 1);
            }
            if (header.empty()) {
                header = std::move(cells);
                continue;
            }
            if (cells.size() != header.size()) {
                throw UserError(name + ":" + std::to_string(line) + ": error: " + std::to_string(cells.size()) +
                                " cells, the header has " + std::to_string(header.size()));
            }
            rows.push_back(std::move(cells));
        }
        if (rows.empty()) throw UserError(name + ": error: no rows");
    }
    [[nodiscard]] std::size_t column(std::string_view wanted) const {
        const auto at = std::find(header.begin(), header.end(), wanted);
        if (at == header.end()) throw UserError(name + ":1: error: column '" + std::string(wanted) + "' is missing");
        return static_cast<std::size_t>(at - header.begin());
    }
    [[nodiscard]] double number(const std::vector<std::string>& row, std::size_t column) const {
        const std::string& cell = row[column];
        double value = 0;
        const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
        if (error != std::errc() || end != cell.data() + cell.size() || !std::isfinite(value)) {
            throw UserError(name + ": error: column " + header[column] + ": '" + excerpt(cell) + "' is no number");
        }
        return value;
    }
};

/// What a look-up may do beyond the ends of an axis. Below the first value the first holds: kernels have a floor.
struct Beyond {
    bool extrapolate = false;
    const std::string* file = nullptr;
    /// By axis: the farthest value asked for, and the last profiled one.
    std::map<std::string, std::pair<double, double>, std::less<>>* farthest = nullptr;
};

/// Linear interpolation over nested axes, each inner one with values of its own.
class Grid {
public:
    void add(std::span<const double> at, double value) {
        if (at.empty()) {
            value_ = value;
            return;
        }
        auto place = std::lower_bound(keys_.begin(), keys_.end(), at.front());
        const auto index = place - keys_.begin();
        if (place == keys_.end() || *place != at.front()) {
            keys_.insert(place, at.front());
            inner_.insert(inner_.begin() + index, Grid());
        }
        inner_[static_cast<std::size_t>(index)].add(at.subspan(1), value);
    }
    [[nodiscard]] bool empty() const { return keys_.empty(); }
    [[nodiscard]] double last() const { return keys_.back(); }

    /// `names` of the axes, for the message of a point outside. An axis whose one value is 0 is absent here.
    [[nodiscard]] double at(std::span<const double> point, std::span<const std::string_view> names, const Beyond& beyond,
                            bool clamp_last = false) const {
        if (point.empty()) return value_;
        const auto inner = [&](std::size_t i) { return inner_[i].at(point.subspan(1), names.subspan(1), beyond, clamp_last); };
        double x = point.front();
        if (keys_.size() == 1 && keys_.front() == 0) return inner(0);
        if (x <= keys_.front()) return inner(0);
        if (x > keys_.back()) {
            if (clamp_last && point.size() == 1) {
                x = keys_.back();
            } else if (!beyond.extrapolate) {
                throw UserError("step_time table: " + std::string(names.front()) + " " + decimals(x, 0) +
                                " is outside the profile's " + decimals(keys_.front(), 0) + " to " + decimals(keys_.back(), 0) +
                                " (" + *beyond.file + "); profile further, or set step_time.extrapolate: true");
            } else {
                const auto [at, added] = beyond.farthest->try_emplace(std::string(names.front()), x, keys_.back());
                if (!added && x > at->second.first) at->second = {x, keys_.back()};
            }
        }
        const auto above = static_cast<std::size_t>(std::lower_bound(keys_.begin(), keys_.end(), x) - keys_.begin());
        if (above < keys_.size() && keys_[above] == x) return inner(above);
        if (keys_.size() == 1) return inner(0) * x / keys_.front();
        const std::size_t high = std::min(above, keys_.size() - 1);
        const double a = keys_[high - 1];
        const double b = keys_[high];
        const double low = inner(high - 1);
        return std::max(0.0, low + (inner(high) - low) * (x - a) / (b - a));
    }

private:
    std::vector<double> keys_;
    std::vector<Grid> inner_;
    double value_ = 0;
};

/// "n<=128", "kvB<=4k", "sr>70%", "kp=0": the largest value the bucket holds.
double upper_end(std::string_view label) {
    const std::size_t digit = label.find_first_of("0123456789");
    double value = 0;
    if (digit == std::string_view::npos) return std::numeric_limits<double>::infinity();
    const char* const end = label.data() + label.size();
    const auto [rest, error] = std::from_chars(label.data() + digit, end, value);
    if (label.find('>') != std::string_view::npos || error != std::errc()) return std::numeric_limits<double>::infinity();
    if (rest != end && *rest == 'k') value *= 1024;
    if (rest != end && *rest == '%') value /= 100;
    return value;
}

/// alpha by bucket; a look-up takes on each axis the first bucket that reaches the value.
class Skew {
public:
    explicit Skew(const fs::path& path) {
        const Csv csv(path);
        const std::array<std::size_t, 5> at{csv.column("pc"), csv.column("n_label"), csv.column("skew_rate_label"),
                                            csv.column("kv_big_label"), csv.column("kp_label")};
        const std::size_t alpha = csv.column("alpha");
        std::vector<double> all;
        for (const std::vector<std::string>& row : csv.rows) {
            std::array<double, 5> key{};
            key[0] = csv.number(row, at[0]);
            for (std::size_t i = 1; i < key.size(); ++i) key[i] = upper_end(row[at[i]]);
            all.push_back(csv.number(row, alpha));
            alphas_[key] = all.back();
            for (std::size_t i = 0; i < key.size(); ++i) {
                auto place = std::lower_bound(axes_[i].begin(), axes_[i].end(), key[i]);
                if (place == axes_[i].end() || *place != key[i]) axes_[i].insert(place, key[i]);
            }
        }
        std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
        median_ = all[all.size() / 2];
    }
    [[nodiscard]] double alpha(std::array<double, 5> point) const {
        // Chunks are points of the profile, not buckets: the nearest one.
        const auto nearest_chunk = std::min_element(axes_[0].begin(), axes_[0].end(), [&](double a, double b) {
            return std::abs(a - point[0]) < std::abs(b - point[0]);
        });
        point[0] = *nearest_chunk;
        for (std::size_t i = 1; i < point.size(); ++i) {
            const auto place = std::lower_bound(axes_[i].begin(), axes_[i].end(), point[i]);
            point[i] = place == axes_[i].end() ? axes_[i].back() : *place;
        }
        const auto found = alphas_.find(point);
        return found == alphas_.end() ? median_ : found->second;
    }

private:
    std::map<std::array<double, 5>, double> alphas_;
    std::array<std::vector<double>, 5> axes_;
    double median_ = 0;
};

class TableStep final : public StepTimeModel {
public:
    TableStep(const fs::path& folder, const Table& t, const Deployment& d, const std::optional<StepTimeConstants>& constants)
        : model_(*d.model),
          extrapolate_(t.extrapolate),
          tp_(static_cast<double>(d.tensor_parallel_size)),
          async_(d.engine.async_scheduling) {
        read_layers(folder / "dense.csv", "tokens", dense_, dense_file_);
        read_layers(folder / "per_sequence.csv", "sequences", dense_, sequence_file_);
        read_grid<4>(folder / "attention.csv", {"prefill_chunk", "kv_prefill", "n_decode", "kv_decode"}, attention_,
                     attention_file_);
        if (model_.moe_layers() > 0) read_grid<2>(folder / "moe.csv", {"tokens", "activated_experts"}, moe_, moe_file_);
        std::error_code ignored;
        if (t.skew && fs::exists(folder / "skew_fit.csv", ignored)) skew_.emplace(folder / "skew_fit.csv");
        for (const std::string_view layer : {"qkv_proj", "o_proj", "lm_head"}) {
            if (dense_.find(layer) == dense_.end()) {
                throw UserError(dense_file_ + ": error: the layer '" + std::string(layer) + "' is missing");
            }
        }
        const std::array<double, 4> smallest{0, 0, 1, 16};
        floor_ = attention(smallest);
        if (tp_ > 1) {
            link_ = *constants;
            source_ = "; all-reduce from the constants of " + link_.gpu;
        }
        description_ = "table: layers profiled in " + folder.filename().string() + source_ +
                       (skew_ ? "" : "; without skew correction") +
                       "; expected error TPOT and E2E 1-4 %, with tensor parallelism up to 7 %";
    }

    [[nodiscard]] bool needs_context_range() const override { return skew_.has_value(); }

    [[nodiscard]] SimDuration duration(const StepShape& shape) const override {
        const double us = token_layers(shape.tokens) + static_cast<double>(model_.layers) * attention_of(shape) +
                          sampled_layers(shape.sampled) + between_steps(shape.sequences);
        return round_step(us * 1e3);
    }
    [[nodiscard]] std::string describe() const override { return description_; }
    [[nodiscard]] std::vector<std::string> notes() const override {
        std::vector<std::string> out;
        for (const auto& [axis, reached] : farthest_) {
            out.push_back("extrapolated beyond the profile: " + axis + " up to " + decimals(reached.first, 0) +
                          ", profiled up to " + decimals(reached.second, 0));
        }
        return out;
    }

private:
    static void read_layers(const fs::path& path, std::string_view axis, std::map<std::string, Grid, std::less<>>& out,
                            std::string& name) {
        const Csv csv(path);
        name = csv.name;
        const std::size_t layer = csv.column("layer");
        const std::size_t key = csv.column(axis);
        const std::size_t time = csv.column("time_us");
        for (const std::vector<std::string>& row : csv.rows) {
            const double at = csv.number(row, key);
            out[row[layer]].add({&at, 1}, csv.number(row, time));
        }
    }
    template <std::size_t N>
    static void read_grid(const fs::path& path, const std::array<std::string_view, N>& axes, Grid& out, std::string& name) {
        const Csv csv(path);
        name = csv.name;
        std::array<std::size_t, N> columns{};
        for (std::size_t i = 0; i < N; ++i) columns[i] = csv.column(axes[i]);
        const std::size_t time = csv.column("time_us");
        for (const std::vector<std::string>& row : csv.rows) {
            std::array<double, N> at{};
            for (std::size_t i = 0; i < N; ++i) at[i] = csv.number(row, columns[i]);
            out.add(at, csv.number(row, time));
        }
    }

    [[nodiscard]] double layer(std::string_view name, double at, std::string_view axis, const std::string& file) const {
        const auto found = dense_.find(name);
        if (found == dense_.end()) return 0;
        const std::array<std::string_view, 1> names{axis};
        return found->second.at({&at, 1}, names, {extrapolate_, &file, &farthest_});
    }

    [[nodiscard]] double token_layers(std::int64_t tokens) const {
        const std::int64_t padded = padded_tokens(tokens);
        const auto cached = token_cache_.find(padded);
        if (cached != token_cache_.end()) return cached->second;
        const auto t = static_cast<double>(padded);
        const auto at = [&](std::string_view name) { return layer(name, t, "tokens", dense_file_); };
        const auto layers = static_cast<double>(model_.layers);
        double us = at("embedding") + at("final_layernorm") +
                    layers * (2 * at("layernorm") + at("qkv_proj") + at("qk_norm") + at("rotary_emb") + at("o_proj"));
        const auto sparse = static_cast<double>(model_.moe_layers());
        us += (layers - sparse) * (at("gate_up_proj") + at("act_fn") + at("down_proj"));
        if (sparse > 0) {
            const auto e = static_cast<double>(model_.moe.experts);
            const double touched = e * (1 - std::pow(1 - static_cast<double>(model_.moe.top_k) / e, t));
            const std::array<double, 2> point{t, touched};
            static constexpr std::array<std::string_view, 2> names{"tokens", "activated_experts"};
            us += sparse * moe_.at(point, names, {extrapolate_, &moe_file_, &farthest_}, true);
        }
        if (tp_ > 1) {
            const double bytes = 2 * t * static_cast<double>(model_.hidden);
            us += 2 * layers *
                  (link_.ar_a + link_.ar_a2 * (tp_ - 2) + 2 * (tp_ - 1) / tp_ * bytes / (link_.link_gb_s * 1e3 * link_.ar_e));
        }
        return token_cache_[padded] = us;
    }
    [[nodiscard]] double sampled_layers(std::int64_t sampled) const {
        if (sampled == 0) return 0;
        const auto n = static_cast<double>(sampled);
        return layer("lm_head", n, "sequences", sequence_file_) + layer("sampler", n, "sequences", sequence_file_);
    }
    [[nodiscard]] double between_steps(std::int64_t sequences) const {
        return async_ ? 0 : 1000 + 22 * static_cast<double>(sequences);
    }

    [[nodiscard]] double attention(const std::array<double, 4>& point) const {
        static constexpr std::array<std::string_view, 4> names{"prefill_chunk", "kv_prefill", "n_decode", "kv_decode"};
        return attention_.at(point, names, {extrapolate_, &attention_file_, &farthest_});
    }

    /// One layer.
    [[nodiscard]] double attention_of(const StepShape& shape) const {
        const PrefillChunk* largest = nullptr;
        for (const PrefillChunk& chunk : shape.chunks) {
            if (largest == nullptr || chunk.new_tokens > largest->new_tokens) largest = &chunk;
        }
        // No profile has a chunk below its smallest without a decode row; that one's time holds.
        const double chunk = largest != nullptr ? static_cast<double>(largest->new_tokens) : 0;
        const double before = largest != nullptr ? static_cast<double>(largest->context_before) : 0;
        const auto rows = static_cast<double>(shape.decode_rows);
        const double mean = shape.decode_rows > 0 ? static_cast<double>(shape.decode_context) / rows : 0;
        double us = attention({shape.decode_rows == 0 ? std::max(chunk, 16.0) : chunk, before, rows, mean});
        if (skew_ && shape.decode_rows > 1 && shape.longest_context > shape.shortest_context) {
            const auto longest = static_cast<double>(shape.longest_context);
            const auto shortest_one = static_cast<double>(shape.shortest_context);
            const double at_longest = attention({chunk, before, rows, longest});
            us += skew_->alpha({chunk, rows, (mean - shortest_one) / (longest - shortest_one), longest, before}) *
                  (at_longest - us);
        }
        for (const PrefillChunk& other : shape.chunks) {
            if (&other == largest) continue;
            const double alone = attention(
                {std::max(16.0, static_cast<double>(other.new_tokens)), static_cast<double>(other.context_before), 0, 0});
            us += std::max(0.0, alone - floor_);
        }
        return us;
    }

    ModelSpec model_;
    bool extrapolate_;
    double tp_;
    bool async_;
    StepTimeConstants link_;
    std::string dense_file_, sequence_file_, attention_file_, moe_file_;
    std::map<std::string, Grid, std::less<>> dense_;
    Grid attention_;
    Grid moe_;
    std::optional<Skew> skew_;
    double floor_ = 0;
    std::string source_;
    std::string description_;
    mutable std::map<std::int64_t, double> token_cache_;
    mutable std::map<std::string, std::pair<double, double>, std::less<>> farthest_;
};

}  // namespace

std::vector<config::FieldDoc> table_step_docs() {
    return schema().docs();
}

std::unique_ptr<StepTimeModel> make_table_step(const Deployment& deployment, const config::Value& params,
                                               config::Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    Table t;
    if (params.is_map()) {
        schema().read(params, t, "step_time", diagnostics);
    } else {
        diagnostics.error(params.mark, "step_time table needs its folder: {model: table, path: profiles/GPU/MODEL/bf16/tp1}");
    }
    if (!deployment.model) diagnostics.error(params.mark, "step-time model table needs `model`");
    if (diagnostics.error_count() != before) return nullptr;
    if (deployment.pipeline_parallel_size > 1) {
        diagnostics.error(params.mark, "step-time model table: profiles have no pipeline stages");
        return nullptr;
    }
    std::optional<StepTimeConstants> constants;
    if (deployment.tensor_parallel_size > 1) {
        if (deployment.gpu) {
            constants = deployment.catalog.fitted_constants(*deployment.gpu, params.mark, diagnostics);
            if (!constants) constants = deployment.catalog.median_constants(*deployment.gpu, params.mark, diagnostics);
        }
        if (!constants || !(constants->link_gb_s > 0)) {
            diagnostics.error(params.mark,
                              "step-time model table: profiles have no collectives; with tensor_parallel_size > 1 "
                              "`hardware.gpu` must state a link");
            return nullptr;
        }
    }
    fs::path folder = t.path;
    if (folder.is_relative()) folder = deployment.base / folder;
    std::error_code ignored;
    const fs::path below = folder / ("tp" + std::to_string(deployment.tensor_parallel_size));
    if (!fs::exists(folder / "dense.csv", ignored) && fs::exists(below / "dense.csv", ignored)) folder = below;
    try {
        return std::make_unique<TableStep>(folder.lexically_normal(), t, deployment, constants);
    } catch (const UserError& e) {
        std::string message = e.what();
        if (const std::size_t at = message.find("error: "); at != std::string::npos) message.erase(at, 7);
        diagnostics.error(params.find("path")->mark, std::move(message));
        return nullptr;
    }
}

}  // namespace kvsim
