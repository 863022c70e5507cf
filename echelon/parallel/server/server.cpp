#include "echelon/parallel/server/server.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/parallel/server/wire.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;

constexpr auto a_while = 1s;   // until a question is answered with "ask again"
constexpr auto farewell = 5s;  // for workers to learn about the failure
constexpr auto a_day = 24h;

// Works in small blocks: torch allocates several temporary tensors for this, and every connection
// may do it at the same time.
bool all_finite(const at::Tensor& flat) {
  constexpr std::int64_t piece = 1 << 15;
  for (std::int64_t at = 0; at < flat.numel(); at += piece)
    if (!at::isfinite(flat.narrow(0, at, std::min(piece, flat.numel() - at))).all().item<bool>())
      return false;
  return true;
}

// Whether nothing else holds this tensor or its memory.
bool ours_alone(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

}  // namespace

std::int64_t ServerOptions::bound() const {
  return mode == ServerMode::sync      ? 0
         : mode == ServerMode::bounded ? staleness
                                       : ClockTable::unbounded;
}

std::int64_t ServerOptions::most_begun() const {
  return mode == ServerMode::async ? ClockTable::most_begun : bound() + 1;
}

std::int64_t ServerOptions::most_waiting(int workers) const {
  // Each worker may hold up one step whose other shares have all arrived; one more step is being
  // applied.
  const std::int64_t w = workers, held_up = w * (w - 1) + w;
  return std::min(held_up + (mode == ServerMode::bounded ? staleness * w : 0), most_begun() * w);
}

ParameterServer::ParameterServer(Setup setup, const std::string& bind, const NetOptions& net,
                                 const Token& token)
    : setup_(std::move(setup)), net_(net), token_(token) {
  if (setup_.index == 0) {
    table_ = std::make_unique<ClockTable>(
        setup_.shares, 0, setup_.end > 0 ? setup_.end : setup_.steps, setup_.server.bound(),
        setup_.server.mode == ServerMode::sync ? ClockTable::Shares::to_each_its_own
                                               : ClockTable::Shares::to_whoever_asks);
    table_->hold(0);  // until the first step is known
  }
  std::vector<Listener> listeners;
  listeners.push_back({listen_tcp(bind, 0), net.tls});
  address_ = local_address(listeners.back().socket);
  acceptor_ = std::make_unique<Acceptor>(
      std::move(listeners), token_, [this](std::unique_ptr<Stream> stream, const Frame& first) {
        welcome(std::move(stream), first);
      });
}

void ParameterServer::start(const std::vector<Address>& servers) {
  for (const auto& one : servers)
    all_addresses_ += (all_addresses_.empty() ? "" : ",") + one.text();
  {
    const std::lock_guard lock(mutex_);
    servers_ = static_cast<int>(servers.size());
    changed_.notify_all();
  }
  if (setup_.index > 0) {
    const Deadline deadline = transfer();
    first_ = std::make_unique<Peer>(connect_proven(connect_tcp(servers[0], deadline), setup_.first,
                                                   net_.tls, token_, deadline));
    first_->ask(FrameWriter().number(2).text(setup_.name).text("").frame(Peer::hello), deadline);
  }
  thread_ = std::thread([this] {
    at::init_num_threads();
    at::NoGradGuard no_grad;
    const MemoryContext::Join counted(memory_);
    try {
      run();
    } catch (const std::exception&) {
      const std::lock_guard lock(mutex_);
      fail(std::current_exception());
    }
    if (first_) {
      try {
        first_->send(FrameWriter().text("").frame(Peer::bye), Deadline::in(farewell));
      } catch (const std::exception&) {  // it is gone already
      }
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  });
}

ParameterServer::~ParameterServer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (first_) first_->shut();
  acceptor_.reset();
  if (thread_.joinable()) thread_.join();
  {
    const std::lock_guard lock(mutex_);
    shut_if([](const Connection&) { return true; });
  }
  for (auto& one : connections_) one.thread.join();
  const MemoryContext::Join counted(memory_);
  update_.reset();
  snapshots_ = {};
  masters_.clear();
  arrivals_.clear();
}

void ParameterServer::shut_if(const std::function<bool(const Connection&)>& whom) {
  for (auto& one : connections_)
    if (one.peer && whom(one)) one.peer->shut();
}

int ParameterServer::waited_for() const {
  return here_ +
         static_cast<int>(std::count_if(connections_.begin(), connections_.end(),
                                        [](const Connection& one) { return one.waited_for; }));
}

int ParameterServer::guests() const {
  return static_cast<int>(std::count_if(
      connections_.begin(), connections_.end(),
      [](const Connection& one) { return one.role == Role::guest && one.peer != nullptr; }));
}

