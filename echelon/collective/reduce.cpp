// One loop over the elements per (type, op, number of inputs). Each loop is simple enough to be
// vectorised and is compiled for several processors; the best version is chosen when the program is
// loaded. 2, 3, 4 and 8 inputs are read in one pass. Other numbers of inputs go through a block of
// partial results that stays in the first-level cache:
//
//   for each block of elements:  block = in0 + in1 + in2 + in3
//                                block = block + in4 + in5 + in6 + in7 …
//                                out   = block + what is left, averaged and rounded
//
// Each input is read once, a few streams at a time, and partial results keep the precision of
// accumulation. All these paths use the same order of operations. No expression here is a product
// followed by a sum, so a compiler has nothing to fuse.
#include "echelon/collective/reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "echelon/base/error.h"
#include "echelon/kernels/cpu/clones.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

// An iteration reads and writes only its own elements, even if `out` is an input.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // some loops cannot be vectorised
#define ECHELON_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define ECHELON_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace echelon {
namespace {

using Kernel = void (*)(void* out, const void* const* in, int inputs, std::size_t count,
                        int divisor);

// Types: how an element is stored, at any address, and the type it is accumulated in.

template <class T>
struct Plain {
  typedef T Stored __attribute__((aligned(1), may_alias));
  using Sum = T;
  using Number = T;
  static ECHELON_INLINE Sum load(T x) { return x; }
  static ECHELON_INLINE T store(Sum x) { return x; }
};

struct Bf16 {
  typedef std::uint16_t Stored __attribute__((aligned(1), may_alias));
  using Sum = float;
  using Number = float;
  static ECHELON_INLINE float load(std::uint16_t x) {
    return std::bit_cast<float>(std::uint32_t(x) << 16);
  }
  static ECHELON_INLINE std::uint16_t store(float x) { return std::uint16_t(rounded(x) >> 16); }
  // The result is in the upper half. Adds half of the last place, minus one bit if the last place
  // is even, so that ties round to even.
  static ECHELON_INLINE std::uint32_t rounded(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    return x != x ? 0x7fc00000 : bits + 0x7fff + ((bits >> 16) & 1);
  }
};

struct Pair {
  float low, high;
};

// Two bf16 elements in one 32-bit word. Masks and shifts widen both in place, so a vector of them
// is never shuffled.
struct Bf16Pair {
  typedef std::uint32_t Stored __attribute__((aligned(1), may_alias));
  using Sum = Pair;
  using Number = float;
  static ECHELON_INLINE Pair load(std::uint32_t x) {
    return {std::bit_cast<float>(x << 16), std::bit_cast<float>(x & 0xffff0000)};
  }
  static ECHELON_INLINE std::uint32_t store(Pair x) {
    return (Bf16::rounded(x.low) >> 16) | (Bf16::rounded(x.high) & 0xffff0000);
  }
};

// fp16 for processors without fp16 instructions, by branch-free arithmetic.
struct F16 {
  typedef std::uint16_t Stored __attribute__((aligned(1), may_alias));
  using Sum = float;
  using Number = float;
  static ECHELON_INLINE float load(std::uint16_t x) {
    const std::uint32_t sign = std::uint32_t(x & 0x8000) << 16, magnitude = x & 0x7fff;
    // The exponent biases differ by 112. A subnormal is a multiple of 2^-24. Infinity and NaN have
    // the highest exponent in both types. A NaN becomes quiet.
    const std::uint32_t normal = (magnitude << 13) + (112u << 23);
    const auto subnormal = std::bit_cast<std::uint32_t>(float(std::int32_t(magnitude)) * 0x1p-24f);
    const std::uint32_t quiet = select(magnitude > 0x7c00, 1u << 22, 0);
    const std::uint32_t special = (magnitude << 13) | 0x7f800000 | quiet;
    const std::uint32_t finite = select(magnitude < 0x400, subnormal, normal);
    return std::bit_cast<float>(sign | select(magnitude >= 0x7c00, special, finite));
  }
  static ECHELON_INLINE std::uint16_t store(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    const std::uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    // From 0.5 on, floats are 2^-24 apart: the last places of the sum are the rounded subnormal.
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
    const std::uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x1ff);
    std::uint32_t result = select(magnitude < (113u << 23), subnormal, normal);
    result = select(magnitude >= 0x477ff000, 0x7c00, result);  // 65520 and more
    return std::uint16_t(sign | select(magnitude > 0x7f800000, nan, result));
  }

