#pragma once
// Shared by the arrival processes.

#include <string>

#include "kvsim/model/workload_pieces.hpp"

namespace kvsim {

/// What every process with a rate starts with.
struct RateParams {
    std::string process;
    config::Rate rate;
    bool rescale = false;
};

template <class P>
config::Field<P> process_field() {
    return config::field<P, std::string>("process", &P::process, "the process's name");
}
template <class P>
config::Field<P> rate_field() {
    return config::field<P, config::Rate>("rate", &P::rate, "requests per second; inf: all at once", config::positive).need();
}
template <class P>
config::Field<P> rescale_field() {
    return config::field<P, bool>(
               "rescale", &P::rescale,
               "stretch the gaps so that the last of `requests` arrives at requests / rate, as vllm bench serve does")
        .by_default("false");
}

/// All requests at the start: also what an infinite rate means.
std::unique_ptr<ArrivalProcess> all_at_once();
/// One request every 1 / rate: also what gamma gaps of infinite burstiness are.
std::unique_ptr<ArrivalProcess> evenly_spaced(double rate, bool rescale);
/// Gamma gaps of shape `burstiness` with mean 1 / rate; 1 makes a Poisson process. Gap i is drawn from stream
/// (seed, "arrivals", i), so two rates see the same gaps stretched.
std::unique_ptr<ArrivalProcess> gamma_gaps(double rate, double burstiness, bool rescale, std::uint64_t seed);

}  // namespace kvsim
