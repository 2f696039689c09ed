// One range of slots per request, reserved when it is admitted (Orca; the three lengths and their names are those of the
// PagedAttention paper, section 6.1). Its pool counts single slots: block_size is 1.

#include <algorithm>
#include <bit>

#include "address_space.hpp"
#include "kvsim/base/check.hpp"
#include "kvsim/engine/engine.hpp"
#include "kvsim/engine/kv_manager.hpp"

namespace kvsim {
namespace {

struct Params {
    std::string policy;
    std::string placement;  // empty: by the reservation
};

const config::Schema<Params>& schema() {
    static const config::Schema<Params> table{
        config::field("policy", &Params::policy, "contiguous-max, contiguous-pow2 or contiguous-exact"),
        config::field("placement", &Params::placement,
                      "where a range goes: the first hole that is long enough, or a chunk of the buddy system (as in the "
                      "PagedAttention paper)")
            .one_of({"first-fit", "buddy"})
            .by_default("buddy; contiguous-max: first-fit")};
    return table;
}

enum class Reserve { max, pow2, exact };

class ContiguousKv final : public KvManager {
public:
    ContiguousKv(const Engine& engine, Reserve reserve, std::unique_ptr<AddressSpace> space)
        : KvManager(engine.args().usable_blocks()),
          reserve_(reserve),
          space_(std::move(space)),
          longest_(std::min(engine.args().max_model_len, space_->longest())) {
        KVSIM_CHECK(engine.args().block_size == 1, "contiguous KV counts single slots");
    }

    PrefixHit lookup(LiveRequest& /*request*/) override { return {}; }

    AdmissionNeed admission_need(const LiveRequest& request, PrefixHit /*hit*/, std::int64_t upto,
                                 std::int64_t /*whole*/) const override {
        const std::int64_t need = need_of(reserved(request, upto));
        return {need, need};
    }

    void admit(LiveRequest& request, PrefixHit /*hit*/, std::int64_t upto) override {
        KVSIM_DCHECK(request.range.count == 0, "an admitted request holds no range");
        take(request, reserved(request, upto), -1);  // its first row shows all; a later one may have computed nothing before
    }

    /// Of a request that has outgrown its range: all of the larger one, because it is moved there.
    std::int64_t need(LiveRequest& request, std::int64_t upto) override {
        if (upto <= request.range.count) return 0;
        wanted_ = larger(request, upto);
        return need_of(wanted_);
    }

    std::int64_t need_again(std::int64_t need) override { return need > 0 ? need_of(wanted_) : need; }

    [[nodiscard]] std::int64_t lacking(const LiveRequest& request, std::int64_t upto) const override {
        return std::max<std::int64_t>(0, upto - request.range.count);
    }

    void extend(LiveRequest& request, std::int64_t upto, std::int64_t need) override {
        if (need <= 0) return;
        const LiveRequest::Range old = request.range;
        take(request, larger(request, upto), request.computed);
        give(old);
    }

    void publish(LiveRequest& /*request*/, std::int64_t /*upto*/) override {}

    void release(LiveRequest& request) override {
        give(request.range);
        request.range = {};
    }

    [[nodiscard]] std::int64_t held(const LiveRequest& request) const override { return request.range.count; }

    [[nodiscard]] HeldSlots unfilled(const LiveRequest& request) const override {
        const std::int64_t final = std::max(request.final_computed(), request.computed);
        return {std::min(request.range.count, final) - request.computed,
                std::max<std::int64_t>(0, request.range.count - final)};
    }

    void record(const LiveRequest& request, bool all, std::int64_t computed, ScheduledRow& out) const override {
        if (all || request.range.since == computed) out.blocks = {request.range.first, request.range.count};
    }

private:
    [[nodiscard]] std::int64_t reserved(const LiveRequest& request, std::int64_t upto) const {
        std::int64_t length = longest_;
        if (reserve_ == Reserve::exact) length = believed_final(request);
        if (reserve_ == Reserve::pow2) {
            const auto outputs = static_cast<std::uint64_t>(believed_outputs(request));
            length = request.prompt + static_cast<std::int64_t>(std::bit_ceil(outputs));
        }
        return std::max(std::min(length, longest_), upto);
    }
    [[nodiscard]] std::int64_t larger(const LiveRequest& request, std::int64_t upto) const {
        return std::max(std::min(2 * request.range.count, longest_), upto);
    }
    /// More than there is, when no range of that length is free.
    [[nodiscard]] std::int64_t need_of(std::int64_t length) const { return space_->find(length) ? length : usable_ + 1; }

    void take(LiveRequest& request, std::int64_t length, std::int64_t since) {
        request.range = {space_->take(length), length, since};
        holders_ += length;
        free_ -= length;
    }
    void give(const LiveRequest::Range& range) {
        space_->give(range.first, range.count);
        holders_ -= range.count;
        free_ += range.count;
    }

    Reserve reserve_;
    std::unique_ptr<AddressSpace> space_;
    std::int64_t longest_;     // range that is reserved
    std::int64_t wanted_ = 0;  // by the last need()
};

bool by_buddy(std::string_view policy, std::string_view placement) {
    return placement.empty() ? policy != "contiguous-max" : placement == "buddy";
}

}  // namespace

std::int64_t longest_range(const PolicyArgs& policy, std::int64_t slots) {
    const std::string_view text = policy.kv.name;
    const std::size_t at = text.find("placement=");
    const std::string_view name = text.substr(0, text.find('('));
    const std::string_view placement = at == text.npos ? "" : text.substr(text.find('=') + 1, text.size() - text.find('=') - 2);
    return (by_buddy(name, placement) ? make_buddy(slots) : make_first_fit(slots))->longest();
}

std::vector<config::FieldDoc> contiguous_kv_docs() {
    return schema().docs();
}

std::function<std::unique_ptr<KvManager>(Engine&)> read_contiguous_kv(const PieceSource& source,
                                                                      config::Diagnostics& diagnostics) {
    Params params;
    if (source.choice.params.is_map()) schema().read(source.choice.params, params, "engine.kv_policy", diagnostics);
    const std::string& name = source.choice.name;
    const Reserve reserve = name == "contiguous-max"    ? Reserve::max
                            : name == "contiguous-pow2" ? Reserve::pow2
                                                        : Reserve::exact;
    const bool buddy = by_buddy(name, params.placement);
    return [reserve, buddy](Engine& engine) {
        const std::int64_t slots = engine.args().usable_blocks();
        return std::make_unique<ContiguousKv>(engine, reserve, buddy ? make_buddy(slots) : make_first_fit(slots));
    };
}

}  // namespace kvsim