 private:
  // Uses masks: for `?:`, compilers emit a branch if the skipped expression might raise an
  // exception.
  static ECHELON_INLINE std::uint32_t select(bool which, std::uint32_t yes, std::uint32_t no) {
    const std::uint32_t mask = 0u - std::uint32_t(which);
    return (yes & mask) | (no & ~mask);
  }
};

// Operations.

struct Add {
  static constexpr bool kAverages = false;
  template <class T>
  static ECHELON_INLINE T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Wrapping = std::make_unsigned_t<T>;
      return T(Wrapping(Wrapping(a) + Wrapping(b)));
    } else {
      return a + b;
    }
  }
};

struct AddAndDivide : Add {
  static constexpr bool kAverages = true;
};

struct Multiply {
  static constexpr bool kAverages = false;
  template <class T>
  static ECHELON_INLINE T apply(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Wrapping = std::make_unsigned_t<T>;
      return T(Wrapping(Wrapping(a) * Wrapping(b)));
    } else {
      return a * b;
    }
  }
};

template <class T>
ECHELON_INLINE bool is_nan(T x) {
  if constexpr (std::is_floating_point_v<T>) return x != x;
  return false;
}

// A NaN in `a` stays, because every comparison with NaN is false.
struct Min {
  static constexpr bool kAverages = false;
  template <class T>
  static ECHELON_INLINE T apply(T a, T b) {
    return ((b < a) | is_nan(b)) ? b : a;
  }
};

struct Max {
  static constexpr bool kAverages = false;
  template <class T>
  static ECHELON_INLINE T apply(T a, T b) {
    return ((b > a) | is_nan(b)) ? b : a;
  }
};

struct Or {
  static constexpr bool kAverages = false;
  static ECHELON_INLINE std::uint8_t apply(std::uint8_t a, std::uint8_t b) { return a | b; }
};

struct And {
  static constexpr bool kAverages = false;
  static ECHELON_INLINE std::uint8_t apply(std::uint8_t a, std::uint8_t b) { return a & b; }
};

template <class Op, class Sum>
ECHELON_INLINE Sum apply(Sum a, Sum b) {
  if constexpr (std::is_same_v<Sum, Pair>) {
    return {Op::apply(a.low, b.low), Op::apply(a.high, b.high)};
  } else {
    return Op::apply(a, b);
  }
}

// The last step of an average.
template <class Op, class Sum, class Number>
ECHELON_INLINE Sum finish(Sum x, Number factor) {
  if constexpr (!Op::kAverages) {
    return x;
  } else if constexpr (std::is_same_v<Sum, Pair>) {
    return {x.low * factor, x.high * factor};
  } else {
    return x * factor;
  }
}

// Loops.

enum class From { inputs, block };
enum class To { out, block };

// Reduces `count` elements from `start` on of kInputs inputs, starting from the block or not, into
// the block or `out`.
template <class Type, class Op, int kInputs, From kFrom, To kTo>
ECHELON_INLINE void fold(void* out, typename Type::Sum* block, const void* const* in,
                         std::size_t start, std::size_t count, typename Type::Number factor) {
  using Stored = typename Type::Stored;
  const Stored* input[kInputs];
  for (int k = 0; k < kInputs; ++k) input[k] = static_cast<const Stored*>(in[k]) + start;
  Stored* result = static_cast<Stored*>(out) + start;  // `auto` would drop the unaligned attribute
  ECHELON_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) {
    auto x = kFrom == From::inputs ? Type::load(input[0][i]) : block[i];
    for (int k = kFrom == From::inputs; k < kInputs; ++k) {
      x = apply<Op>(x, Type::load(input[k][i]));
    }
    if constexpr (kTo == To::out) {
      result[i] = Type::store(finish<Op>(x, factor));
    } else {
      block[i] = x;
    }
  }
}

template <class Type, class Op, int kInputs>
ECHELON_INLINE void fold_at_once(void* out, const void* const* in, std::size_t count,
                                 typename Type::Number factor) {
  fold<Type, Op, kInputs, From::inputs, To::out>(out, nullptr, in, 0, count, factor);
}

// Training waits for floating-point sums. Other operations make do with fewer loops and two inputs
// per pass.
template <class Type, class Op>
constexpr bool kSpecialised =
    std::is_base_of_v<Add, Op>&& std::is_floating_point_v<typename Type::Number>;

