// What a user does with a trained model, however it is sharded: infer, gather, save_weights.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <numeric>
#include <optional>

#include "echelon/base/error.h"
#include "echelon/nn/tensor_group.h"
#include "echelon/train/in_flight.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

// Ranks that split rows need a number of rows that they divide evenly. The last sample is repeated
// until it fits.
Batch with_rows_that_divide(const Batch& batch, std::int64_t tokens, const TensorGroup* group) {
  const auto samples = batch.samples();
  if (!group || !group->rows_are_split() || samples == 0) return batch;
  const std::int64_t ranks = group->size(), step = ranks / std::gcd(tokens, ranks),
                     more = (step - samples % step) % step;
  if (more == 0) return batch;
  return batch.map([&](const at::Tensor& tensor) {
    std::vector<std::int64_t> sizes = tensor.sizes().vec();
    sizes[0] = more;
    return at::cat({tensor, tensor.narrow(0, samples - 1, 1).expand(sizes)});
  });
}

}  // namespace

// The output, or the loss if the batch has a target. After an error in the middle of a pipeline,
// the next stages still wait for this rank: they would take whatever it sends next for the missing
// message.
at::Tensor Trainer::compute_output(const Batch& batch, const Observe& observe) {
  require_in_step();
  try {
    return executor_->infer(batch, observe);
  } catch (const std::exception& error) {
    if (layout_.pipeline.ranks > 1) out_of_step_ = error.what();
    throw;
  }
}

void Trainer::require_in_step() const {
  if (!out_of_step_.empty())
    throw Error(
        "the ranks of the pipeline are no longer in step, since an earlier call failed on this "
        "one (" +
        out_of_step_ + "): end the job, and go on from a saved state");
}

at::Tensor Trainer::infer(const Batch& batch) {
  const at::NoGradGuard no_grad;
  const AtWork at_work(*this);
  const PartsInUse parts(stack_);
  refresh_values();
  const MemoryScope scope(MemoryKind::activations);
  Batch here = batch.to(device_, stack_.type());
  here.target.reset();
  const at::Tensor first = stack_.inputs_of(here).front();
  const Batch given =
      with_rows_that_divide(here, first.dim() > 1 ? first.size(1) : 1, stack_.tensor_group().get());
  const at::Tensor output = compute_output(given);
  memory_->forget(output);                              // it belongs to the caller
  in_flight_->last = std::chrono::steady_clock::now();  // not part of the next step's time
  const auto samples = here.samples();
  return given.samples() == samples ? output : output.narrow(0, 0, samples);
}

at::Tensor Trainer::whole_value(const Parameter& parameter) const {
  const bool sliced = parameter.trainable && placement_.values.sliced;
  if (sliced) return whole_state("master", parameter).to(stack_.type());
  const at::Tensor whole = everywhere(parameter.value, parameter);
  // If the parameter is not sharded, `whole` is this rank's own memory, which the next step
  // changes.
  return parameter.here && whole.is_alias_of(parameter.value) ? whole.clone() : whole;
}

void Trainer::gather() {
  const at::NoGradGuard no_grad;
  const AtWork at_work(*this);
  PartsInUse parts(stack_);
  refresh_values();
  if (!is_sharded()) return;
  parts.forget_whole();
  const MemoryScope scope(MemoryKind::parameters);
  std::vector<at::Tensor> whole;
  for (const auto& parameter : stack_.parameters()) whole.push_back(whole_value(parameter));
  for (int l = 0; l < stack_.size(); ++l)
    for (const auto& [name, buffer] : stack_.layer(l).buffers())
      at::Tensor(buffer).copy_(from_layer(l, buffer));
  parts.use_whole(std::move(whole));
}

void Trainer::save_weights(const std::filesystem::path& path) {
  if (servers_ && ranks_)
    throw InvalidArgument("weights are saved between asynchronous phases, not within one");
  const at::NoGradGuard no_grad;
  const AtWork at_work(*this);
  const PartsInUse parts(stack_);
  refresh_values();
  if (!zero_ && !update_ && !servers_)
    throw InvalidArgument(
        "the parameters' masters stayed with the parameter servers: call save_weights() before "
        "leave_servers()");
  if (servers_ && part_ != ServerPart::first) return;
  // The first rank has everything; the others do nothing.
  const bool apart = !saves_together() && all_;
  if (apart && all_->rank() != 0) return require_written({});
  std::optional<Task> pinned;  // one version for all tensors, while other workers continue
  if (servers_have_masters()) pinned = servers_->pin(step_);
  std::vector<NamedTensor> tensors;
  for (const auto& parameter : stack_.parameters())
    tensors.push_back({parameter.name, parameter.whole_shape(), master_type(stack_.type()),
                       [this, p = &parameter, pinned] {
                         return p->trainable && pinned ? served_master(*pinned, *p)
                                                       : find_master(*p);
                       }});
  for (int l = 0; l < stack_.size(); ++l)
    for (const auto& [name, buffer] : stack_.layer(l).buffers())
      tensors.push_back({name, buffer.sizes().vec(), buffer.scalar_type(),
                         [this, l, buffer = buffer] { return from_layer(l, buffer); }});
  // A tensor starts at a multiple of its element size, so that readers can map it.
  std::stable_sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return at::elementSize(a.type) > at::elementSize(b.type);
  });
  std::exception_ptr failure;
  try {
    write_together(path, std::move(tensors), {{"format", "pt"}});
  } catch (...) {
    if (!apart) throw;
    failure = std::current_exception();
  }
  if (apart) require_written(failure);
}

}  // namespace echelon
