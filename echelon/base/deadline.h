// A point in time by which a wait must end. Passed down through calls, so that the parts of one
// operation share one budget instead of each starting its own.
#pragma once

#include <time.h>

#include <chrono>

namespace echelon {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // A time too long for the clock (Clock::duration::max(), say) means never.
  static Deadline in(Clock::duration time) {
    const auto now = Clock::now();
    return Deadline(time > Clock::time_point::max() - now ? Clock::time_point::max() : now + time);
  }

  // So many seconds from now; more than the clock can count means never.
  static Deadline in_seconds(double seconds) { return in(duration_of(seconds)); }
  static Clock::duration duration_of(double seconds) {
    if (!(seconds < 1e9)) return Clock::duration::max();
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  // Like in(), but read from the kernel's coarse clock, so up to 10 ms late: for operations that
  // usually take less time than reading the precise clock.
  static Deadline about(Clock::duration time) {
    timespec tick = {};  // of the steady clock, when the last one was
    clock_gettime(CLOCK_MONOTONIC_COARSE, &tick);
    const Clock::time_point now(std::chrono::seconds(tick.tv_sec) +
                                std::chrono::nanoseconds(tick.tv_nsec) +
                                std::chrono::milliseconds(10));
    return Deadline(time > Clock::time_point::max() - now ? Clock::time_point::max() : now + time);
  }

  static Deadline never() { return Deadline(Clock::time_point::max()); }

  bool expired() const { return Clock::now() >= end_; }

  // Never negative: what is left can be handed to a system call as it is.
  Clock::duration remaining() const {
    const auto left = end_ - Clock::now();
    return left > Clock::duration::zero() ? left : Clock::duration::zero();
  }

 private:
  explicit Deadline(Clock::time_point end) : end_(end) {}
  Clock::time_point end_;
};

}  // namespace echelon