// More than kGroup inputs, through the block.
template <class Type, class Op>
ECHELON_INLINE void fold_by_blocks(void* out, const void* const* in, int inputs, std::size_t count,
                                   typename Type::Number factor) {
  using Sum = typename Type::Sum;
  constexpr int kGroup = kSpecialised<Type, Op> ? 4 : 2;
  constexpr std::size_t kBlock = 4096 / sizeof(Sum);
  alignas(64) Sum block[kBlock];
  for (std::size_t start = 0; start < count; start += kBlock) {
    const std::size_t n = std::min(kBlock, count - start);
    fold<Type, Op, kGroup, From::inputs, To::block>(out, block, in, start, n, factor);
    int k = kGroup;
    for (; inputs - k > kGroup; k += kGroup) {
      fold<Type, Op, kGroup, From::block, To::block>(out, block, in + k, start, n, factor);
    }
    const int left = inputs - k;
    if (left == 1) fold<Type, Op, 1, From::block, To::out>(out, block, in + k, start, n, factor);
    if (left == 2) fold<Type, Op, 2, From::block, To::out>(out, block, in + k, start, n, factor);
    if constexpr (kGroup == 4) {
      if (left == 3) fold<Type, Op, 3, From::block, To::out>(out, block, in + k, start, n, factor);
      if (left == 4) fold<Type, Op, 4, From::block, To::out>(out, block, in + k, start, n, factor);
    }
  }
}

template <class Type, class Op>
ECHELON_INLINE void fold_all(void* out, const void* const* in, int inputs, std::size_t count,
                             typename Type::Number factor) {
  if (inputs == 2) return fold_at_once<Type, Op, 2>(out, in, count, factor);
  if constexpr (kSpecialised<Type, Op>) {
    if (inputs == 3) return fold_at_once<Type, Op, 3>(out, in, count, factor);
    if (inputs == 4) return fold_at_once<Type, Op, 4>(out, in, count, factor);
    if (inputs == 8) return fold_at_once<Type, Op, 8>(out, in, count, factor);
  }
  if constexpr (Op::kAverages) {
    if (inputs == 1) return fold_at_once<Type, Op, 1>(out, in, count, factor);
  }
  fold_by_blocks<Type, Op>(out, in, inputs, count, factor);
}

template <class Op, class Number>
ECHELON_INLINE Number factor_of(int divisor) {
  if constexpr (Op::kAverages) return Number(1) / Number(divisor);
  return 1;
}

template <class Type, class Op>
ECHELON_CLONES void combine(void* out, const void* const* in, int inputs, std::size_t count,
                            int divisor) {
  fold_all<Type, Op>(out, in, inputs, count, factor_of<Op, typename Type::Number>(divisor));
}

template <class Op>
ECHELON_CLONES void combine_bf16(void* out, const void* const* in, int inputs, std::size_t count,
                                 int divisor) {
  const auto factor = factor_of<Op, float>(divisor);
  if (count % 2 == 1) {
    const auto element = [&](int k) { return static_cast<const Bf16::Stored*>(in[k])[count - 1]; };
    float x = Bf16::load(element(0));
    for (int k = 1; k < inputs; ++k) x = apply<Op>(x, Bf16::load(element(k)));
    static_cast<Bf16::Stored*>(out)[count - 1] = Bf16::store(finish<Op>(x, factor));
  }
  fold_all<Bf16Pair, Op>(out, in, inputs, count / 2, factor);
}

template <class Op>
void combine_f16(void* out, const void* const* in, int inputs, std::size_t count, int divisor) {
  fold_all<F16, Op>(out, in, inputs, count, factor_of<Op, float>(divisor));
}

template <class From, class To>
ECHELON_INLINE void convert_each(const void* in, void* out, std::size_t count) {
  const typename From::Stored* from = static_cast<const typename From::Stored*>(in);
  typename To::Stored* to = static_cast<typename To::Stored*>(out);
  ECHELON_INDEPENDENT
  for (std::size_t i = 0; i < count; ++i) to[i] = To::store(From::load(from[i]));
}

ECHELON_CLONES void widen_bf16(const void* in, void* out, std::size_t count) {
  convert_each<Bf16, Plain<float>>(in, out, count);
}

ECHELON_CLONES void narrow_bf16(const void* in, void* out, std::size_t count) {
  convert_each<Plain<float>, Bf16>(in, out, count);
}

