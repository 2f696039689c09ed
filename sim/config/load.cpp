// The only file that includes yaml-cpp. It takes yaml-cpp's events, never its nodes or conversions: those keep the first of two
// equal keys, read 010 as 8 and swallow malformed text.

#include "kvsim/config/load.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kvsim/base/check.hpp"
#include "kvsim/base/file.hpp"
#include "kvsim/base/text.hpp"

namespace kvsim::config {

namespace {

constexpr std::size_t max_text_bytes = std::size_t{1} << 20;  // the scanner may hold a token of 80 bytes for each byte
constexpr std::size_t max_nodes = 100'000;
constexpr std::size_t max_expanded_bytes = std::size_t{16} << 20;  // scalars after alias expansion
constexpr std::size_t max_depth = 64;

struct Abandon {};  // an error after which the rest of the text cannot be read sensibly; already reported

std::vector<std::string> split_lines(std::string_view text) {
    std::vector<std::string> lines;
    while (true) {
        const std::size_t end = text.find('\n');
        lines.emplace_back(text.substr(0, end));
        if (end == std::string_view::npos) return lines;
        text.remove_prefix(end + 1);
    }
}

// Without byte order mark, line ends LF.
std::string normalise(std::string_view text) {
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    std::string out;
    out.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
        out += text[i];
    }
    return out;
}

struct Extent {
    std::size_t nodes = 1;
    std::size_t bytes = 0;
    std::size_t depth = 0;  // levels of lists and maps
};

Extent measure(const Value& value) {
    Extent out{1, value.scalar.size(), value.is_list() || value.is_map() ? std::size_t{1} : std::size_t{0}};
    const auto add = [&](const Value& child) {
        const Extent inner = measure(child);
        out.nodes += inner.nodes;
        out.bytes += inner.bytes;
        out.depth = std::max(out.depth, inner.depth + 1);
    };
    for (const Value& item : value.list) add(item);
    for (const Member& member : value.map) {
        out.nodes += 1;
        out.bytes += member.key.size();
        add(member.value);
    }
    return out;
}

class TreeBuilder : public YAML::EventHandler {
public:
    TreeBuilder(std::shared_ptr<const Source> source, int first_column, Diagnostics& diagnostics)
        : source_(std::move(source)), first_column_(first_column), diagnostics_(diagnostics) {}

    [[nodiscard]] Value take() { return std::move(root_); }
    [[nodiscard]] Mark mark_of(const YAML::Mark& mark) const {
        if (mark.is_null()) return Mark{source_, 0, 0};
        return Mark{source_, mark.line + 1, mark.column + 1 + (mark.line == 0 ? first_column_ : 0)};
    }

    void OnDocumentStart(const YAML::Mark& mark) override {
        if (++documents_ == 1) return;
        const Mark at = mark_of(mark);
        const auto line = static_cast<std::size_t>(at.line) - 1;
        const bool marker = line < source_->lines.size() && source_->lines[line].starts_with("---");
        diagnostics_.error(at, marker ? "a second document starts here; one file holds one document"
                                      : "unexpected text after the end of the document");
        throw Abandon{};
    }
    // At the end of the text yaml-cpp 0.7 closes a quote by itself. Such a scalar is always the last one.
    void OnDocumentEnd() override {
        if (last_scalar_.line == 0 || is_closed(last_scalar_)) return;
        diagnostics_.error(last_scalar_, "this quote is not closed");
        throw Abandon{};
    }

    void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
        if (expects_key()) {
            diagnostics_.error(mark_of(mark), "a key is missing");
            throw Abandon{};
        }
        Value value;
        // yaml-cpp marks an absent value at whatever follows it.
        value.mark = !stack_.empty() && stack_.back().value.is_map() ? stack_.back().key_mark : mark_of(mark);
        spend({}, value.mark);
        place(std::move(value), anchor);
    }

