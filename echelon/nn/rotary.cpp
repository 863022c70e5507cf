#include "echelon/nn/rotary.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "echelon/base/error.h"
#include "echelon/nn/batch_ids.h"
#include "echelon/nn/memory.h"
#include "echelon/nn/parallel_over.h"

namespace echelon {
namespace {

struct Turn {
  std::int64_t tokens, heads, half;
  std::int64_t stride;  // distance between tokens, in elements
};

// One pass over the rows of x: rotates token t of every sample by row t of the tables, or by the
// row that `positions` says.
template <class T>
void turn(const at::Tensor& x, const Turn& shape, const std::int64_t* positions,
          const at::Tensor& cosines, const at::Tensor& sines, int sign) {
  using Wide = at::opmath_type<T>;
  T* const data = x.data_ptr<T>();
  const Wide* const cosine = cosines.const_data_ptr<Wide>();
  const Wide* const sine = sines.const_data_ptr<Wide>();
  const auto half = shape.half;
  const std::int64_t grain =
      std::max<std::int64_t>(1, (1 << 13) / std::max<std::int64_t>(1, shape.heads * half));
  parallel_over(x.size(0) * shape.tokens, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto position = positions ? positions[row] : row % shape.tokens;
      const Wide* const c = cosine + position * half;
      const Wide* const s = sine + position * half;
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        T* const first = data + row * shape.stride + head * 2 * half;
        T* const second = first + half;
        for (std::int64_t i = 0; i < half; ++i) {
          const auto a = static_cast<Wide>(first[i]), b = static_cast<Wide>(second[i]);
          const Wide sin = static_cast<Wide>(sign) * s[i];
          first[i] = static_cast<T>(a * c[i] - b * sin);
          second[i] = static_cast<T>(b * c[i] + a * sin);
        }
      }
    }
  });
}

}  // namespace

std::vector<double> rotary_frequencies(const RotaryOptions& options) {
  std::vector<double> all;
  const auto context = static_cast<double>(options.original_context);
  for (std::int64_t i = 0; i < options.head_width; i += 2) {
    double f =
        std::pow(options.base, -static_cast<double>(i) / static_cast<double>(options.head_width));
    if (options.factor != 1) {
      const double wavelength = 2 * std::numbers::pi / f;
      const double s =
          std::clamp((context / wavelength - options.low) / (options.high - options.low), 0.0, 1.0);
      f = (1 - s) * f / options.factor + s * f;
    }
    all.push_back(f);
  }
  return all;
}

void Rotary::bind(at::Device device, at::ScalarType type) {
  const auto wide = at::toOpMathType(type);
  if (cosines_.defined() && cosines_.device() == device && cosines_.scalar_type() == wide) return;
  const MemoryScope scope(MemoryKind::activations);
  const auto frequencies = rotary_frequencies(options_);
  const auto half = static_cast<std::int64_t>(frequencies.size());
  at::Tensor cosines = at::empty({options_.context, half}, wide), sines = at::empty_like(cosines);
  AT_DISPATCH_FLOATING_TYPES(wide, "rotary", [&] {
    scalar_t* const c = cosines.data_ptr<scalar_t>();
    scalar_t* const s = sines.data_ptr<scalar_t>();
    for (std::int64_t t = 0; t < options_.context; ++t)
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t) * frequencies[static_cast<std::size_t>(i)];
        c[t * half + i] = static_cast<scalar_t>(std::cos(angle));
        s[t * half + i] = static_cast<scalar_t>(std::sin(angle));
      }
  });
  cosines_ = cosines.to(device);
  sines_ = sines.to(device);
}

void Rotary::rotate(at::Tensor x, std::int64_t heads, Direction direction, const Pass& pass) const {
  if (!x.is_contiguous() || x.size(1) > options_.context)
    throw Error(fmt::format("rotary positions need a contiguous tensor of at most {} tokens",
                            options_.context));
  const auto tokens = x.size(1), half = options_.head_width / 2;
  const at::Tensor positions = batch_ids(pass, "positions", options_.context, "model.context");
  const int sign = direction == Direction::forth ? 1 : -1;
  if (x.is_cpu()) {
    const Turn shape{tokens, heads, half, x.size(2)};
    const auto* given = positions.defined() ? positions.const_data_ptr<std::int64_t>() : nullptr;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "rotary", [&] {
      turn<scalar_t>(x, shape, given, cosines_, sines_, sign);
    });
    return;
  }
  const auto at_positions = [&](const at::Tensor& table) {
    return positions.defined() ? at::embedding(table, positions) : table.narrow(0, 0, tokens);
  };
  const at::Tensor cosines = at_positions(cosines_), sines = at_positions(sines_);
  // [samples, tokens, heads, the two halves, half]
  const at::Tensor pairs = x.narrow(2, 0, heads * 2 * half).unflatten(2, {heads, 2, half});
  const at::Tensor first = pairs.select(3, 0), second = pairs.select(3, 1);
  const at::Tensor c = cosines.unsqueeze(-2), s = (sign > 0 ? sines : sines.neg()).unsqueeze(-2);
  const at::Tensor turned_first = first * c - second * s, turned_second = second * c + first * s;
  first.copy_(turned_first);
  second.copy_(turned_second);
}

}  // namespace echelon