void ParameterServer::wait() {
  Lock lock(mutex_);
  const auto over = [&] { return failed_ || (ended_ && waited_for() == 0); };
  changed_.wait(lock, [&] { return failed_ || ended_; });
  // Workers leave at once. Only the first worker gets time, because it may have much to write.
  if (!changed_.wait_for(lock, Deadline::duration_of(setup_.timeout), over)) {
    shut_if([](const Connection& one) { return !one.first; });
    if (!changed_.wait_for(lock, a_day, over))
      throw Timeout(setup_.name + " waited a day for the first worker to leave");
  }
  // Guests learn that the job is over when they ask for the next share.
  changed_.wait_for(lock, farewell,
                    [&] { return (!failed_ || waited_for() == 0) && guests() == 0; });
  if (failed_) std::rethrow_exception(failed_);
}

void ParameterServer::fail(std::exception_ptr why) {
  if (!failed_ && !stopping_) failed_ = why;
  changed_.notify_all();
}

void ParameterServer::check() const {
  if (failed_) std::rethrow_exception(failed_);
  if (stopping_) throw PeerLost(setup_.name + " is ending: its process failed or was stopped");
}

void ParameterServer::fail_to_see(const char* what) const {
  throw Timeout(fmt::format("{} waited {} s for {}", setup_.name, setup_.timeout, what));
}

// ---- Requests from workers

// The update thread takes the state over, so that the server's memory is in no worker's account.
void ParameterServer::begin(Beginning beginning, int worker) {
  Lock lock(mutex_);
  check();
  if (update_ || beginning_) throw InvalidArgument("the job has begun already");
  beginning_ = std::move(beginning);
  begun_by_ = worker;
  changed_.notify_all();
  wait_until(lock, transfer(), "its own beginning", [&] { return update_ != nullptr; });
}

void ParameterServer::take_beginning(Beginning beginning) {
  const MemoryScope scope(MemoryKind::optimizer);
  at::Tensor& values = beginning.state.at(0);
  const at::Tensor master = ours_alone(values) ? values : values.clone();
  values.reset();
  auto update =
      std::make_unique<SliceUpdate>(std::vector<SliceUpdate::Part>{{master, beginning.ranges}},
                                    at::kCPU, master_type(beginning.type), setup_.optim);
  const auto state = update->state();
  if (state.size() != beginning.state.size())
    throw InvalidArgument("the optimiser's state is not that of this job's optimiser");
  for (std::size_t i = 1; i < state.size(); ++i) {
    at::Tensor(state[i].flat).copy_(beginning.state[i]);
    beginning.state[i].reset();
  }
  update->restart(beginning.updates);
  const MemoryScope given_out(MemoryKind::parameters);
  const std::lock_guard lock(mutex_);
  type_ = beginning.type;
  numel_ = update->master().numel();
  snapshots_.begin(update->master().to(type_, /*non_blocking=*/false, /*copy=*/true),
                   beginning.version);
  update_ = std::move(update);
  if (table_) {
    table_->start_at(now());
    const auto every = setup_.save_every;
    table_->hold(every > 0 ? (now() / every + 1) * every : ClockTable::unbounded);
  }
  changed_.notify_all();
}

int ParameterServer::join(const std::string& name, Part part) {
  const std::lock_guard lock(mutex_);
  if (table_ && setup_.server.mode == ServerMode::sync && table_->living() >= setup_.shares)
    throw InvalidArgument(
        "a synchronous job takes no further workers; they may join a bounded one");
  if (part == Part::rank && ranks_ >= setup_.shares)
    throw InvalidArgument(fmt::format(
        "all {} workers of this job have come; a further one comes with --join", setup_.shares));
  if (part == Part::rank) ++ranks_;
  return table_ ? table_->join(name) : -1;
}

int ParameterServer::join_here(const std::string& name) {
  const int worker = join(name);
  const std::lock_guard lock(mutex_);
  ++here_;
  return worker;
}

void ParameterServer::leave(int worker, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    --here_;
  }
  lose(worker, why);
}

