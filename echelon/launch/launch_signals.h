// The signals of a launcher. While this object exists they are blocked and read from a descriptor
// instead of running handlers, so none is lost and none interrupts other work. Signals that were
// ignored (SIGHUP under nohup) stay ignored.
#pragma once

#include <csignal>
#include <optional>

#include "echelon/net/socket.h"

namespace echelon {

class LaunchSignals {
 public:
  LaunchSignals();
  ~LaunchSignals();
  LaunchSignals(const LaunchSignals&) = delete;
  LaunchSignals& operator=(const LaunchSignals&) = delete;

  // For the calling process: after a fork, the child opens its own. Throws Error.
  Descriptor open() const;

  // The next pending signal; nothing if there is none.
  static std::optional<int> next(const Descriptor& signals);

  // In a forked child before exec: restores the signal mask and resets handlers. Makes only
  // async-signal-safe calls.
  void give_back_in_child() const;

 private:
  sigset_t taken_{}, mask_before_{};
  struct sigaction pipe_before_ {
  }, child_before_{};
};

}  // namespace echelon
