#include <utility>
#include <vector>

#include "length_bounds.hpp"

namespace kvsim {

namespace {

struct EmpiricalParams : LengthParams {
    config::Value quantiles;
};

const config::Schema<EmpiricalParams>& schema() {
    using P = EmpiricalParams;
    static const config::Schema<P> table{
        distribution_field<P>(),
        config::field("quantiles", &P::quantiles,
                      "{0: shortest, 0.5: median, ..., 1: longest} or a list of [probability, length]; linear in between")
            .need(),
        min_field<P>(), max_field<P>()};
    return table;
}

struct Point {
    double q;
    double value;
};

class Empirical : public LengthLaw {
public:
    Empirical(const LengthParams& bounds, std::vector<Point> points) : bounds_(bounds), points_(std::move(points)) {
        if (bounds.min) from_ = below(static_cast<double>(*bounds.min) - 0.5);
        if (bounds.max) to_ = below(static_cast<double>(*bounds.max) + 0.5);
    }
    [[nodiscard]] bool possible() const { return from_ < to_; }
    [[nodiscard]] std::int64_t sample(double u) const override {
        const double q = from_ + u * (to_ - from_);
        const auto next =
            std::upper_bound(points_.begin() + 1, points_.end() - 1, q, [](double x, const Point& p) { return x < p.q; });
        const Point& a = *(next - 1);
        return bounds_.round_half_up(a.value + (q - a.q) * (next->value - a.value) / (next->q - a.q));
    }

    [[nodiscard]] std::optional<double> up_to(std::int64_t length) const override {
        if (to_ - from_ < least_tabled_mass) return std::nullopt;
        return length >= bounds_.highest() ? 1 : (below(static_cast<double>(length) + 0.5) - from_) / (to_ - from_);
    }

private:
    /// P(X < x).
    [[nodiscard]] double below(double x) const {
        if (x <= points_.front().value) return 0;
        const auto next = std::find_if(points_.begin(), points_.end(), [&](const Point& p) { return p.value >= x; });
        if (next == points_.end()) return 1;
        const Point& a = *(next - 1);
        return a.q + (x - a.value) / (next->value - a.value) * (next->q - a.q);
    }
    LengthParams bounds_;
    std::vector<Point> points_;
    double from_ = 0;
    double to_ = 1;
};

bool read_point(const config::Value& q, const config::Value& value, std::vector<Point>& points,
                config::Diagnostics& diagnostics) {
    const config::Range length{0, static_cast<double>(max_request_tokens)};
    Point p{};
    const bool good = decode(q, p.q, "quantile", config::fraction, diagnostics);
    return decode(value, p.value, "length", length, diagnostics) && good && (points.push_back(p), true);
}

}  // namespace

std::vector<config::FieldDoc> empirical_length_docs() {
    return schema().docs();
}

std::unique_ptr<LengthLaw> make_empirical_length(const config::Value& params, std::string_view where,
                                                 config::Diagnostics& diagnostics) {
    EmpiricalParams p;
    if (!read_length_params(schema(), params, p, where, diagnostics)) return nullptr;
    const auto refuse = [&](const config::Mark& at, const std::string& message) {
        diagnostics.error(at, std::string(where) + ": " + message);
        return nullptr;
    };
    std::vector<Point> points;
    std::vector<const config::Mark*> marks;
    for (const config::Member& member : p.quantiles.map) {
        config::Value q;
        q.kind = config::Value::Kind::scalar;
        q.scalar = member.key;
        q.mark = member.key_mark;
        if (!read_point(q, member.value, points, diagnostics)) return nullptr;
        marks.push_back(&member.key_mark);
    }
    for (const config::Value& pair : p.quantiles.list) {
        if (pair.list.size() != 2) return refuse(pair.mark, "each entry of quantiles must be [probability, length]");
        if (!read_point(pair.list[0], pair.list[1], points, diagnostics)) return nullptr;
        marks.push_back(&pair.mark);
    }
    if (points.size() < 2)
        return refuse(p.quantiles.mark, "quantiles must be a map or list with at least the quantiles 0 and 1");
    if (points.front().q != 0) return refuse(*marks.front(), "the first quantile must be 0");
    if (points.back().q != 1) return refuse(*marks.back(), "the last quantile must be 1");
    for (std::size_t i = 1; i < points.size(); ++i) {
        if (points[i].q <= points[i - 1].q) return refuse(*marks[i], "quantiles must increase");
        if (points[i].value < points[i - 1].value) return refuse(*marks[i], "lengths must not decrease");
    }
    auto law = std::make_unique<Empirical>(p, std::move(points));
    if (!law->possible()) {
        report_no_mass(params, where, diagnostics);
        return nullptr;
    }
    return law;
}

}  // namespace kvsim
