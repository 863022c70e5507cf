#include "echelon/net/endpoint.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/net/file_limit.h"
#include "echelon/net/host.h"

namespace echelon {
namespace {

enum Kind : std::uint8_t { announce = 16, give_up_frame, goodbye, wait_frame };

constexpr std::uint64_t control_channel = 0;
constexpr Deadline::Clock::duration first_try = std::chrono::milliseconds(50),
                                    longest_try = std::chrono::seconds(2);
constexpr auto farewell_time = std::chrono::milliseconds(500);
constexpr std::size_t longest_reason = 2000;

std::uint64_t random_number() {
  std::uint64_t number = 0;
  fill_random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

std::string machine_name() {
  std::array<char, 256> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "?";
}

}  // namespace

std::string Endpoint::listening_address(const JobEnvironment& environment,
                                        const NetOptions& options) {
  if (!options.interface.empty()) return interface_address(options.interface);
  if (environment.world == 1) return "127.0.0.1";
  return bind_address(parse_address(environment.rendezvous).host,
                      environment.local_world < environment.world);
}

std::shared_ptr<Endpoint> Endpoint::join(const JobEnvironment& environment,
                                         const NetOptions& options) {
  return join(environment, options, environment.world == 1 ? Token::random() : Token::find());
}

std::shared_ptr<Endpoint> Endpoint::join(const JobEnvironment& environment,
                                         const NetOptions& options, const Token& token) {
  Rendezvous meeting{.rank = environment.rank,
                     .world = environment.world,
                     .address = {},
                     .listener = {},
                     .tls = options.tls,
                     .token = token,
                     .identity = environment.identity,
                     .other_machines = environment.local_world < environment.world};
  const std::string bind = listening_address(environment, options);
  if (environment.world > 1) {
    meeting.address = parse_address(environment.rendezvous);
    meeting.bind = bind;
    if (environment.rank == 0) {
      meeting.listener = inherited_listener();
      // Others of this machine go where the name leads them.
      const std::string named = address_towards(meeting.address.host);
      if (!meeting.listener && named != bind && is_loopback(named) && options.interface.empty())
        meeting.also = named;
    }
  }
  return std::make_shared<Endpoint>(
      environment.rank, environment.world, bind, options, token,
      [&](const std::string& info, Deadline deadline) { return meeting.exchange(info, deadline); });
}

Endpoint::Endpoint(int rank, int world, const std::string& bind, const NetOptions& options,
                   const Token& token, const PeerInfoExchange& exchange)
    : rank_(rank),
      world_(world),
      options_(options),
      token_(token),
      heap_(std::make_shared<SharedHeap>(std::size_t(options.heap))),
      controls_(std::size_t(world)),
      heaps_(std::size_t(world)),
      processes_(std::size_t(world), 0),
      report_(rank, world),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_) throw Error(with_errno("cannot make an eventfd"));
  raise_file_limit();
  require_files_for(1, 0);  // at least: who is near is not known yet
  const Deadline deadline = Deadline::in_seconds(options.connect_timeout);
  PeerInfo mine;
  // A rank that shares no memory is on a host of its own.
  mine.host = options.host.empty() ? host_id() : options.host;
  if (!options.shared_memory) mine.host += fmt::format("-{:x}", random_number());
  mine.machine = machine_name();
  mine.kernel = machine_id();
  mine.cpus = allowed_cpus();
  mine.quota = std::uint64_t(core_quota());
  mine.process = std::uint64_t(getpid());
  mine.job = random_number();
  mine.options = fmt::format("net.connections={} net.tls={}", options.connections, options.tls);
  if (world > 1)
    acceptor_ = std::make_unique<Acceptor>(
        listen(bind, mine), token_, [this](std::unique_ptr<Stream> stream, const Frame& first) {
          welcome(std::move(stream), first);
        });
  const auto [texts, assembly] = exchange(encode(mine), deadline);
  if (int(texts.size()) != world)
    throw Corrupt(fmt::format("the rendezvous gave the peer info of {} ranks for a world of {}",
                              texts.size(), world));
  std::vector<std::string> names;
  for (int r = 0; r < world; ++r) {
    peer_infos_.push_back(decode_peer_info(texts[std::size_t(r)], r));
    names.push_back(
        fmt::format("rank {} on {} (pid {})", r, peer_info(r).machine, peer_info(r).process));
  }
  health_ = std::make_unique<Health>(
      std::move(names), [this](int blamed) { report_.blames(blamed, health_->name(blamed)); });
  check_peer_infos(bind);
  const auto near_ranks =
      int(std::count_if(peer_infos_.begin(), peer_infos_.end(), [&](const PeerInfo& one) {
        return one.host == peer_infos_[std::size_t(rank)].host;
      }));
  require_files_for(near_ranks, world - near_ranks);
  {
    const std::lock_guard lock(filed_mutex_);
    job_ = peer_infos_[0].job;
    std::erase_if(filed_, [&](const auto& one) { return std::get<0>(one.first) != *job_; });
  }
  heaps_[std::size_t(rank)] = heap_->mapping();
  assembly_ = assembly;
  try {
    connect_controls(deadline);
  } catch (const PeerLost&) {
    if (assembly_) assembly_->look_for_the_cause();
    throw;
  }
  if (assembly_) assembly_->connected(deadline);
  assembly_.reset();
  watcher_ = std::thread([this] { watch(); });
}

