#include "kvsim/model/trace_stats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
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

/// How many rows have each length, in memory that does not grow with the rows.
class LengthCounts {
public:
    void add(std::int64_t length) {
        ++rows_;
        if (length < dense) {
            if (static_cast<std::size_t>(length) >= counts_.size()) counts_.resize(static_cast<std::size_t>(length) + 1);
            ++counts_[static_cast<std::size_t>(length)];
        } else {
            ++long_[length];
        }
    }

    [[nodiscard]] LengthStats stats() const {
        LengthStats s;
        constexpr std::array<double, 3> shares{0.5, 0.9, 0.99};
        // The two neighbours of each quantile's rank.
        std::array<std::int64_t, 3> below{};
        std::array<std::int64_t, 3> above{};
        std::int64_t seen = 0;
        each([&](std::int64_t length, std::int64_t count) {
            for (std::size_t k = 0; k < shares.size(); ++k) {
                const auto rank = static_cast<std::int64_t>(static_cast<double>(rows_ - 1) * shares[k]);
                if (rank >= seen && rank < seen + count) below[k] = length;
                const std::int64_t next = std::min(rank + 1, rows_ - 1);
                if (next >= seen && next < seen + count) above[k] = length;
            }
            seen += count;
            s.total += length * count;
            s.max = length;
            const auto bin = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)) - 1);
            if (s.counts.size() <= bin) s.counts.resize(bin + 1);
            s.counts[bin] += count;
        });
        const auto at = [&](std::size_t k) {
            const double rank = static_cast<double>(rows_ - 1) * shares[k];
            const auto a = static_cast<double>(below[k]);
            return a + (static_cast<double>(above[k]) - a) * (rank - std::floor(rank));
        };
        s.mean = static_cast<double>(s.total) / static_cast<double>(rows_);
        s.p50 = at(0);
        s.p90 = at(1);
        s.p99 = at(2);
        return s;
    }

private:
    template <class Use>
    void each(Use&& use) const {
        for (std::size_t length = 0; length < counts_.size(); ++length) {
            if (counts_[length] > 0) use(static_cast<std::int64_t>(length), counts_[length]);
        }
        for (const auto& [length, count] : long_) use(length, count);
    }
    static constexpr std::int64_t dense = std::int64_t{1} << 20;
    std::int64_t rows_ = 0;
    std::vector<std::int64_t> counts_;
    std::map<std::int64_t, std::int64_t> long_;
};

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

TraceStats trace_stats(TraceReader& reader, const std::vector<std::int64_t>& capacities) {
    TraceStats stats;
    stats.format = reader.format();
    stats.timed = reader.times() == TraceTimes::recorded;
    LengthCounts inputs;
    LengthCounts outputs;
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
        inputs.add(row.input_length);
        outputs.add(row.output_length);
        if (row.hash_ids.empty()) continue;
        stats.trace_block_size = row.block_size;
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
    stats.input = inputs.stats();
    stats.output = outputs.stats();
    stats.unknown_keys = reader.unknown_keys();
    stats.notes = reader.notes();
    return stats;
}

std::string render(const TraceStats& s) {
    std::string out;
    out += fmt::format("format            {}\n", s.format);
    out += fmt::format("requests          {}\n", grouped(s.rows));
    if (s.timed) {
        out += fmt::format("span              {:.1f} s\n", s.span_s);
        out += fmt::format("rate              {:.3f} requests/s\n", s.rate);
        out += fmt::format("inter-arrival CV  {:.2f}\n", s.gap_cv);
    } else {
        out += "times             none: workload.arrivals says when requests come\n";
    }
    if (s.timed && s.ticks * 2 < s.rows)
        out += fmt::format("timestamps        {} distinct: requests arrive in batches of {:.1f}; consider trace.jitter\n",
                           grouped(s.ticks), static_cast<double>(s.rows) / static_cast<double>(s.ticks));
    for (const std::string& note : s.notes) out += fmt::format("note              {}\n", note);
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