void widen_f16(const void* in, void* out, std::size_t count) {
  convert_each<F16, Plain<float>>(in, out, count);
}

void narrow_f16(const void* in, void* out, std::size_t count) {
  convert_each<Plain<float>, F16>(in, out, count);
}

#if defined(__x86_64__)
// fp16 with the processor's own conversions, eight elements at a time, because GCC does not
// vectorise them. All inputs are read in one pass, since partial results fit into registers.
#define ECHELON_F16C __attribute__((target("avx2,f16c")))

// Until this is set during program start, the portable conversions are used. They give the same
// bits.
const bool has_f16c = [] {
  unsigned a = 0, b = 0, features = 0, d = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &features, &d) != 0 &&
         (features & bit_F16C) != 0;
}();
constexpr std::size_t kEight = 8;

ECHELON_F16C ECHELON_INLINE __m256 load_f16(const void* in, std::size_t at, std::size_t count) {
  const auto* from = static_cast<const char*>(in) + 2 * at;
  __m128i halves = _mm_setzero_si128();
  std::memcpy(&halves, from, 2 * count);
  return _mm256_cvtph_ps(halves);
}

ECHELON_F16C ECHELON_INLINE void store_f16(void* out, std::size_t at, __m256 x, std::size_t count) {
  const __m128i halves = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(static_cast<char*>(out) + 2 * at, &halves, 2 * count);
}

// minps and maxps return the second operand if both are equal or either is NaN.
template <class Op>
ECHELON_F16C ECHELON_INLINE __m256 apply_eight(__m256 a, __m256 b) {
  if constexpr (std::is_base_of_v<Add, Op>) {
    return _mm256_add_ps(a, b);
  } else if constexpr (std::is_same_v<Op, Multiply>) {
    return _mm256_mul_ps(a, b);
  } else {
    const __m256 one = std::is_same_v<Op, Min> ? _mm256_min_ps(b, a) : _mm256_max_ps(b, a);
    return _mm256_blendv_ps(one, b, _mm256_cmp_ps(b, b, _CMP_UNORD_Q));
  }
}

// kVectors vectors from `at` on, of `n` elements each. n is eight, except for the last vector of a
// buffer.
template <class Op, int kVectors>
ECHELON_F16C ECHELON_INLINE void fold_f16c(void* out, const void* const* in, int inputs,
                                           std::size_t at, std::size_t n, __m256 factor) {
  __m256 x[kVectors];
  for (int j = 0; j < kVectors; ++j) x[j] = load_f16(in[0], at + j * kEight, n);
  for (int k = 1; k < inputs; ++k) {
    for (int j = 0; j < kVectors; ++j) {
      x[j] = apply_eight<Op>(x[j], load_f16(in[k], at + j * kEight, n));
    }
  }
  for (int j = 0; j < kVectors; ++j) {
    if constexpr (Op::kAverages) x[j] = _mm256_mul_ps(x[j], factor);
    store_f16(out, at + j * kEight, x[j], n);
  }
}

template <class Op>
ECHELON_F16C void combine_f16c(void* out, const void* const* in, int inputs, std::size_t count,
                               int divisor) {
  const __m256 factor = _mm256_set1_ps(factor_of<Op, float>(divisor));
  std::size_t i = 0;
  for (; count - i >= 4 * kEight; i += 4 * kEight) {
    fold_f16c<Op, 4>(out, in, inputs, i, kEight, factor);
  }
  for (; count - i >= kEight; i += kEight) {
    fold_f16c<Op, 1>(out, in, inputs, i, kEight, factor);
  }
  if (i < count) fold_f16c<Op, 1>(out, in, inputs, i, count - i, factor);
}

ECHELON_F16C void widen_f16c(const void* in, void* out, std::size_t count) {
  auto* to = static_cast<float*>(out);
  std::size_t i = 0;
  for (; count - i >= kEight; i += kEight) _mm256_storeu_ps(to + i, load_f16(in, i, kEight));
  if (i == count) return;
  const __m256 last = load_f16(in, i, count - i);
  std::memcpy(to + i, &last, (count - i) * sizeof(float));
}