int Endpoint::cores(const std::vector<int>& ranks) const {
  std::set<int> cpus;
  std::size_t most = std::numeric_limits<int>::max();
  for (const int r : ranks) {
    if (peer_info(r).kernel != peer_info(rank_).kernel) continue;
    cpus.insert(peer_info(r).cpus.begin(), peer_info(r).cpus.end());
    if (peer_info(r).quota > 0) most = std::min<std::size_t>(most, peer_info(r).quota);
  }
  return int(std::min(cpus.size(), most));
}

bool Endpoint::have_cores(const std::vector<int>& ranks) const {
  return cores(ranks) >= std::count_if(ranks.begin(), ranks.end(), [this](int r) {
           return peer_info(r).kernel == peer_info(rank_).kernel;
         });
}

// Each rank has a control connection to every other and the heaps of those that share its host
// (`near` of them, this one too). At the rendezvous rank 0 holds a connection of everyone besides.
// Links for data are opened when they are needed: a ring's to two neighbours, an exchange of small
// vectors' to all `far` ranks of other hosts.
void Endpoint::require_files_for(int near, int far) const {
  if (world_ == 1) return;
  constexpr std::size_t listeners_and_logs = 16;
  const auto others = std::size_t(world_) - 1;
  require_files(others * (rank_ == 0 ? 2 : 1) + std::size_t(near) +
                    std::size_t(std::max(4, far)) * std::size_t(options_.connections) +
                    listeners_and_logs,
                fmt::format("a job of {} ranks", world_));
}

// What would otherwise show as a connection that never comes, or bytes that never arrive.
void Endpoint::check_peer_infos(const std::string& bind) const {
  for (int r = 0; r < world_; ++r) {
    if (peer_info(r).options != peer_info(rank_).options)
      throw InvalidArgument(fmt::format("ranks have different options: {} has {}, rank {} {}",
                                        health_->name(r), peer_info(r).options, rank_,
                                        peer_info(rank_).options));
    if (peer_info(r).kernel != peer_info(rank_).kernel && is_loopback(bind))
      throw InvalidArgument(fmt::format(
          "{} is on another machine, but rank {} listens on {} alone: name the interface to use "
          "(net.interface), or see whether /etc/hosts gives this machine's own name a 127 address",
          health_->name(r), rank_, bind));
  }
}

