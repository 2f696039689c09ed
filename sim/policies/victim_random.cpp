// Any of them: a yardstick for the rules that know something.

#include "kvsim/engine/engine.hpp"
#include "kvsim/random/distribution.hpp"
#include "kvsim/random/stream.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

/// The n-th choice of an engine takes stream (seed, "victim", n), n = 0, 1, ...
class RandomVictim final : public VictimRule {
public:
    explicit RandomVictim(Engine& engine) : draws_(engine.args().seed, "victim") {}
    [[nodiscard]] std::size_t pick(const Engine& /*engine*/, std::span<const Slot> running) override {
        const double u = draws_.first_uniform(picked_++);
        return static_cast<std::size_t>(uniform_int(u, 0, static_cast<std::int64_t>(running.size()) - 1));
    }

private:
    StreamKey draws_;
    std::uint64_t picked_ = 0;
};

}  // namespace

std::function<std::unique_ptr<VictimRule>(Engine&)> read_random_victim(const PieceSource& source,
                                                                       config::Diagnostics& diagnostics) {
    return read_plain<VictimRule, RandomVictim>(source, diagnostics);
}

}  // namespace kvsim
