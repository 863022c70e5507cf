#include "echelon/nn/attention_runs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_efficient_attention_backward.h>
#include <ATen/ops/_efficient_attention_forward.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <cmath>
#include <tuple>

namespace echelon {
namespace {

bool by_flash(const TokenHeads& heads) { return heads.q.scalar_type() != at::kFloat; }

double scale_of(const TokenHeads& heads) {
  return 1 / std::sqrt(static_cast<double>(heads.q.size(2)));
}

// Where every run begins among the tokens of the batch, and where the last one ends.
at::Tensor cumulative(const AttentionRuns& runs) {
  const auto samples = runs.begins.size(0), count = runs.begins.size(1) - 1;
  const at::Tensor row = at::arange(samples, runs.begins.options()).mul_(runs.tokens).unsqueeze(1);
  return at::cat({runs.begins.narrow(1, 0, count).add(row).flatten(),
                  at::full({1}, samples * runs.tokens, runs.begins.options())});
}

// The kernel's masks: 0 is none, 1 hides the future within each sequence.
std::int64_t mask_type(const AttentionRuns& runs) { return runs.causal ? 1 : 0; }

}  // namespace

at::Tensor attention_over_runs(const TokenHeads& heads, const AttentionRuns& runs,
                               std::vector<at::Tensor>& saved) {
  const at::Tensor begins = cumulative(runs);
  const auto& [q, k, v] = heads;
  if (by_flash(heads)) {
    auto [out, lse, random, unused, debug] = at::_flash_attention_forward(
        q, k, v, begins, begins, runs.tokens, runs.tokens, /*dropout_p=*/0.0, runs.causal,
        /*return_debug_mask=*/false, scale_of(heads));
    saved.insert(saved.end(), {lse, random, unused, begins});
    return out;
  }
  auto [out, lse, seed, offset, most_queries, most_keys] = at::_efficient_attention_forward(
      q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), /*bias=*/{}, begins, begins, runs.tokens,
      runs.tokens, /*dropout_p=*/0.0, mask_type(runs), /*compute_log_sumexp=*/true,
      scale_of(heads));
  saved.insert(saved.end(), {lse, seed, offset, begins});
  return out.squeeze(0);
}

TokenHeads attention_over_runs_backward(const at::Tensor& grad_out, const TokenHeads& heads,
                                        const at::Tensor& out, const AttentionRuns& runs,
                                        const at::Tensor* saved) {
  const at::Tensor &lse = saved[0], &random = saved[1], &offset = saved[2], &begins = saved[3];
  const auto& [q, k, v] = heads;
  TokenHeads grads;
  if (by_flash(heads)) {
    std::tie(grads.q, grads.k, grads.v) = at::_flash_attention_backward(
        grad_out, q, k, v, out, lse, begins, begins, runs.tokens, runs.tokens, /*dropout_p=*/0.0,
        runs.causal, random, offset, scale_of(heads));
    return grads;
  }
  at::Tensor grad_bias;
  std::tie(grads.q, grads.k, grads.v, grad_bias) = at::_efficient_attention_backward(
      grad_out.unsqueeze(0), q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), /*bias=*/{},
      out.unsqueeze(0), begins, begins, runs.tokens, runs.tokens, lse, /*dropout_p=*/0.0, random,
      offset, mask_type(runs), /*bias_requires_grad=*/false, scale_of(heads));
  for (at::Tensor* grad : {&grads.q, &grads.k, &grads.v}) *grad = grad->squeeze(0);
  return grads;
}

}  // namespace echelon
