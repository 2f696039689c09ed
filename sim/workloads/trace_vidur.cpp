// Vidur's request traces: CSV with num_prefill_tokens, num_decode_tokens and, when requests were recorded with their times,
// arrived_at (s). Without it `arrivals` says when they come.

#include <array>
#include <utility>

#include "csv_rows.hpp"

namespace kvsim {

namespace {

enum Column : std::size_t { arrived_at, prefill, decode };
constexpr std::array<CsvColumn, 3> columns{{{"arrived_at", false}, {"num_prefill_tokens"}, {"num_decode_tokens"}}};

class Vidur final : public CsvRows {
public:
    explicit Vidur(std::unique_ptr<LineReader> lines) : CsvRows(std::move(lines), "vidur", columns) {}
    [[nodiscard]] TraceTimes times() const override { return has(arrived_at) ? TraceTimes::recorded : TraceTimes::none; }

protected:
    bool parse(TraceRow& row) override {
        row.time = SimTime(SimDuration(has(arrived_at) ? seconds(arrived_at) : 0));
        row.input_length = tokens(prefill);
        row.output_length = tokens(decode);
        if (has(arrived_at)) check_sorted(row, arrived_at);
        return true;
    }
};

}  // namespace

bool matches_vidur(const TraceHead& head) {
    return !head.json && head.has("num_prefill_tokens");
}

std::vector<config::FieldDoc> vidur_docs() {
    return {};
}

std::unique_ptr<TraceReader> open_vidur(std::unique_ptr<LineReader> lines, const TraceOptions&) {
    return std::make_unique<Vidur>(std::move(lines));
}

}  // namespace kvsim
