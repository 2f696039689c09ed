#pragma once
// Two kinds of failure, two exit codes: the user's input is wrong (UserError, exit 2) or kvsim is (InternalError, exit 3).

#include <stdexcept>
#include <string>

namespace kvsim {

/// The user's input, files or environment are wrong. what() is complete and ready to print; the process exits 2.
struct UserError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// An invariant of kvsim does not hold: a bug of ours, never the user's fault. The process exits 3.
struct InternalError : std::logic_error {
    using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* condition, const char* file, int line, const std::string& message);

}  // namespace kvsim

/// Always on; for invariants that cost nothing beside what they guard.
#define KVSIM_CHECK(condition, message)                                       \
    do {                                                                      \
        if (!(condition)) [[unlikely]]                                        \
            ::kvsim::check_failed(#condition, __FILE__, __LINE__, (message)); \
    } while (false)

/// Debug builds only; for invariants inside the hot loop.
#ifdef NDEBUG
#define KVSIM_DCHECK(condition, message) static_cast<void>(0)
#else
#define KVSIM_DCHECK(condition, message) KVSIM_CHECK(condition, message)
#endif