Endpoint::~Endpoint() {
  const std::uint64_t one = 1;
  if (write(stop_.get(), &one, sizeof one) != sizeof one)
    log::error("an eventfd cannot be written");
  if (watcher_.joinable()) watcher_.join();
  acceptor_.reset();
  const bool in_error = std::uncaught_exceptions() > 0;
  const Health::Cause cause = in_error && health_ ? health_->blamed() : Health::Cause{};
  const Frame farewell = FrameWriter()
                             .number(in_error)
                             .number(std::uint64_t(cause.rank + 1))
                             .text(cause.message.substr(0, longest_reason))
                             .frame(goodbye);
  const std::lock_guard lock(control_mutex_);
  for (const auto& control : controls_) {
    if (!control) continue;
    try {
      write_frame(*control, farewell, Deadline::in(farewell_time));
    } catch (const std::exception&) {  // it is gone itself: nobody to tell
    }
  }
}

std::vector<Listener> Endpoint::listen(const std::string& bind, PeerInfo& mine) {
  std::vector<Listener> listeners;
  listeners.push_back({listen_tcp(bind, 0), options_.tls});
  mine.address = local_address(listeners.back().socket);
  if (options_.shared_memory) {
    mine.local = fmt::format("echelon-{:016x}{:016x}", random_number(), random_number());
    listeners.push_back({listen_local(mine.local), false});
  }
  return listeners;
}

// A proven connection says whose it is and what it is for, and waits to be taken.
void Endpoint::welcome(std::unique_ptr<Stream> stream, const Frame& first) {
  FrameReader reader(first, stream->name());
  const auto job = reader.number(), from = reader.number_at_most(std::uint64_t(world_) - 1),
             channel = reader.number(), index = reader.number();
  reader.end();
  if (first.kind != announce) throw Corrupt(stream->name() + " did not say what it is for");
  const std::lock_guard lock(filed_mutex_);
  // A rank that has all peer info may be here before this one has; then the job is looked at later.
  if (job_ && job != *job_) throw Refused(stream->name() + " belongs to another job");
  filed_[{job, int(from), channel, index}] = std::move(stream);
  filed_changed_.notify_all();
}

std::unique_ptr<Stream> Endpoint::connect(int rank, const Purpose& purpose, int index,
                                          Deadline deadline) {
  const PeerInfo& other = peer_info(rank);
  const bool local = near(rank) && purpose.channel == control_channel;
  Descriptor socket;
  // In short tries, so that a death is not waited for to the deadline; longer each time, for ways
  // that are long.
  for (Deadline::Clock::duration time = first_try; !socket;
       time = std::min(2 * time, longest_try)) {
    const Deadline soon = Deadline::in(std::min(deadline.remaining(), time));
    try {
      socket = local ? connect_local(other.local, soon) : connect_tcp(other.address, soon);
    } catch (const Timeout&) {
      health_->check_present({rank}, purpose.group);
      if (assembly_) assembly_->look();
      if (deadline.expired()) throw;
    }
  }
  auto stream = connect_proven(std::move(socket), health_->name(rank), options_.tls && !local,
                               token_, deadline);
  write_frame(*stream,
              FrameWriter()
                  .number(peer_infos_[0].job)
                  .number(std::uint64_t(rank_))
                  .number(purpose.channel)
                  .number(std::uint64_t(index))
                  .frame(announce),
              deadline);
  prepare(*stream, rank, purpose);
  return stream;
}

// On one machine nothing is gained by having much under way: what lies in the kernel leaves the
// caches before it is read. A few segments of the loopback's size must fit, else each waits for its
// delayed acknowledgement.
void Endpoint::prepare(Stream& stream, int rank, const Purpose& purpose) const {
  constexpr int few_segments = 128 << 10;  // the kernel doubles it
  if (purpose.channel != control_channel && peer_info(rank).kernel == peer_info(rank_).kernel)
    limit_send_buffer(stream.socket(), few_segments);
}

