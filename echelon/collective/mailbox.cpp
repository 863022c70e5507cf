#include "echelon/collective/mailbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "echelon/base/error.h"
#include "echelon/collective/waiting.h"

namespace echelon {
namespace {
constexpr std::uint32_t magic = 0x32484345;  // "ECH2"
constexpr auto explanation_time = std::chrono::milliseconds(250);
}  // namespace

Mailbox::Mailbox(Endpoint& endpoint, std::uint64_t group, std::vector<int> members, int index,
                 LinkOf open, Ledger& ledger)
    : endpoint_(endpoint),
      group_(group),
      members_(std::move(members)),
      index_(index),
      open_(std::move(open)),
      ledger_(ledger),
      peers_(members_.size()) {}

Mailbox::~Mailbox() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  posted_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string Mailbox::describe(const Message& message) const {
  const std::string who = message.peer == anyone
                              ? "any rank"
                              : endpoint_.health().name(members_[std::size_t(message.peer)]);
  return fmt::format("{} of {} bytes {} {}, tag {}", message.sends ? "send" : "receive",
                     message.bytes, message.sends ? "to" : "from", who, message.tag);
}

Mailbox::Ticket Mailbox::post(Message message, bool background) {
  const int size = int(members_.size());
  if (message.peer == index_ || message.peer < anyone || message.peer >= size ||
      (message.sends && message.peer == anyone))
    throw InvalidArgument(
        fmt::format("rank {} of this group cannot {} rank {}: it must be another rank of 0 … {}",
                    index_, message.sends ? "send to" : "receive from", message.peer, size - 1));
  const Ticket ticket = std::make_shared<Message>(std::move(message));
  if (ticket->peer != anyone) {
    try {
      reach(ticket->peer, ticket->deadline);
    } catch (const std::exception&) {
      ticket->error = std::current_exception();
      ticket->done = true;
      return ticket;
    }
  } else {
    background = true;  // its thread connects to the possible senders
  }
  std::unique_lock lock(mutex_);
  if (ticket->peer != anyone && peers_[std::size_t(ticket->peer)].broken) {
    ticket->error = peers_[std::size_t(ticket->peer)].broken;
    ticket->done = true;
    return ticket;
  }
  if (ticket->sends) {
    peers_[std::size_t(ticket->peer)].sends.push_back(ticket);
  } else {
    receives_.push_back(ticket);
    settle(ticket);
  }
  progress();
  if (background && !ticket->done) {
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    lock.unlock();
    posted_.notify_one();
  }
  return ticket;
}

// A receive may find its message among those that arrived before it was posted.
void Mailbox::settle(const Ticket& ticket) {
  for (int member = 0; member < int(peers_.size()); ++member) {
    if (ticket->peer != anyone && ticket->peer != member) continue;
    auto& peer = peers_[std::size_t(member)];
    for (auto one = peer.unexpected.begin(); one != peer.unexpected.end(); ++one) {
      const bool coming = peer.aside && std::next(one) == peer.unexpected.end();
      if (one->tag != ticket->tag || coming) continue;
      ticket->peer = member;
      if (one->bytes.size() != ticket->bytes) {
        ticket->error = std::make_exception_ptr(
            InvalidArgument(fmt::format("ranks disagree: a message of {} bytes came for {}",
                                        one->bytes.size(), describe(*ticket))));
      } else if (ticket->bytes) {
        std::memcpy(ticket->buffer, one->bytes.data(), ticket->bytes);
      }
      peer.unexpected.erase(one);
      finish(ticket);
      return;
    }
  }
}

void Mailbox::finish(const Ticket& ticket) {
  ticket->done = true;
  if (!ticket->sends) receives_.remove(ticket);
}

// Every operation with this member fails with the same error, now and later: a message may have
// stopped in the middle, and whatever follows on the link would be taken for the rest of it.
void Mailbox::fail(int member, std::exception_ptr error) {
  auto& peer = peers_[std::size_t(member)];
  if (!peer.broken) peer.broken = error;
  for (const auto& send : std::exchange(peer.sends, {})) {
    send->error = error;
    send->done = true;
  }
  std::vector<Ticket> failed;
  for (const auto& receive : receives_)
    if (receive->peer == member) failed.push_back(receive);
  for (const auto& receive : failed) {
    receive->error = error;
    finish(receive);
  }
  peer.target.reset();
  if (peer.aside) peer.unexpected.pop_back();
  peer.aside = false;
}

void Mailbox::abandon(const Ticket& ticket, std::exception_ptr error) {
  if (ticket->done) return;
  if (ticket->peer != anyone) return fail(ticket->peer, error);
  ticket->error = error;
  finish(ticket);
}

std::vector<int> Mailbox::missing(const Message& message, bool all) const {
  Health& health = endpoint_.health();
  std::vector<int> others, ranks;
  for (int member = 0; member < int(peers_.size()); ++member) {
    if (member == index_ || (message.peer != anyone && message.peer != member)) continue;
    const int rank = members_[std::size_t(member)];
    others.push_back(rank);
    // Over TCP a goodbye may overtake earlier messages. The end of the stream is the reliable sign.
    const auto& link = peers_[std::size_t(member)].link;
    const bool tells = link && link->kind() == LinkKind::tcp && !all;
    // If a message may come from several ranks, some of them may leave as long as one remains.
    const bool may_go = message.peer == anyone && health.state(rank) == Health::State::left;
    if (!may_go && !(tells && message.peer != anyone)) ranks.push_back(rank);
  }
  return message.peer == anyone && ranks.empty() ? others : ranks;
}

// Of two ranks, the higher one connects (Endpoint::open). For lower ranks, the link exists already
// or does not exist yet.
bool Mailbox::connects_to(int member) const {
  const int rank = members_[std::size_t(member)];
  return rank < endpoint_.rank() && !endpoint_.near(rank);
}

void Mailbox::reach(int member, Deadline deadline) {
  auto& peer = peers_[std::size_t(member)];
  {
    const std::lock_guard lock(mutex_);
    if (!connects_to(member) || peer.link || peer.connecting || peer.broken) return;
    peer.connecting = true;
  }
  const Deadline limit = Deadline::in(
      std::min(deadline.remaining(), Deadline::duration_of(endpoint_.options().connect_timeout)));
  try {
    auto link = open_(member, limit);
    const std::lock_guard lock(mutex_);
    peer.link = std::move(link);
    peer.connecting = false;
  } catch (const Timeout&) {
    const std::lock_guard lock(mutex_);
    peer.connecting = false;
    throw;
  } catch (const std::exception&) {
    const std::lock_guard lock(mutex_);
    peer.connecting = false;
    fail(member, std::current_exception());
    throw;
  }
}

bool Mailbox::unreached(int member) const {
  const auto& peer = peers_[std::size_t(member)];
  return member != index_ && connects_to(member) && !peer.link && !peer.connecting &&
         !peer.broken && (!peer.sends.empty() || wanted(member));
}

bool Mailbox::linked(int member) {
  auto& peer = peers_[std::size_t(member)];
  if (!peer.link && !connects_to(member)) peer.link = open_(member, Deadline::never());
  return peer.link != nullptr;
}

bool Mailbox::wanted(int member) const {
  return std::any_of(receives_.begin(), receives_.end(),
                     [&](const Ticket& one) { return one->peer == anyone || one->peer == member; });
}

bool Mailbox::progress() {
  bool moved = false;
  for (int member = 0; member < int(peers_.size()); ++member) {
    auto& peer = peers_[std::size_t(member)];
    if (member == index_ || peer.broken) continue;
    if (peer.sends.empty() && !peer.target && !wanted(member)) continue;
    try {
      if (!linked(member)) continue;
      moved |= progress_sends(member);
      moved |= progress_receives(member);
    } catch (const PeerLost&) {
      end_of_link(member);
    } catch (const std::exception&) {
      fail(member, std::current_exception());
      moved = true;
    }
  }
  return moved;
}

// The broken connection shows that a rank is gone. Its control connection soon tells why, and
// whether another rank failed first.
void Mailbox::end_of_link(int member) {
  auto& peer = peers_[std::size_t(member)];
  if (!peer.explained_by) peer.explained_by = Deadline::in(explanation_time);
  try {
    endpoint_.health().check_present({members_[std::size_t(member)]}, group_);
    if (!peer.explained_by->expired()) return;
  } catch (const std::exception&) {
    return fail(member, std::current_exception());
  }
  fail(member, std::current_exception());
}

bool Mailbox::progress_sends(int member) {
  auto& peer = peers_[std::size_t(member)];
  bool moved = false;
  while (!peer.sends.empty()) {
    const Ticket ticket = peer.sends.front();
    if (peer.sent == 0) peer.outgoing = {magic, 0, ticket->tag, ticket->bytes, peer.numbers_sent};
    const std::size_t head = peer.sent < sizeof(Header) ? sizeof(Header) - peer.sent : 0;
    const std::size_t gone = head ? 0 : peer.sent - sizeof(Header);
    const std::array<iovec, 2> parts = {
        iovec{reinterpret_cast<std::byte*>(&peer.outgoing) + (sizeof(Header) - head), head},
        iovec{ticket->buffer + gone, ticket->bytes - gone}};
    const std::size_t taken = peer.link->try_send(parts);
    peer.sent += taken;
    moved |= taken > 0;
    if (peer.sent < sizeof(Header) + ticket->bytes) return moved;
    ledger_.add(Operation::send, ticket->label, Algorithm::direct, peer.link->kind(),
                ticket->bytes);
    peer.sends.pop_front();
    peer.sent = 0;
    ++peer.numbers_sent;
    finish(ticket);
  }
  return moved;
}

Mailbox::Ticket Mailbox::match(int member, std::uint64_t tag) {
  for (const auto& one : receives_)
    if ((one->peer == anyone || one->peer == member) && one->tag == tag && one->moved == 0)
      return one;
  return nullptr;
}

bool Mailbox::progress_receives(int member) {
  auto& peer = peers_[std::size_t(member)];
  const std::string& who = endpoint_.health().name(members_[std::size_t(member)]);
  bool moved = false;
  while (peer.target || peer.aside || wanted(member)) {
    if (peer.received < sizeof(Header)) {
      const iovec rest = {reinterpret_cast<std::byte*>(&peer.incoming) + peer.received,
                          sizeof(Header) - peer.received};
      const std::size_t taken = peer.link->try_receive({&rest, 1});
      peer.received += taken;
      moved |= taken > 0;
      if (peer.received < sizeof(Header)) return moved;
      if (peer.incoming.mark != magic || peer.incoming.number != peer.numbers_received)
        throw Corrupt(
            fmt::format("{} sent a message that is none (message {})", who, peer.numbers_received));
    }
    if (!peer.target && !peer.aside) {
      if (const Ticket ticket = match(member, peer.incoming.tag)) {
        if (ticket->bytes != peer.incoming.bytes)
          throw InvalidArgument(fmt::format("ranks disagree: {} sent {} bytes for {}", who,
                                            peer.incoming.bytes, describe(*ticket)));
        ticket->peer = member;
        ticket->moved = 1;  // taken
        peer.target = ticket;
      } else if (wanted(member)) {
        if (peer.incoming.bytes > most_unexpected)
          throw InvalidArgument(fmt::format(
              "{} sent {} bytes with tag {}, while a message with another tag is waited for: receive in the order of sending",
              who, peer.incoming.bytes, peer.incoming.tag));
        peer.unexpected.push_back({peer.incoming.tag, std::vector<std::byte>(peer.incoming.bytes)});
        peer.aside = true;
      } else {
        return moved;
      }
    }
    std::byte* to = peer.aside ? peer.unexpected.back().bytes.data() : peer.target->buffer;
    const std::size_t in = peer.received - sizeof(Header);
    if (in < peer.incoming.bytes) {
      const iovec rest = {to + in, peer.incoming.bytes - in};
      const std::size_t taken = peer.link->try_receive({&rest, 1});
      peer.received += taken;
      moved |= taken > 0;
      if (in + taken < peer.incoming.bytes) return moved;
    }
    peer.received = 0;
    ++peer.numbers_received;
    moved = true;
    if (peer.aside) {
      peer.aside = false;
      // A receive may have been posted while the message was arriving.
      if (const Ticket ticket = match(member, peer.incoming.tag)) settle(ticket);
    } else {
      finish(peer.target);
      peer.target.reset();
    }
  }
  return moved;
}

void Mailbox::fail_late(const Message& message) const {
  const auto what = fmt::format("{} reached its deadline", describe(message));
  if (message.peer != anyone) endpoint_.health().blame(members_[std::size_t(message.peer)], what);
  throw Timeout(what);
}

bool Mailbox::done(const Ticket& ticket) {
  const std::lock_guard lock(mutex_);
  const bool changed = endpoint_.health().changes() != 0;  // read before looking at what they sent
  if (!ticket->done) progress();
  if (!ticket->done) {
    try {
      if (changed) endpoint_.health().check_present(missing(*ticket, false), group_);
      if (ticket->deadline.expired()) fail_late(*ticket);
    } catch (const std::exception&) {
      abandon(ticket, std::current_exception());
    }
  }
  if (ticket->error) std::rethrow_exception(ticket->error);
  return ticket->done;
}

void Mailbox::set_deadline(const Ticket& ticket, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  ticket->deadline = deadline;
}

void Mailbox::wait(const Ticket& ticket, bool spin) {
  const std::function<std::string()> what = [&] {
    const std::lock_guard lock(mutex_);
    return describe(*ticket);
  };
  std::vector<int> concerned;  // any of these ranks, if the message may come from any
  Deadline deadline = Deadline::never();
  {
    const std::lock_guard lock(mutex_);
    deadline = ticket->deadline;
    if (ticket->peer == anyone)
      concerned = members_;
    else
      concerned = {members_[std::size_t(ticket->peer)]};
  }
  const Place place{.wait = {.group = group_}};
  Waiting waiting(endpoint_, concerned, deadline, place, Waiting::sockets(spin), what);
  try {
    const auto missing_now = [&](bool all) {
      const std::lock_guard lock(mutex_);
      return missing(*ticket, all);
    };
    for (std::uint64_t round = 0, turn = 1;; ++round, ++turn) {
      // If another thread's attempt to connect for its own message failed.
      bool unconnected = false;
      {
        const std::lock_guard lock(mutex_);
        unconnected = ticket->peer != anyone && unreached(ticket->peer);
      }
      if (unconnected) reach(ticket->peer, deadline);
      {
        const std::lock_guard lock(mutex_);
        if (!ticket->done && progress()) round = 0;
        if (ticket->error) std::rethrow_exception(ticket->error);
        if (ticket->done) return;
      }
      waiting.busy(turn, missing_now);
      waiting.idle(round, missing_now, [](std::chrono::microseconds time) {
        sleep_for(std::min(time, std::chrono::microseconds(200)));
      });
    }
  } catch (const std::exception&) {
    // Nothing may write to the buffer once its owner was told of the failure.
    const std::lock_guard lock(mutex_);
    abandon(ticket, std::current_exception());
    throw;
  }
}

void Mailbox::run() {
  std::uint64_t idle = 0;
  for (;;) {
    std::optional<int> reaching;
    {
      std::unique_lock lock(mutex_);
      const auto busy = [this] {
        if (!receives_.empty()) return true;
        return std::any_of(peers_.begin(), peers_.end(),
                           [](const Peer& peer) { return !peer.sends.empty(); });
      };
      posted_.wait(lock, [&] { return stop_ || busy(); });
      if (stop_) return;
      idle = progress() ? 0 : idle + 1;
      for (int member = 0; member < int(peers_.size()) && !reaching; ++member)
        if (unreached(member)) reaching = member;
    }
    if (reaching) {
      try {
        reach(*reaching, Deadline::never());
      } catch (const std::exception&) {  // whoever waits for it will find out
      }
    }
    if (idle < 20)
      sched_yield();
    else
      sleep_for(std::chrono::microseconds(std::min<std::uint64_t>(20 * (idle - 19), 500)));
  }
}

}  // namespace echelon
