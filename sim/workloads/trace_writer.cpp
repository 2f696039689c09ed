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
    std::vector<Content> blocks;  ///< of the current request

    std::uint64_t of(const Content& block) {
        const auto [found, is_new] = known.try_emplace(block, next);
        if (is_new) ++next;
        return found->second;
    }

    /// Tokens in blocks, runs cut at their ends and joined where they continue one another: equal tokens, equal content.
    void cut(const std::vector<TokenRun>& tokens, std::int64_t block_size) {
        blocks.clear();
        std::int64_t room = 0;
        for (TokenRun run : tokens) {
            while (run.count > 0) {
                if (room == 0) {
                    blocks.emplace_back();
                    room = block_size;
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
    }
};

TraceWriter::TraceWriter(std::int64_t block_size, const TraceKeys& keys)
    : block_size_(block_size), keys_(keys), ids_(std::make_unique<Ids>()) {
    KVSIM_CHECK(block_size >= 1, "a block holds tokens");
}

TraceWriter::~TraceWriter() = default;

std::string TraceWriter::left_out(const Arrival& arrival) {
    if (arrival.ttft_timeout > SimDuration::zero()) return "a timeout of the first token";
    if (arrival.cancel_after > SimDuration::zero()) return "a cancellation";
    if (arrival.attempt > 0) return "a retry";
    return {};
}

void TraceWriter::append(const Arrival& arrival, std::string& out) {
    append(arrival, TraceTurn{next_, arrival.time, {}}, out);
}

void TraceWriter::append(const Arrival& arrival, const TraceTurn& turn, std::string& out) {
    const bool first = next_++ == 0;
    out += "{\"timestamp\": ";
    append_ms(turn.time.time_since_epoch().count(), out);
    out += ", \"input_length\": " + std::to_string(arrival.prompt_tokens);
    out += ", \"output_length\": " + std::to_string(arrival.output_tokens);
    if (keys_.outputs_recur) {
        append_recurring(arrival, turn.id, out);
    } else {
        append_shared(arrival, turn.id, out);
    }
    append_text("request_id", arrival.external_id, out);
    if (arrival.n > 1) {
        out += ", \"n\": " + std::to_string(arrival.n);
    } else if (keys_.branches && first) {
        out += ", \"n\": null";
    }
    if (arrival.priority != 0) out += ", \"priority\": " + std::to_string(arrival.priority);
    append_text("class", arrival.request_class, out);
    append_text("session_id", arrival.session_id, out);
    append_text("tenant", arrival.tenant, out);
    if (turn.think) {
        out += ", \"think_ms\": ";
        append_ms(turn.think->count(), out);
    } else if (keys_.think_times && first) {
        out += ", \"think_ms\": null";
    }
    if (keys_.think_times) out += ", \"order\": " + std::to_string(turn.id);
    if (arrival.timeout > SimDuration::zero()) {
        out += ", \"timeout_ms\": ";
        append_ms(arrival.timeout.count(), out);
    } else if (keys_.timeouts && first) {
        out += ", \"timeout_ms\": null";
    }
    out += "}\n";
}

void TraceWriter::append_shared(const Arrival& arrival, RequestId id, std::string& out) {
    const std::uint64_t own = own_prompt_base(id);
    const std::uint64_t own_end = own + (std::uint64_t{1} << 31);
    const auto is_own = [&](const TokenRun& run) { return run.first >= own && run.first < own_end; };
    if (std::all_of(arrival.prompt.begin(), arrival.prompt.end(), is_own)) return;
    ids_->cut(arrival.prompt, block_size_);
    out += ", \"hash_ids\": [";
    for (std::size_t i = 0; i < ids_->blocks.size(); ++i) {
        const Content& block = ids_->blocks[i];
        if (i > 0) out += ", ";
        out += std::to_string(std::any_of(block.begin(), block.end(), is_own) ? ids_->next++ : ids_->of(block));
    }
    out += "], \"trace_block_size\": " + std::to_string(block_size_);
}

void TraceWriter::append_recurring(const Arrival& arrival, RequestId id, std::string& out) {
    std::vector<TokenRun> sequence = arrival.prompt;
    if (sequence.empty()) sequence.push_back({own_prompt_base(id), arrival.prompt_tokens});
    sequence.push_back({arrival.output_base, arrival.output_tokens});
    ids_->cut(sequence, block_size_);
    const auto of_prompt = static_cast<std::size_t>(arrival.prompt_tokens / block_size_);
    out += ", \"hash_ids\": [";
    for (std::size_t i = 0; i < of_prompt; ++i) {
        if (i > 0) out += ", ";
        out += std::to_string(ids_->of(ids_->blocks[i]));
    }
    // The block in which the outputs begin and those behind it: nobody has had them before, so their ids can be consecutive.
    const std::uint64_t outputs = ids_->next;
    for (std::size_t i = of_prompt; i < ids_->blocks.size(); ++i) ids_->known.try_emplace(ids_->blocks[i], ids_->next++);
    if (arrival.prompt_tokens % block_size_ != 0) {
        if (of_prompt > 0) out += ", ";
        out += std::to_string(outputs);
    }
    out += "], \"output_hash_id\": " + std::to_string(outputs) + ", \"trace_block_size\": " + std::to_string(block_size_);
}

}  // namespace kvsim
