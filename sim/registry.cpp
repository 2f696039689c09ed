// THE registration file: one table per kind of piece, one line per piece. A piece's own file defines its make and docs
// functions; they are declared here and nowhere else.

#include "kvsim/model/pieces.hpp"
#include "kvsim/model/workload_pieces.hpp"
#include "workloads/line_reader.hpp"

namespace kvsim {

// ---- step-time models ------------------------------------------------------------------------------------------------

// ---- routers ---------------------------------------------------------------------------------------------------------

// ---- workloads: arrival processes, length distributions, trace formats ------------------------------------------------

#define KVSIM_ARRIVALS(name)                     \
    std::vector<config::FieldDoc> name##_docs(); \
    std::unique_ptr<ArrivalProcess> make_##name(const config::Value&, double, std::uint64_t, config::Diagnostics&)
KVSIM_ARRIVALS(poisson_arrivals);
KVSIM_ARRIVALS(gamma_arrivals);
KVSIM_ARRIVALS(constant_arrivals);
KVSIM_ARRIVALS(all_at_once);
#undef KVSIM_ARRIVALS

std::span<const Entry<MakeArrivals>> arrival_processes() {
    static constexpr Entry<MakeArrivals> table[] = {
        {"poisson", "independent arrivals: exponential gaps", poisson_arrivals_docs, make_poisson_arrivals},
        {"gamma", "gamma gaps of shape `burstiness`, as vllm bench serve draws them", gamma_arrivals_docs, make_gamma_arrivals},
        {"constant", "one request every 1 / rate", constant_arrivals_docs, make_constant_arrivals},
        {"all_at_once", "every request at the start", all_at_once_docs, make_all_at_once},
    };
    return table;
}

#define KVSIM_LENGTH(name)                              \
    std::vector<config::FieldDoc> name##_length_docs(); \
    std::unique_ptr<LengthLaw> make_##name##_length(const config::Value&, std::string_view, config::Diagnostics&)
KVSIM_LENGTH(constant);
KVSIM_LENGTH(uniform);
KVSIM_LENGTH(lognormal);
KVSIM_LENGTH(exponential);
KVSIM_LENGTH(geometric);
KVSIM_LENGTH(empirical);
#undef KVSIM_LENGTH

std::span<const Entry<MakeLengthLaw>> length_distributions() {
    static constexpr Entry<MakeLengthLaw> table[] = {
        {"constant", "always `value`; a bare integer means this", constant_length_docs, make_constant_length},
        {"uniform", "whole numbers from min to max, both included", uniform_length_docs, make_uniform_length},
        {"lognormal", "by p50 + p90, mean + sd, or mu + sigma of the logarithm", lognormal_length_docs, make_lognormal_length},
        {"exponential", "rounded up", exponential_length_docs, make_exponential_length},
        {"geometric", "memoryless whole numbers from 1", geometric_length_docs, make_geometric_length},
        {"empirical", "a quantile table, linear in between", empirical_length_docs, make_empirical_length},
    };
    return table;
}

#define KVSIM_TRACE(name)                        \
    std::vector<config::FieldDoc> name##_docs(); \
    std::unique_ptr<TraceReader> open_##name(std::unique_ptr<LineReader>, const TraceOptions&)
KVSIM_TRACE(mooncake);
KVSIM_TRACE(azure);
#undef KVSIM_TRACE

std::span<const Entry<OpenTrace>> trace_formats() {
    static constexpr Entry<OpenTrace> table[] = {
        {"mooncake", "JSON lines with timestamp (ms), input_length, output_length, hash_ids", mooncake_docs, open_mooncake},
        {"azure", "CSV with TIMESTAMP, ContextTokens, GeneratedTokens; the first row arrives at 0", azure_docs, open_azure},
    };
    return table;
}

}  // namespace kvsim
