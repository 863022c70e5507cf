// The thread of a parameter server that applies updates, in the order that the first of them keeps.
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

constexpr std::size_t most_done = 4096;  // steps that a late gradient is recognised for

}  // namespace

void ParameterServer::run() {
  Beginning beginning;
  {
    Lock lock(mutex_);
    wait_until(lock, transfer(), "the first worker to bring the parameters",
               [&] { return beginning_.has_value(); });
    beginning = std::exchange(*beginning_, {});  // its tensors are the first worker's memory
  }
  take_beginning(beginning);
  beginning = {};
  for (std::int64_t update = version_;; ++update) {
    const auto clock = next_in_order(update);
    if (!clock) return;
    std::vector<Arrival> shares;
    {
      Lock lock(mutex_);
      wait_until(lock, transfer(), "the gradients of a step", [&] {
        const auto round = rounds_.find(*clock);
        return round != rounds_.end() &&
               std::all_of(round->second.begin(), round->second.end(),
                           [](const Arrival& one) { return one.grad.defined(); });
      });
      shares = std::move(rounds_[*clock]);
      rounds_.erase(*clock);
      done_.insert(*clock);
      while (done_.size() > most_done) done_.erase(done_.begin());
    }
    Applied applied{*clock, 0, 0, rate_at(setup_.optim, update, setup_.steps), {}};
    for (const auto& share : shares) applied.ages.push_back(update - share.version);
    const at::Tensor grad = sum(shares, *clock);
    shares.clear();
    const double mine = flat_norm(grad).item<double>();
    applied.norm = std::sqrt(whole_norm(update, mine * mine));
    if (!std::isfinite(applied.norm)) {
      const auto message = fmt::format(
          "the gradient became infinite at step {}; a lower optim.rate or optim.clip may help",
          *clock + 1);
      if (!setup_.spell) throw Error(message);
      // All servers know this norm, and none applies the update.
      const std::lock_guard lock(mutex_);
      spoiled_ = message;
      if (table_) table_->abandon(version_);
      changed_.notify_all();
      return;
    }
    at::Tensor fresh;
    {
      const std::lock_guard lock(update_mutex_);
      const auto wide = update_->master().options();
      update_->rate().fill_(applied.rate);
      update_->apply({grad}, at::zeros({}, wide).fill_(applied.norm), at::zeros({}, wide));
      fresh = update_->master().to(type_, false, /*copy=*/true);
    }
    const std::lock_guard lock(mutex_);
    published_ = std::move(fresh);
    ++version_;
    for (int j = 0; j < setup_.shares; ++j) read_.erase({*clock, j});
    if (table_) {
      table_->applied();
      for (const double loss : losses_[*clock]) applied.loss += loss;
      losses_.erase(*clock);
      applied_.push_back(std::move(applied));
    }
    changed_.notify_all();
  }
}

std::optional<std::int64_t> ParameterServer::next_in_order(std::int64_t update) {
  if (!first_) {
    Lock lock(mutex_);
    for (;;) {
      check();
      if (const auto clock = table_->order(update)) return clock;
      if (table_->finished() || stopping_) return {};
      look_for_silent_workers(lock);
      changed_.wait_for(lock, a_moment);
    }
  }
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      check();
    }
    const Frame reply =
        first_->ask(FrameWriter().number(std::uint64_t(update)).frame(Peer::order), transfer());
    if (reply.kind == Peer::finished) return {};
    if (reply.kind == Peer::wait) continue;
    FrameReader reader(reply, first_->name());
    return std::int64_t(reader.number());
  }
}

double ParameterServer::whole_norm(std::int64_t update, double square) {
  if (!first_) return sum_squares(update, 0, square);
  const Frame reply = first_->ask(FrameWriter()
                                      .number(std::uint64_t(update))
                                      .number(std::uint64_t(setup_.index))
                                      .number(bits_of(square))
                                      .frame(Peer::norm),
                                  transfer());
  FrameReader reader(reply, first_->name());
  return double_of(reader.number());
}

// In the order of the servers, so that the sum has the same bits every time.
double ParameterServer::sum_squares(std::int64_t update, int server, double square) {
  Lock lock(mutex_);
  squares_[update][server] = square;
  changed_.notify_all();
  wait_until(lock, transfer(), "the other servers' parts of a norm",
             [&] { return std::ssize(squares_[update]) == servers_; });
  double all = 0;
  for (const auto& [who, part] : squares_[update]) all += part;
  squares_.erase(update - 2);
  return all;
}

at::Tensor ParameterServer::sum(const std::vector<Arrival>& shares, std::int64_t clock) {
  const at::Tensor& now = update_->master();
  at::Tensor total = at::zeros(now.sizes(), now.options());
  for (std::size_t j = 0; j < shares.size(); ++j) {
    const auto& share = shares[j];
    const std::int64_t age = version_ - share.version;
    if (const auto bound = setup_.server.bound(); age > bound)
      throw Error(fmt::format("a gradient of age {} was about to be applied with staleness {}", age,
                              bound));
    at::Tensor grad = share.grad.to(now.scalar_type());
    if (setup_.server.compensate > 0 && age > 0) {
      at::Tensor before;
      {
        const std::lock_guard lock(mutex_);
        if (const auto it = read_.find({clock, int(j)}); it != read_.end()) before = it->second;
      }
      // The gradient of a share is that of its mean times its weight.
      if (before.defined())
        grad = grad + grad * grad * (now - before.to(now.scalar_type())) *
                          (setup_.server.compensate / share.weight);
    }
    total.add_(grad, setup_.server.aware_rate ? 1.0 / double(std::max<std::int64_t>(1, age)) : 1.0);
  }
  return total;
}

void ParameterServer::look_for_silent_workers(Lock& lock) {
  const auto now = Deadline::Clock::now();
  if (setup_.server.mode == "sync" && table_->living() < setup_.shares &&
      now - began_ > Deadline::duration_of(setup_.timeout))
    throw Timeout(fmt::format("{} of {} workers have come to the parameter servers within {} s",
                              table_->living(), setup_.shares, setup_.timeout));
  for (const auto& [worker, since] : since_) {
    if (now - since < Deadline::duration_of(setup_.server.patience)) continue;
    const auto message = fmt::format(
        "{} has been silent for {} s with share {} of step {}", table_->name(worker),
        setup_.server.patience, table_->task_of(worker)->share, table_->task_of(worker)->clock + 1);
    if (needs_all_workers()) throw Timeout(message);
    log::warn(message + ": it is dropped, and the share goes to another");
    table_->drop(worker);
    if (table_->living() == 0) throw PeerLost(message + "; no worker is left");
    if (worker == begun_by_) throw PeerLost(message + ": it is the one that shows and saves");
    const int gone = worker;
    since_.erase(worker);
    changed_.notify_all();
    lock.unlock();
    shut_if([&](const Connection& one) { return one.worker == gone; });
    lock.lock();
    return;
  }
}

}  // namespace echelon
