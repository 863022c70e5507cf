#include "echelon/net/endpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <limits>
#include <set>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/net/file_limit.h"
#include "echelon/net/host.h"

namespace echelon {
namespace {

constexpr std::uint8_t announce = 16;  // a kind of frame; ControlNetwork's kinds follow

constexpr std::uint64_t control_channel = 0;
constexpr int at_start = 0, on_demand = 1;  // indices of control connections
constexpr std::size_t connects_at_a_time = 8;
constexpr Deadline::Clock::duration first_try = std::chrono::milliseconds(50),
                                    longest_try = std::chrono::seconds(2);
constexpr auto answer_time = std::chrono::seconds(1);  // for a rank that is probed

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
      // Other processes on this machine follow the name.
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
      heaps_(std::size_t(world)),
      processes_(std::size_t(world), 0),
      report_(rank, world) {
  raise_file_limit();
  int links = 0;
  for (int r = 0; r < world; ++r)
    links += r != rank && ControlNetwork::linked(rank, r, world, int(options.control_mesh));
  require_files_for(links, 1, 0);  // a lower bound: which ranks are near is not known yet
  const Deadline deadline = Deadline::in_seconds(options.connect_timeout);
  PeerInfo mine;
  // A rank that shares no memory counts as a host of its own.
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
  network_ = std::make_unique<ControlNetwork>(rank, world, int(options.control_mesh), *health_,
                                              [this](int other) { return reach(other); });
  check_peer_infos(bind);
  require_files_for_links();
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
    // Several connections may have broken. The assembly knows which rank ended first and reports it
    // once.
    if (assembly_error_) std::rethrow_exception(assembly_error_);
    if (assembly_) assembly_->look_for_the_cause();
    throw;
  }
  if (assembly_) assembly_->connected(deadline);
  assembly_.reset();
  network_->start();
  const std::lock_guard lock(filed_mutex_);
  for (auto one = filed_.begin(); one != filed_.end();) {
    if (!is_on_demand(one->first)) {
      ++one;
      continue;
    }
    add_on_demand(std::get<1>(one->first), std::move(one->second));
    one = filed_.erase(one);
  }
  takes_on_demand_ = true;
}

void Endpoint::add_on_demand(int rank, std::unique_ptr<Stream> stream) {
  stream->rename(health_->name(rank));
  network_->add(rank, std::move(stream));
}

bool Endpoint::is_on_demand(const Key& key) {
  return std::get<2>(key) == control_channel && std::get<3>(key) == on_demand;
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

// Files needed: control connections from the start, to the ranks of this host and to linked ranks;
// the heaps of the ranks of this host; at rank 0 the connections of the rendezvous, until all ranks
// are connected. Data links are opened on demand: a ring needs links to two neighbours, an exchange
// of small vectors needs links to all ranks of other hosts.
void Endpoint::require_files_for_links() const {
  int near_ranks = 0, linked = 0;
  for (int r = 0; r < world_; ++r) {
    near_ranks += near(r);
    linked += r != rank_ && has_control(r);
  }
  require_files_for(linked, near_ranks, world_ - near_ranks);
}

void Endpoint::require_files_for(int linked, int near, int far) const {
  if (world_ == 1) return;
  constexpr int listeners_and_logs = 16;
  const int rendezvous = rank_ == 0 ? world_ - 1 : 1;
  require_files(std::size_t(linked + rendezvous + near +
                            std::max(4, far) * int(options_.connections) + listeners_and_logs),
                fmt::format("a job of {} ranks", world_));
}

// Otherwise the mistake would show as a connection that never comes or bytes that never arrive.
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
  acceptor_.reset();
  network_->leave(std::uncaught_exceptions() > 0);
  network_.reset();
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

// A proven connection says which rank it belongs to and what it is for, and waits to be taken.
void Endpoint::welcome(std::unique_ptr<Stream> stream, const Frame& first) {
  FrameReader reader(first, stream->name());
  const auto job = reader.number(), from = reader.number_at_most(std::uint64_t(world_) - 1),
             channel = reader.number(), index = reader.number();
  reader.end();
  if (first.kind != announce) throw Corrupt(stream->name() + " did not say what it is for");
  const std::lock_guard lock(filed_mutex_);
  // A rank that already has all peer info may arrive before this rank has it. The job is then
  // checked later.
  if (job_ && job != *job_) throw Refused(stream->name() + " belongs to another job");
  const Key key = {job, int(from), channel, index};
  if (takes_on_demand_ && is_on_demand(key)) return add_on_demand(int(from), std::move(stream));
  filed_[key] = std::move(stream);
  filed_changed_.notify_all();
}

std::unique_ptr<Stream> Endpoint::connect(int rank, const Purpose& purpose, int index,
                                          Deadline deadline) {
  const PeerInfo& other = peer_info(rank);
  const bool local = near(rank) && purpose.channel == control_channel;
  Descriptor socket;
  // Uses short tries, so that the death of a rank is noticed before the deadline. Each try is
  // longer than the previous one, for slow routes.
  for (Deadline::Clock::duration time = first_try; !socket;
       time = std::min(2 * time, longest_try)) {
    const Deadline soon = Deadline::in(std::min(deadline.remaining(), time));
    try {
      socket = local ? connect_local(other.local, soon) : connect_tcp(other.address, soon);
    } catch (const Timeout&) {
      health_->check_present({rank}, purpose.group);
      look_at_assembly();
      if (deadline.expired() || connecting_failed_) throw;
    }
  }
  return introduce(std::move(socket), rank, purpose, index, local, deadline);
}

// Proves the token and says what the connection is for.
std::unique_ptr<Stream> Endpoint::introduce(Descriptor socket, int rank, const Purpose& purpose,
                                            int index, bool local, Deadline deadline) {
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

// On one machine it does not help to have many bytes in flight: bytes in the kernel leave the
// caches before they are read. A few segments of the loopback's size must fit, or each waits for
// its delayed acknowledgement.
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
    // Uses short waits, so that the death of a rank is noticed before the deadline.
    const auto wait =
        std::min<Deadline::Clock::duration>(deadline.remaining(), std::chrono::milliseconds(50));
    filed_changed_.wait_for(lock, wait);
    health_->check_present({rank}, purpose.group);
    look_at_assembly();
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

void Endpoint::look_at_assembly() {
  const std::lock_guard lock(assembly_mutex_);
  try {
    if (assembly_) assembly_->look();
  } catch (const PeerLost&) {
    assembly_error_ = std::current_exception();
    throw;
  }
}

// Ranks of one host share heaps and know each other's processes through their connection.
bool Endpoint::has_control(int rank) const {
  return near(rank) || ControlNetwork::linked(rank_, rank, world_, int(options_.control_mesh));
}

// Of two ranks, the higher one connects.
void Endpoint::connect_controls(Deadline deadline) {
  std::map<int, std::unique_ptr<Stream>> controls;
  std::vector<int> lower;
  for (int r = 0; r < world_; ++r) {
    if (r == rank_ || !has_control(r)) continue;
    controls[r] = nullptr;
    if (r < rank_) lower.push_back(r);
  }
  connect_all(lower,
              [&](int r) { controls.at(r) = connect(r, {control_channel}, at_start, deadline); });
  for (auto& [r, control] : controls)
    if (r > rank_) control = take(r, {control_channel}, at_start, deadline);
  const auto for_each_near = [&](auto&& action) {
    for (const auto& [r, control] : controls) {
      if (!near(r)) continue;
      try {
        action(r, control->socket());
      } catch (const PeerLost& error) {
        throw PeerLost(fmt::format("lost {}: {}", health_->name(r), error.what()));
      }
    }
  };
  for_each_near([&](int, const Descriptor& socket) {
    send_descriptor(socket, heap_->mapping()->file(), deadline);
  });
  for_each_near([&](int r, const Descriptor& socket) {
    heaps_[std::size_t(r)] = HeapMapping::map(receive_descriptor(socket, deadline));
    processes_[std::size_t(r)] = peer_process(socket);
  });
  for (auto& [r, control] : controls) network_->add(r, std::move(control));
}

// Connects to several ranks at a time: most of the time is spent waiting for the other side's
// proof.
void Endpoint::connect_all(const std::vector<int>& ranks, const std::function<void(int)>& connect) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;  // guards the error
  std::exception_ptr error;
  const auto work = [&] {
    for (std::size_t i; !connecting_failed_ && (i = next++) < ranks.size();) {
      try {
        connect(ranks[i]);
      } catch (const std::exception&) {
        const std::lock_guard lock(mutex);
        if (!connecting_failed_.exchange(true)) error = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  while (others.size() + 1 < std::min(ranks.size(), connects_at_a_time)) others.emplace_back(work);
  work();
  for (auto& one : others) one.join();
  if (error) std::rethrow_exception(error);
}

std::unique_ptr<Stream> Endpoint::reach(int rank) {
  const Deadline deadline = Deadline::in(answer_time);
  auto socket = try_connect_tcp(peer_info(rank).address, deadline);
  if (!socket) return nullptr;
  return introduce(std::move(*socket), rank, {control_channel}, on_demand, false, deadline);
}

bool Endpoint::near(int rank) const {
  return rank == rank_ || peer_info(rank).host == peer_info(rank_).host;
}

int Endpoint::process(int rank) const { return processes_[std::size_t(rank)]; }

const HeapMapping& Endpoint::heap(int rank) const { return *heaps_[std::size_t(rank)]; }

void Endpoint::give_up(const std::vector<int>& ranks, std::uint64_t group,
                       const std::exception& error) noexcept {
  network_->give_up(ranks, group, error);
}

void Endpoint::tell_wait(const std::vector<int>& ranks, const Health::Wait& wait) noexcept {
  network_->tell_wait(ranks, wait);
}

void Endpoint::ask_after(int rank) noexcept { network_->ask_after(rank); }

}  // namespace echelon
