// Warnings about connections that were turned away: the first at once, then one line for all that
// came within ten seconds. A stranger who connects again and again must not fill a log.
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
  Deadline due() const;  // when to call say_if_due(); never where nothing waits

 private:
  static constexpr auto pause = std::chrono::seconds(10);
  void say();

  Deadline quiet_until_ = Deadline::in(Deadline::Clock::duration::zero());
  std::size_t waiting_ = 0;  // not told of yet
  std::string last_;         // of those: from where, and why
};

}  // namespace echelon
