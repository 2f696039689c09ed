#include "kvsim/model/trace_stats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

namespace kvsim {

namespace {

/// Blocks in order of last touch, by index into a list threaded through an array; the table of hash ids is only ever looked up.
class LruCache {
public:
    explicit LruCache(std::int64_t capacity) : capacity_(static_cast<std::size_t>(capacity)) {}

    [[nodiscard]] bool holds(std::uint64_t id) const { return where_.count(id) != 0; }

    void touch(std::uint64_t id) {
        const auto [found, is_new] = where_.try_emplace(id, 0);
        if (!is_new) {
            unlink(found->second);
        } else if (capacity_ != 0 && where_.size() > capacity_) {
            found->second = oldest_;
            unlink(oldest_);
            where_.erase(nodes_[found->second].id);
        } else {
            found->second = nodes_.size();
            nodes_.emplace_back();
        }
        append(found->second, id);
    }

private:
    static constexpr std::size_t none = ~std::size_t{0};
    struct Node {
        std::uint64_t id = 0;
        std::size_t older = none;
        std::size_t newer = none;
    };

    void unlink(std::size_t i) {
        const Node& node = nodes_[i];
        (node.older == none ? oldest_ : nodes_[node.older].newer) = node.newer;
        (node.newer == none ? newest_ : nodes_[node.newer].older) = node.older;
    }
    void append(std::size_t i, std::uint64_t id) {
        nodes_[i] = {id, newest_, none};
        (newest_ == none ? oldest_ : nodes_[newest_].newer) = i;
        newest_ = i;
    }

    std::size_t capacity_;  ///< 0: unlimited
    std::unordered_map<std::uint64_t, std::size_t> where_;
    std::vector<Node> nodes_;
    std::size_t oldest_ = none;
    std::size_t newest_ = none;
};

double percentile(const std::vector<std::int64_t>& sorted, double p) {
    const double rank = static_cast<double>(sorted.size() - 1) * p;
    const auto below = static_cast<std::size_t>(rank);
    const std::size_t above = std::min(below + 1, sorted.size() - 1);
    const auto a = static_cast<double>(sorted[below]);
    return a + (static_cast<double>(sorted[above]) - a) * (rank - static_cast<double>(below));
}

LengthStats length_stats(std::vector<std::int64_t> lengths) {
    LengthStats s;
    std::sort(lengths.begin(), lengths.end());
    for (const std::int64_t n : lengths) {
        s.total += n;
        const auto bin = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(n)) - 1);
        if (s.counts.size() <= bin) s.counts.resize(bin + 1);
        ++s.counts[bin];
    }
    s.mean = static_cast<double>(s.total) / static_cast<double>(lengths.size());
    s.p50 = percentile(lengths, 0.5);
    s.p90 = percentile(lengths, 0.9);
    s.p99 = percentile(lengths, 0.99);
    s.max = lengths.back();
    return s;
}

/// 1234567 -> "1,234,567".
std::string grouped(std::int64_t n) {
    const std::string digits = fmt::format("{}", n);
    std::string reversed;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && i % 3 == 0) reversed += ',';
        reversed += digits[digits.size() - 1 - i];
    }
    return {reversed.rbegin(), reversed.rend()};
}

void histogram(std::string& out, std::string_view title, const LengthStats& s) {
    constexpr std::int64_t widest = 50;
    const std::int64_t top = *std::max_element(s.counts.begin(), s.counts.end());
    std::size_t first = 0;
    while (s.counts[first] == 0) ++first;
    out += fmt::format("\n{} tokens, requests per power of two\n", title);
    for (std::size_t k = first; k < s.counts.size(); ++k) {
        const std::int64_t low = std::int64_t{1} << k;
        const std::int64_t count = s.counts[k];
        // Any count shows: a bin that holds requests never looks empty.
        const auto bar = static_cast<std::size_t>(ceil_div(count * widest, top));
        out +=
            fmt::format("{:>12} - {:<12} {:>10} {}", grouped(low), grouped(2 * low - 1), grouped(count), std::string(bar, '#'));
        while (out.back() == ' ') out.pop_back();
        out += '\n';
    }
}

}  // namespace

