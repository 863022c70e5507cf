// SIMD kernels for CPUs: a register holds 16 floats with AVX-512, 8 with AVX2, 4 otherwise. A
// kernel is a template over their number,
//
//   template <class L> ECHELON_INLINE void kernel(const Arguments& arguments);
//   ECHELON_LANES_FUNCTION(function, Arguments, kernel)
//
// and the second line defines `void function(const Arguments&)`, compiled for each of these
// processors; the version is selected when the program is loaded, as with ECHELON_CLONES. Functions
// that the kernel calls must be inlined, or they would be compiled for the oldest processor.
#pragma once

#include <cstdint>
#include <cstring>

#include "echelon/kernels/cpu/clones.h"

#ifdef ECHELON_HAS_CLONES
#define ECHELON_LANES_FUNCTION(function, Arguments, kernel)                             \
  __attribute__((target("arch=x86-64-v4"))) void function(const Arguments& arguments) { \
    kernel<Lanes<16>>(arguments);                                                       \
  }                                                                                     \
  __attribute__((target("arch=x86-64-v3"))) void function(const Arguments& arguments) { \
    kernel<Lanes<8>>(arguments);                                                        \
  }                                                                                     \
  __attribute__((target("default"))) void function(const Arguments& arguments) {        \
    kernel<Lanes<4>>(arguments);                                                        \
  }
#else
#define ECHELON_LANES_FUNCTION(function, Arguments, kernel) \
  void function(const Arguments& arguments) { kernel<Lanes<4>>(arguments); }
#endif

namespace echelon::kernels::cpu {

template <int count>
struct Lanes {
  static constexpr int width = count;
  // With `using` the compiler drops the attribute.
  typedef float Floats __attribute__((vector_size(width * sizeof(float))));
  typedef std::uint32_t Bits __attribute__((vector_size(width * sizeof(float))));
};
template <class L>
using Floats = typename L::Floats;

template <class L>
ECHELON_INLINE Floats<L> load(const float* from) {
  Floats<L> x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
template <class L>
ECHELON_INLINE void store(float* to, Floats<L> x) {
  std::memcpy(to, &x, sizeof x);
}

// Loads the first `count` floats; the others are 0.
template <class L>
ECHELON_INLINE Floats<L> load(const float* from, std::int64_t count) {
  Floats<L> x{};
  std::memcpy(&x, from, static_cast<std::size_t>(count) * sizeof(float));
  return x;
}
template <class L>
ECHELON_INLINE void store(float* to, Floats<L> x, std::int64_t count) {
  std::memcpy(to, &x, static_cast<std::size_t>(count) * sizeof(float));
}

template <class L>
ECHELON_INLINE Floats<L> all(float x) {
  return x - Floats<L>{};
}

// 2^x for -126.5 < x < 127.5 with a relative error of 1e-7; NaN stays NaN. With n the integer
// nearest to x it is 2^n, made from its bits, times 2^(x-n), a polynomial with an error of 2e-9.
template <class L>
ECHELON_INLINE Floats<L> exp2(Floats<L> x) {
  using Bits = typename L::Bits;
  constexpr float round = 0x1.8p23f;  // a float of this size has no fractional bits
  const Floats<L> shifted = x + round;
  const Floats<L> rest = x - (shifted - round);
  Floats<L> p = 1.53458118e-4f * rest + 1.33999312e-3f;
  p = p * rest + 9.61848896e-3f;
  p = p * rest + 5.55032878e-2f;
  p = p * rest + 2.40226469e-1f;
  p = p * rest + 6.93147206e-1f;
  p = p * rest + 1.0f;
  const Bits exponent = (__builtin_bit_cast(Bits, shifted) << 23) + (127u << 23);
  return p * __builtin_bit_cast(Floats<L>, exponent);
}

}  // namespace echelon::kernels::cpu