ECHELON_F16C void narrow_f16c(const void* in, void* out, std::size_t count) {
  const auto* from = static_cast<const float*>(in);
  std::size_t i = 0;
  for (; count - i >= kEight; i += kEight) store_f16(out, i, _mm256_loadu_ps(from + i), kEight);
  if (i == count) return;
  __m256 last = _mm256_setzero_ps();
  std::memcpy(&last, from + i, (count - i) * sizeof(float));
  store_f16(out, i, last, count - i);
}
#else
constexpr bool has_f16c = false;
template <class Op>
constexpr Kernel combine_f16c = combine_f16<Op>;
constexpr auto widen_f16c = widen_f16, narrow_f16c = narrow_f16;
#endif

// Tables, in the order of ReduceOp.

template <class T>
constexpr Kernel kFloating[] = {combine<Plain<T>, Add>, combine<Plain<T>, AddAndDivide>,
                                combine<Plain<T>, Min>, combine<Plain<T>, Max>,
                                combine<Plain<T>, Multiply>};
constexpr Kernel kF16[] = {combine_f16<Add>, combine_f16<AddAndDivide>, combine_f16<Min>,
                           combine_f16<Max>, combine_f16<Multiply>};
constexpr Kernel kF16c[] = {combine_f16c<Add>, combine_f16c<AddAndDivide>, combine_f16c<Min>,
                            combine_f16c<Max>, combine_f16c<Multiply>};
constexpr Kernel kBf16[] = {combine_bf16<Add>, combine_bf16<AddAndDivide>, combine_bf16<Min>,
                            combine_bf16<Max>, combine_bf16<Multiply>};
template <class T>
constexpr Kernel kInteger[] = {combine<Plain<T>, Add>, nullptr, combine<Plain<T>, Min>,
                               combine<Plain<T>, Max>, combine<Plain<T>, Multiply>};
using Byte = Plain<std::uint8_t>;
constexpr Kernel kBoolean[] = {combine<Byte, Or>, nullptr, combine<Byte, And>, combine<Byte, Or>,
                               combine<Byte, And>};

Kernel kernel_of(DataType type, ReduceOp op) {
  const auto i = std::size_t(op);
  switch (type) {
    case DataType::f64:
      return kFloating<double>[i];
    case DataType::f32:
      return kFloating<float>[i];
    case DataType::f16:
      return has_f16c ? kF16c[i] : kF16[i];
    case DataType::bf16:
      return kBf16[i];
    case DataType::i64:
      return kInteger<std::int64_t>[i];
    case DataType::i32:
      return kInteger<std::int32_t>[i];
    case DataType::i8:
      return kInteger<std::int8_t>[i];
    case DataType::u8:
      return kInteger<std::uint8_t>[i];
    case DataType::boolean:
      return kBoolean[i];
  }
  return nullptr;
}

[[gnu::cold, gnu::noinline]] void refuse(DataType type, ReduceOp op, int inputs, int divisor) {
  check(type, op);
  if (inputs < 1 || inputs > kMostInputs) {
    throw InvalidArgument(fmt::format("a reduction of {} inputs was asked for; allowed: 1 to {}",
                                      inputs, kMostInputs));
  }
  throw InvalidArgument(
      fmt::format("an average was to be divided by {}; the divisor is at least 1", divisor));
}

}  // namespace

void reduce(DataType type, ReduceOp op, void* out, const void* const* in, int inputs,
            std::size_t count, int divisor) {
  const bool averages = op == ReduceOp::average;
  if (unsigned(inputs) - 1 >= unsigned(kMostInputs) ||
      (averages && (divisor < 1 || !is_floating(type)))) {
    refuse(type, op, inputs, divisor);
  }
  if (inputs == 1 && !averages) {
    if (out != in[0] && count > 0) std::memcpy(out, in[0], count * size_of(type));
    return;
  }
  kernel_of(type, op)(out, in, inputs, count, divisor);
}

void scale(DataType type, void* data, std::size_t count, int divisor) {
  const void* in[] = {data};
  reduce(type, ReduceOp::average, data, in, 1, count, divisor);
}

void convert(DataType from, const void* in, DataType to, void* out, std::size_t count) {
  using enum DataType;
  if (from == bf16 && to == f32) return widen_bf16(in, out, count);
  if (from == f32 && to == bf16) return narrow_bf16(in, out, count);
  if (from == f16 && to == f32) return (has_f16c ? widen_f16c : widen_f16)(in, out, count);
  if (from == f32 && to == f16) return (has_f16c ? narrow_f16c : narrow_f16)(in, out, count);
  throw InvalidArgument(
      fmt::format("{} was to be converted to {}; allowed: fp16 or bf16 to fp32 and back",
                  name(from), name(to)));
}

}  // namespace echelon
