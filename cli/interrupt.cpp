#include "cli/interrupt.h"

#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "echelon/launch/launcher.h"

namespace echelon::cli {
namespace {

std::atomic<bool> stop{false}, in_order{false}, speaks{true};
std::atomic<std::int64_t> stopped_at{0};  // milliseconds
static_assert(std::atomic<bool>::is_always_lock_free);
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

// Nobody presses Ctrl-C twice within this time: it is one keypress that arrived in two ways.
constexpr std::int64_t one_keypress = 100;

std::int64_t milliseconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Calls only what is safe in a signal handler.
[[noreturn]] void end_now(std::string_view why) {
  if (speaks.load()) {
    [[maybe_unused]] const auto told = ::write(STDERR_FILENO, why.data(), why.size());
  }
  ::_exit(exit_interrupted);
}

void on_signal(int signal) {
  const int error = errno;
  const auto now = milliseconds();
  if (!in_order.load()) end_now("echelon: interrupted\n");
  std::int64_t first = 0;  // another thread may be handling one too
  if (stopped_at.compare_exchange_strong(first, now))
    stop.store(true);
  else if (signal == SIGINT && now - first > one_keypress)
    end_now("echelon: interrupted again, and ended without saving\n");
  errno = error;
}

}  // namespace

void take_interrupts() {
  // Only rank 0 of a job prints.
  const char* rank = std::getenv("RANK");
  speaks.store(rank == nullptr || std::string_view(rank) == "0");
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (signal != SIGHUP || before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

void end_in_order() { in_order.store(true); }

const std::atomic<bool>& interrupted() { return stop; }

void end_with_an_error() { speaks.store(false); }

}  // namespace echelon::cli