    void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
        const Mark at = mark_of(mark);
        if (expects_key()) {
            diagnostics_.error(at, "an alias cannot be a key");
            throw Abandon{};
        }
        const auto found = anchors_.find(anchor);
        if (found == anchors_.end()) {
            diagnostics_.error(at, "an alias cannot stand inside what it refers to");
            throw Abandon{};
        }
        const auto& [target, extent] = found->second;
        spend(extent, at);
        if (stack_.size() + extent.depth > max_depth) too_deep(at);
        place(target, 0);
    }

    void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, const std::string& text) override {
        const Mark at = mark_of(mark);
        refuse_tag(tag, at);
        if (tag == "!") last_scalar_ = at;
        spend({1, text.size(), 0}, at);
        if (expects_key()) {
            take_key(text, at, tag == "!");
            if (anchor != 0) remember(anchor, scalar_of(text, tag, at));
            return;
        }
        place(scalar_of(text, tag, at), anchor);
    }

    void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                         YAML::EmitterStyle::value style) override {
        open(Value::Kind::list, mark, tag, anchor, style);
    }
    void OnSequenceEnd() override { close(); }
    void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                    YAML::EmitterStyle::value style) override {
        open(Value::Kind::map, mark, tag, anchor, style);
    }
    void OnMapEnd() override { close(); }

private:
    struct Frame {
        Value value;
        YAML::anchor_t anchor = 0;
        bool has_key = false;
        bool dropped = false;  // the pending key was refused: its value is read and thrown away
        std::string key;
        Mark key_mark;
        std::unordered_map<std::string, Mark> seen;  // looked up only, never iterated
    };

    [[nodiscard]] bool expects_key() const { return !stack_.empty() && stack_.back().value.is_map() && !stack_.back().has_key; }

    // Whether the quoted scalar that starts at `at` (perhaps after an anchor) has its closing quote. Block scalars are.
    [[nodiscard]] bool is_closed(const Mark& at) const {
        auto line = static_cast<std::size_t>(at.line) - 1;
        auto i = static_cast<std::size_t>(at.column) - 1;
        const auto& lines = source_->lines;
        const auto next_line = [&] {
            ++line;
            i = 0;
        };
        while (line < lines.size()) {  // to the opening quote
            const std::string& text = lines[line];
            if (i >= text.size()) {
                next_line();
            } else if (text[i] == '&' || text[i] == '!') {
                i = std::min(text.find_first_of(" \t", i), text.size());
            } else if (text[i] == ' ' || text[i] == '\t') {
                ++i;
            } else {
                break;
            }
        }
        if (line == lines.size() || (lines[line][i] != '"' && lines[line][i] != '\'')) return true;
        const char quote = lines[line][i++];
        while (line < lines.size()) {
            const std::string& text = lines[line];
            if (i >= text.size()) {
                next_line();
            } else if (quote == '"' && text[i] == '\\') {
                i += 2;
            } else if (quote == '\'' && text.compare(i, 2, "''") == 0) {
                i += 2;
            } else if (text[i++] == quote) {
                return true;
            }
        }
        return false;
    }

    Value scalar_of(const std::string& text, const std::string& tag, const Mark& at) const {
        Value value;
        value.kind = Value::Kind::scalar;
        value.quoted = tag == "!";
        value.scalar = text;
        value.mark = at;
        return value;
    }

    void take_key(const std::string& text, const Mark& at, bool quoted) {
        Frame& frame = stack_.back();
        frame.has_key = true;
        frame.dropped = true;
        frame.key = text;
        frame.key_mark = at;
        if (text == "<<" && !quoted) {
            diagnostics_.error(at, "merge keys (<<) are not supported; write the keys out");
        } else if (text.empty()) {
            diagnostics_.error(at, "a key must not be empty");
        } else if (const auto [place, fresh] = frame.seen.emplace(text, at); !fresh) {
            const Mark& first = place->second;
            const std::size_t length = first.column > 0 ? static_cast<std::size_t>(first.column) - 1 : 0;
            std::size_t column = 1;
            const std::string& line = source_->lines[static_cast<std::size_t>(first.line) - 1];
            for (std::size_t i = 0; i < length && i < line.size(); ++i) {
                if ((static_cast<unsigned char>(line[i]) & 0xC0U) != 0x80U) ++column;
            }
            diagnostics_.error(at, "duplicate key '" + excerpt(text) + "'; it first stands at line " +
                                       std::to_string(first.line) + ", column " + std::to_string(column));
        } else {
            frame.dropped = false;
        }
    }

    void open(Value::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
              YAML::EmitterStyle::value style) {
        const Mark at = mark_of(mark);
        refuse_tag(tag, at);
        if (expects_key()) {
            // yaml-cpp takes a flow collection for a key also when its bracket is never closed.
            diagnostics_.error(at, style == YAML::EmitterStyle::Flow
                                       ? "a list or map cannot be a key; if it is a value, its bracket is not closed"
                                       : "a list or map cannot be a key");
            throw Abandon{};
        }
        if (stack_.size() >= max_depth) too_deep(at);
        Frame frame;
        frame.value.kind = kind;
        // A block map starts at its first key; errors about the whole map belong to the key that names it.
        const bool named = style == YAML::EmitterStyle::Block && !stack_.empty() && stack_.back().value.is_map();
        frame.value.mark = named ? stack_.back().key_mark : at;
        frame.anchor = anchor;
        spend({}, at);
        stack_.push_back(std::move(frame));
    }

    void close() {
        Frame frame = std::move(stack_.back());
        stack_.pop_back();
        place(std::move(frame.value), frame.anchor);
    }

    void place(Value value, YAML::anchor_t anchor) {
        if (anchor != 0) remember(anchor, value);
        if (stack_.empty()) {
            root_ = std::move(value);
            return;
        }
        Frame& frame = stack_.back();
        if (frame.value.is_list()) {
            frame.value.list.push_back(std::move(value));
            return;
        }
        frame.has_key = false;
        if (!frame.dropped) frame.value.map.push_back(Member{std::move(frame.key), frame.key_mark, std::move(value)});
    }

    // Anchored copies nest ("&a [&b [&c ..."), so they are charged like any other copy.
    void remember(YAML::anchor_t anchor, Value value) {
        const Extent extent = measure(value);
        spend(extent, value.mark);
        anchors_.insert_or_assign(anchor, std::pair(std::move(value), extent));
    }

    void spend(const Extent& extent, const Mark& at) {
        nodes_ += extent.nodes;
        bytes_ += extent.bytes;
        if (nodes_ > max_nodes || bytes_ > max_expanded_bytes) {
            diagnostics_.error(at, "more than " + std::to_string(max_nodes) + " values (anchors and aliases counted out)");
            throw Abandon{};
        }
    }

    void refuse_tag(const std::string& tag, const Mark& at) {
        if (tag.empty() || tag == "?" || tag == "!") return;
        diagnostics_.error(at, "YAML tags ('" + excerpt(tag) + "') are not supported; remove it");
        throw Abandon{};
    }

    [[noreturn]] void too_deep(const Mark& at) {
        diagnostics_.error(at, "nested more than " + std::to_string(max_depth) + " levels deep");
        throw Abandon{};
    }

    std::shared_ptr<const Source> source_;
    int first_column_;
    Diagnostics& diagnostics_;
    Value root_;
    std::vector<Frame> stack_;
    std::map<YAML::anchor_t, std::pair<Value, Extent>> anchors_;
    Mark last_scalar_;  // of those in quotes
    std::size_t nodes_ = 0;
    std::size_t bytes_ = 0;
    int documents_ = 0;
};

