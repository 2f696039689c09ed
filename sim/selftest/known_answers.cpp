// THE table of known answers: one file a topic, one line here.

#include "kvsim/app/selftest.hpp"

namespace kvsim::selftest {

using Cases = std::vector<Case>;
void add_queueing(Cases&);
void add_clients(Cases&);
void add_kv_figures(Cases&);
void add_kv_policies(Cases&);
void add_stall(Cases&);
void add_watermark(Cases&);
void add_trace_facts(Cases&, const std::filesystem::path& traces, std::vector<std::string>& missing);

std::vector<Case> known_answers(const std::filesystem::path& traces, std::vector<std::string>& missing) {
    Cases all;
    add_queueing(all);
    add_clients(all);
    add_kv_figures(all);
    add_kv_policies(all);
    add_stall(all);
    add_watermark(all);
    add_trace_facts(all, traces, missing);
    return all;
}

}  // namespace kvsim::selftest
