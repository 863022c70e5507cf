// The signals of a launcher, taken from the moment this exists until it is gone: they wait to be
// read from a descriptor instead of running handlers, so none is lost and none comes in between.
// Signals that were ignored (SIGHUP under nohup) stay so.
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

  // Of the calling process: after a fork, the child opens its own. Throws Error.
  Descriptor open() const;

  // What has come; nothing when there is none.
  static std::optional<int> next(const Descriptor& signals);

  // In a forked child that is about to run another program: as if this had never been, and without
  // our program's handlers. Only async-signal-safe calls.
  void give_back_in_child() const;

 private:
  sigset_t taken_{}, mask_before_{};
  struct sigaction pipe_before_ {
  }, child_before_{};
};

}  // namespace echelon
