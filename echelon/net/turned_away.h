// Warnings about refused connections: the first at once, then one line for all within ten seconds.
// A stranger that connects again and again must not fill the log.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "echelon/base/deadline.h"

namespace echelon {

class TurnedAway {
 public:
  TurnedAway() = default;
  TurnedAway(const TurnedAway&) = delete;
  TurnedAway& operator=(const TurnedAway&) = delete;
  ~TurnedAway() { say(); }

  void note(const std::string& from, const std::string& why);
  void say_if_due();
  Deadline due() const;  // when to call say_if_due(); never if nothing is pending

 private:
  static constexpr auto pause = std::chrono::seconds(10);
  void say();

  Deadline quiet_until_ = Deadline::in(Deadline::Clock::duration::zero());
  std::size_t waiting_ = 0;  // not reported yet
  std::string last_;         // the last of those: its address, and the reason
};

}  // namespace echelon