// What yaml-cpp would accept silently or report badly. False: do not parse.
bool check_text(std::string_view text, const std::shared_ptr<const Source>& source, int first_column,
                Diagnostics& diagnostics) {
    const auto mark_at = [&](std::size_t offset) {
        const std::string_view before = text.substr(0, offset);
        const std::size_t newline = before.rfind('\n');
        const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
        const auto line = static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1;
        return Mark{source, line, static_cast<int>(offset - start) + 1 + (line == 1 ? first_column : 0)};
    };
    if (text.size() > max_text_bytes) {
        diagnostics.error(Mark{source, 0, 0}, "larger than 1 MiB; lists of requests belong in a trace file");
        return false;
    }
    if (const std::size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
        diagnostics.error(mark_at(at), "not valid UTF-8; save the file as UTF-8 text");
        return false;
    }
    if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
        diagnostics.error(mark_at(at), "a NUL byte; this is not a text file");
        return false;
    }
    const auto is_control = [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
    };
    if (const auto at = std::find_if(text.begin(), text.end(), is_control); at != text.end()) {
        diagnostics.error(mark_at(static_cast<std::size_t>(at - text.begin())),
                          *at == '\r' ? "a carriage return without a line feed; end lines with LF or CRLF"
                                      : "a control character; this is not a text file");
        return false;
    }

    std::optional<Mark> first_tab;
    int more_tabs = 0;
    bool content = false;
    for (std::size_t i = 0; i < source->lines.size(); ++i) {
        const std::string_view line = i == 0 ? std::string_view(source->lines[i]).substr(static_cast<std::size_t>(first_column))
                                             : std::string_view(source->lines[i]);
        const std::size_t start = line.find_first_not_of(" \t");
        if (start == std::string_view::npos || line[start] == '#') continue;
        content = true;
        const std::size_t tab = line.substr(0, start).find('\t');
        if (tab == std::string_view::npos) continue;
        if (first_tab) {
            ++more_tabs;
        } else {
            first_tab = Mark{source, static_cast<int>(i) + 1, static_cast<int>(tab) + 1 + (i == 0 ? first_column : 0)};
        }
    }
    if (first_tab) {
        std::string message = "a tab in the indentation; indent with spaces";
        if (more_tabs > 0) message += " (and " + std::to_string(more_tabs) + (more_tabs == 1 ? " more line)" : " more lines)");
        diagnostics.error(*first_tab, message);
        return false;
    }
    if (!content) {
        diagnostics.error(Mark{source, 0, 0}, "nothing in it but blanks and comments");
        return false;
    }
    return true;
}

