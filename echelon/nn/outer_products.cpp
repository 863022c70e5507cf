#include "echelon/nn/outer_products.h"

#include <algorithm>

#include "echelon/kernels/cpu/outer_products.h"
#include "echelon/nn/parallel_over.h"

namespace echelon {

namespace cpu = kernels::cpu;

void outer_products(const at::Tensor& x, const at::Tensor& y, double scale, Accumulated product,
                    Accumulated sums) {
  for (const auto& [tensor, beta] : {product, sums})
    if (beta != 0 && beta != 1) tensor.mul_(beta);
  const kernels::OuterProducts<float> arguments{
      .rows = x.size(0),
      .x_columns = x.size(1),
      .y_columns = y.size(1),
      .x = {x.const_data_ptr<float>(), x.stride(0)},
      .y = {y.const_data_ptr<float>(), y.stride(0)},
      .scale = static_cast<float>(scale),
      .product = {product.into.data_ptr<float>(), product.into.stride(0)},
      .add = product.beta != 0,
      .sums = sums.into.defined() ? sums.into.data_ptr<float>() : nullptr,
      .add_sums = sums.beta != 0};
  // Fewer products than this are not worth a thread.
  const auto work = std::max<std::int64_t>(1, x.size(0) * y.size(1) * cpu::outer_products_panel);
  const auto grain = std::max<std::int64_t>(1, (std::int64_t{1} << 20) / work);
  parallel_over(
      cpu::outer_products_panels(x.size(1)), grain,
      [&](std::int64_t begin, std::int64_t end) { cpu::outer_products(arguments, begin, end); });
}

bool outer_products_pay() { return cpu::outer_products_pay(); }

}  // namespace echelon
