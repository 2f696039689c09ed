#include "kvsim/base/check.hpp"

namespace kvsim {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
    throw InternalError(std::string(file) + ":" + std::to_string(line) + ": " + message + " (" + condition + ")");
}

}  // namespace kvsim
