#include "arrivals_params.hpp"

namespace kvsim {

namespace {

struct AllAtOnceParams {
    std::string process;
};

const config::Schema<AllAtOnceParams>& schema() {
    static const config::Schema<AllAtOnceParams> table{process_field<AllAtOnceParams>()};
    return table;
}

class AllAtOnce : public ArrivalProcess {
public:
    AllAtOnce() : ArrivalProcess({}) {}
    [[nodiscard]] double gap_ns(std::uint64_t) const override { return 0; }
};

}  // namespace

std::unique_ptr<ArrivalProcess> all_at_once() {
    return std::make_unique<AllAtOnce>();
}

std::vector<config::FieldDoc> all_at_once_docs() {
    return schema().docs();
}

std::unique_ptr<ArrivalProcess> make_all_at_once(const config::Value& params, double, std::uint64_t,
                                                 config::Diagnostics& diagnostics) {
    AllAtOnceParams p;
    schema().read(params, p, "arrivals", diagnostics);
    return all_at_once();
}

}  // namespace kvsim
