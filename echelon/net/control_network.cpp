#include "echelon/net/control_network.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>

#include "echelon/base/error.h"
#include "echelon/base/log.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;

enum Kind : std::uint8_t { give_up_frame = 17, goodbye_frame, wait_frame, lost_frame };

// The first field of a frame says how it is passed on. Numbers from 1 on are the span of a cascade
// to the following ranks; with this bit set, to the preceding ranks.
constexpr std::uint64_t direct = 0, flooded = std::uint64_t{1} << 32,
                        backward = std::uint64_t{1} << 33;

constexpr auto farewell_time = 500ms;
constexpr auto goodbye_time = 200ms;  // for a goodbye that is on its way
constexpr std::size_t longest_reason = 2000;
// Bytes queued for one rank. If more are waiting, the rank is stuck and misses the rest.
constexpr std::size_t most_queued = 1 << 20;

}  // namespace

// A frame whose route is rewritten for each receiver.
struct ControlNetwork::News {
  Frame frame;

  static FrameWriter writer(int origin, std::uint64_t serial) {
    FrameWriter writer;
    writer.number(direct).number(std::uint64_t(origin)).number(serial);
    return writer;
  }
  std::vector<std::byte> with_route(std::uint64_t route) {
    for (std::size_t i = 0; i < sizeof route; ++i) frame.payload[i] = std::byte(route >> (8 * i));
    return encode(frame);
  }
};

ControlNetwork::ControlNetwork(int rank, int world, int mesh, Health& health, Connect connect)
    : rank_(rank),
      world_(world),
      sparse_(world > mesh),
      health_(health),
      connect_(std::move(connect)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error(with_errno("cannot make an eventfd"));
}

bool ControlNetwork::linked(int a, int b, int world, int mesh) {
  const auto distance = unsigned(b - a + world) % unsigned(world);
  return world <= mesh || std::has_single_bit(distance) ||
         std::has_single_bit(unsigned(world) - distance);
}

void ControlNetwork::add(int rank, std::unique_ptr<Stream> stream) {
  const std::lock_guard lock(mutex_);
  if (stopping_) return;
  connections_.push_back({rank, std::move(stream), FrameParser(health_.name(rank))});
  wake();
}

std::size_t ControlNetwork::connections() const {
  const std::lock_guard lock(mutex_);
  return connections_.size();
}

void ControlNetwork::start() {
  thread_ = std::thread([this] { run(); });
}

ControlNetwork::~ControlNetwork() {
  {
    const std::lock_guard lock(asked_mutex_);
    asking_over_ = true;
  }
  asked_changed_.notify_all();
  if (asker_.joinable()) asker_.join();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake();
  }
  if (thread_.joinable()) thread_.join();
}

void ControlNetwork::wake() {
  const std::uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof one) != sizeof one)
    log::error("an eventfd cannot be written");
}

// ---- The thread ---------------------------------------------------------------------------------

void ControlNetwork::run() {
  std::vector<pollfd> ready;
  std::vector<Connection*> polled;  // only this thread removes connections
  do {
    ready.assign(1, {wake_.get(), POLLIN, 0});
    polled.clear();
    {
      const std::lock_guard lock(mutex_);
      for (auto& one : connections_) {
        const short write = one.queue.empty() ? short(0) : one.stream->write_events();
        ready.push_back({one.stream->socket().get(), short(one.stream->read_events() | write), 0});
        polled.push_back(&one);
      }
    }
    while (poll(ready.data(), ready.size(), -1) < 0) {
    }
  } while (serve(polled, ready));
}

bool ControlNetwork::serve(const std::vector<Connection*>& polled,
                           const std::vector<pollfd>& ready) {
  const std::lock_guard lock(mutex_);
  std::uint64_t count = 0;
  if (ready[0].revents) (void)!::read(wake_.get(), &count, sizeof count);
  if (stopping_) return false;
  for (std::size_t i = 0; i < polled.size(); ++i) {
    if (!ready[i + 1].revents) continue;
    Connection& one = *polled[i];
    try {
      read(one);
      if (!one.over) flush(one);
    } catch (const PeerLost&) {
      lost(one, "its process ended or its connection was cut");
    } catch (const std::exception& error) {
      lost(one, error.what());
    }
  }
  connections_.remove_if([](const Connection& one) { return one.over; });
  return true;
}

void ControlNetwork::read(Connection& connection) {
  std::array<std::byte, 4096> bytes;
  while (const std::size_t count = connection.stream->try_read(bytes)) {
    connection.parser.feed(std::span(bytes).first(count));
    while (const auto frame = connection.parser.next()) {
      hear(connection, *frame);
      if (connection.over) return;
    }
  }
}