Endpoint::Key Endpoint::key_of(int rank, const Purpose& purpose, int index) const {
  return {peer_infos_[0].job, rank, purpose.channel, std::uint64_t(index)};
}

std::unique_ptr<Stream> Endpoint::take(int rank, const Purpose& purpose, int index,
                                       Deadline deadline) {
  const Key key = key_of(rank, purpose, index);
  std::unique_lock lock(filed_mutex_);
  while (!filed_.contains(key)) {
    // In short waits, so that a death is not waited for to the deadline.
    const auto wait =
        std::min<Deadline::Clock::duration>(deadline.remaining(), std::chrono::milliseconds(50));
    filed_changed_.wait_for(lock, wait);
    health_->check_present({rank}, purpose.group);
    if (assembly_) assembly_->look();
    if (deadline.expired())
      throw Timeout(fmt::format("{} did not connect in time", health_->name(rank)));
  }
  auto stream = std::move(filed_[key]);
  filed_.erase(key);
  stream->rename(health_->name(rank));
  prepare(*stream, rank, purpose);
  return stream;
}

std::vector<std::unique_ptr<Stream>> Endpoint::open(int rank, const Purpose& purpose,
                                                    Deadline deadline) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (int i = 0; i < purpose.count; ++i)
    streams.push_back(rank < rank_ ? connect(rank, purpose, i, deadline)
                                   : take(rank, purpose, i, deadline));
  return streams;
}

std::optional<std::vector<std::unique_ptr<Stream>>> Endpoint::try_open(int rank,
                                                                       const Purpose& purpose,
                                                                       Deadline deadline) {
  if (rank > rank_) {
    const std::lock_guard lock(filed_mutex_);
    for (int i = 0; i < purpose.count; ++i)
      if (!filed_.contains(key_of(rank, purpose, i))) return {};
  }
  return open(rank, purpose, deadline);
}

void Endpoint::connect_controls(Deadline deadline) {
  for (int r = 0; r < world_; ++r)
    if (r < rank_) controls_[std::size_t(r)] = connect(r, {control_channel}, 0, deadline);
  for (int r = rank_ + 1; r < world_; ++r)
    controls_[std::size_t(r)] = take(r, {control_channel}, 0, deadline);
  const auto for_each_near = [&](auto&& action) {
    for (int r = 0; r < world_; ++r) {
      if (r == rank_ || !near(r)) continue;
      try {
        action(r);
      } catch (const PeerLost& error) {
        throw PeerLost(fmt::format("lost {}: {}", health_->name(r), error.what()));
      }
    }
  };
  for_each_near([&](int r) {
    send_descriptor(controls_[std::size_t(r)]->socket(), heap_->mapping()->file(), deadline);
  });
  for_each_near([&](int r) { share_heap(r, deadline); });
}

void Endpoint::share_heap(int rank, Deadline deadline) {
  const Descriptor& socket = controls_[std::size_t(rank)]->socket();
  heaps_[std::size_t(rank)] = HeapMapping::map(receive_descriptor(socket, deadline));
  processes_[std::size_t(rank)] = peer_process(socket);
}

bool Endpoint::near(int rank) const {
  return rank == rank_ || peer_info(rank).host == peer_info(rank_).host;
}

int Endpoint::process(int rank) const { return processes_[std::size_t(rank)]; }

const HeapMapping& Endpoint::heap(int rank) const { return *heaps_[std::size_t(rank)]; }

void Endpoint::tell(const std::vector<int>& ranks, const Frame& frame,
                    Deadline::Clock::duration patience) {
  const std::lock_guard lock(control_mutex_);
  for (const int r : ranks) {
    if (r == rank_ || !controls_[std::size_t(r)]) continue;
    try {
      // A socket that takes anything takes a whole frame: none is cut short.
      const Stream& control = *controls_[std::size_t(r)];
      if (wait_ready(control.socket().get(), POLLOUT, Deadline::in(patience)))
        write_frame(*controls_[std::size_t(r)], frame, Deadline::in(farewell_time));
    } catch (const std::exception&) {  // gone itself
    }
  }
}

