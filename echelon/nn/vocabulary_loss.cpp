// The loss of a row with logits z and target t is log sum exp(z) - z[t], and its gradient is
// softmax(z) - onehot(t). Forward computes both in one pass over blocks of rows: it turns the
// logits of a block into the block's gradient in place. A training step therefore holds a single
// [rows, vocab] tensor (the gradient), and evaluation holds one block.
//
// Rows without a target have no loss and no gradient. A CPU selects the others first. A GPU, whose
// shapes must not depend on values, computes all rows and sets the gradients of these to zero.
// If samples do not count their targets, each row must have one. A CPU throws otherwise; a GPU, for
// which the host does not wait, makes the loss NaN.
//
// With a large vocabulary, probabilities fall below the range of fp16. For fp16 the rows of a block
// are therefore computed in fp32 and multiplied by the loss scale and the row's share of the mean
// before they are rounded.
//
// A rank with a part of the vocabulary goes through the blocks twice. The first pass computes, for
// every row, its largest logit m and the sum s of exp(z - m). With M the largest m of all ranks,
// the row's sum is the sum of all ranks' s exp(m - M). The target's logit is the sum of its owner's
// value and the other ranks' zeros. The second pass computes the gradient, exp(z - log sum exp(z)),
// and the target's owner subtracts 1 at the target. Padding has logits of minus infinity, so its
// probability and gradient are zero.
#include "echelon/nn/vocabulary_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "echelon/base/error.h"
#include "echelon/nn/product.h"
#include "echelon/nn/target_share.h"
#include "echelon/nn/tensor_group.h"
#include "echelon/nn/token_table.h"

namespace echelon {
namespace {

// Large enough that products run at full speed, small enough to limit a block's temporary memory.
std::int64_t rows_a_block(const at::Tensor& x, std::int64_t vocab) {
  const std::int64_t bytes = x.is_cpu() ? std::int64_t{4} << 20 : std::int64_t{512} << 20;
  return std::max<std::int64_t>(1, bytes / (vocab * x.element_size()));
}

bool is_half(const at::Tensor& x) { return x.scalar_type() == at::kHalf; }
// On a CPU, log_softmax in bf16 rounds the logarithm of a row's sum and then the result, which
// makes losses wrong by about 0.01.
bool is_coarse(const at::Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kBFloat16; }

at::Tensor selected(const at::Tensor& all, const at::Tensor& rows) {
  return rows.defined() ? all.index_select(0, rows) : all;
}

}  // namespace

// The targets of the rows that are computed, [rows, 1].
struct VocabularyLoss::Targets {
  at::Tensor goal;     // 0 where there is none
  at::Tensor missing;  // where there is none; undefined: nowhere
  at::Tensor rows;     // the selected rows; undefined: all
  at::Tensor given;    // as the batch has them
  at::Tensor stray;    // on a GPU: whether a target is missing although all count

  explicit Targets(const Pass& pass) : given(pass.target.reshape({-1, 1})) {
    goal = given;
    if (!counts_targets(pass)) {
      const at::Tensor absent = given.eq(no_target);
      if (!given.is_cpu()) {
        stray = absent.any();
        goal = given.masked_fill(absent, 0);
      } else if (absent.any().item<bool>()) {
        throw InvalidArgument(
            "a target is -100, which means that there is none, and samples do not say how many "
            "targets they have: override Dataset::targets");
      }
      return;
    }
    missing = given.eq(no_target);
    if (given.is_cpu()) {
      const at::Tensor there = missing.logical_not().flatten().nonzero().flatten();
      if (there.numel() < given.numel()) rows = there;
      goal = given = selected(given, rows);
      missing.reset();
    } else {
      goal = given.masked_fill(missing, 0);
    }
  }