TraceStats trace_stats(TraceReader& reader, const TraceOptions& options, const std::vector<std::int64_t>& capacities) {
    TraceStats stats;
    stats.format = reader.format();
    std::vector<std::int64_t> inputs;
    std::vector<std::int64_t> outputs;
    std::vector<LruCache> caches(1, LruCache(0));
    stats.hits.push_back({});
    for (const std::int64_t capacity : capacities) {
        caches.emplace_back(capacity);
        stats.hits.push_back({capacity, 0});
    }

    TraceRow row;
    std::int64_t first_ns = 0;
    std::int64_t last_ns = 0;
    double gap_squares = 0;  // s^2
    while (reader.next(row)) {
        const std::int64_t t = row.time.time_since_epoch().count();
        if (stats.rows == 0) first_ns = t;
        if (stats.rows == 0 || t != last_ns) ++stats.ticks;
        if (stats.rows > 0) {
            const double gap = to_seconds(SimDuration(t - last_ns));
            gap_squares += gap * gap;
        }
        last_ns = t;
        ++stats.rows;
        inputs.push_back(row.input_length);
        outputs.push_back(row.output_length);
        if (row.hash_ids.empty()) continue;
        stats.trace_block_size = options.trace_block_size;
        stats.blocks += static_cast<std::int64_t>(row.hash_ids.size());
        for (std::size_t c = 0; c < caches.size(); ++c) {
            std::size_t hits = 0;
            while (hits < row.hash_ids.size() && caches[c].holds(row.hash_ids[hits])) ++hits;
            stats.hits[c].hits += static_cast<std::int64_t>(hits);
            for (const std::uint64_t id : row.hash_ids) {
                if (c == 0 && !caches[c].holds(id)) ++stats.unique_blocks;
                caches[c].touch(id);
            }
        }
    }

    stats.span_s = to_seconds(SimDuration(last_ns - first_ns));
    if (stats.span_s > 0) {
        stats.rate = static_cast<double>(stats.rows) / stats.span_s;
        const double gaps = static_cast<double>(stats.rows - 1);
        const double mean = stats.span_s / gaps;
        stats.gap_cv = std::sqrt(std::max(0.0, gap_squares / gaps - mean * mean)) / mean;
    }
    stats.input = length_stats(std::move(inputs));
    stats.output = length_stats(std::move(outputs));
    stats.unknown_keys = reader.unknown_keys();
    return stats;
}

std::string render(const TraceStats& s) {
    std::string out;
    out += fmt::format("format            {}\n", s.format);
    out += fmt::format("requests          {}\n", grouped(s.rows));
    out += fmt::format("span              {:.1f} s\n", s.span_s);
    out += fmt::format("rate              {:.3f} requests/s\n", s.rate);
    out += fmt::format("inter-arrival CV  {:.2f}\n", s.gap_cv);
    if (s.ticks * 2 < s.rows)
        out += fmt::format("timestamps        {} distinct: requests arrive in batches of {:.1f}; consider trace.jitter\n",
                           grouped(s.ticks), static_cast<double>(s.rows) / static_cast<double>(s.ticks));
    for (const std::string& key : s.unknown_keys) out += fmt::format("unknown key       '{}', ignored\n", key);

    out += fmt::format("\n{:<8}{:>14}{:>11}{:>11}{:>11}{:>11}{:>11}\n", "tokens", "total", "mean", "p50", "p90", "p99", "max");
    const auto line = [&](std::string_view name, const LengthStats& l) {
        out += fmt::format("{:<8}{:>14}{:>11.1f}{:>11.1f}{:>11.1f}{:>11.1f}{:>11}\n", name, grouped(l.total), l.mean, l.p50,
                           l.p90, l.p99, grouped(l.max));
    };
    line("input", s.input);
    line("output", s.output);

    if (s.blocks > 0) {
        out += fmt::format("\nblocks of {} tokens: {}, unique {}\n", s.trace_block_size, grouped(s.blocks),
                           grouped(s.unique_blocks));
        out += fmt::format("{:>16}{:>14}{:>10}\n", "cache, blocks", "prefix hits", "share");
        for (const PrefixHits& h : s.hits)
            out += fmt::format("{:>16}{:>14}{:>9.2f}%\n", h.capacity == 0 ? "unlimited" : grouped(h.capacity), grouped(h.hits),
                               100 * static_cast<double>(h.hits) / static_cast<double>(s.blocks));
    }
    histogram(out, "input", s.input);
    histogram(out, "output", s.output);
    return out;
}

}  // namespace kvsim
