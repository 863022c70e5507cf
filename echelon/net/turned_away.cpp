#include "echelon/net/turned_away.h"

#include <fmt/format.h>

#include "echelon/base/log.h"

namespace echelon {

void TurnedAway::note(const std::string& from, const std::string& why) {
  ++waiting_;
  last_ = fmt::format("{}: {}", from, why);
  say_if_due();
}

Deadline TurnedAway::due() const { return waiting_ > 0 ? quiet_until_ : Deadline::never(); }

void TurnedAway::say_if_due() {
  if (waiting_ > 0 && quiet_until_.expired()) say();
}

void TurnedAway::say() {
  if (waiting_ == 1)
    log::warn(fmt::format("turned away a connection from {}", last_));
  else if (waiting_ > 1)
    log::warn(fmt::format("turned away {} connections, the last from {}", waiting_, last_));
  waiting_ = 0;
  quiet_until_ = Deadline::in(pause);
}

}  // namespace echelon
