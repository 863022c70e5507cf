#include "echelon/net/meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/net/frame.h"
#include "echelon/net/health.h"
#include "echelon/net/peer_info.h"
#include "echelon/net/peer_pages.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;

constexpr auto look_time = 50ms;  // between checks of whether a guest is still there
constexpr auto answer_time = 1s;
constexpr std::size_t most_named = 100;  // missing ranks in a message

constexpr std::uint8_t number_of(MeetingFrame kind) { return static_cast<std::uint8_t>(kind); }

std::string quoted(const std::string& job) {
  return job.empty() ? "a job without an id" : fmt::format("job \"{}\"", job);
}

void answer(Stream& stream, const Frame& frame) {
  try {
    write_frame(stream, frame, Deadline::in(answer_time));
  } catch (const Error&) {  // it is gone already
  }
}

// A guest sends nothing between its hello and the answer, unless its time is over.
enum class Waits { yes, no_longer, gone };

Waits state_of(Stream& stream) {
  std::array<std::byte, 1> byte;
  try {
    return stream.try_read(byte) > 0 ? Waits::no_longer : Waits::yes;
  } catch (const Error&) {
    return Waits::gone;
  }
}

}  // namespace

Frame misfit_frame(std::uint64_t kind, const std::string& problem) {
  return FrameWriter().number(kind).text(problem).frame(number_of(MeetingFrame::misfit));
}

void throw_misfit(const Frame& frame, const std::string& name) {
  FrameReader reader(frame, name);
  const auto kind = reader.number();
  throw_kind(kind, reader.text());
}

Frame Hello::frame() const {
  return FrameWriter()
      .number(rank)
      .number(world)
      .text(who)
      .text(identity.job)
      .text(identity.launch)
      .number(std::uint64_t(identity.first_rank))
      .text(identity.command)
      .number(number)
      .text(relay.host)
      .number(relay.port)
      .text(peer_info)
      .frame(number_of(MeetingFrame::hello));
}

Hello Hello::read(const Frame& frame, const std::string& peer) {
  if (frame.kind != number_of(MeetingFrame::hello))
    throw Corrupt(peer + " did not begin with a hello");
  FrameReader reader(frame, peer);
  Hello hello;
  hello.rank = reader.number();
  hello.world = reader.number();
  hello.who = reader.text(512);
  hello.identity.job = reader.text(JobIdentity::longest);
  hello.identity.launch = reader.text(JobIdentity::longest);
  hello.identity.first_rank = int(reader.number_at_most(1 << 24));
  hello.identity.command = reader.text(JobIdentity::longest);
  hello.number = reader.number();
  hello.relay.host = reader.text(256);
  hello.relay.port = std::uint16_t(reader.number_at_most(65535));
  hello.peer_info = reader.text(PeerInfo::longest);
  reader.end();
  return hello;
}

Meeting::Meeting(const Rendezvous& setup, Hello mine, std::vector<Listener> listeners)
    : setup_(setup), mine_(std::move(mine)) {
  acceptor_ =
      std::make_unique<Acceptor>(std::move(listeners), setup.token,
                                 [this](std::unique_ptr<Stream> stream, const Frame& first) {
                                   welcome(std::move(stream), first);
                                 });
}

void Meeting::welcome(std::unique_ptr<Stream> stream, const Frame& frame) {
  Hello hello = Hello::read(frame, stream->name());
  if (hello.rank == 0 && hello.number == mine_.number)
    return answer(*stream, FrameWriter().frame(number_of(MeetingFrame::yourself)));
  // A rank of another job is turned away, and this job continues.
  if (const std::string why = why_not_ours(hello); !why.empty()) {
    log::warn("turned away a rank of another job: " + why);
    return answer(*stream, misfit_frame(kind_of(InvalidArgument("")), why));
  }
  const std::lock_guard lock(mutex_);
  if (const std::string problem = what_does_not_fit(hello); !problem.empty()) {
    misfits_.push_back(std::move(stream));
    return end_with(kind_of(InvalidArgument("")), problem);
  }
  const int rank = int(hello.rank);
  launches_.try_emplace(hello.identity.first_rank, rank);
  guests_.emplace(rank, Guest{std::move(hello), std::move(stream)});
  arrived_.notify_all();
}

// Why this rank belongs to another job; empty if it does not seem to.
std::string Meeting::why_not_ours(const Hello& guest) const {
  const JobIdentity &theirs = guest.identity, &ours = mine_.identity;
  const std::string advice =
      fmt::format("two jobs use {}, so give each a port of its own", setup_.address.text());
  if (theirs.job != ours.job)
    return fmt::format("rank {} ({}) is of {} and rank 0 ({}) of {}: {}", guest.rank, guest.who,
                       quoted(theirs.job), mine_.who, quoted(ours.job), advice);
  if (ours.job.empty() && theirs.command != ours.command)
    return fmt::format(
        "rank {} ({}) was launched to run '{}' and rank 0 ({}) to run '{}': {}; where the commands of "
        "one job differ by machine, set ECHELON_JOB_ID to the same text on all",
        guest.rank, guest.who, theirs.command, mine_.who, ours.command, advice);
  if (theirs.first_rank == ours.first_rank && theirs.launch != ours.launch && guest.rank != 0)
    return fmt::format("rank {} ({}) and rank 0 ({}) were started by different launches: {}",
                       guest.rank, guest.who, mine_.who, advice);
  return {};
}

