#include "echelon/nn/class_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <fmt/ranges.h>

#include "echelon/base/error.h"
#include "echelon/nn/layer.h"
#include "echelon/nn/target_share.h"
#include "echelon/nn/vocabulary_loss.h"

namespace echelon {
namespace {

void check_labels(const at::Tensor& labels, const at::Tensor& logits, bool some_missing) {
  if (labels.dim() != 1 || labels.size(0) != logits.size(0) || labels.scalar_type() != at::kLong)
    throw InvalidArgument(
        fmt::format("the batch's 'target' is {} {}; classification takes [{}] labels (int64)",
                    at::toString(labels.scalar_type()), labels.sizes().vec(), logits.size(0)));
  if (!labels.is_cpu() || labels.numel() == 0) return;
  const auto [least, most] = at::aminmax(labels);
  for (const auto label : {least.item<std::int64_t>(), most.item<std::int64_t>()})
    if ((label < 0 && !(some_missing && label == no_target)) || label >= logits.size(1))
      throw InvalidArgument(
          fmt::format("a label is {}; the model has {} (task.labels)", label, logits.size(1)));
}

}  // namespace

ClassLoss class_loss(const at::Tensor& logits, const Pass& pass) {
  const bool counts = counts_targets(pass);
  check_labels(pass.target, logits, counts);
  if (!pass.training && pass.observe) pass.observe(logits, pass.target);
  const auto wide = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor log_probability = at::log_softmax(logits, 1, wide);
  at::Tensor goal = pass.target.unsqueeze(1), missing;
  if (counts) {
    missing = goal.eq(no_target);
    goal = goal.masked_fill(missing, 0);
  }
  const auto clear = [&](at::Tensor rows) {
    if (missing.defined()) rows.masked_fill_(missing, 0);
    return rows;
  };
  const auto samples = logits.size(0);
  const at::Tensor sum = clear(log_probability.gather(1, goal)).sum(at::kDouble).neg_();
  const at::Tensor loss = counts ? sum / target_count(pass) : sum / static_cast<double>(samples);
  if (!pass.training) return {loss, {}};
  const at::Tensor grad = log_probability.exp();
  grad.scatter_add_(1, goal, at::full({}, -1, grad.options()).expand({samples, 1}));
  clear(grad);
  const TargetShare share = target_share(pass, samples);
  grad.mul_(share.number);
  for (const at::Tensor& factor : {share.on_device, pass.scale})
    if (factor.defined()) grad.mul_(factor);
  return {loss, grad.to(logits.scalar_type())};
}

}  // namespace echelon
