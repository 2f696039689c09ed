#include "kvsim/base/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "kvsim/base/check.hpp"

namespace kvsim {

namespace {

// ASCII only, so that no locale can change a name's identity.
char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool is_continuation(char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

constexpr std::size_t max_distance = 3;

// Levenshtein; anything above max_distance is only known to be above it.
std::size_t edit_distance(std::string_view a, std::string_view b) {
    const std::size_t gap = a.size() > b.size() ? a.size() - b.size() : b.size() - a.size();
    if (gap > max_distance) return gap;
    std::vector<std::size_t> row(b.size() + 1);
    for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::size_t diagonal = row[0];
        std::size_t best = row[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t substitute = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
            best = std::min(best, row[j]);
        }
        if (best > max_distance) return best;
    }
    return row[b.size()];
}

}  // namespace

std::string shortest(double value) {
    KVSIM_CHECK(std::isfinite(value), "a figure that is written out must be finite");
    const double size = std::fabs(value);
    if (size == 0) return "0";
    std::array<char, 64> text{};
    const auto format = size >= 1e-5 && size < 1e16 ? std::chars_format::fixed : std::chars_format::scientific;
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value, format).ptr;
    return {text.data(), end};
}

std::string decimals(double value, int digits) {
    KVSIM_CHECK(std::isfinite(value), "a figure that is written out must be finite");
    KVSIM_CHECK(digits >= 0 && digits <= 9, "decimals() takes 0 to 9 digits");
    std::array<char, 400> text{};  // the largest double has 309 digits before the point
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits).ptr;
    std::string out(text.data(), end);
    if (out.find('.') != std::string::npos) {
        out.erase(out.find_last_not_of('0') + 1);
        if (out.back() == '.') out.pop_back();
    }
    return out == "-0" ? "0" : out;
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> candidates) {
    std::string_view found;
    std::size_t best = std::min(max_distance + 1, word.size());
    for (const std::string_view candidate : candidates) {
        const std::size_t distance = edit_distance(word, candidate);
        if (distance < best) {
            best = distance;
            found = candidate;
        }
    }
    return found;
}

std::string excerpt(std::string_view text, std::size_t max_bytes) {
    const bool cut = text.size() > max_bytes;
    if (cut) {
        std::size_t end = max_bytes;
        while (end > 0 && is_continuation(text[end])) --end;
        text = text.substr(0, end);
    }
    std::string out(text);
    const bool broken = find_invalid_utf8(text) != std::string_view::npos;
    for (char& c : out) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7F || (broken && byte >= 0x80)) c = '?';
    }
    return cut ? out + "..." : out;
}

std::size_t find_invalid_utf8(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    std::size_t i = 0;
    while (i < text.size()) {
        const unsigned lead = byte(i);
        std::size_t length = 1;
        unsigned second_min = 0x80;
        unsigned second_max = 0xBF;
        if (lead >= 0xC2 && lead <= 0xDF) {
            length = 2;
        } else if (lead >= 0xE0 && lead <= 0xEF) {
            length = 3;
            if (lead == 0xE0) second_min = 0xA0;  // overlong below
            if (lead == 0xED) second_max = 0x9F;  // surrogates above
        } else if (lead >= 0xF0 && lead <= 0xF4) {
            length = 4;
            if (lead == 0xF0) second_min = 0x90;
            if (lead == 0xF4) second_max = 0x8F;  // U+10FFFF is the last
        } else if (lead >= 0x80) {
            return i;
        }
        if (i + length > text.size()) return i;
        for (std::size_t k = 1; k < length; ++k) {
            if (byte(i + k) < (k == 1 ? second_min : 0x80U) || byte(i + k) > (k == 1 ? second_max : 0xBFU)) return i;
        }
        i += length;
    }
    return std::string_view::npos;
}

std::string fold_name(std::string_view name) {
    std::string out;
    for (const char c : name) {
        const char l = lower(c);
        if ((l >= 'a' && l <= 'z') || (l >= '0' && l <= '9')) out += l;
    }
    return out;
}

std::string_view trimmed(std::string_view text) {
    const std::size_t first = text.find_first_not_of(" \t");
    return first == std::string_view::npos ? std::string_view() : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string fnv1a_hex(std::string_view text) {
    std::uint64_t hash = 0xCBF29CE484222325U;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
    std::string out(16, '0');
    for (std::size_t i = 16; i-- > 0; hash >>= 4U) out[i] = "0123456789abcdef"[hash & 15U];
    return out;
}

}  // namespace kvsim
