#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "kvsim/app/process.hpp"

namespace kvsim::app {
namespace {

// Two loggers because a pattern belongs to its sink: one names its level, the other prints ready-made text.
spdlog::logger& log(bool ready_made) {
    static const auto make = [](const char* name, const char* pattern) {
        auto logger = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_sink_st>());
        logger->set_pattern(pattern);
        logger->set_level(spdlog::level::warn);
        return logger;
    };
    static const std::shared_ptr<spdlog::logger> own = make("kvsim", "%l: %v");
    static const std::shared_ptr<spdlog::logger> diagnostics = make("diagnostics", "%v");
    return ready_made ? *diagnostics : *own;
}

}  // namespace

void set_log_level(std::string_view level) {
    const auto parsed = spdlog::level::from_str(std::string(level));
    log(false).set_level(parsed);
    log(true).set_level(parsed);
}

void log_info(std::string_view message) {
    log(false).info("{}", message);
}

void log_warning(std::string_view message) {
    log(false).warn("{}", message);
}

void log_diagnostic(std::string_view message) {
    log(true).warn("{}", message);
}

}  // namespace kvsim::app