// yaml-cpp's message, with what it mostly means.
std::string explain(const std::string& message) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 6> meanings{{
        {"illegal map value", "a ':' where no key can stand; quote text that contains ': ', put a nested key on its own line"},
        {"end of map not found", "this does not line up with the keys above; check the indentation"},
        {"end of sequence not found", "this does not line up with the list above; check the indentation"},
        {"end of map flow not found", "a '{' above is not closed, or a ',' is missing before here"},
        {"end of sequence flow not found", "a '[' above is not closed, or a ',' is missing before here"},
        {"illegal EOF in scalar", "a quote is not closed"},
    }};
    for (const auto& [theirs, ours] : meanings) {
        if (message == theirs) return std::string(ours);
    }
    // Of an unknown escape yaml-cpp names one byte, which may be part of a character.
    std::string whole = message.substr(0, find_invalid_utf8(message));
    whole.erase(whole.find_last_not_of(": ") + 1);
    return "YAML: " + whole;
}

// `text` is normalised; its first line starts `first_column` bytes into the source's first line.
Value parse(const std::string& text, const std::shared_ptr<const Source>& source, int first_column, Diagnostics& diagnostics) {
    if (!check_text(text, source, first_column, diagnostics)) return {};
    TreeBuilder builder(source, first_column, diagnostics);
    try {
        std::istringstream stream(text);
        YAML::Parser parser(stream);
        // Never until false: on "," yaml-cpp 0.7 yields empty documents for ever. The second document throws.
        if (!parser.HandleNextDocument(builder)) {
            diagnostics.error(Mark{source, 0, 0}, "no document in it");
            return {};
        }
        parser.HandleNextDocument(builder);
    } catch (const Abandon&) { return {}; } catch (const YAML::Exception& e) {
        Mark at = builder.mark_of(e.mark);
        at.line = std::min(at.line, static_cast<int>(source->lines.size()));
        diagnostics.error(at, explain(e.msg));
        return {};
    }
    return builder.take();
}

}  // namespace

Value parse_yaml(std::string_view text, std::string name, Diagnostics& diagnostics) {
    const std::string clean = normalise(text);
    const auto source = std::make_shared<const Source>(Source{std::move(name), split_lines(clean)});
    return parse(clean, source, 0, diagnostics);
}

Value load_yaml(const std::filesystem::path& path, Diagnostics& diagnostics) {
    return parse_yaml(read_file(path, max_text_bytes), path.string(), diagnostics);
}

namespace {

/// The item whose `name` is `key`, else the one at that index from 0; null after reporting.
Value* list_item(Value& list, const std::string& key, const std::string& parent, const Mark& mark, Diagnostics& diagnostics) {
    std::vector<std::string_view> names;
    for (Value& item : list.list) {
        const Value* const name = item.find("name");
        if (name == nullptr || !name->is_scalar()) continue;
        if (name->scalar == key) return &item;
        names.push_back(name->scalar);
    }
    if (key.find_first_not_of("0123456789") == std::string::npos) {
        if (key.size() < 10 && static_cast<std::size_t>(std::stoul(key)) < list.list.size())
            return &list.list[static_cast<std::size_t>(std::stoul(key))];
        diagnostics.error(mark, parent + " has " + std::to_string(list.list.size()) + " items; they count from 0");
    } else if (names.empty()) {
        diagnostics.error(mark, parent + " is a list: write the index of an item, from 0, instead of '" + excerpt(key) + "'");
    } else {
        diagnostics.unknown(mark, "item of " + parent, key, names);
    }
    return nullptr;
}

}  // namespace

