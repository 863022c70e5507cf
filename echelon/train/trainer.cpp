#include "echelon/train/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <optional>
#include <thread>

#include "echelon/base/deadline.h"
#include "echelon/base/error.h"
#include "echelon/base/options_section.h"
#include "echelon/optim/schedule.h"
#include "echelon/parallel/data/batch_split.h"
#include "echelon/plan/rules.h"
#include "echelon/train/in_flight.h"
#include "echelon/train/replicas.h"

namespace echelon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t steps_ahead = 4;  // the most steps that the host may be ahead of the GPU
constexpr int eager_steps = 3;          // before a graph is recorded: libraries set up in these
constexpr auto gpu_patience = std::chrono::minutes(10);
constexpr std::size_t scales_kept = 24;  // changes of the loss scale: from the largest down to 1

at::Tensor pinned_like(const at::Tensor& tensor) {
  return at::empty_like(tensor, tensor.options().pinned_memory(true));
}

// Between batches with the same tensors.
void copy(const Batch& to, const Batch& from, bool non_blocking) {
  to.each(
      [&](std::string_view name, at::Tensor tensor) { tensor.copy_(from.at(name), non_blocking); });
}

}  // namespace

void Trainer::run(const std::atomic<bool>* stop) { run_until(train_.steps, stop); }

void Trainer::load(const ValueSource& source) {
  const AtWork at_work(*this);
  PartsInUse parts(stack_);
  parts.forget_whole();
  owner().load(source);
  replicas_in_sync_ = false;
}

void Trainer::run_until(std::int64_t until, const std::atomic<bool>* stop) {
  at::NoGradGuard no_grad;
  const AtWork at_work(*this);
  PartsInUse parts(stack_);
  parts.forget_whole();
  require_in_step();
  const ReadingEnds reading_ends(*reader_);
  if (servers_) return run_with_servers(until, stop);
  stop_at_ = stopped(stop) ? step_ : until;
  begin_alike();
  in_flight_->last = Clock::now();
  while (step_ < stop_at_ && (all_ || stop == nullptr || !stop->load())) {
    issue(step_, stop != nullptr && stop->load());
    ++step_;
    // If the host updates, it has already waited for the GPU.
    collect(device_.is_cuda() && !tier_ ? steps_ahead : 0);
    if (all_ && train_.check_every > 0 && step_ % train_.check_every == 0) {
      // GPUs and CPUs round differently, so their replicas would drift apart.
      if (ranks_ && mixed_ && !placement_.is_sharded())
        take_first_values(stack_, *update_, *ranks_);
      else
        check_same_parameters();
    }
    if (by_speed_ && step_ % split_every_ == 0) look_at_speeds();
    if (controller_) {
      const StepTimes& times = executor_->times();
      executor_->reduce_by(controller_->after_step(step_, times.hidden + times.exposed));
    }
  }
  collect(0);
  if (shards_) shards_->wait_for_values();
  if (ranks_) take_first_buffers(stack_, *ranks_);
  tell(MemoryReport{step_, memory_->at_peak()});
}

void Trainer::adapt(const SyncOptions& options) {
  const AtWork at_work(*this);
  check_section("sync", options);
  PlanOptions plan;
  plan.train = train_;
  plan.sync = options;
  plan.sync.adapt = true;
  require_can_run(plan, ranks_ ? ranks_->size() : 1);
  const std::size_t element = executor_->element_size();
  std::vector<std::size_t> bytes;
  for (const auto& bucket : buckets()) bytes.push_back(std::size_t(bucket.numel()) * element);
  const bool first = ranks_->rank() == 0;
  controller_ = std::make_unique<SyncController>(ranks_, std::move(bytes), options.every,
                                                 [this, first](const std::string& text) {
                                                   if (first) tell(DecisionReport{step_, text});
                                                 });
  executor_->reduce_by(controller_->algorithm());
}

void Trainer::slow_down(double factor) {
  require_laid_out();
  slowness_ = factor;
  executor_->slow_down(factor);
}

void Trainer::probe(Executor::Probe probe) {
  require_laid_out();
  probe_ = std::move(probe);
  executor_->probe(probe_);
}

void Trainer::trace(bool on) {
  require_laid_out();
  tracing_ = on;
  executor_->trace(on);
  exchange_->record(on);  // that of parameter servers has no executor
}

