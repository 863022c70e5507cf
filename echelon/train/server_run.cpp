// A Trainer that pushes its gradients to parameter servers.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "echelon/base/error.h"
#include "echelon/parallel/data/batch_split.h"
#include "echelon/plan/rules.h"
#include "echelon/train/in_flight.h"
#include "echelon/train/replicas.h"
#include "echelon/train/trainer.h"

namespace echelon {

void Trainer::use_servers(ServerWorker::Setup setup, const NetOptions& net, const Token& token,
                          ServerPart part, Ledger& ledger) {
  const AtWork at_work(*this);
  PlanOptions plan;
  plan.train = train_;
  plan.optim = optim_;
  plan.server.count = 1;
  require_can_run(plan, 1);
  setup.exchange = exchange_;
  exchange_->set_ledger(&ledger);
  servers_ = std::make_unique<ServerWorker>(std::move(setup), net, token, stack_.units(),
                                            stack_.values(), stack_.grads(), ledger);
  batch_parts_ = servers_->shares();
  part_ = part;
  stop_told_ = false;
  failure_.clear();
  begun_ = part != ServerPart::first;
  if (begun_ && !ranks_) drop_update();
  const StepShape shape = step_shape();
  auto before = std::exchange(
      executor_, std::make_unique<Executor>(stack_, nullptr, for_servers(shape), shape));
  executor_->seed(static_cast<std::uint64_t>(train_.seed));
  if (ranks_) aside_ = std::move(before);
  stack_.share_batch(nullptr);  // workers do not run the same steps
  executor_->slow_down(slowness_);
  executor_->trace(tracing_);
  last_applied_ = std::chrono::steady_clock::now();
}

void Trainer::leave_servers() {
  if (!servers_) return;
  const AtWork at_work(*this);
  if (ranks_) {
    fetch_state();
    take_first_buffers(stack_, *ranks_);
  }
  drop_servers();
}

void Trainer::drop_servers() {
  const AtWork at_work(*this);
  servers_.reset();
  if (!aside_) return;
  executor_ = std::move(aside_);
  stack_.share_batch(batch_ranks_);
}

void Trainer::stop_servers() {
  servers_->stop();
  stop_told_ = true;
}

void Trainer::run_with_servers(std::int64_t until, const std::atomic<bool>* stop) {
  if (part_ == ServerPart::first && !begun_) {
    servers_->begin(update_->state(), step_, update_->updates());
    if (!ranks_) drop_update();
    begun_ = true;
  }
  while (step_ < until) {
    if (!told_.empty()) {
      ++step_;
      const auto [applied, seconds] = std::move(told_.front());
      told_.pop_front();
      tell(StepReport{step_, applied.loss, applied.norm, applied.rate, seconds, targets_a_step_,
                      share_times_, applied.ages, applied.clock + 1});
      continue;
    }
    if (stop != nullptr && stop->load() && !stop_told_) {
      if (part_ == ServerPart::guest) return;  // the other workers continue
      stop_servers();
    }
    const auto next = servers_->next(until);
    if (part_ == ServerPart::first)
      tell_of(next.applied);
    else
      step_ = next.version;
    failure_ = next.failure;
    for (std::size_t i = lost_workers_.size(); i < next.lost.size(); ++i)
      tell(FaultReport{step_, FaultReport::Kind::worker_lost, next.lost[i]});
    lost_workers_ = next.lost;
    if (next.task) compute_share(*next.task);
    if (next.finished && told_.empty()) break;
  }
  if (step_ >= train_.steps || step_ < until) servers_->pull_newest(step_);
  tell(MemoryReport{step_, memory_->at_peak()});
}

// Several updates may be reported at once. They share the time since the last report.
void Trainer::tell_of(const std::vector<ParameterServer::Applied>& all) {
  if (all.empty()) return;
  const auto now = std::chrono::steady_clock::now();
  const double seconds =
      std::chrono::duration<double>(now - last_applied_).count() / static_cast<double>(all.size());
  last_applied_ = now;
  for (const auto& applied : all) told_.emplace_back(applied, seconds);
}

void Trainer::compute_share(const Task& task) {
  const auto shares = even_split(train_.batch, servers_->shares());
  std::int64_t first = 0;
  for (int j = 0; j < task.share; ++j) first += shares[std::size_t(j)];
  const auto mine = shares[std::size_t(task.share)];
  const auto [batch, targets] = take_batch(task.clock, first, first + mine);
  // Of the step's mean loss: it is a mean over targets if samples have different numbers of them.
  const double weight = targets > 0
                            ? batch.targets.sum().item<double>() / static_cast<double>(targets)
                            : static_cast<double>(mine) / static_cast<double>(train_.batch);
  targets_a_step_ = targets > 0 ? targets : batch.target.numel() / mine * train_.batch;
  const at::Tensor divisor =
      targets > 0 ? at::zeros({}, at::kDouble).fill_(static_cast<double>(targets)) : at::Tensor();
  const auto begin = std::chrono::steady_clock::now();
  exchange_->begin_step();
  servers_->pull(task);
  executor_->step().fill_(task.clock);
  const at::Tensor loss = executor_->run(batch, weight, first, divisor);
  share_times_ = times_with_data(executor_->times());
  try {
    servers_->push(task, weight);
  } catch (const Refused& refused) {
    if (!ranks_) throw;  // the other workers continue without this one
    return servers_->abandon(refused.what());
  }
  servers_->done(task, loss.item<double>());
  share_times_.exposed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() -
      share_times_.compute;
  if (tracing_)
    tell(ExchangeReport{task.clock + 1, executor_->traced(), exchange_->recorded(),
                        exchange_->sent(), reader_->waited_from(), reader_->waited_until()});
}

at::Tensor Trainer::served_master(const Task& pinned, const Parameter& parameter) {
  const MemoryScope scope(MemoryKind::parameters);
  const at::Tensor master =
      at::empty(parameter.shape, at::TensorOptions(at::kCPU).dtype(master_type(stack_.type())));
  servers_->read_masters(pinned, parameter.begin, master);
  return master;
}

void Trainer::fetch_state() {
  if (!begun_) return;
  at::NoGradGuard no_grad;
  if (!update_) update_ = std::make_unique<MasterUpdate>(stack_, optim_);
  update_->restart(servers_->fetch_state(update_->state(), step_));
  update_->publish();
}

}  // namespace echelon
