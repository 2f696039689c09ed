#include "kvsim/report/accuracy_limits.hpp"

#include "kvsim/base/text.hpp"

namespace kvsim {

std::vector<std::string> accuracy_limits(const AccuracyCase& run) {
    std::vector<std::string> out;
    const std::string model = fold_name(run.model);
    const std::string gpu = fold_name(run.gpu);
    const auto has = [](const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; };

    if (run.load > 1.2) {
        out.push_back("deep overload (load " + decimals(run.load, 2) +
                      "): a 20-minute run at batch 128 was simulated with E2E 42 % too low");
    } else if (run.load > 0.85 || run.queue_share_of_ttft > 0.5) {
        out.push_back("near saturation (" +
                      (run.load > 0.85 ? "load " + decimals(run.load, 2) : std::string("TTFT is mostly queueing")) +
                      "): TTFT is unreliable here in every simulator");
    }
    if (run.batch > 96 && run.context > 1000 && run.context < 3000) {
        out.push_back(
            "decode of about 128 rows with contexts of 1.1k-2.5k tokens: TPOT 8-10 % too low for dense models, 30 % for "
            "Mixtral");
    }
    if (has(model, "qwen257b")) out.emplace_back("Qwen2.5-7B: TPOT was 13 % too low");
    if (has(gpu, "l40s")) out.emplace_back("L40S: attention is fitted badly (KV resident in L2)");
    if (has(model, "llama4scout") && run.context > 1500) {
        out.emplace_back("Llama-4 Scout with long outputs: TTFT was 36 %, TPOT 12 % too low");
    }
    if (has(gpu, "h200") && run.dtype == "fp8" && (run.batch > 24 || run.concurrency.value_or(0) >= 32)) {
        out.emplace_back("fp8 on H200 at concurrency 32 and more: TPOT was 12-19 % too low");
    }
    return out;
}

}  // namespace kvsim
