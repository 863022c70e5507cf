// Kernels for CPUs that work on as many floats at once as a register holds: 16 with AVX-512, 8 with
// AVX2, 4 elsewhere. A kernel is a template over their number,
//
//   template <class L> ECHELON_INLINE void kernel(const Arguments& arguments);
//   ECHELON_LANES_FUNCTION(function, Arguments, kernel)
//
// and the second line makes of it `void function(const Arguments&)`, compiled for each of these
// processors; which one runs is chosen when the program is loaded, as with ECHELON_CLONES. What the
// kernel calls must be inlined, or it would be compiled for the oldest of them.
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
  // With `using` the compiler forgets the attribute.
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

// The first `count` of them; the others are 0.
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

// 2^x for -126.5 < x < 127.5 within 1e-7 of it; a NaN stays one. With n the integer next to x it is
// 2^n, made of its bits, times 2^(x-n), whose polynomial is off by 2e-9.
template <class L>
ECHELON_INLINE Floats<L> exp2(Floats<L> x) {
  using Bits = typename L::Bits;
  constexpr float round = 0x1.8p23f;  // a float of this size has no bits behind the point
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
