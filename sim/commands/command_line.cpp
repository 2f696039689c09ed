#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>

#include "kvsim/app/command.hpp"
#include "kvsim/app/process.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"

namespace kvsim::app {
namespace {

namespace po = boost::program_options;

constexpr std::size_t help_column = 30;

/// One word, kept as text; the description takes ownership. (po::value<> would warn under g++ 12 at -O3.)
po::value_semantic* one_value() {
    return new po::untyped_value(false);
}

std::string help_text(const Usage& usage) {
    std::string out = "Usage: " + std::string(usage.synopsis) + "\n\n" + std::string(usage.description) + "\n\nOptions:\n";
    const auto line = [&out](const Option& option) {
        std::string head = fmt::format("  {}--{}{}{}", option.letter != 0 ? fmt::format("-{}, ", option.letter) : "",
                                       option.name, option.argument.empty() ? "" : " ", option.argument);
        if (head.size() >= help_column) head += "\n" + std::string(help_column, ' ');
        out += fmt::format("{:<{}}{}{}\n", head, help_column, option.doc, option.repeatable ? " (repeatable)" : "");
    };
    for (const Option& option : usage.options) line(option);
    line({"help", "", "this text"});
    return out;
}

std::string suggestion(std::string_view word, std::span<const std::string_view> candidates, std::string_view prefix = "") {
    const std::string_view near = nearest(word, candidates);
    return near.empty() ? "" : "; did you mean '" + std::string(prefix) + std::string(near) + "'?";
}

}  // namespace

std::optional<std::string> Arguments::text(std::string_view name) const {
    const auto found = values.find(name);
    if (found == values.end() || found->second.empty()) return std::nullopt;
    return found->second.back();
}

std::vector<std::string> Arguments::all(std::string_view name) const {
    const auto found = values.find(name);
    return found == values.end() ? std::vector<std::string>{} : found->second;
}

namespace {

std::int64_t read_integer(std::string_view name, const std::string& written, std::int64_t min, std::int64_t max) {
    std::int64_t value = 0;
    const char* const end = written.data() + written.size();
    const auto [stop, error] = std::from_chars(written.data(), end, value);
    if (error == std::errc::invalid_argument || stop != end) {
        throw UserError("error: --" + std::string(name) + " must be an integer, not '" + written + "'");
    }
    if (error != std::errc{} || value < min || value > max) {
        throw UserError("error: --" + std::string(name) + " must be between " + std::to_string(min) + " and " +
                        std::to_string(max) + ", not " + written);
    }
    return value;
}

}  // namespace

std::optional<std::int64_t> Arguments::integer(std::string_view name, std::int64_t min, std::int64_t max) const {
    const std::optional<std::string> written = text(name);
    return written ? std::optional(read_integer(name, *written, min, max)) : std::nullopt;
}

std::vector<std::int64_t> Arguments::integers(std::string_view name, std::int64_t min, std::int64_t max) const {
    std::vector<std::int64_t> out;
    for (const std::string& written : all(name)) out.push_back(read_integer(name, written, min, max));
    return out;
}

std::string Arguments::choice(std::string_view name, std::span<const std::string_view> names) const {
    const std::optional<std::string> written = text(name);
    if (!written) return std::string(names.front());
    if (std::find(names.begin(), names.end(), *written) != names.end()) return *written;
    std::string list;
    for (const std::string_view candidate : names) list += (list.empty() ? "" : ", ") + std::string(candidate);
    throw UserError("error: unknown --" + std::string(name) + " '" + *written + "'" + suggestion(*written, names) +
                    " (one of: " + list + ")");
}

std::optional<Arguments> parse(const Usage& usage, const std::vector<std::string>& args) {
    static constexpr const char* positional_name = "argument";
    po::options_description known;
    known.add_options()("help", "");
    std::vector<std::string_view> names{"help"};
    for (const Option& option : usage.options) {
        std::string name(option.name);
        if (option.letter != 0) name += std::string(",") + option.letter;
        if (option.argument.empty()) {
            known.add_options()(name.c_str(), "");
        } else {
            known.add_options()(name.c_str(), one_value(), "");
        }
        names.push_back(option.name);
    }
    known.add_options()(positional_name, one_value(), "");
    po::positional_options_description positional;
    positional.add(positional_name, -1);

    Arguments out;
    try {
        // Guessing would read --see as --seed.
        const int style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
        const po::parsed_options parsed =
            po::command_line_parser(args).options(known).positional(positional).style(style).run();
        for (const po::option& option : parsed.options) {
            if (option.position_key >= 0) {
                out.positional.insert(out.positional.end(), option.value.begin(), option.value.end());
                continue;
            }
            if (option.string_key == positional_name) throw po::unknown_option(std::string("--") + positional_name);
            std::vector<std::string>& into = out.values[option.string_key];
            const auto entry = std::find_if(usage.options.begin(), usage.options.end(),
                                            [&option](const Option& o) { return o.name == option.string_key; });
            if (entry != usage.options.end() && !entry->argument.empty() && !entry->repeatable && !into.empty()) {
                throw UserError("error: --" + option.string_key + " is given more than once");
            }
            into.insert(into.end(), option.value.begin(), option.value.end());
        }
    } catch (const po::unknown_option& e) {
        std::string written = e.get_option_name();
        written.erase(0, std::min(written.find_first_not_of('-'), written.size()));
        written = written.substr(0, written.find('='));
        throw UserError("error: unknown option '" + e.get_option_name() + "'" + suggestion(written, names, "--") +
                        " (see kvsim help " + std::string(usage.command) + ")");
    } catch (const po::error& e) { throw UserError(std::string("error: ") + e.what()); }
    if (out.has("help")) {
        print(help_text(usage));
        return std::nullopt;
    }
    if (out.positional.size() > usage.max_positional) {
        throw UserError("error: unexpected argument '" + out.positional[usage.max_positional] +
                        "'\nUsage: " + std::string(usage.synopsis));
    }
    if (out.positional.size() < usage.min_positional) {
        throw UserError("error: " + std::string(usage.positional) + " is missing\nUsage: " + std::string(usage.synopsis));
    }
    return out;
}

}  // namespace kvsim::app
