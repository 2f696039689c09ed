// The configuration reader takes any bytes: it either reads them or throws UserError, quickly and in bounded memory.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/config/load.hpp"
#include "kvsim/config/scenario.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace kvsim;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    config::Diagnostics diagnostics;
    config::Value root = config::parse_yaml(text, "fuzz.yaml", diagnostics);
    // A first line that could be an assignment is also tried as one.
    if (const std::string_view line = text.substr(0, text.find('\n')); line.find('=') != std::string_view::npos) {
        config::apply_set(root, line, diagnostics);
    }
    const config::Scenario scenario = config::read_scenario(root, "fuzz.yaml", diagnostics);
    KVSIM_CHECK(scenario.hash.size() == 16, "a hash is 16 digits");
    try {
        diagnostics.throw_if_errors();
        KVSIM_CHECK(scenario.root.is_map(), "without an error there is a map");
    } catch (const UserError& e) {
        const std::string_view what = e.what();
        KVSIM_CHECK(find_invalid_utf8(what) == std::string_view::npos, "messages are UTF-8");
        KVSIM_CHECK(what.size() < 64 * 1024, "messages stay short");
    }
    return 0;
}