void Trainer::reduce_by(Algorithm algorithm) {
  require_laid_out();
  executor_->reduce_by(algorithm);
}

void Trainer::split_batch(std::vector<std::int64_t> samples) {
  require_laid_out();
  if (samples.size() != batch_split_.size() ||
      std::accumulate(samples.begin(), samples.end(), std::int64_t{0}) != train_.batch ||
      *std::min_element(samples.begin(), samples.end()) < train_.micro_batches)
    throw InvalidArgument(
        fmt::format("shares of {} do not make a batch of {} for {} rank{} of {} micro-batch{}",
                    samples, train_.batch, batch_split_.size(), batch_split_.size() == 1 ? "" : "s",
                    train_.micro_batches, train_.micro_batches == 1 ? "" : "es"));
  batch_split_ = std::move(samples);
  executor_->forget_sizes();
}

// All ranks decide alike, because they decide from the same numbers.
void Trainer::look_at_speeds() {
  const at::Tensor mine = at::zeros({1}, at::kDouble),
                   all = at::zeros({ranks_->size()}, at::kDouble);
  mine.fill_(busy_seconds_ / static_cast<double>(std::max<std::int64_t>(1, busy_samples_)));
  busy_seconds_ = 0;
  busy_samples_ = 0;
  ranks_->all_gather(all, mine, {.tag = "speeds", .blocking = true}).wait();
  const auto* first = all.const_data_ptr<double>();
  const std::vector<double> seconds(first, first + ranks_->size());
  const auto better = better_split(batch_split_, seconds, train_.micro_batches);
  if (!better) return;
  if (ranks_->rank() == 0)
    tell(DecisionReport{
        step_,
        fmt::format(
            "after step {}: shares of the batch {} become {}; a sample takes [{:.1f}] ms, computing a "
            "step took {:.1f} ms and is predicted to take {:.1f}",
            step_, batch_split_, *better,
            fmt::join(
                [&] {
                  std::vector<double> ms;
                  for (const double s : seconds) ms.push_back(s * 1e3);
                  return ms;
                }(),
                ", "),
            compute_seconds(batch_split_, seconds) * 1e3,
            compute_seconds(*better, seconds) * 1e3)});
  batch_split_ = *better;
}

// If one rank is told to stop, all ranks stop after the same step. This function waits for the
// others. Between steps, which must not wait, the vote travels with the step's report.
bool Trainer::stopped(const std::atomic<bool>* stop) {
  const bool here = stop != nullptr && stop->load();
  if (!all_) return here;
  // A rank on a GPU sees a vote some steps late, so all ranks stop that much later.
  const at::Tensor any = at::zeros({3}, at::TensorOptions(device_).dtype(at::kByte));
  any.narrow(0, 0, 1).fill_(here);
  any.narrow(0, 1, 1).fill_(device_.is_cuda());
  any.narrow(0, 2, 1).fill_(device_.is_cpu());
  all_->all_reduce(any, ReduceOp::max, {.tag = "stop", .timeout = between_steps, .blocking = true})
      .wait();
  const at::Tensor seen = any.cpu();
  const auto* votes = seen.const_data_ptr<std::uint8_t>();
  lag_ = votes[1] != 0 ? std::int64_t(steps_ahead) : 0;
  mixed_ = votes[1] != 0 && votes[2] != 0;
  return votes[0] != 0;
}

void Trainer::begin_alike() {
  if (replicas_in_sync_ || !all_) return;
  // Ranks that hold parts start with their own values, which come from the seed or from a file.
  if (step_ > 0 && saves_together()) require_same_state(digest_, step_, device_, *all_);
  replicas_in_sync_ = true;
  if (!ranks_) return;
  const bool whole = !placement_.is_sharded();
  if (whole && step_ > 0)
    require_same_state(*update_, step_, *ranks_);
  else if (whole && !ranks_that_differ(stack_, *ranks_).empty())
    take_first_values(stack_, *update_, *ranks_);
  take_first_buffers(stack_, *ranks_);
}

// Whether the data-parallel ranks of two stages add in the same order and have the same slices. Two
// summands have only one sum. For more, NCCL and MPI do not document their order.
bool Trainer::sum_alike(int pipeline_stage, int other) const {
  return !placement_.is_sharded() ||
         (layout_.mesh.lie_alike(pipeline_stage, other) &&
          (ranks_->size() <= 2 || ranks_->backend() == std::string_view("native")));
}