// What is wrong with a rank that claims to belong to this job; empty if nothing is.
std::string Meeting::what_does_not_fit(const Hello& guest) const {
  if (guest.rank == 0)
    return fmt::format(
        "two processes came as rank 0: {} and {}; give each machine a node rank of its own, and "
        "each job a port of its own (this is {})",
        mine_.who, guest.who, setup_.address.text());
  if (guest.world != std::uint64_t(setup_.world))
    return fmt::format(
        "rank {} ({}) says that the world is {}, rank 0 ({}) that it is {}: start all with the same "
        "number",
        guest.rank, guest.who, guest.world, mine_.who, setup_.world);
  if (guest.rank >= std::uint64_t(setup_.world))
    return fmt::format("a process came as rank {} to the rendezvous of rank 0, in a world of {}",
                       guest.rank, setup_.world);
  if (const auto same = guests_.find(int(guest.rank)); same != guests_.end())
    return fmt::format(
        "two processes came as rank {}: {} and {}; each rank is one process, and each job has a "
        "port of its own (this is {})",
        guest.rank, same->second.hello.who, guest.who, setup_.address.text());
  if (const auto first = launches_.find(guest.identity.first_rank); first != launches_.end()) {
    const Hello& other = guests_.at(first->second).hello;
    if (other.identity.launch != guest.identity.launch)
      return fmt::format(
          "rank {} ({}) and rank {} ({}) should be of one launch and are of two: give each machine "
          "a node rank of its own, and each job a port of its own (this is {})",
          other.rank, other.who, guest.rank, guest.who, setup_.address.text());
  }
  return {};
}

void Meeting::end_with(std::uint64_t kind, std::string problem) {
  if (problem_.empty()) {
    problem_ = std::move(problem);
    problem_kind_ = kind;
  }
  arrived_.notify_all();
}

void Meeting::call_off(const std::exception& error) {
  const std::lock_guard lock(mutex_);
  end_with(kind_of(error), error.what());
}

void Meeting::look_after_guests() {
  for (const auto& [rank, guest] : guests_) {
    const Waits state = state_of(*guest.stream);
    if (state == Waits::no_longer) return end_with(kind_of(Timeout("")), who_is_missing());
    if (state == Waits::gone)
      return end_with(kind_of(PeerLost("")),
                      fmt::format("rank {} ({}) ended while the ranks were meeting at {}", rank,
                                  guest.hello.who, setup_.address.text()));
  }
}

std::string Meeting::who_is_missing() const {
  std::vector<int> missing;
  for (int r = 1; r < setup_.world; ++r)
    if (!guests_.contains(r)) missing.push_back(r);
  const auto named = std::min(missing.size(), most_named);
  return fmt::format(
      "rendezvous at {}: rank{} {}{} of {} did not come in time{}", setup_.address.text(),
      missing.size() > 1 ? "s" : "",
      fmt::join(missing.begin(), missing.begin() + std::ptrdiff_t(named), ", "),
      missing.size() > named ? fmt::format(" and {} more", missing.size() - named) : "",
      setup_.world, setup_.loopback_hint());
}

Gathered Meeting::gather(Deadline deadline) {
  {
    std::unique_lock lock(mutex_);
    const auto over = [&] { return !problem_.empty() || int(guests_.size()) == setup_.world - 1; };
    while (!over()) {
      const auto wait = std::min<Deadline::Clock::duration>(deadline.remaining(), look_time);
      if (arrived_.wait_for(lock, wait, over)) break;
      look_after_guests();
      if (!over() && deadline.expired()) end_with(kind_of(Timeout("")), who_is_missing());
    }
    look_after_guests();  // also after the last one has arrived
  }
  acceptor_.reset();  // no more guests are expected
  if (!problem_.empty()) fail();
  std::vector<std::string> all;
  for (int r = 0; r < setup_.world; ++r)
    all.push_back(r == 0 ? mine_.peer_info : guests_.at(r).hello.peer_info);
  std::vector<std::byte> pages;
  for (const Frame& page : peer_pages(all, number_of(MeetingFrame::peer_page))) {
    const auto bytes = encode(page);
    pages.insert(pages.end(), bytes.begin(), bytes.end());
  }
  send_to_guests(pages, deadline);
  std::map<int, Assembly::Member> members;
  for (auto& [r, guest] : guests_) members[r] = {guest.hello.who, std::move(guest.stream)};
  return {std::move(all), std::make_shared<Assembly>(std::move(members))};
}

// Pages come from the rank's parent in the tree, or from rank 0 if the parent has no relay.
PeerRoute Meeting::route_of(int rank) const {
  const int parent = setup_.tree().parent(rank);
  if (parent == 0 || guests_.at(parent).hello.relay.port == 0) return {.meeting = mine_.number};
  const Hello& hello = guests_.at(parent).hello;
  return {.meeting = mine_.number, .parent = parent, .who = hello.who, .relay = hello.relay};
}

// Sends every guest the route to the pages, and the pages themselves to those that rank 0 serves.
void Meeting::send_to_guests(std::span<const std::byte> pages, Deadline deadline) {
  std::vector<std::vector<std::byte>> routes;
  FanOut sending;
  for (const auto& [rank, guest] : guests_) {
    const PeerRoute route = route_of(rank);
    routes.push_back(encode(route.frame()));
    std::vector<std::span<const std::byte>> parts = {routes.back()};
    if (route.parent == 0) parts.push_back(pages);
    sending.add(*guest.stream, std::move(parts));
  }
  while (!sending.advance() && !deadline.expired()) sending.wait(look_time);
}

void Meeting::fail() {
  const Frame frame = misfit_frame(problem_kind_, problem_);
  for (const auto& [r, guest] : guests_) answer(*guest.stream, frame);
  for (const auto& one : misfits_) answer(*one, frame);
  throw_kind(problem_kind_, problem_);
}

}  // namespace echelon
