// Virtual token counters (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, algorithm 2 and the weighted
// counters of section 4.3): the tenant who has been served least goes first.

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "keyed_queue.hpp"
#include "piece.hpp"

namespace kvsim {
namespace {

struct Params {
    std::string policy;
    double input_weight = 1;
    double output_weight = 2;
    config::Value weights;
};

const config::Schema<Params>& schema() {
    static const config::Schema<Params> table{
        config::field("policy", &Params::policy, "vtc"),
        config::field("input_weight", &Params::input_weight, "what a prompt token counts", config::non_negative)
            .by_default("1"),
        config::field("output_weight", &Params::output_weight, "what an output token counts", config::non_negative)
            .by_default("2"),
        config::field("weights", &Params::weights, "{TENANT: share, ...}: shares of those that are not to get 1")};
    return table;
}

using Weights = std::vector<std::pair<std::string, double>>;

class VtcQueue final : public WaitingQueue {
public:
    VtcQueue(Engine& engine, const Params& params, const Weights& weights)
        : engine_(engine), input_(params.input_weight), output_(params.output_weight) {
        for (const auto& [name, weight] : weights)
            tenants_.try_emplace(engine.label(name), engine).first->second.weight = weight;
    }

    [[nodiscard]] std::size_t size() const override { return size_; }
    [[nodiscard]] Slot head() const override { return *next()->second.waiting.begin(); }
    void push_new(Slot slot) override {
        const std::int32_t who = tenant_of(slot);
        Tenant& tenant = tenants_.try_emplace(who, engine_).first->second;
        if (tenant.waiting.empty()) tenant.counter = std::max(tenant.counter, least());
        tenant.met = true;
        insert(tenant, slot);
    }
    void push_preempted(Slot slot) override { insert(tenants_.at(tenant_of(slot)), slot); }
    void pop_head() override {
        Tenant& tenant = next()->second;
        const LiveRequest& request = engine_.request(*tenant.waiting.begin());
        // Computing it again is not the tenant's doing.
        if (!request.admitted_before) tenant.counter += input_ * static_cast<double>(request.prompt) / tenant.weight;
        tenant.waiting.erase(tenant.waiting.begin());
        left(tenant);
    }
    void remove(Slot slot) override {
        Tenant& tenant = tenants_.at(tenant_of(slot));
        KVSIM_CHECK(tenant.waiting.erase(slot) == 1, "a waiting request stands in its queue");
        left(tenant);
    }
    void credited(Slot slot) override {
        Tenant& tenant = tenants_.at(tenant_of(slot));
        tenant.counter += output_ / tenant.weight;
    }
    [[nodiscard]] bool follows_steps() const override { return true; }
    [[nodiscard]] std::vector<std::string> unmet_names() const override {
        std::vector<std::string> out;
        for (const auto& [who, tenant] : tenants_) {
            if (!tenant.met) out.emplace_back(engine_.label_name(who));
        }
        return out;
    }
    [[nodiscard]] std::vector<Slot> in_order() const override {
        std::vector<Slot> out;
        for (const auto& [who, tenant] : tenants_) out.insert(out.end(), tenant.waiting.begin(), tenant.waiting.end());
        std::sort(out.begin(), out.end(), [this](Slot a, Slot b) {
            const double ca = tenants_.at(tenant_of(a)).counter;
            const double cb = tenants_.at(tenant_of(b)).counter;
            return ca != cb ? ca < cb : came_before(engine_.request(a), engine_.request(b));
        });
        return out;
    }

private:
    struct ByArrival {
        const Engine* engine;
        bool operator()(Slot a, Slot b) const { return came_before(engine->request(a), engine->request(b)); }
    };
    struct Tenant {
        explicit Tenant(const Engine& engine) : waiting(ByArrival{&engine}) {}
        double counter = 0;
        double weight = 1;
        bool met = false;  ///< a request of it has come
        std::set<Slot, ByArrival> waiting;
    };
    using Tenants = std::map<std::int32_t, Tenant>;

