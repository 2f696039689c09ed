#include "kvsim/model/trace_writer.hpp"

#include <algorithm>
#include <map>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/model/token_ids.hpp"

namespace kvsim {

namespace {

using Content = std::vector<TokenRun>;

struct ContentOrder {
    bool operator()(const Content& a, const Content& b) const {
        return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), [](const TokenRun& x, const TokenRun& y) {
            return x.first != y.first ? x.first < y.first : x.count < y.count;
        });
    }
};

void append_ms(std::int64_t ns, std::string& out) {
    constexpr std::int64_t ns_per_ms = 1'000'000;
    out += std::to_string(ns / ns_per_ms);
    std::int64_t rest = ns % ns_per_ms;
    if (rest == 0) return;
    std::string digits = std::to_string(ns_per_ms + rest).substr(1);
    while (digits.back() == '0') digits.pop_back();
    out += '.';
    out += digits;
}

void append_text(std::string_view key, const std::string& text, std::string& out) {
    if (text.empty()) return;
    out += ", \"";
    out += key;
    out += "\": \"";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (byte < 0x20) {
            constexpr std::string_view hex = "0123456789abcdef";
            out += "\\u00";
            out += hex[byte >> 4U];
            out += hex[byte & 15U];
        } else {
            out += c;
        }
    }
    out += '"';
}

}  // namespace

struct TraceWriter::Ids {
    std::map<Content, std::uint64_t, ContentOrder> known;
    std::uint64_t next = 0;
    std::vector<Content> blocks;  ///< of the current prompt
};

TraceWriter::TraceWriter(std::int64_t block_size, bool timeouts, bool branches)
    : block_size_(block_size), timeouts_(timeouts), branches_(branches), ids_(std::make_unique<Ids>()) {
    KVSIM_CHECK(block_size >= 1, "a block holds tokens");
}

TraceWriter::~TraceWriter() = default;

std::string TraceWriter::left_out(const Arrival& arrival) {
    if (arrival.ttft_timeout > SimDuration::zero()) return "a timeout of the first token";
    if (arrival.cancel_after > SimDuration::zero()) return "a cancellation";
    if (!arrival.tenant.empty()) return "a tenant";
    if (arrival.attempt > 0) return "a retry";
    return {};
}

void TraceWriter::append(const Arrival& arrival, std::string& out) {
    const RequestId id = next_++;
    out += "{\"timestamp\": ";
    append_ms(arrival.time.time_since_epoch().count(), out);
    out += ", \"input_length\": " + std::to_string(arrival.prompt_tokens);
    out += ", \"output_length\": " + std::to_string(arrival.output_tokens);

    // The prompt in blocks, runs cut at their ends and joined where they continue one another: equal tokens, equal content.
    std::vector<Content>& blocks = ids_->blocks;
    blocks.clear();
    std::int64_t room = 0;
    bool may_be_shared = false;
    const std::uint64_t own = own_prompt_base(id);
    const std::uint64_t own_end = own + (std::uint64_t{1} << 31);
    const auto is_own = [&](const TokenRun& run) { return run.first >= own && run.first < own_end; };
    for (TokenRun run : arrival.prompt) {
        may_be_shared = may_be_shared || !is_own(run);
        while (run.count > 0) {
            if (room == 0) {
                blocks.emplace_back();
                room = block_size_;
            }
            const std::int64_t count = std::min(room, run.count);
            Content& block = blocks.back();
            if (!block.empty() && block.back().first + static_cast<std::uint64_t>(block.back().count) == run.first) {
                block.back().count += count;
            } else {
                block.push_back({run.first, count});
            }
            run.first += static_cast<std::uint64_t>(count);
            run.count -= count;
            room -= count;
        }
    }
    if (may_be_shared) {
        out += ", \"hash_ids\": [";
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            const Content& block = blocks[i];
            std::uint64_t hash = ids_->next;
            if (std::any_of(block.begin(), block.end(), is_own)) {
                ++ids_->next;
            } else {
                const auto [found, is_new] = ids_->known.try_emplace(block, hash);
                hash = found->second;
                if (is_new) ++ids_->next;
            }
            if (i > 0) out += ", ";
            out += std::to_string(hash);
        }
        out += "], \"trace_block_size\": " + std::to_string(block_size_);
    }
    append_text("request_id", arrival.external_id, out);
    if (arrival.n > 1) {
        out += ", \"n\": " + std::to_string(arrival.n);
    } else if (branches_ && id == 0) {
        out += ", \"n\": null";
    }
    if (arrival.priority != 0) out += ", \"priority\": " + std::to_string(arrival.priority);
    append_text("class", arrival.request_class, out);
    append_text("session_id", arrival.session_id, out);
    if (arrival.timeout > SimDuration::zero()) {
        out += ", \"timeout_ms\": ";
        append_ms(arrival.timeout.count(), out);
    } else if (timeouts_ && id == 0) {
        out += ", \"timeout_ms\": null";
    }
    out += "}\n";
}

}  // namespace kvsim