  std::int64_t size() const { return goal.size(0); }
  void clear_missing(at::Tensor of, std::int64_t at) const {
    if (missing.defined()) of.masked_fill_(missing.narrow(0, at, of.size(0)), 0);
  }
};

namespace {

// Whether the share is in the gradient that forward keeps, or left to backward's products. fp16
// needs it before rounding, and a share on the device is no factor of a product.
bool shares_in_forward(const at::Tensor& x, const TargetShare& share) {
  return is_half(x) || share.on_device.defined();
}

// Turns a block's gradients, as computed, into the ones that are kept in `logits`.
void keep(const at::Tensor& row_grad, const TargetShare& share, const Pass& pass,
          at::Tensor logits) {
  if (shares_in_forward(logits, share)) {
    row_grad.mul_(share.number);
    if (share.on_device.defined()) row_grad.mul_(share.on_device);
  }
  if (!is_half(logits)) return;
  if (pass.scale.defined()) row_grad.mul_(pass.scale);
  logits.copy_(row_grad);
}

// The sum over the targets becomes their mean, or NaN, which stops training before the update.
at::Tensor mean(at::Tensor sum, const at::Tensor& stray, const Pass& pass) {
  if (stray.defined()) sum.masked_fill_(stray, std::numeric_limits<double>::quiet_NaN());
  return counts_targets(pass) ? sum.div_(target_count(pass))
                              : sum.div_(static_cast<double>(pass.target.numel()));
}

}  // namespace

void VocabularyLoss::declare(Declaration& declaration, const std::string& name, std::int64_t vocab,
                             std::int64_t width, double stddev) {
  weight_ = declaration.parameter(name + ".weight", {vocab, width}, Init::normal(stddev),
                                  /*decay=*/true, /*trainable=*/true, Splits::table);
}

void VocabularyLoss::tie(Declaration& declaration, const std::string& name) {
  weight_ = declaration.tied(name + ".weight", Splits::table);
}

void VocabularyLoss::declare_bias(Declaration& declaration, const std::string& name,
                                  std::int64_t vocab) {
  bias_ = declaration.parameter(name + ".bias", {vocab}, Init::zeros(), /*decay=*/false,
                                /*trainable=*/true, Splits::table);
}

void VocabularyLoss::write_logits(at::Tensor logits, const at::Tensor& x) const {
  const at::Tensor weight = weight_->value.t();
  if (bias_)
    at::addmm_out(logits, bias_->value, x, weight);
  else
    at::mm_out(logits, x, weight);
}

at::Tensor VocabularyLoss::logits(const at::Tensor& x) const {
  const bool part = weight_->split.is_part();
  const at::Tensor rows = part ? weight_->group->whole(x) : x;
  at::Tensor mine = at::empty({rows.size(0), weight_->value.size(0)}, x.options());
  write_logits(mine, rows);
  return part ? gathered(mine) : mine;
}

at::Tensor VocabularyLoss::gathered(const at::Tensor& logits) const {
  Split columns = weight_->split;
  columns.dimension = 1;
  return assemble(weight_->group->gather(logits), columns);
}

VocabularyLoss::Output VocabularyLoss::forward(const at::Tensor& x, const Pass& pass) const {
  const Targets targets(pass);
  return weight_->split.is_part() ? part(x, targets, pass) : whole(x, targets, pass);
}

VocabularyLoss::Output VocabularyLoss::whole(const at::Tensor& x, const Targets& targets,
                                             const Pass& pass) const {
  const at::Tensor all = selected(x, targets.rows);
  const auto n = targets.size(), vocab = weight_->value.size(0),
             block = std::max<std::int64_t>(1, std::min(n, rows_a_block(x, vocab)));
  const TargetShare share = target_share(pass, pass.target.numel());
  at::Tensor loss = at::zeros({}, x.options().dtype(at::kDouble));
  at::Tensor grad = at::empty({pass.training ? n : block, vocab}, x.options());
  for (std::int64_t at = 0; at < n; at += block) {
    const auto size = std::min(block, n - at);
    at::Tensor logits = grad.narrow(0, pass.training ? at : 0, size);
    const at::Tensor goal = targets.goal.narrow(0, at, size);
    write_logits(logits, all.narrow(0, at, size));
    if (!pass.training && pass.observe)
      pass.observe(logits, targets.given.narrow(0, at, size).flatten());
    at::Tensor log_probability = is_half(logits) || is_coarse(logits)
                                     ? at::log_softmax(logits, 1, at::kFloat)
                                     : at::_log_softmax(logits, 1, /*half_to_float=*/false);
    const at::Tensor at_goal = log_probability.gather(1, goal);
    targets.clear_missing(at_goal, at);
    loss.sub_(at_goal.sum(at::kDouble));
    if (!pass.training) continue;
    at::Tensor row_grad = is_half(logits) ? log_probability : logits;
    at::exp_out(row_grad, log_probability);
    row_grad.scatter_add_(1, goal, at::full({}, -1, row_grad.options()).expand({size, 1}));
    targets.clear_missing(row_grad, at);
    keep(row_grad, share, pass, logits);
  }
  return {mean(loss, targets.stray, pass), pass.training ? grad : at::Tensor(), targets.rows};
}

VocabularyLoss::Output VocabularyLoss::part(const at::Tensor& x, const Targets& targets,
                                            const Pass& pass) const {
  TensorGroup& group = *weight_->group;
  const Split& vocabulary = weight_->split;
  const at::Tensor all = selected(group.whole(x), targets.rows);
  const auto n = targets.size(), vocab = weight_->value.size(0), filled = vocabulary.filled();
  const auto block = std::max<std::int64_t>(1, std::min(n, rows_a_block(x, vocab)));
  const auto wide = x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const auto [goal, foreign] = own_tokens(targets.goal, vocabulary);
  const TargetShare share = target_share(pass, pass.target.numel());

  at::Tensor grad = at::empty({pass.training ? n : block, vocab}, x.options());
  const at::Tensor largest = at::empty({n, 1}, wide), sums = at::empty({2, n, 1}, wide);
  const at::Tensor exponentials = sums.select(0, 0), target = sums.select(0, 1);
  for (std::int64_t at = 0; at < n; at += block) {
    const auto size = std::min(block, n - at);
    const auto rows = [&](const at::Tensor& of) { return of.narrow(0, at, size); };
    at::Tensor logits = grad.narrow(0, pass.training ? at : 0, size);
    write_logits(logits, rows(all));
    if (!pass.training && pass.observe)
      pass.observe(gathered(logits), rows(targets.given).flatten());
    logits.narrow(1, filled, vocab - filled).fill_(-std::numeric_limits<double>::infinity());
    const at::Tensor z = logits.to(wide.dtype());
    at::Tensor most = rows(largest), sum = rows(exponentials);
    // Finite even on a rank that has only padding.
    at::amax_out(most, z, 1, /*keepdim=*/true).clamp_min_(std::numeric_limits<float>::lowest());
    at::sum_out(sum, (z - most).exp_(), {1}, /*keepdim=*/true);
    rows(target).copy_(z.gather(1, rows(goal)).masked_fill_(rows(foreign), 0));
  }
  const at::Tensor top = largest.clone();
  group.all_reduce(top, ReduceOp::max, "vocabulary");
  exponentials.mul_((largest - top).exp_());
  group.all_reduce(sums, ReduceOp::sum, "vocabulary");
  const at::Tensor log_sum = exponentials.log().add_(top);
  const at::Tensor row_loss = log_sum - target;
  targets.clear_missing(row_loss, 0);
  const at::Tensor loss = mean(row_loss.sum(at::kDouble), targets.stray, pass);
  if (!pass.training) return {loss, {}, {}};

  for (std::int64_t at = 0; at < n; at += block) {
    const auto rows = [&](const at::Tensor& of) {
      return of.narrow(0, at, std::min(block, n - at));
    };
    const at::Tensor logits = rows(grad);
    at::Tensor row_grad = is_half(logits) ? logits.to(at::kFloat) : logits;
    row_grad.sub_(rows(log_sum)).exp_();
    row_grad.scatter_add_(1, rows(goal), rows(foreign).to(row_grad.scalar_type()).sub_(1));
    targets.clear_missing(row_grad, at);
    keep(row_grad, share, pass, logits);
  }
  return {loss, grad, targets.rows};
}

at::Tensor VocabularyLoss::backward(const Output& output, const at::Tensor& x, Pass& pass) const {
  const auto& [loss, grad, rows] = output;
  const auto all_rows = pass.target.numel();
  const TargetShare share = target_share(pass, all_rows);
  const double scale = shares_in_forward(x, share) ? 1 : share.number;
  std::function<void(const at::Tensor&)> gradients;  // none if neither table nor bias trains
  if (weight_->trainable || (bias_ && bias_->trainable))
    gradients = [weight = weight_, bias = bias_, grad = grad, rows = rows,
                 scale](const at::Tensor& all) {
      if (weight->trainable)
        product_gradient(grad, selected(all, rows), scale, {weight->grad, weight->grad_beta()});
      if (bias && bias->trainable) bias->add_grad(at::sum(grad, {0}).mul_(scale));
    };
  return product_backward(
      weight_->split.is_part() ? weight_->group : nullptr, x, pass,
      [&, grad = grad, rows = rows] {
        const at::Tensor nothing = at::empty({x.size(1)}, x.options());
        const at::Tensor grad_rows = at::addmm(nothing, grad, weight_->value, /*beta=*/0, scale);
        if (!rows.defined()) return grad_rows;
        return at::zeros({all_rows, x.size(1)}, x.options()).index_copy_(0, rows, grad_rows);
      },
      gradients);
}

}  // namespace echelon