// The first report counts: if a rank said goodbye on another connection, nothing here is news.
void ControlNetwork::lost(Connection& connection, const std::string& how) {
  connection.over = true;
  if (!health_.lost(connection.rank, how) || !sparse_) return;
  News news{News::writer(rank_, ++serial_)
                .number(std::uint64_t(connection.rank))
                .text(how.substr(0, longest_reason))
                .frame(lost_frame)};
  flood(news, connection.rank);
}

void ControlNetwork::hear(Connection& connection, const Frame& frame) {
  FrameReader reader(frame, connection.stream->name());
  const auto last_rank = std::uint64_t(world_) - 1;
  const auto read_rank = [&] { return int(reader.number_at_most(last_rank)); };
  const auto read_cause = [&] { return int(reader.number_at_most(last_rank + 1)) - 1; };
  const auto route = reader.number_at_most(backward + std::uint64_t(world_));
  const int origin = read_rank();
  const auto serial = reader.number();
  if (route != flooded && (route & ~backward) > std::uint64_t(world_))
    throw Corrupt(connection.stream->name() + " sent a frame to more ranks than there are");
  if (!sparse_ && (route != direct || origin != connection.rank))
    throw Corrupt(connection.stream->name() +
                  " passed on a frame in a world that does not need it");
  const bool own = origin == rank_;  // it has come full circle
  bool news = false;
  switch (frame.kind) {
    case goodbye_frame: {
      const bool in_error = reader.number() != 0;
      const int cause = read_cause();
      const std::string message = reader.text();
      connection.over = origin == connection.rank;
      if (!own) news = health_.left(origin, in_error, {cause, message});
      break;
    }
    case wait_frame: {
      Health::Wait wait;
      wait.group = reader.number();
      wait.number = reader.number();
      wait.call = reader.number();
      wait.bytes = reader.number();
      wait.on = read_rank();
      if (!own) health_.waits(origin, wait);
      break;
    }
    case give_up_frame: {
      const auto group = reader.number(), kind = reader.number();
      const int cause = read_cause();
      const std::string message = reader.text();
      news = !own && (!sparse_ || heard_.insert({origin, serial}).second);
      if (news) health_.failed(origin, group, kind, message, {cause, message});
      if (route == flooded) failed_groups_.insert(group);
      break;
    }
    case lost_frame: {
      const int rank = read_rank();
      const std::string how = reader.text();
      if (rank != rank_) news = health_.lost(rank, how);
      break;
    }
    default:
      throw Corrupt(connection.stream->name() + " sent an unknown frame");
  }
  reader.end();
  if (own || route == direct) return;
  News passed{frame};
  if (route == flooded) {
    if (news) flood(passed, connection.rank);
  } else {
    cascade(passed, route & ~backward, route & backward);
  }
}

// ---- Sending ------------------------------------------------------------------------------------

void ControlNetwork::flush(Connection& connection) {
  if (connection.queue.empty()) return;
  const std::size_t sent = connection.stream->try_write(connection.queue);
  connection.queue.erase(connection.queue.begin(), connection.queue.begin() + std::ptrdiff_t(sent));
}

// The reading thread notices if the receiver is gone.
void ControlNetwork::send(Connection& connection, const std::vector<std::byte>& bytes) {
  if (connection.over || connection.queue.size() + bytes.size() > most_queued) return;
  connection.queue.insert(connection.queue.end(), bytes.begin(), bytes.end());
  try {
    flush(connection);
  } catch (const std::exception&) {
    connection.queue.clear();
  }
  if (!connection.queue.empty()) wake();
}

void ControlNetwork::send_to(const std::vector<int>& ranks, News& news) {
  const std::set<int> wanted(ranks.begin(), ranks.end());
  const auto bytes = news.with_route(direct);
  for (auto& one : connections_)
    if (wanted.contains(one.rank)) send(one, bytes);
}

void ControlNetwork::flood(News& news, int except) {
  const auto bytes = news.with_route(flooded);
  for (auto& one : connections_)
    if (one.rank != except) send(one, bytes);
}

// Sends to all ranks, in both directions around the ring. A stuck rank cuts off others in one
// direction only: it is p ranks away forwards and q ranks away backwards, and it is on both ways to
// a rank at distance d only if p < d, q < world - d and p + q = world, which cannot hold.
std::set<ControlNetwork::Connection*> ControlNetwork::cascade(News& news) {
  auto told = cascade(news, std::uint64_t(world_), 0);
  told.merge(cascade(news, std::uint64_t(world_), backward));
  return told;
}