ParameterServer::Next ParameterServer::next(int worker, std::size_t seen, std::int64_t until) {
  Lock lock(mutex_);
  const auto deadline = Deadline::in(a_while);
  const auto asked = asked_.try_emplace(worker, Deadline::Clock::now()).first->second;
  Next reply;
  for (;;) {
    check();
    require_alive(worker);
    if (!update_ && Deadline::Clock::now() - began_ > Deadline::duration_of(setup_.timeout))
      throw Timeout(fmt::format("the first worker has not brought the parameters within {} s",
                                setup_.timeout));
    reply.finished = update_ && table_->finished();
    // It may pay to wait a moment for newer parameters.
    const bool fresh =
        update_ && (table_->next_age() <= 0 ||
                    Deadline::Clock::now() - asked >=
                        Deadline::duration_of(setup_.server.fresh_wait * task_seconds_));
    if (update_ && !applying_ && !reply.finished && fresh && now() < until)
      reply.task = table_->take(worker);
    if (reply.task) {
      since_[worker] = Deadline::Clock::now();
      asked_.erase(worker);
    }
    if (reply.task || reply.finished || deadline.expired() || applied_.size() > seen) break;
    const auto enough = Deadline::duration_of(setup_.server.fresh_wait * task_seconds_) -
                        (Deadline::Clock::now() - asked);
    changed_.wait_for(lock, fresh || enough <= 0s ? deadline.remaining()
                                                  : std::min(deadline.remaining(), enough));
  }
  reply.version = now();
  reply.failure = failure_;
  reply.lost = lost_;
  for (std::size_t i = seen; i < applied_.size() && reply.applied.size() < wire::most_applied; ++i)
    reply.applied.push_back(applied_[i]);
  reply.finished = reply.finished && seen + reply.applied.size() >= applied_.size();
  return reply;
}

void ParameterServer::done(int worker, const Task& task, double loss) {
  const std::lock_guard lock(mutex_);
  check();
  require_alive(worker);
  table_->done(worker, task);
  const double seconds =
      std::chrono::duration<double>(Deadline::Clock::now() - since_[worker]).count();
  task_seconds_ = task_seconds_ == 0 ? seconds : 0.9 * task_seconds_ + 0.1 * seconds;
  longest_task_ = std::max(longest_task_, seconds);
  since_.erase(worker);
  auto& losses = losses_[task.clock];
  losses.resize(std::size_t(setup_.shares));
  losses[std::size_t(task.share)] = loss;
  changed_.notify_all();
}

void ParameterServer::require_alive(int worker) const {
  if (const auto it = dropped_.find(worker); it != dropped_.end()) throw PeerLost(it->second);
  if (!table_->alive(worker)) throw PeerLost(table_->name(worker) + " has left the job");
}

Task ParameterServer::newest(int worker, std::int64_t at_least, ClockTable::Reads what) {
  Lock lock(mutex_);
  wait_until(lock, transfer(), "updates that a worker needs",
             [&] { return update_ && !applying_ && now() >= at_least; });
  require_alive(worker);
  return table_->read(worker, what);
}

// No server is more than one update behind another, because each waits for the norms of all others.
void ParameterServer::require_soon(Lock& lock, std::int64_t version) {
  wait_until(lock, transfer(), "its own beginning", [&] { return update_ != nullptr; });
  if (version > now() + 1)
    throw InvalidArgument(
        fmt::format("{} was asked for the parameters after {} updates, and there were {}",
                    setup_.name, version, now()));
  wait_until(lock, transfer(), "updates that a worker needs", [&] { return now() >= version; });
}

at::Tensor ParameterServer::kept_masters(const Task& task) const {
  if (type_ == master_type(type_)) return snapshots_.look(task);
  if (const auto it = masters_.find(task.number); it != masters_.end()) return it->second;
  return task.version == now() ? update_->master() : at::Tensor();
}

at::Tensor ParameterServer::masters(const Task& task, std::int64_t begin, std::int64_t end) {
  at::NoGradGuard no_grad;
  {
    Lock lock(mutex_);
    require_soon(lock, task.version);
    if (begin < 0 || begin > end || end > numel_)
      throw InvalidArgument(fmt::format("{} has {} masters, and was asked for those from {} to {}",
                                        setup_.name, numel_, begin, end));
  }
  const std::lock_guard update_lock(update_mutex_);  // masters are updated in place
  const std::lock_guard lock(mutex_);
  const at::Tensor all = kept_masters(task);
  if (!all.defined())
    throw Error(fmt::format("{} has not kept the masters after {} updates: there were {}",
                            setup_.name, task.version, now()));
  return all.narrow(0, begin, end - begin).clone();
}

void ParameterServer::require_its_own(int worker, const Task& task) const {
  if (!table_ || worker < 0) return;
  require_alive(worker);
  if (!table_->has(worker, task))
    throw InvalidArgument(
        fmt::format("{} was not given share {} of step {} on the parameters after {} updates",
                    table_->name(worker), task.share, task.clock + 1, task.version));
}

void ParameterServer::require_room(const Task& task, Part part) const {
  if (table_ || part != Part::guest || arrivals_.contains(task.number)) return;
  const auto theirs = std::count_if(arrivals_.begin(), arrivals_.end(),
                                    [](const auto& one) { return one.second.part == Part::guest; });
  // The first server may be one step ahead.
  if (theirs >= (setup_.server.most_begun() + 1) * setup_.shares)
    throw InvalidArgument(
        fmt::format("{} keeps {} gradients of workers that joined, and has no room for more",
                    setup_.name, theirs));
}

