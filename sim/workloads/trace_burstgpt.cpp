// BurstGPT: CSV with Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type; later releases add Session
// ID and Elapsed time, so columns are found by name. A row without response tokens is a request that failed; it is left out, as
// vLLM's benchmark does. The model becomes the request's class.

#include <array>
#include <utility>

#include "csv_rows.hpp"

namespace kvsim {

namespace {

enum Column : std::size_t { timestamp, model, request, response, session };
constexpr std::array<CsvColumn, 5> columns{
    {{"timestamp"}, {"model", false}, {"request tokens"}, {"response tokens"}, {"session id", false}}};

class BurstGpt final : public CsvRows {
public:
    explicit BurstGpt(std::unique_ptr<LineReader> lines) : CsvRows(std::move(lines), "burstgpt", columns) {}

protected:
    bool parse(TraceRow& row) override {
        row.time = SimTime(SimDuration(seconds(timestamp)));
        row.input_length = tokens(request, 0);
        row.output_length = tokens(response, 0);
        check_sorted(row, timestamp);
        if (row.input_length == 0 || row.output_length == 0) return false;
        if (has(model)) row.request_class = field(model);
        if (has(session)) row.session_id = field(session);
        return true;
    }
    [[nodiscard]] std::string_view left_out() const override { return "failed requests (0 tokens) are"; }
};

}  // namespace

bool matches_burstgpt(const TraceHead& head) {
    return !head.json && head.has("request tokens");
}

std::vector<config::FieldDoc> burstgpt_docs() {
    return {};
}

std::unique_ptr<TraceReader> open_burstgpt(std::unique_ptr<LineReader> lines, const TraceOptions&) {
    return std::make_unique<BurstGpt>(std::move(lines));
}

}  // namespace kvsim