void Trainer::check_same_parameters() const {
  const Mesh& mesh = layout_.mesh;
  const auto refuse = [&](const std::vector<int>& others, int first, Dimension along) {
    if (others.empty()) return;
    const auto rank = [&](int there) {
      MeshPlace place = mesh.place;
      place[along] = there;
      return mesh.rank_at(place);
    };
    std::vector<int> ranks;
    for (const int other : others) ranks.push_back(rank(other));
    throw Error(fmt::format(
        "after step {} the parameters of rank{} {} are not those of rank {}: the ranks computed "
        "different updates. A layer with random numbers of its own, or faulty memory, does that",
        step_, ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", "), rank(first)));
  };
  const bool slices = placement_.values.sliced;
  if (placement_.offloads_values()) return;
  if (slices && shards_->replicas()) {
    const auto hosts = ranks_that_differ(shards_->all_values(), *shards_->replicas());
    if (!hosts.empty())
      throw Error(fmt::format(
          "after step {} the parameters of host{} {} are not those of the first: the hosts computed "
          "different updates. Faulty memory does that",
          step_, hosts.size() > 1 ? "s" : "", fmt::join(hosts, ", ")));
  }
  if (!slices) {
    if (shards_) shards_->wait_for_values();
    if (ranks_) refuse(ranks_that_differ(stack_, *ranks_), 0, Dimension::data);
    if (mesh.tensor)
      refuse(ranks_that_differ_in_whole_parameters(stack_, *mesh.tensor), 0, Dimension::tensor);
  }
  if (!mesh.pipeline || mixed_) return;
  const auto owner = layout_.neighbours().owner;
  for (const auto& tie : stack_.ties()) {
    const Parameter& parameter = *stack_.find(tie.name);
    const int one = owner[std::size_t(tie.owner)], other = owner[std::size_t(tie.user)];
    if (one == other || !parameter.trainable || !sum_alike(one, other)) continue;
    // If values are sliced, the owners at both places have the same slice: copies are cut alike.
    const at::Tensor mine = !parameter.here ? at::empty({0}, at::TensorOptions(device_))
                            : slices        ? shards_->values(stack_.group_of(parameter))
                                            : parameter.value;
    if (differ(mine, one, other, *mesh.pipeline)) refuse({other}, one, Dimension::pipeline);
  }
}

std::int64_t Trainer::first_sample() const {
  return std::accumulate(batch_split_.begin(), batch_split_.begin() + layout_.mesh.place.data,
                         std::int64_t{0});
}

// The part that is the same in every step, so that a graph can record it: reads tensors at fixed
// addresses and writes `report_`.
void Trainer::compute() {
  const auto mine = batch_split_[std::size_t(layout_.mesh.place.data)];
  const Update& update = owner();
  if (const auto* scaling = update.loss_scale()) report_[scale_at].copy_(scaling->scale());
  const at::Tensor loss =
      executor_->run(batch_, static_cast<double>(mine) / static_cast<double>(train_.batch),
                     first_sample(), divisor_);
  // A graph ends when all its work is done.
  if (shards_ && graph_wanted_) shards_->wait_for_values();
  const auto here = [&](const at::Tensor& scalar) { return scalar.to(device_, at::kDouble); };
  report_.narrow(0, 0, scale_at)
      .copy_(at::stack({loss, here(update.norm()), here(update.skipped()), here(update.halted())}));
}

// Writes whether any rank wants to stop into the step's report.
Work Trainer::vote(bool stop) {
  const at::Tensor place = report_.narrow(0, stop_at, 1);
  place.fill_(stop ? 1.0 : 0.0);
  if (!all_) return {};
  Work work = all_->all_reduce(place, ReduceOp::max, {.tag = "stop", .blocking = device_.is_cpu()});
  work.follow();
  return work;
}

