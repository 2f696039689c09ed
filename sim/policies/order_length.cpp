// Shortest and longest job first, by what is known or believed when a request arrives.

#include "keyed_queue.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

struct Params {
    std::string policy;
    std::string by = "total";
};

const config::Schema<Params>& schema() {
    static const config::Schema<Params> table{
        config::field("policy", &Params::policy, "sjf or ljf"),
        config::field("by", &Params::by, "the length that counts").one_of({"prompt", "output", "total"}).by_default("total")};
    return table;
}

class LengthQueue final : public KeyedQueue {
public:
    LengthQueue(Engine& engine, const std::string& by, bool longest)
        : KeyedQueue(engine), prompt_(by != "output"), output_(by != "prompt"), longest_(longest) {}

private:
    [[nodiscard]] Int128 key(const LiveRequest& request) const override {
        const std::int64_t outputs = request.predicted > 0 ? request.predicted : request.max_tokens;
        const std::int64_t length = (prompt_ ? request.prompt : 0) + (output_ ? outputs : 0);
        return longest_ ? -length : length;
    }
    bool prompt_;
    bool output_;
    bool longest_;
};

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read(const PieceSource& source, bool longest,
                                                           config::Diagnostics& diagnostics) {
    Params p;
    if (!read_params(schema(), source, p, diagnostics)) return nullptr;
    return [by = p.by, longest](Engine& engine) { return std::make_unique<LengthQueue>(engine, by, longest); };
}

}  // namespace

std::vector<config::FieldDoc> length_order_docs() {
    return schema().docs();
}

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_sjf_order(const PieceSource& source,
                                                                     config::Diagnostics& diagnostics) {
    return read(source, false, diagnostics);
}

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_ljf_order(const PieceSource& source,
                                                                     config::Diagnostics& diagnostics) {
    return read(source, true, diagnostics);
}

}  // namespace kvsim
