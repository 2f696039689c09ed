#pragma once
// What differs between recordings of different engines: how their input is read and their records are written. A format is one
// file and one line in the registry.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "kvsim/model/registry.hpp"

namespace kvsim {

using Json = nlohmann::ordered_json;

/// One recorded input, ready to be replayed.
class Recording {
public:
    struct Totals {
        std::int64_t steps = 0;
        std::int64_t preemptions = 0;
    };
    virtual ~Recording() = default;
    /// Hands out each line of our record, the summary last, until `line` returns false. Totals are of the lines handed out.
    virtual Totals replay(const std::function<bool(const Json&)>& line) = 0;
    /// Of a field, "rows[0].n": it depends on the engine alone. What depends on the recorder is not compared.
    [[nodiscard]] virtual bool compares(const std::string& /*field*/) const { return true; }
    std::string name;
};

struct OpenRecording {
    /// Of the input's `config`: it is of this engine.
    bool (*matches)(const Json& config);
    /// Throws UserError, with `where`, on what is missing or impossible.
    std::unique_ptr<Recording> (*open)(const Json& input, const std::string& where);
};
/// The first that matches counts.
std::span<const Entry<OpenRecording>> conformance_formats();

}  // namespace kvsim
