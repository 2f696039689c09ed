#include "kvsim/app/csv_row.hpp"

#include "kvsim/base/text.hpp"
#include "kvsim/report/writers.hpp"

namespace kvsim::app {

CsvRow& CsvRow::add(std::string_view field) {
    if (!first_) text_ += ',';
    first_ = false;
    append_csv_field(text_, field);
    return *this;
}

CsvRow& CsvRow::add(const std::optional<double>& value) {
    return add(value ? shortest(*value) : std::string());
}

CsvRow& CsvRow::add(const std::vector<std::string>& fields) {
    for (const std::string& field : fields) add(field);
    return *this;
}

}  // namespace kvsim::app
