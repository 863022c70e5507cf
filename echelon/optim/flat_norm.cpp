#include "echelon/optim/flat_norm.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "echelon/kernels/cpu/clones.h"
#include "echelon/nn/parallel_over.h"

namespace echelon {
namespace {

constexpr std::int64_t lanes = 32, block = 128 * lanes, chunk = 16 * block;

ECHELON_INLINE float widened(float x) { return x; }
ECHELON_INLINE float widened(std::uint16_t bf16) {
  return std::bit_cast<float>(std::uint32_t(bf16) << 16);
}

template <class T>
ECHELON_INLINE double squares_of(const T* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t at = 0; at < n; at += block) {
    const std::int64_t end = std::min(n, at + block);
    float lane[lanes] = {};
    std::int64_t i = at;
    for (; i + lanes <= end; i += lanes)
      for (std::int64_t k = 0; k < lanes; ++k) lane[k] += widened(x[i + k]) * widened(x[i + k]);
    double part = 0;
    for (; i < end; ++i) part += double(widened(x[i])) * double(widened(x[i]));
    for (const float one : lane) part += double(one);
    sum += part;
  }
  return sum;
}

ECHELON_CLONES double squares_of_floats(const float* x, std::int64_t n) { return squares_of(x, n); }
ECHELON_CLONES double squares_of_bf16(const std::uint16_t* x, std::int64_t n) {
  return squares_of(x, n);
}

double squares_between(const at::Tensor& flat, std::int64_t begin, std::int64_t end) {
  if (flat.scalar_type() == at::kFloat)
    return squares_of_floats(flat.const_data_ptr<float>() + begin, end - begin);
  if (flat.scalar_type() == at::kBFloat16)
    return squares_of_bf16(static_cast<const std::uint16_t*>(flat.const_data_ptr()) + begin,
                           end - begin);
  const at::Tensor wide = flat.narrow(0, begin, end - begin).to(at::kFloat);
  return squares_of_floats(wide.const_data_ptr<float>(), end - begin);
}

}  // namespace

at::Tensor flat_norm(const at::Tensor& flat) {
  if (!flat.is_cpu() || flat.scalar_type() == at::kDouble)
    return at::linalg_vector_norm(flat, 2, {}, false,
                                  flat.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const std::int64_t chunks = (flat.numel() + chunk - 1) / chunk;
  std::vector<double> sums(static_cast<std::size_t>(chunks));
  parallel_over(chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c)
      sums[std::size_t(c)] =
          squares_between(flat, c * chunk, std::min(flat.numel(), (c + 1) * chunk));
  });
  double all = 0;
  for (const double sum : sums) all += sum;
  return at::scalar_tensor(std::sqrt(all), at::kFloat);
}

at::Tensor norm_of_norms(const std::vector<at::Tensor>& norms) {
  return norms.size() == 1 ? norms[0] : at::linalg_vector_norm(at::stack(norms));
}

at::Tensor counted_norm(const at::Tensor& slice, const std::vector<FlatUnit>& units,
                        std::int64_t begin) {
  std::vector<at::Tensor> norms;
  for (const auto& range : counted_within(units, begin, begin + slice.numel()))
    norms.push_back(flat_norm(slice.narrow(0, range.begin - begin, range.numel)));
  return norms.empty() ? flat_norm(slice.narrow(0, 0, 0)) : norm_of_norms(norms);
}

}  // namespace echelon
