#include "kvsim/app/process.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <system_error>
#include <utility>

#include "kvsim/base/check.hpp"
#include "kvsim/base/text.hpp"
#include "kvsim/engine/simulation.hpp"

namespace kvsim::app {
namespace {

std::atomic<bool> stop{false};
std::atomic<int> signal_number{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free, "set inside a signal handler");

extern "C" void on_signal(int number) {
    signal_number.store(number);
    stop.store(true);
}

}  // namespace

void install_signal_handlers() {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    struct sigaction hangup {};
    sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup ignores it
    // Past the file-size limit a write then fails, like one to a full disk.
    action.sa_handler = SIG_IGN;
    sigaction(SIGXFSZ, &action, nullptr);
}

const std::atomic<bool>& stop_requested() {
    return stop;
}

int stop_signal() {
    return signal_number.load();
}

void throw_if_stopped() {
    if (stop.load()) throw Interrupted{};
}

void print(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
        throw UserError(std::string("error: cannot write to standard output: ") + std::generic_category().message(errno));
    }
}

void flush_output() {
    if (std::fflush(stdout) != 0) {
        throw UserError(std::string("error: cannot write to standard output: ") + std::generic_category().message(errno));
    }
}

std::string headed(std::string_view message) {
    const bool has_head = message.starts_with("error: ") || message.find(": error: ") != std::string_view::npos;
    return (has_head ? "" : "error: ") + std::string(message);
}

void print_error(std::string_view written) {
    const std::string message = headed(written);
    std::string out;
    const bool broken = find_invalid_utf8(message) != std::string_view::npos;
    for (const char c : message) {
        const auto byte = static_cast<unsigned char>(c);
        const bool unsafe = (byte < 0x20 && c != '\n') || byte == 0x7F || (broken && byte >= 0x80);
        out += unsafe ? '?' : c;
    }
    std::fprintf(stderr, "%s\n", out.c_str());
}

Progress::Progress(std::string name, bool enabled)
    : name_(std::move(name)), enabled_(enabled && isatty(STDERR_FILENO) == 1), start_(Clock::now()), last_(start_) {}

Progress::~Progress() {
    if (shown_) std::fputs("\r\x1b[K", stderr);
}

void Progress::update(SimTime now, std::int64_t finished, std::optional<std::int64_t> total) {
    if (!enabled_) return;
    const Clock::time_point wall = Clock::now();
    if (wall - last_ < std::chrono::milliseconds(100)) return;
    last_ = wall;
    const double seconds = std::chrono::duration<double>(wall - start_).count();
    std::string line = fmt::format("\r{}: {:.0f} s simulated, {}", name_, to_seconds(now), finished);
    if (total) line += fmt::format("/{}", *total);
    line += fmt::format(" requests, {:.0f} requests/s\x1b[K", static_cast<double>(finished) / seconds);
    std::fputs(line.c_str(), stderr);
    shown_ = true;
}

}  // namespace kvsim::app
