// The thread of a parameter server that applies updates in the order that the first server decides.
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/optim/flat_norm.h"
#include "echelon/optim/schedule.h"
#include "echelon/parallel/server/server.h"
#include "echelon/parallel/server/wire.h"

namespace echelon {
namespace {

constexpr std::size_t most_done = 4096;  // steps remembered to recognise late gradients
constexpr double shortest_patience = 5;  // seconds

}  // namespace

void ParameterServer::run() {
  Beginning beginning;
  {
    Lock lock(mutex_);
    wait_until(lock, transfer(), "the first worker to bring the parameters",
               [&] { return beginning_.has_value(); });
    beginning = std::exchange(*beginning_, {});  // its tensors are in the first worker's memory
  }
  take_beginning(std::move(beginning));
  for (std::int64_t update = now();; ++update) {
    const auto step = next_in_order(update);
    if (!step) return;
    Applied applied{step->clock, 0, 0, rate_at(setup_.optim, update, setup_.steps), {}};
    for (const auto& task : step->shares) applied.ages.push_back(update - task.version);
    at::Tensor grad = sum(take_arrivals(*step), update);
    const double mine = flat_norm(grad).item<double>();
    const Agreed agreed = agree(update, mine * mine);
    applied.norm = std::sqrt(agreed.square);
    if (!std::isfinite(applied.norm)) {
      const auto message = fmt::format(
          "the gradient became infinite at step {}; a lower optim.rate or optim.clip may help",
          step->clock + 1);
      if (!setup_.async_phase) throw Error(message);
      // All servers know this norm, so none of them applies the update.
      const std::lock_guard lock(mutex_);
      failure_ = message;
      applying_ = false;
      if (table_) table_->abandon(update);
      changed_.notify_all();
      return;
    }
    apply(std::move(grad), applied, agreed.held);
  }
}

// Takes the gradients that the first server counts: one per share, from the worker that finished
// it.
std::vector<ParameterServer::Arrival> ParameterServer::take_arrivals(const Complete& step) {
  Lock lock(mutex_);
  wait_until(lock, transfer(), "the gradients of a step", [&] {
    return std::all_of(step.shares.begin(), step.shares.end(), [&](const Task& task) {
      const auto it = arrivals_.find(task.number);
      return it != arrivals_.end() && it->second.grad.defined();
    });
  });
  std::vector<Arrival> shares;
  for (const auto& task : step.shares) {
    shares.push_back(std::move(arrivals_.at(task.number)));
    shares.back().task = task;
  }
  // The other gradients of this step come from workers that were dropped.
  std::erase_if(arrivals_, [&](const auto& one) { return one.second.task.clock == step.clock; });
  done_.insert(step.clock);
  while (done_.size() > most_done) done_.erase(done_.begin());
  return shares;
}

void ParameterServer::apply(at::Tensor grad, const Applied& applied,
                            const std::vector<Task>& held) {
  const std::lock_guard update_lock(update_mutex_);
  keep_masters(held);
  const auto wide = update_->master().options();
  update_->rate().fill_(applied.rate);
  update_->apply({grad}, at::zeros({}, wide).fill_(applied.norm), at::zeros({}, wide));
  grad.reset();  // free it before workers allocate for the next step
  at::Tensor fresh;
  {
    const std::lock_guard lock(mutex_);
    fresh = snapshots_.reuse(held);
  }
  const MemoryScope scope(MemoryKind::parameters);
  if (fresh.defined())
    fresh.copy_(update_->master());
  else
    fresh = update_->master().to(type_, false, /*copy=*/true);
  const std::lock_guard lock(mutex_);
  snapshots_.publish(std::move(fresh), held);
  applying_ = false;
  if (table_) {
    table_->applied();
    applied_.push_back(applied);
    for (const double loss : losses_[applied.clock]) applied_.back().loss += loss;
    losses_.erase(applied.clock);
  }
  changed_.notify_all();
}

// Keeps masters of the version that is about to be overwritten, if a worker still reads them.
void ParameterServer::keep_masters(const std::vector<Task>& held) {
  if (type_ == master_type(type_)) return;  // the values are the masters
  std::map<std::int64_t, at::Tensor> all;
  at::Tensor copy;
  const MemoryScope scope(MemoryKind::parameters);
  const std::lock_guard lock(mutex_);
  for (const auto& task : held) {
    if (task.share != setup_.shares + 1) continue;
    if (const auto it = masters_.find(task.number); it != masters_.end()) {
      all.insert(*it);
    } else if (task.version == now()) {
      if (!copy.defined()) copy = update_->master().clone();
      all[task.number] = copy;
    }
  }
  masters_ = std::move(all);
}

std::optional<Complete> ParameterServer::next_in_order(std::int64_t update) {
  if (!first_) {
    Lock lock(mutex_);
    for (;;) {
      check();
      if (auto step = table_->order(update)) return step;
      if (table_->finished() || stopping_) return {};
      look_for_silent_workers();
      changed_.wait_for(lock, a_moment);
    }
  }
  for (;;) {
    bool stop = false;
    {
      const std::lock_guard lock(mutex_);
      check();
      stop = std::exchange(stop_asked_, false);
    }
    // The first server keeps the clock table, so it must be asked to stop.
    if (stop) first_->ask(FrameWriter().text("").frame(Peer::stop), transfer());
    const Frame reply =
        first_->ask(FrameWriter().number(std::uint64_t(update)).frame(Peer::order), transfer());
    if (reply.kind == Peer::finished) {
      FrameReader reader(reply, first_->name());
      const auto dropped = wire::read_texts(reader);
      const std::lock_guard lock(mutex_);
      for (auto& one : connections_)
        if (one.peer && std::count(dropped.begin(), dropped.end(), one.peer->name()) > 0)
          one.waited_for = false;
      return {};
    }
    if (reply.kind == Peer::wait) continue;
    return wire::decode_complete(reply, first_->name());
  }
}

ParameterServer::Agreed ParameterServer::agree(std::int64_t update, double square) {
  if (!first_) {
    {
      const std::lock_guard lock(mutex_);
      applying_ = true;
    }
    const double all = sum_squares(update, 0, square);
    const std::lock_guard lock(mutex_);
    return {all, table_->held()};
  }
  const Frame reply = first_->ask(FrameWriter()
                                      .number(std::uint64_t(update))
                                      .number(std::uint64_t(setup_.index))
                                      .number(bits_of(square))
                                      .frame(Peer::norm),
                                  transfer());
  FrameReader reader(reply, first_->name());
  const double all = double_of(reader.number());
  Agreed agreed{all, wire::read_tasks(reader)};
  reader.end();
  return agreed;
}

// Sums in the order of the servers, so that the result has the same bits every time.
double ParameterServer::sum_squares(std::int64_t update, int server, double square) {
  Lock lock(mutex_);
  // No server is more than one update ahead of the first server.
  if (update < now() || update > now() + 1 || server >= servers_)
    throw InvalidArgument(
        fmt::format("there is no part {} of the norm of update {}: there were {} updates, of {} "
                    "server{}",
                    server, update, now(), servers_, servers_ == 1 ? "" : "s"));
  squares_[update][server] = square;
  changed_.notify_all();
  wait_until(lock, transfer(), "the other servers' parts of a norm",
             [&] { return std::ssize(squares_[update]) == servers_; });
  double all = 0;
  for (const auto& [who, part] : squares_[update]) all += part;
  squares_.erase(update - 2);
  return all;
}

// The first share's gradient becomes the sum if its type is wide enough. Each gradient is freed
// after it was added.
at::Tensor ParameterServer::sum(std::vector<Arrival> shares, std::int64_t update) {
  const MemoryScope scope(MemoryKind::workspace);
  const at::Tensor& now = update_->master();
  at::Tensor total;
  for (auto& share : shares) {
    const std::int64_t age = update - share.task.version;
    if (const auto bound = setup_.server.bound(); age > bound)
      throw Error(fmt::format("a gradient of age {} was about to be applied with staleness {}", age,
                              bound));
    at::Tensor grad = std::exchange(share.grad, {}).to(now.scalar_type());
    // A share's gradient is the gradient of its mean loss times its weight.
    if (setup_.server.compensate > 0 && age > 0 && share.read.defined())
      grad = grad + grad * grad * (now - share.read.to(now.scalar_type())) *
                        (setup_.server.compensate / share.weight);
    const double counts =
        setup_.server.aware_rate ? 1.0 / double(std::max<std::int64_t>(1, age)) : 1.0;
    if (total.defined()) {
      total.add_(grad, counts);
    } else {
      total = counts == 1 ? grad : grad.mul_(counts);
      total.add_(0.0);  // like a sum that starts at 0: -0 becomes 0
    }
  }
  return total;
}

// Once the job is told to stop, the servers wait for shares in progress as long as shares took so
// far, not as long as a worker may normally be silent.
double ParameterServer::patience() const {
  const double patience = setup_.server.patience;
  if (!stop_asked_ || needs_all_workers()) return patience;
  return std::min(patience, std::max(shortest_patience, 3 * longest_task_));
}

void ParameterServer::look_for_silent_workers() {
  const auto now = Deadline::Clock::now();
  if (setup_.server.mode == ServerMode::sync && table_->living() < setup_.shares &&
      now - began_ > Deadline::duration_of(setup_.timeout))
    throw Timeout(fmt::format("{} of {} workers have come to the parameter servers within {} s",
                              table_->living(), setup_.shares, setup_.timeout));
  const double allowed = patience();
  std::vector<int> silent;
  for (const auto& [worker, since] : since_)
    if (now - since >= Deadline::duration_of(allowed)) silent.push_back(worker);
  for (const int worker : silent) {
    const auto task = *table_->task_of(worker);
    const auto message = fmt::format("{} has been silent for {:.3g} s with share {} of step {}",
                                     table_->name(worker), allowed, task.share, task.clock + 1);
    if (needs_all_workers()) throw Timeout(message);
    log::warn(message + ": it is dropped, and the share goes to another");
    table_->drop(worker);
    since_.erase(worker);
    lost_.push_back(message);
    dropped_[worker] = fmt::format(
        "{} dropped {}, which was silent for {:.3g} s with share {} of step {}: another computes "
        "it. Raise server.patience above that, or come back with --join {}",
        setup_.name, table_->name(worker), allowed, task.share, task.clock + 1, all_addresses_);
    // The worker learns of it when it comes back. No one waits for that.
    for (auto& one : connections_)
      if (one.worker == worker) one.waited_for = false;
    if (table_->living() == 0) throw PeerLost(message + "; no worker is left");
    if (worker == begun_by_) throw PeerLost(message + ": it is the one that shows and saves");
    changed_.notify_all();
  }
}

}  // namespace echelon