    /// Its tenant; else its class, if it has one; else the one that has no name.
    [[nodiscard]] std::int32_t tenant_of(Slot slot) const {
        const LiveRequest& request = engine_.request(slot);
        return request.tenant >= 0 ? request.tenant : request.request_class;
    }
    /// Of those that wait; when nobody does, of the one that did last.
    [[nodiscard]] double least() const {
        if (size_ == 0) return last_ == nullptr ? 0 : last_->counter;
        return next()->second.counter;
    }
    [[nodiscard]] Tenants::const_iterator next() const {
        auto best = tenants_.end();
        for (auto it = tenants_.begin(); it != tenants_.end(); ++it) {
            if (!it->second.waiting.empty() && (best == tenants_.end() || before(it->second, best->second))) best = it;
        }
        KVSIM_CHECK(best != tenants_.end(), "somebody waits");
        return best;
    }
    [[nodiscard]] Tenants::iterator next() { return tenants_.find(std::as_const(*this).next()->first); }
    [[nodiscard]] bool before(const Tenant& a, const Tenant& b) const {
        if (a.counter != b.counter) return a.counter < b.counter;
        return came_before(engine_.request(*a.waiting.begin()), engine_.request(*b.waiting.begin()));
    }
    void insert(Tenant& tenant, Slot slot) {
        tenant.waiting.insert(slot);
        ++size_;
    }
    void left(const Tenant& tenant) {
        --size_;
        last_ = &tenant;
    }

    Engine& engine_;
    double input_;
    double output_;
    Tenants tenants_;
    const Tenant* last_ = nullptr;  // whose request left the queue last
    std::size_t size_ = 0;
};

/// Of a workload without a trace, whose rows alone could tell.
std::set<std::string> tenants_of(const config::WorkloadConfig& workload) {
    std::set<std::string> names;
    for (const config::ClassConfig& c : workload.classes) names.insert(c.tenant.value_or(workload.tenant.value_or(c.name)));
    if (workload.classes.empty()) names.insert(workload.tenant.value_or(""));
    return names;
}

}  // namespace

std::vector<config::FieldDoc> vtc_order_docs() {
    return schema().docs();
}

std::function<std::unique_ptr<WaitingQueue>(Engine&)> read_vtc_order(const PieceSource& source,
                                                                     config::Diagnostics& diagnostics) {
    Params p;
    if (!read_params(schema(), source, p, diagnostics)) return nullptr;
    if (p.input_weight == 0 && p.output_weight == 0)
        return refuse(source, "input_weight and output_weight are both 0: nothing would be counted", diagnostics);
    Weights weights;
    if (!p.weights.is_null() && !p.weights.is_map()) {
        diagnostics.error(p.weights.mark, "weights must be a map of tenants to shares");
        return nullptr;
    }
    const config::WorkloadConfig& workload = source.scenario.workload;
    const std::set<std::string> tenants = tenants_of(workload);
    const std::vector<std::string_view> names(tenants.begin(), tenants.end());
    const bool told = workload.trace.is_null();  // else the run tells in the end (unmet_names)
    for (const config::Member& member : p.weights.map) {
        double weight = 0;
        if (!decode(member.value, weight, "weights." + member.key, config::Range{1e-6, 1e6}, diagnostics)) return nullptr;
        weights.emplace_back(member.key, weight);
        if (!told || tenants.count(member.key) > 0) continue;
        if (tenants == std::set<std::string>{""}) {
            diagnostics.error(member.key_mark, "weights name tenant '" + member.key +
                                                   "', and no request has one: name workload.classes, or their tenant");
        } else {
            diagnostics.unknown(member.key_mark, "tenant", member.key, names);
        }
    }
    if (told && tenants.size() < 2)
        diagnostics.warning(source.choice.name_mark,
                            "vtc shares between tenants, and all requests are of one: name workload.classes, or their tenant");
    return [p, weights](Engine& engine) { return std::make_unique<VtcQueue>(engine, p, weights); };
}

}  // namespace kvsim