void apply_set(Value& root, std::string_view assignment, Diagnostics& diagnostics) {
    const std::string clean = normalise(assignment);
    const auto source = std::make_shared<const Source>(Source{"--set " + excerpt(clean, 200), split_lines(clean)});
    const auto mark_at = [&](std::size_t offset) { return Mark{source, 1, static_cast<int>(offset) + 1}; };

    const std::size_t equals = clean.find('=');
    if (equals == std::string::npos || equals == 0) {
        diagnostics.error(mark_at(0), "write --set key.path=value");
        return;
    }
    const std::string_view path = std::string_view(clean).substr(0, equals);
    std::vector<std::pair<std::string, std::size_t>> steps;  // a key and where it stands
    for (std::size_t start = 0; start <= path.size();) {
        const std::size_t end = std::min(path.find('.', start), path.size());
        if (end == start || path.substr(start, end - start).find_first_of(" \t\n") != std::string_view::npos) {
            diagnostics.error(mark_at(start), end == start ? "an empty key in the path" : "a blank in the key path");
            return;
        }
        steps.emplace_back(path.substr(start, end - start), start);
        start = end + 1;
    }
    if (steps.size() >= max_depth) {
        diagnostics.error(mark_at(0), "nested more than " + std::to_string(max_depth) + " levels deep");
        return;
    }
    const std::string text = clean.substr(equals + 1);
    const std::size_t first = text.find_first_not_of(" \t\n");
    if (first == std::string::npos) {
        diagnostics.error(mark_at(equals + 1), "no value after '='");
        return;
    }
    const std::size_t errors_before = diagnostics.error_count();
    Value value = parse(text, source, static_cast<int>(equals) + 1, diagnostics);
    if (diagnostics.error_count() != errors_before) return;
    if ((value.is_map() || value.is_list()) && std::string_view("{[&").find(text[first]) == std::string_view::npos) {
        diagnostics.error(mark_at(equals + 1 + first), "write a map as {key: value} and a list as [a, b]");
        return;
    }

    Value* at = &root;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const std::string& key = steps[i].first;
        const std::size_t offset = steps[i].second;
        if (at->is_null()) {
            at->kind = Value::Kind::map;
            at->mark = mark_at(offset);
        }
        const std::string parent = i == 0 ? "the file" : std::string(path.substr(0, offset - 1));
        if (at->is_list()) {
            at = list_item(*at, key, parent, mark_at(offset), diagnostics);
            if (at == nullptr) return;
            continue;
        }
        if (!at->is_map()) {
            diagnostics.error(mark_at(offset),
                              "cannot set a key of " + parent + ", which is '" + excerpt(at->scalar) + "' and not a map");
            return;
        }
        const auto member = std::find_if(at->map.begin(), at->map.end(), [&](const Member& m) { return m.key == key; });
        if (member != at->map.end()) {
            at = &member->value;
        } else {
            at->map.push_back(Member{key, mark_at(offset), Value{}});
            at = &at->map.back().value;
            at->mark = mark_at(offset);
        }
    }
    *at = std::move(value);
}

namespace {

void lay_over(Value& below, const Value& above) {
    for (const Member& member : above.map) {
        const auto at = std::find_if(below.map.begin(), below.map.end(), [&](const Member& m) { return m.key == member.key; });
        if (at == below.map.end()) {
            below.map.push_back(member);
            continue;
        }
        Value& old = at->value;
        bool same_piece = old.is_map() && member.value.is_map();
        for (const std::string_view naming : {"model", "policy", "process", "distribution"}) {
            if (!same_piece) break;
            const Value* now = member.value.find(naming);
            const Value* before = old.find(naming);
            same_piece = now == nullptr || before == nullptr || now->scalar == before->scalar;
        }
        if (same_piece) {
            lay_over(old, member.value);
        } else {
            *at = member;
        }
    }
}

}  // namespace

void merge(Value& root, const Value& overlay, Diagnostics& diagnostics) {
    if (overlay.is_null() && !diagnostics.ok()) return;  // it could not be read
    if (!overlay.is_map()) {
        diagnostics.error(overlay.mark, "an overlay must be a map");
    } else if (root.is_map()) {
        lay_over(root, overlay);
    }
}

}  // namespace kvsim::config
