// With N elements of a channel on all ranks, g the gradient of y and n = (x - mean) / deviation:
//
//   gradient of x = weight / deviation * (g - sum(g) / N - n sum(g n) / N)
//
// where the sums go over all ranks. Those of this rank alone are the gradients of bias and weight:
// like all gradients of parameters, they are summed over the ranks later.
#include "echelon/nn/sync_batch_norm.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <ostream>

#include "echelon/base/error.h"
#include "echelon/nn/batch_ranks.h"

namespace echelon {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

constexpr const char* tag = "batch norm";

// For the autograd context, which keeps only values that TorchScript knows.
struct SharedRanks : torch::CustomClassHolder {
  explicit SharedRanks(std::shared_ptr<BatchRanks> of) : ranks(std::move(of)) {}
  std::shared_ptr<BatchRanks> ranks;
};

// All dimensions but the channels'.
std::vector<std::int64_t> others(const at::Tensor& x) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < x.dim(); ++i)
    if (i != 1) all.push_back(i);
  return all;
}

at::Tensor by_channel(const at::Tensor& vector, const at::Tensor& like) {
  std::vector<std::int64_t> shape(std::size_t(like.dim()), 1);
  shape[1] = vector.numel();
  return vector.view(shape);
}

at::Tensor wide(const at::Tensor& x) { return x.to(at::toOpMathType(x.scalar_type())); }

struct Statistics {
  at::Tensor mean, variance, count;  // fp64; the variance is divided by the count
};

Statistics statistics(const at::Tensor& x, BatchRanks& ranks) {
  const auto channels = x.size(1);
  const auto options = x.options().dtype(at::kDouble);
  const at::Tensor mine = at::empty({2 * channels + 1}, options);
  const double count = static_cast<double>(x.numel() / channels);
  if (count > 0) {
    const at::Tensor mean = at::sum(x, others(x), /*keepdim=*/false, at::kDouble).div_(count);
    mine.narrow(0, 0, channels).copy_(mean);
    mine.narrow(0, channels, channels)
        .copy_(at::sum((x - by_channel(mean, x)).square_(), others(x), false, at::kDouble));
  } else {
    mine.zero_();
  }
  mine.narrow(0, 2 * channels, 1).fill_(count);

  const at::Tensor all = ranks.gather(mine, tag);
  const at::Tensor means = all.narrow(1, 0, channels), squares = all.narrow(1, channels, channels),
                   counts = all.narrow(1, 2 * channels, 1), sum = at::sum(counts);
  const at::Tensor mean = at::sum(means * counts, {0}).div_(sum);
  const at::Tensor square = at::sum(squares + (means - mean).square_() * counts, {0});
  return {mean, square.div_(sum), sum};
}

struct Normalize : torch::autograd::Function<Normalize> {
  static Variable forward(AutogradContext* context, const Variable& x,
                          const std::optional<Variable>& factor,
                          const std::optional<Variable>& summand, const Statistics& of,
                          double epsilon, const std::shared_ptr<BatchRanks>& ranks) {
    const Variable weight = factor.value_or(Variable()), bias = summand.value_or(Variable());
    const at::Tensor z = wide(x);
    const at::Tensor mean = of.mean.to(z.scalar_type()),
                     rdev = (of.variance + epsilon).rsqrt_().to(z.scalar_type());
    at::Tensor y = (z - by_channel(mean, x)).mul_(by_channel(rdev, x));
    if (weight.defined()) y.mul_(by_channel(weight, x)).add_(by_channel(bias, x));
    context->save_for_backward({x, weight, mean, rdev, of.count});
    context->saved_data["ranks"] =
        c10::IValue::make_capsule(c10::make_intrusive<SharedRanks>(ranks));
    return y.to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Variable &x = saved[0], &weight = saved[1], &mean = saved[2], &rdev = saved[3];
    const auto holder = context->saved_data["ranks"].toCapsule();
    BatchRanks& ranks = *static_cast<SharedRanks&>(*holder).ranks;
    const auto channels = x.size(1);
    const at::Tensor grad = wide(grads[0]);
    const at::Tensor normed = (wide(x) - by_channel(mean, x)).mul_(by_channel(rdev, x));
    const at::Tensor own = at::cat({at::sum(grad, others(x), false, at::kDouble),
                                    at::sum(grad * normed, others(x), false, at::kDouble)});
    at::Tensor sums = own.clone();
    ranks.sum(sums, tag);
    sums = sums.div_(saved[4]).to(grad.scalar_type());
    at::Tensor grad_x = (grad - by_channel(sums.narrow(0, 0, channels), x))
                            .sub_(normed * by_channel(sums.narrow(0, channels, channels), x))
                            .mul_(by_channel(rdev, x));
    at::Tensor grad_weight, grad_bias;
    if (weight.defined()) {
      grad_x.mul_(by_channel(weight, x));
      grad_bias = own.narrow(0, 0, channels).to(weight.scalar_type());
      grad_weight = own.narrow(0, channels, channels).to(weight.scalar_type());
    }
    return {grad_x.to(x.scalar_type()), grad_weight, grad_bias, {}, {}, {}};
  }
};

}  // namespace

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& x) {
  if (x.dim() < 2 || x.size(1) != options.num_features())
    throw InvalidArgument(
        fmt::format("a SyncBatchNorm of {} channels takes [samples, {}, …] and gets [{}]",
                    options.num_features(), options.num_features(), fmt::join(x.sizes(), ", ")));
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "echelon::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", affine=" << options.affine() << ")";
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& x) {
  _check_input_dim(x);
  const std::shared_ptr<BatchRanks> ranks = ranks_.lock();
  const bool alone = !ranks || ranks->size() == 1;
  if (is_training() && alone && x.numel() <= x.size(1))
    throw InvalidArgument(
        "a batch norm in training needs more than one value of each channel: let batches have more "
        "samples");
  const bool updates = is_training() && running_mean.defined();
  double momentum = options.momentum().value_or(0);
  if (updates) {
    num_batches_tracked.add_(1);
    if (!options.momentum())  // the mean over all batches
      momentum = 1 / static_cast<double>(num_batches_tracked.item<std::int64_t>());
  }
  if (!is_training() || alone)
    return at::batch_norm(x, weight, bias, running_mean, running_var,
                          is_training() || !running_mean.defined(), momentum, options.eps(),
                          /*cudnn_enabled=*/true);
  Statistics all;
  {
    const at::NoGradGuard no_grad;
    all = statistics(x.detach(), *ranks);
    if (updates) {
      const auto type = running_mean.scalar_type();
      running_mean.mul_(1 - momentum).add_(all.mean.to(type), momentum);
      running_var.mul_(1 - momentum)
          .add_((all.variance * (all.count / (all.count - 1))).to(type), momentum);
    }
  }
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return Normalize::apply(x, given(weight), given(bias), all, options.eps(), ranks);
}

bool share_batch(torch::nn::Module& module, const std::shared_ptr<BatchRanks>& ranks) {
  bool any = false;
  for (const auto& one : module.modules())
    if (auto* norm = one->as<SyncBatchNormImpl>()) {
      norm->share_batch(ranks);
      any = true;
    }
  return any;
}

bool has_sync_batch_norm(const torch::nn::Module& module) {
  for (const auto& one : module.modules())
    if (one->as<SyncBatchNormImpl>()) return true;
  return false;
}

}  // namespace echelon