// Serves the ranks from the next one on, fewer than `span`. Returns the connections it sent to.
std::set<ControlNetwork::Connection*> ControlNetwork::cascade(News& news, std::uint64_t span,
                                                              std::uint64_t direction) {
  std::map<int, Connection*> by_rank;
  for (auto& one : connections_)
    if (!one.over) by_rank.emplace(one.rank, &one);
  std::set<Connection*> told;
  while (span > 1) {
    const std::uint64_t step = std::bit_floor(span - 1);
    const auto distance = direction == backward ? std::uint64_t(world_) - step : step;
    const int rank = int((std::uint64_t(rank_) + distance) % std::uint64_t(world_));
    if (const auto found = by_rank.find(rank); found != by_rank.end()) {
      send(*found->second, news.with_route(direction | (span - step)));
      told.insert(found->second);
    }
    span = step;
  }
  return told;
}

bool ControlNetwork::known_to_end(int rank) const {
  return rank >= 0 && health_.state(rank) != Health::State::alive;
}

void ControlNetwork::give_up(const std::vector<int>& ranks, std::uint64_t group,
                             const std::exception& error) noexcept {
  try {
    const auto kind = kind_of(error);
    const bool for_another = kind == kind_of(PeerLost("")) || kind == kind_of(Timeout(""));
    const int cause = for_another ? health_.blamed().rank : -1;
    const std::lock_guard lock(mutex_);
    News news{News::writer(rank_, ++serial_)
                  .number(group)
                  .number(kind)
                  .number(std::uint64_t(cause + 1))
                  .text(std::string(error.what()).substr(0, longest_reason))
                  .frame(give_up_frame)};
    const bool told = failed_groups_.contains(group) ||
                      (known_to_end(cause) && std::ranges::find(ranks, cause) != ranks.end());
    if (!sparse_ || told) return send_to(ranks, news);
    failed_groups_.insert(group);
    flood(news);
  } catch (const std::exception&) {  // out of memory: they find out by their deadlines
  }
}

void ControlNetwork::tell_wait(const std::vector<int>& ranks, const Health::Wait& wait) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    News news{News::writer(rank_, ++serial_)
                  .number(wait.group)
                  .number(wait.number)
                  .number(wait.call)
                  .number(wait.bytes)
                  .number(std::uint64_t(wait.on))
                  .frame(wait_frame)};
    if (sparse_)
      cascade(news);
    else
      send_to(ranks, news);
  } catch (const std::exception&) {
  }
}

void ControlNetwork::leave(bool in_error) noexcept {
  try {
    const Health::Cause cause = in_error ? health_.blamed() : Health::Cause{};
    const std::lock_guard lock(mutex_);
    News news{News::writer(rank_, ++serial_)
                  .number(in_error)
                  .number(std::uint64_t(cause.rank + 1))
                  .text(cause.message.substr(0, longest_reason))
                  .frame(goodbye_frame)};
    if (sparse_ && in_error && !known_to_end(cause.rank)) {
      flood(news);
    } else {
      std::set<Connection*> told;
      if (sparse_) told = cascade(news);
      const auto bytes = news.with_route(direct);
      for (auto& one : connections_)
        if (!told.contains(&one)) send(one, bytes);
    }
    // No other thread sends any more: queued bytes go out now or never.
    const Deadline deadline = Deadline::in(farewell_time);
    std::vector<pollfd> ready;
    for (;;) {
      ready.clear();
      for (auto& one : connections_) {
        if (one.over || one.queue.empty()) continue;
        try {
          flush(one);
        } catch (const std::exception&) {  // it is gone already: no one to tell
          one.queue.clear();
        }
        if (!one.queue.empty())
          ready.push_back({one.stream->socket().get(), one.stream->write_events(), 0});
      }
      if (ready.empty() || deadline.expired()) break;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
      poll(ready.data(), ready.size(), int(left.count()));
    }
    stopping_ = true;
    wake();
  } catch (const std::exception&) {
  }
}

// ---- Probing a rank -----------------------------------------------------------------------------

void ControlNetwork::ask_after(int rank) noexcept {
  try {
    if (!sparse_ || rank == rank_ || known_to_end(rank)) return;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& one : connections_)
        if (one.rank == rank) return;
    }
    const std::lock_guard lock(asked_mutex_);
    if (asking_over_ || std::ranges::find(asked_, rank) != asked_.end()) return;
    asked_.push_back(rank);
    if (!asker_.joinable()) asker_ = std::thread([this] { ask(); });
    asked_changed_.notify_all();
  } catch (const std::exception&) {  // it is probed again
  }
}

void ControlNetwork::ask() {
  std::unique_lock lock(asked_mutex_);
  for (;;) {
    asked_changed_.wait(lock, [this] { return asking_over_ || !asked_.empty(); });
    if (asking_over_) return;
    const int rank = asked_.front();
    lock.unlock();
    try {
      if (auto stream = connect_(rank)) {
        add(rank, std::move(stream));
      } else {
        std::this_thread::sleep_for(goodbye_time);
        health_.left(rank);
      }
    } catch (const std::exception&) {  // stuck, or slow: it is probed again
    }
    lock.lock();
    asked_.pop_front();
  }
}

}  // namespace echelon
