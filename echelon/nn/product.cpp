#include "echelon/nn/product.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include <optional>
#include <string_view>

namespace echelon {
namespace {

using LinearPointwise = at::Tensor(const at::Tensor&, const at::Tensor&,
                                   const std::optional<at::Tensor>&, std::string_view,
                                   c10::List<std::optional<at::Scalar>>,
                                   std::optional<std::string_view>);

bool prefers_onednn() {
#if defined(__x86_64__)
  return !__builtin_cpu_is("intel");
#else
  return false;
#endif
}

// oneDNN's product as torch registers it for its compiler; empty if it does not pay or does not
// exist.
const std::optional<c10::TypedOperatorHandle<LinearPointwise>>& onednn() {
  static const auto handle = []() -> std::optional<c10::TypedOperatorHandle<LinearPointwise>> {
    if (!prefers_onednn()) return std::nullopt;
    const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
    if (!found || !found->hasKernelForDispatchKey(c10::DispatchKey::CPU)) return std::nullopt;
    return found->typed<LinearPointwise>();
  }();
  return handle;
}

// Whether outer_products can read or write this tensor.
bool has_float_rows(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kFloat && x.stride(-1) == 1;
}

}  // namespace

at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  if (x.is_cpu() && x.scalar_type() == at::kFloat && x.numel() > 0 && onednn()) {
    return onednn()->call(x, weight, bias.defined() ? std::optional(bias) : std::nullopt, "none",
                          c10::List<std::optional<at::Scalar>>(), "");
  }
  return bias.defined() ? at::addmm(bias, x, weight.t()) : at::mm(x, weight.t());
}

void product_gradient(const at::Tensor& x, const at::Tensor& grad_y, double scale,
                      Accumulated weight, Accumulated bias) {
  if (outer_products_pay() && has_float_rows(x) && has_float_rows(grad_y) &&
      has_float_rows(weight.into) && (!bias.into.defined() || has_float_rows(bias.into)) &&
      x.numel() > 0) {
    outer_products(x, grad_y, scale, std::move(weight), std::move(bias));
    return;
  }
  weight.into.addmm_(x.t(), grad_y, weight.beta, scale);
  if (!bias.into.defined()) return;
  if (bias.beta == 0)
    at::sum_out(bias.into, grad_y, /*dim=*/{0});
  else
    (bias.beta == 1 ? bias.into : bias.into.mul_(bias.beta)).add_(at::sum(grad_y, {0}));
}

const char* product_library() { return onednn() ? "oneDNN" : "torch"; }

}  // namespace echelon