void Trainer::issue(std::int64_t step, bool stop) {
  auto& flight = *in_flight_;
  const std::int64_t share = batch_split_[std::size_t(layout_.mesh.place.data)],
                     first = first_sample();
  const auto [batch, targets] = take_batch(step, first, first + share);
  const double rate = rate_at(optim_, step, train_.steps);

  InFlight::Slot slot;
  if (!flight.free.empty()) {
    slot = std::move(flight.free.front());
    flight.free.pop_front();
  }
  slot.step = step + 1;
  slot.rate = rate;
  slot.targets = targets > 0 ? targets : batch.target.numel() / share * train_.batch;
  if (targets > 0 && !divisor_.defined())
    divisor_ = at::zeros({}, at::TensorOptions(device_).dtype(at::kDouble));
  if (device_.is_cpu()) {
    batch_ = batch;
    if (targets > 0) divisor_.fill_(static_cast<double>(targets));
    owner().rate().fill_(rate);
    executor_->step().fill_(step);
    compute();
    vote(stop);
    busy_seconds_ += executor_->times().compute;
    busy_samples_ += share;
    slot.report = report_;
  } else {
    const auto pinned = [](at::Tensor& to, const at::Tensor& from) {
      if (!to.defined()) to = pinned_like(from);
      to.copy_(from);
    };
    const std::string description = batch.description();
    if (slot.batch.description() != description) slot.batch = batch.map(pinned_like);
    copy(slot.batch, batch, /*non_blocking=*/false);
    pinned(slot.rate_value, at::zeros({}, owner().rate().scalar_type()).fill_(rate));
    pinned(slot.step_value, at::zeros({}, at::kLong).fill_(step));
    if (targets > 0) {
      pinned(slot.divisor, at::zeros({}, at::kDouble).fill_(static_cast<double>(targets)));
      divisor_.copy_(slot.divisor, /*non_blocking=*/true);
    }
    if (!slot.report.defined())
      slot.report = at::empty({reported}, at::TensorOptions(at::kDouble).pinned_memory(true));
    // A graph reads its batch at fixed addresses. A batch of other sizes is computed without it.
    const bool as_recorded = !flight.graph || flight.recorded_batch == description;
    const Batch recorded = batch_;
    if (batch_.description() != description)
      batch_ = batch.map([this](const at::Tensor& tensor) {
        return at::empty_like(tensor, at::TensorOptions(device_));
      });
    copy(batch_, slot.batch, /*non_blocking=*/true);
    at::Tensor(owner().rate()).copy_(slot.rate_value, true);
    at::Tensor(executor_->step()).copy_(slot.step_value, true);
    if (graph_wanted_ && !flight.graph && flight.eager_steps_done++ == eager_steps) {
      flight.recorded_batch = description;
      const auto before = all_ ? all_->ledger().entries() : std::vector<Ledger::Entry>();
      flight.graph.emplace();
      flight.graph->record([this] { compute(); });
      // Recording sends nothing, but it was counted. The count stands for the first replay.
      if (all_) flight.recorded = all_->ledger().since(before);
    } else if (flight.graph && as_recorded && all_) {
      all_->ledger().add(flight.recorded);
    }
    flight.graph&& as_recorded ? flight.graph->replay() : compute();
    if (!as_recorded) batch_ = recorded;
    slot.vote = vote(stop);
    slot.report.copy_(report_, true);
    slot.done.emplace(c10::DeviceType::CUDA);
    slot.done->record(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device_));
  }
  slot.times = times_with_data(executor_->times());
  flight.pending.push_back(std::move(slot));
}

