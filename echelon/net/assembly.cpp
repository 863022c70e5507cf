#include "echelon/net/assembly.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "echelon/base/error.h"
#include "echelon/net/frame.h"
#include "echelon/net/health.h"
#include "echelon/net/meeting.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;

constexpr auto look_time = 20ms;
constexpr auto answer_time = 1s, cause_time = 1s;

constexpr std::uint8_t number_of(MeetingFrame kind) { return static_cast<std::uint8_t>(kind); }

}  // namespace

void Assembly::look() {
  for (auto& [rank, member] : members_)
    if (!member.connected) hear(rank, member);
}

void Assembly::look_for_the_cause() {
  const Deadline deadline = Deadline::in(cause_time);
  while (!found_ && !deadline.expired()) {
    look();
    std::this_thread::sleep_for(look_time);
  }
}

// A member sends at most one message: rank 0 that a rank has ended, the others that they are
// connected. Rank 0 keeps the streams until all ranks have said so.
void Assembly::hear(int rank, Member& member) {
  Frame frame;
  try {
    if (!wait_ready(member.stream->socket().get(), member.stream->read_events(), Deadline::in(0s)))
      return;
    frame = read_frame(*member.stream, Deadline::in(answer_time));
  } catch (const Error&) {
    member.connected = found_ = true;  // it sends nothing more
    const std::string lost =
        fmt::format("rank {} ({}) ended while the ranks were connecting", rank, member.who);
    const Frame told = misfit_frame(kind_of(PeerLost("")), lost);
    for (auto& [other, one] : members_) {
      if (one.connected) continue;
      try {
        write_frame(*one.stream, told, Deadline::in(answer_time));
      } catch (const Error&) {  // it is gone already
      }
    }
    throw PeerLost(lost);
  }
  if (frame.kind == number_of(MeetingFrame::misfit)) {
    found_ = true;
    throw_misfit(frame, member.stream->name());
  }
  member.connected = true;
}

void Assembly::connected(Deadline deadline) {
  if (!at_rank_0()) {
    look();
    try {
      write_frame(*members_.at(0).stream, FrameWriter().frame(number_of(MeetingFrame::connected)),
                  deadline);
    } catch (const Error&) {  // the control connection to rank 0 reports it
    }
    return;
  }
  const auto is_connected = [](const auto& one) { return one.second.connected; };
  for (;;) {
    look();
    const auto waiting = std::find_if_not(members_.begin(), members_.end(), is_connected);
    if (waiting == members_.end()) return;
    if (deadline.expired())
      throw Timeout(fmt::format("rank {} ({}) did not connect to the other ranks in time",
                                waiting->first, waiting->second.who));
    wait_ready(waiting->second.stream->socket().get(), waiting->second.stream->read_events(),
               Deadline::in(std::min<Deadline::Clock::duration>(deadline.remaining(), look_time)));
  }
}

}  // namespace echelon
