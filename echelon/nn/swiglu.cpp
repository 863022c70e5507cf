#include "echelon/nn/swiglu.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

namespace echelon {
namespace {

struct Halves {
  at::Tensor gate, up;
};

Halves halves(const at::Tensor& hidden) {
  const auto n = hidden.size(1) / 2;
  return {hidden.narrow(1, 0, n), hidden.narrow(1, n, n)};
}

}  // namespace

at::Tensor swiglu(const at::Tensor& hidden) {
  const auto [gate, up] = halves(hidden);
  return at::silu(gate).mul_(up);
}

at::Tensor swiglu_backward(const at::Tensor& grad, const at::Tensor& hidden) {
  const auto [gate, up] = halves(hidden);
  const at::Tensor result = at::empty_like(hidden);
  auto [grad_gate, grad_up] = halves(result);
  at::silu_out(grad_up, gate).mul_(grad);
  at::silu_backward_out(grad_gate, at::mul(grad, up), gate);
  return result;
}

}  // namespace echelon