void Endpoint::give_up(const std::vector<int>& ranks, std::uint64_t group,
                       const std::exception& error) noexcept {
  try {
    const bool for_another =
        kind_of(error) == kind_of(PeerLost("")) || kind_of(error) == kind_of(Timeout(""));
    const int cause = for_another ? health_->blamed().rank : -1;
    tell(ranks,
         FrameWriter()
             .number(group)
             .number(kind_of(error))
             .number(std::uint64_t(cause + 1))
             .text(std::string(error.what()).substr(0, longest_reason))
             .frame(give_up_frame),
         std::chrono::milliseconds(100));
  } catch (const std::exception&) {  // out of memory: they find out by their deadlines
  }
}

void Endpoint::tell_wait(const std::vector<int>& ranks, const Health::Wait& wait) noexcept {
  try {
    tell(ranks,
         FrameWriter()
             .number(wait.group)
             .number(wait.number)
             .number(wait.call)
             .number(wait.bytes)
             .number(std::uint64_t(wait.on))
             .frame(wait_frame),
         Deadline::Clock::duration::zero());
  } catch (const std::exception&) {
  }
}

void Endpoint::watch() {
  std::vector<pollfd> ready;
  std::vector<int> ranks;
  std::vector<FrameParser> parsers;
  for (int r = 0; r < world_; ++r) {
    if (!controls_[std::size_t(r)]) continue;
    ready.push_back({controls_[std::size_t(r)]->socket().get(), POLLIN, 0});
    ranks.push_back(r);
    parsers.emplace_back(health_->name(r));
  }
  ready.push_back({stop_.get(), POLLIN, 0});
  for (;;) {
    if (poll(ready.data(), ready.size(), -1) < 0) continue;
    if (ready.back().revents) return;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (!ready[i].revents) continue;
      try {
        hear(ranks[i], parsers[i]);
      } catch (const PeerLost&) {
        health_->lost(ranks[i], "its process ended or its connection was cut");
      } catch (const std::exception& error) {
        health_->lost(ranks[i], error.what());
      }
      if (health_->state(ranks[i]) != Health::State::alive) ready[i].fd = -1;
    }
  }
}

void Endpoint::hear(int rank, FrameParser& parser) {
  std::array<std::byte, 4096> bytes;
  auto& control = *controls_[std::size_t(rank)];
  const auto read = [&] {
    const std::lock_guard lock(
        control_mutex_);  // a TLS session is read and written by one at a time
    return control.try_read(bytes);
  };
  while (const std::size_t count = read()) {
    parser.feed(std::span(bytes).first(count));
    while (const auto frame = parser.next()) {
      FrameReader reader(*frame, control.name());
      const auto read_cause = [&] { return int(reader.number_at_most(std::uint64_t(world_))) - 1; };
      if (frame->kind == goodbye) {
        const bool in_error = reader.number() != 0;
        const int cause = read_cause();
        health_->left(rank, in_error, {cause, reader.text()});
        return;
      }
      if (frame->kind == wait_frame) {
        Health::Wait wait;
        wait.group = reader.number();
        wait.number = reader.number();
        wait.call = reader.number();
        wait.bytes = reader.number();
        wait.on = int(reader.number_at_most(std::uint64_t(world_) - 1));
        health_->waits(rank, wait);
      } else if (frame->kind == give_up_frame) {
        const auto group = reader.number(), kind = reader.number();
        const int cause = read_cause();
        const std::string message = reader.text();
        health_->failed(rank, group, kind, message, {cause, message});
      } else {
        throw Corrupt(control.name() + " sent an unknown frame");
      }
      reader.end();
    }
  }
}

}  // namespace echelon