at::Tensor ParameterServer::pull(int worker, const Task& task, Part part) {
  Lock lock(mutex_);
  require_its_own(worker, task);
  require_soon(lock, task.version);
  const at::Tensor values = snapshots_.read(task);
  if (!values.defined())
    throw Error(
        fmt::format("{} has not kept the parameters after {} updates: there were {}, and "
                    "nobody is known to compute on them",
                    setup_.name, task.version, now()));
  if (setup_.server.compensate > 0 && task.share < setup_.shares && !done_.contains(task.clock)) {
    require_room(task, part);
    arrivals_.try_emplace(task.number, Arrival{.task = task, .part = part, .read = values});
  }
  return values;
}

void ParameterServer::push(int worker, const std::string& from, const Task& task, double weight,
                           at::Tensor grad, Part part) {
  at::NoGradGuard no_grad;
  const bool finite = all_finite(grad.view({-1}));
  const std::lock_guard lock(mutex_);
  check();
  if (table_ && worker >= 0) require_alive(worker);
  if (!update_ || task.share < 0 || task.share >= setup_.shares)
    throw InvalidArgument(fmt::format("{} sent a gradient for a share that there is not", from));
  if (grad.numel() != numel_ || grad.scalar_type() != type_)
    throw InvalidArgument(
        fmt::format("{} sent {} elements for a part of {}", from, grad.numel(), numel_));
  if (!finite) {
    const auto message = fmt::format(
        "the gradient that {} sent for step {} is not finite; it was refused. A lower "
        "optim.rate or optim.clip may help",
        from, task.clock + 1);
    log::warn(message);
    throw Refused(message);
  }
  if (task.version > now() || task.version < 0)
    throw InvalidArgument(
        fmt::format("{} says its gradient is of the parameters after {} updates, "
                    "and there were {}",
                    from, task.version, now()));
  const auto bound = setup_.server.bound();
  if (bound != ClockTable::unbounded && now() - task.version > bound) {
    const auto message = fmt::format(
        "the gradient that {} sent for step {} is of the parameters after {} updates, and there were "
        "{}: too old for staleness {}; it was refused",
        from, task.clock + 1, task.version, now(), bound);
    log::warn(message);
    throw Refused(message);
  }
  require_its_own(worker, task);
  if (done_.contains(task.clock)) return;  // the step was applied with another worker's gradient
  require_room(task, part);
  Arrival& arrival = arrivals_[task.number];
  if (arrival.grad.defined())
    throw InvalidArgument(fmt::format("{} sent a second gradient for share {} of step {}", from,
                                      task.share, task.clock + 1));
  arrival.task = task;
  arrival.part = part;
  arrival.grad = std::move(grad);
  arrival.weight = weight;
  changed_.notify_all();
}

void ParameterServer::show_state(std::int64_t version,
                                 const std::function<void(const Beginning&)>& show) {
  at::NoGradGuard no_grad;
  {
    Lock lock(mutex_);
    wait_until(lock, transfer(), "the state that is asked for",
               [&] { return update_ && now() >= version; });
  }
  // An update changes state and version while it holds this lock.
  const std::lock_guard lock(update_mutex_);
  Beginning all;
  {
    const std::lock_guard version_lock(mutex_);
    all.version = now();
  }
  if (all.version != version)
    throw Error(
        fmt::format("the state after {} updates is gone: there were {}", version, all.version));
  all.type = type_;
  all.updates = update_->updates();
  for (const auto& one : update_->state()) all.state.push_back(one.flat);
  show(all);
}

void ParameterServer::saved(std::int64_t version) {
  const std::lock_guard lock(mutex_);
  if (table_ && setup_.save_every > 0) table_->hold(version + setup_.save_every);
  changed_.notify_all();
}

void ParameterServer::stop() {
  const std::lock_guard lock(mutex_);
  stop_asked_ = true;
  if (table_) table_->stop();
  changed_.notify_all();
}

void ParameterServer::abandon(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = why;
  if (table_) table_->abandon();
  changed_.notify_all();
}

void ParameterServer::report_memory(std::function<std::string()> words) {
  const std::lock_guard lock(mutex_);
  memory_words_ = std::move(words);
}

std::string ParameterServer::memory_report() const {
  const std::lock_guard lock(mutex_);
  return memory_words_();
}

std::int64_t ParameterServer::version() const {
  const std::lock_guard lock(mutex_);
  return now();
}

std::uint64_t ParameterServer::owned_bytes() const {
  const std::lock_guard lock(mutex_);
  return std::uint64_t(numel_) * at::elementSize(type_);
}

std::uint64_t ParameterServer::held_bytes() const {
  const std::lock_guard lock(mutex_);
  if (!update_) return 0;
  std::uint64_t bytes = std::uint64_t(numel_) * at::elementSize(type_);
  for (const auto& one : update_->state()) bytes += one.flat.nbytes();
  return bytes;
}

}  // namespace echelon
