#include "echelon/net/peer_relay.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>

#include "echelon/base/error.h"
#include "echelon/net/meeting.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;

constexpr auto look_time = 20ms;  // between checks of whether a rank has ended
constexpr Deadline::Clock::duration first_try = 50ms, longest_try = 2s;

constexpr std::uint8_t number_of(MeetingFrame kind) { return static_cast<std::uint8_t>(kind); }

std::string name_of(const PeerRoute& route) {
  return fmt::format("rank {} ({})", route.parent, route.who);
}

}  // namespace

Frame PeerRoute::frame() const {
  return FrameWriter()
      .number(meeting)
      .number(std::uint64_t(parent))
      .text(who)
      .text(relay.host)
      .number(relay.port)
      .frame(number_of(MeetingFrame::route));
}

PeerRoute PeerRoute::read(const Frame& frame, const std::string& peer, const PeerTree& tree,
                          int rank) {
  if (frame.kind != number_of(MeetingFrame::route))
    throw Corrupt(peer + " did not say where to get the ranks' peer info");
  FrameReader reader(frame, peer);
  PeerRoute route;
  route.meeting = reader.number();
  route.parent = int(reader.number_at_most(std::uint64_t(tree.world) - 1));
  route.who = reader.text(512);
  route.relay.host = reader.text(256);
  route.relay.port = std::uint16_t(reader.number_at_most(65535));
  reader.end();
  if (route.parent != 0 && route.parent != tree.parent(rank))
    throw Corrupt(fmt::format("{} names rank {} as the parent of rank {}, which is rank {}", peer,
                              route.parent, rank, tree.parent(rank)));
  if (route.parent != 0 && (route.relay.host.empty() || route.relay.port == 0))
    throw Corrupt(fmt::format("{} did not say where rank {} listens", peer, route.parent));
  return route;
}

void FanOut::add(Stream& stream, std::vector<std::span<const std::byte>> parts) {
  sending_.push_back({&stream, std::move(parts)});
}

bool FanOut::advance() {
  std::erase_if(sending_, [](Sending& one) {
    try {
      while (!one.parts.empty()) {
        auto& part = one.parts.front();
        part = part.subspan(one.stream->try_write(part));
        if (!part.empty()) return false;
        one.parts.erase(one.parts.begin());
      }
    } catch (const Error&) {  // it is gone
    }
    return true;
  });
  return sending_.empty();
}

void FanOut::wait(Deadline::Clock::duration longest) const {
  std::vector<pollfd> ready;
  for (const auto& one : sending_)
    ready.push_back({one.stream->socket().get(), one.stream->write_events(), 0});
  const auto time = std::chrono::ceil<std::chrono::milliseconds>(longest);
  poll(ready.data(), ready.size(), int(time.count()));
}

PeerRelay::PeerRelay(const std::string& bind, bool tls, const Token& token,
                     std::vector<int> children)
    : children_(std::move(children)) {
  std::vector<Listener> listeners;
  listeners.push_back({listen_tcp(bind, 0), tls});
  address_ = local_address(listeners[0].socket);
  acceptor_ = std::make_unique<Acceptor>(
      std::move(listeners), token, [this](std::unique_ptr<Stream> stream, const Frame& first) {
        welcome(std::move(stream), first);
      });
}

// A child may arrive before this rank knows its own route. Its meeting is then checked later.
void PeerRelay::welcome(std::unique_ptr<Stream> stream, const Frame& first) {
  if (first.kind != number_of(MeetingFrame::fetch))
    throw Corrupt(stream->name() + " did not ask for the ranks' peer info");
  FrameReader reader(first, stream->name());
  const auto meeting = reader.number();
  const auto child = reader.number_at_most(std::uint64_t(children_.back()));
  reader.end();
  if (child < std::uint64_t(children_.front()))
    throw Corrupt(fmt::format("{} asked for the peer info of rank {}, which is served by another",
                              stream->name(), child));
  const std::lock_guard lock(mutex_);
  waiting_[{meeting, int(child)}] = std::move(stream);
  came_.notify_all();
}

// Returns null if the child has not arrived yet.
std::unique_ptr<Stream> PeerRelay::take(std::uint64_t meeting, int child) {
  const std::lock_guard lock(mutex_);
  const auto one = waiting_.find({meeting, child});
  if (one == waiting_.end()) return nullptr;
  auto stream = std::move(one->second);
  waiting_.erase(one);
  stream->rename(fmt::format("rank {}", child));
  return stream;
}

void PeerRelay::pass_on(std::span<const std::byte> pages, std::uint64_t meeting, Assembly& assembly,
                        Deadline deadline) {
  std::vector<std::unique_ptr<Stream>> streams;
  FanOut sending;
  std::vector<int> missing = children_;
  for (;;) {
    std::erase_if(missing, [&](int child) {
      auto stream = take(meeting, child);
      if (!stream) return false;
      sending.add(*stream, {pages});
      streams.push_back(std::move(stream));
      return true;
    });
    const bool sent = sending.advance();
    if (sent && missing.empty()) return;
    assembly.look();
    if (deadline.expired())
      throw Timeout(
          fmt::format("{} did not fetch the ranks' peer info in time",
                      sent ? fmt::format("rank {}", missing.front()) : sending.slowest()));
    if (sent) {
      std::unique_lock lock(mutex_);
      came_.wait_for(lock, look_time, [&] {
        return std::any_of(missing.begin(), missing.end(), [&](int child) {
          return waiting_.contains({meeting, child});
        });
      });
    } else {
      sending.wait(look_time);
    }
  }
}

std::unique_ptr<Stream> connect_to_parent(int rank, const PeerRoute& route, bool tls,
                                          const Token& token, Assembly& assembly,
                                          Deadline deadline) {
  const std::string name = name_of(route);
  Descriptor socket;
  // Uses short tries, so that the death of a rank is noticed before the deadline. Each try is
  // longer than the previous one, for slow routes.
  for (auto time = first_try; !socket; time = std::min(2 * time, longest_try)) {
    try {
      socket = connect_tcp(route.relay, Deadline::in(std::min(deadline.remaining(), time)));
    } catch (const Timeout& error) {
      assembly.look();
      if (deadline.expired())
        throw Timeout(fmt::format("{}, which passes the ranks' peer info on, was not reached: {}",
                                  name, error.what()));
    }
  }
  auto stream = connect_proven(std::move(socket), name, tls, token, deadline);
  write_frame(*stream,
              FrameWriter()
                  .number(route.meeting)
                  .number(std::uint64_t(rank))
                  .frame(number_of(MeetingFrame::fetch)),
              deadline);
  while (!wait_ready(
      stream->socket().get(), stream->read_events(),
      Deadline::in(std::min<Deadline::Clock::duration>(deadline.remaining(), look_time)))) {
    assembly.look();
    if (deadline.expired())
      throw Timeout(fmt::format("{} did not pass the ranks' peer info on in time", name));
  }
  return stream;
}

}  // namespace echelon