// Reports the oldest steps until at most `leave` are in flight.
void Trainer::collect(std::size_t leave) {
  auto& flight = *in_flight_;
  while (flight.pending.size() > leave) {
    InFlight::Slot slot = std::move(flight.pending.front());
    flight.pending.pop_front();
    if (slot.done) {
      const auto deadline = Deadline::in(gpu_patience);
      while (!slot.vote.done() || !slot.done->query()) {
        if (deadline.expired())
          throw Timeout(
              fmt::format("the GPU has not finished step {} after 10 minutes", slot.step));
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
    const auto* numbers = slot.report.const_data_ptr<double>();
    const double loss = numbers[loss_at], norm = numbers[norm_at], scale = numbers[scale_at];
    if (all_ && numbers[stop_at] != 0) stop_at_ = std::min(stop_at_, slot.step + lag_);
    const auto now = Clock::now();
    if (scale != 0 && (scales_.empty() || scales_.back().second != scale)) {
      scales_.emplace_back(slot.step, scale);
      if (scales_.size() > scales_kept) scales_.pop_front();
    }
    if (numbers[halted_at] != 0) {
      flight.pending.clear();
      halt(slot.step, loss, norm);
    }
    const double seconds = std::chrono::duration<double>(now - flight.last).count();
    flight.last = now;
    last_done_ = StepReport{.step = slot.step,
                            .loss = loss,
                            .grad_norm = norm,
                            .rate = slot.rate,
                            .seconds = seconds,
                            .targets = slot.targets,
                            .times = slot.times,
                            .loss_scale = scale,
                            .skipped = numbers[skipped_at] != 0};
    if (!first_done_) first_done_ = last_done_;
    if (last_done_->skipped) ++skipped_;
    tell(*last_done_);
    if (!executor_->traced().empty())
      tell(ExchangeReport{slot.step, executor_->traced(), executor_->exchanged(), exchange_->sent(),
                          reader_->waited_from(), reader_->waited_until()});
    if (device_.is_cuda()) flight.free.push_back(std::move(slot));
  }
}

// What may have made a step not finite, judged by the steps before it.
std::string Trainer::likely_cause(std::int64_t step) const {
  const char* lower = optim_.clip > 0 ? "lower optim.rate or optim.clip"
                                      : "lower optim.rate or clipping (optim.clip)";
  const char* not_the_rate = "No update came before it, so optim.rate is not the cause";
  if (!scales_.empty()) {
    std::vector<std::string> changes;
    for (const auto& [at, scale] : scales_)
      changes.push_back(fmt::format("step {}: {}", at, scale));
    return fmt::format(
        "The loss scale was, from {}. fp16 has no numbers beyond 65504: train.precision=bf16{}",
        fmt::join(changes, ", "),
        no_update_yet() ? fmt::format(" may help. {}", not_the_rate)
                        : fmt::format(", or a {} may help", lower));
  }
  if (no_update_yet())
    return fmt::format("{}: look at the weights it began with and at the data", not_the_rate);
  if (!last_done_ || last_done_->step != step_)  // parameter servers ran the steps before
    return fmt::format("A {} may help", lower);
  if (last_done_->loss > first_done_->loss)
    return fmt::format(
        "The loss was {:.4g} at step {} and {:.4g} at step {}, so training diverged: a {} "
        "may help",
        first_done_->loss, first_done_->step, last_done_->loss, last_done_->step, lower);
  return fmt::format(
      "The step before had a loss of {:.4g} and a gradient norm of {:.4g}: a {} may help, or "
      "step {} has unusual data",
      last_done_->loss, last_done_->grad_norm, lower, step);
}

void Trainer::halt(std::int64_t step, double loss, double norm) {
  step_ = step - 1;
  const bool of_loss = !std::isfinite(loss);
  std::string text = fmt::format("the {} became {} at step {}", of_loss ? "loss" : "gradient",
                                 std::isnan(of_loss ? loss : norm) ? "NaN" : "infinite", step);
  if (!of_loss && !scales_.empty()) text += ", with a loss scale that would fall below 1";
  text += fmt::format("; the weights are those after step {}. ", step_);
  NotFinite error(text + likely_cause(step));
  error.before_any_update = no_update_yet();
  tell(FaultReport{step_, FaultReport::Kind::not_finite, error.what()});
  throw error;
}

void Trainer::tell(const Event& event) const {
  if (observers_.empty()) return;
  const PartsAside aside(stack_);
  for (const auto& observer : observers_) observer(event);
}

void Trainer::refresh_values() {
  if (servers_) servers_->pull_newest(step_);
  if (shards_) shards_->wait_for_values();
}

at::Tensor Trainer::master(const Parameter& parameter) {
  const AtWork at_work(*this);
  const PartsInUse parts(stack_);
  const at::Tensor master = find_master(parameter);
  const bool is_copy = servers_have_masters() || layout_.mesh.pipeline ||
                       parameter.split.is_part() ||
                       (parameter.trainable && owner().owners(parameter));
  if (is_copy) memory_->forget(master);  // it belongs to the caller
  return master;
}

at::Tensor Trainer::find_master(const Parameter& parameter) {
  if (parameter.trainable && servers_have_masters())
    return served_master(servers_->pin(step_), parameter);
  if (parameter.trainable) owner();  // throws if it stayed with servers that were left
  return parameter.trainable ? whole_state("master", parameter)
                             : everywhere(parameter.value, parameter);
}

}  // namespace echelon
