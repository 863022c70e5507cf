// Against a scalar reference that shares nothing with the library: numbers are decoded with ldexp,
// computed in a type of more than twice the digits and rounded after each step (which gives the
// correctly rounded sum and product), and encoded by scaling to an integer.
#include "echelon/collective/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using enum DataType;

#if LDBL_MANT_DIG >= 2 * DBL_MANT_DIG + 2
using Wide = long double;
#else
using Wide = __float128;
#endif

constexpr DataType kTypes[] = {f64, f32, f16, bf16, i64, i32, i8, u8, boolean};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max,
                             ReduceOp::product};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Elements as bits, in the low bytes.
using Bits = std::uint64_t;
using Bytes = std::vector<unsigned char>;

Bits element(DataType type, const void* data, std::size_t i) {
  Bits bits = 0;
  std::memcpy(&bits, static_cast<const char*>(data) + i * size_of(type), size_of(type));
  return bits;
}

void set_element(DataType type, void* data, std::size_t i, Bits bits) {
  std::memcpy(static_cast<char*>(data) + i * size_of(type), &bits, size_of(type));
}

struct Format {
  int digits;   // after the point
  int minimum;  // exponent of the smallest normal number
};

constexpr Format format_of(DataType type) {
  return type == f16 ? Format{10, -14} : type == bf16 ? Format{7, -126} : Format{23, -126};
}

// fp16, bf16 and fp32 by the definition of the format.
double decode_by_definition(DataType type, Bits bits) {
  const auto [digits, minimum] = format_of(type);
  const Bits sign = Bits(1) << (8 * size_of(type) - 1), magnitude = bits & (sign - 1);
  const int exponent = int(magnitude >> digits), highest = 1 - 2 * (minimum - 1);
  const auto fraction = double(magnitude & ((Bits(1) << digits) - 1));
  double value = std::ldexp(fraction, minimum - digits);
  if (exponent > 0)
    value = std::ldexp(fraction + std::ldexp(1, digits), exponent - 1 + minimum - digits);
  if (exponent == highest) value = fraction == 0 ? kInfinity : kNan;
  return bits & sign ? -value : value;
}

Bits encode_by_definition(DataType type, double value) {
  const auto [digits, minimum] = format_of(type);
  const Bits sign = std::signbit(value) ? Bits(1) << (8 * size_of(type) - 1) : 0;
  const Bits infinity = Bits(1 - 2 * (minimum - 1)) << digits;
  if (std::isnan(value)) return infinity + (Bits(1) << (digits - 1));
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return sign | infinity;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), minimum);
  const auto places = Bits(std::nearbyint(std::ldexp(magnitude, digits - exponent)));
  return sign | std::min(infinity, (Bits(exponent - minimum) << digits) + places);
}

double decode(DataType type, Bits bits) {
  if (type == f64) return std::bit_cast<double>(bits);
  return decode_by_definition(type, bits);
}

Bits encode(DataType type, double value) {
  if (type == f64) return std::bit_cast<Bits>(value);
  return encode_by_definition(type, value);
}

// Accumulator is the type that is rounded to, Exact the one that is computed in.
template <class Accumulator, class Exact>
Accumulator combined(ReduceOp op, const std::vector<double>& x, int divisor) {
  auto result = Accumulator(x[0]);
  for (std::size_t k = 1; k < x.size(); ++k) {
    const auto next = Accumulator(x[k]);
    const bool nan = std::isnan(result) || std::isnan(next);
    if (op == ReduceOp::product) {
      result = Accumulator(Exact(result) * Exact(next));
    } else if (op == ReduceOp::min || op == ReduceOp::max) {
      const bool better = op == ReduceOp::min ? result > next : result < next;
      result = nan ? Accumulator(kNan) : better ? next : result;
    } else {
      result = Accumulator(Exact(result) + Exact(next));
    }
  }
  if (op != ReduceOp::average) return result;
  return Accumulator(Exact(result) * Exact(Accumulator(Exact(1) / Exact(divisor))));
}

Bits combined_integers(DataType type, ReduceOp op, const std::vector<Bits>& x) {
  const int unused = 64 - 8 * int(size_of(type));
  const auto value = [&](Bits bits) {
    return type == u8 ? std::int64_t(bits) : std::int64_t(bits << unused) >> unused;
  };
  Bits result = x[0];
  for (std::size_t k = 1; k < x.size(); ++k) {
    if (op == ReduceOp::sum) result += x[k];
    if (op == ReduceOp::product) result *= x[k];
    result = result << unused >> unused;
    if (op == ReduceOp::min && value(x[k]) < value(result)) result = x[k];
    if (op == ReduceOp::max && value(x[k]) > value(result)) result = x[k];
  }
  return result;
}

Bits expected(DataType type, ReduceOp op, const std::vector<Bits>& x, int divisor) {
  if (type == boolean) {
    const auto set = std::size_t(std::count(x.begin(), x.end(), Bits(1)));
    return op == ReduceOp::sum || op == ReduceOp::max ? set > 0 : set == x.size();
  }
  if (!is_floating(type)) return combined_integers(type, op, x);
  if (x.size() == 1 && op != ReduceOp::average) return x[0];
  std::vector<double> values;
  for (const Bits bits : x) values.push_back(decode(type, bits));
  if (type == f64) return encode(type, combined<double, Wide>(op, values, divisor));
  return encode(type, combined<float, double>(op, values, divisor));
}

bool is_nan(DataType type, Bits bits) {
  return is_floating(type) && std::isnan(decode(type, bits));
}

// Numbers of many sizes, so that each order of summing rounds differently, and a few special ones.
Bits draw(DataType type, std::mt19937& random) {
  if (type == boolean) return random() % 4 > 0;
  if (!is_floating(type)) return (Bits(random()) << 32 | random()) >> (64 - 8 * size_of(type));
  if (random() % 256 == 0) {
    constexpr double kSpecial[] = {kNan, kInfinity, -kInfinity, -0.0, 0.0, 0x1p-24, 65504};
    return encode(type, kSpecial[random() % std::size(kSpecial)]);
  }
  const double fraction = 1 + double(random()) * 0x1p-32 + double(random()) * 0x1p-64;
  const double value = std::ldexp(fraction, int(random() % 13) - 6);
  return encode(type, random() % 2 ? value : -value);
}

Bytes draw(DataType type, std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) set_element(type, bytes.data(), i, draw(type, random));
  return bytes;
}

std::vector<Bytes> draw_inputs(DataType type, int inputs, std::size_t count) {
  std::vector<Bytes> result;
  for (int k = 0; k < inputs; ++k) result.push_back(draw(type, count, 1000 * unsigned(type) + k));
  return result;
}

std::vector<const void*> pointers(const std::vector<Bytes>& inputs, std::size_t offset = 0) {
  std::vector<const void*> result;
  for (const auto& input : inputs) result.push_back(input.data() + offset);
  return result;
}

bool allowed(DataType type, ReduceOp op) { return op != ReduceOp::average || is_floating(type); }

// One element a number, in `type`.
Bytes encoded(DataType type, const std::vector<double>& values) {
  Bytes bytes(values.size() * size_of(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    set_element(type, bytes.data(), i, encode(type, values[i]));
  }
  return bytes;
}

// What reduce makes of one element of each input.
double reduced(DataType type, ReduceOp op, const std::vector<double>& values, int divisor = 1) {
  std::vector<Bytes> inputs;
  for (const double value : values) inputs.push_back(encoded(type, {value}));
  Bytes out(size_of(type));
  reduce(type, op, out.data(), pointers(inputs).data(), int(values.size()), 1, divisor);
  return decode(type, element(type, out.data(), 0));
}

void compare_with_reference(DataType type, ReduceOp op, int inputs) {
  constexpr std::size_t kMost = 4099;
  const auto data = draw_inputs(type, inputs, kMost);
  std::vector<Bits> right(kMost), x(inputs);
  for (std::size_t i = 0; i < kMost; ++i) {
    for (int k = 0; k < inputs; ++k) x[k] = element(type, data[k].data(), i);
    right[i] = expected(type, op, x, inputs);
  }
  for (const std::size_t count : {0u, 1u, 3u, 16u, 17u, 1000u, 4099u}) {
    const std::size_t bytes = count * size_of(type);
    for (const bool aligned : {true, false}) {
      std::vector<Bytes> moved = data;
      std::vector<const void*> in;
      for (int k = 0; k < inputs; ++k) {
        const std::size_t offset = aligned ? 0 : 1 + k % 3;
        moved[k].insert(moved[k].begin(), offset, 0xee);
        in.push_back(moved[k].data() + offset);
      }
      Bytes out(bytes + 16, 0xaa);
      unsigned char* start = out.data() + (aligned ? 0 : 3);
      reduce(type, op, start, in.data(), inputs, count, inputs);
      for (std::size_t i = 0; i < count; ++i) {
        const Bits got = element(type, start, i);
        ASSERT_TRUE(got == right[i] || (is_nan(type, got) && is_nan(type, right[i])))
            << name(type) << " " << name(op) << " of " << inputs << " inputs, element " << i
            << " of " << count << (aligned ? "" : ", unaligned") << std::hex << ": got " << got
            << ", expected " << right[i];
      }
      for (auto* p = out.data(); p != out.data() + out.size(); ++p) {
        const bool inside = p >= start && p < start + bytes;
        ASSERT_TRUE(inside || *p == 0xaa) << "written outside of out";
      }
    }
  }
}

TEST(Reduce, MatchesTheReferenceForEveryTypeOperationAndNumberOfInputs) {
  for (const auto type : kTypes) {
    for (const auto op : kOps) {
      if (!allowed(type, op)) continue;
      for (const int inputs : {1, 2, 3, 4, 5, 8, 17, 64}) compare_with_reference(type, op, inputs);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Reduce, GivesTheSameBitsHoweverABufferIsCut) {
  constexpr std::size_t kCount = 3001;
  for (const auto type : kTypes) {
    for (const auto op : kOps) {
      for (const int inputs : {1, 2, 3, 4, 7, 8, 13}) {
        if (!allowed(type, op)) continue;
        const auto data = draw_inputs(type, inputs, kCount);
        Bytes whole(data[0].size()), pieces(data[0].size());
        reduce(type, op, whole.data(), pointers(data).data(), inputs, kCount, 3);
        for (const std::size_t piece : {1u, 7u, 64u, 333u}) {
          for (std::size_t start = 0; start < kCount; start += piece) {
            const std::size_t offset = start * size_of(type);
            reduce(type, op, pieces.data() + offset, pointers(data, offset).data(), inputs,
                   std::min(piece, kCount - start), 3);
          }
          ASSERT_EQ(whole, pieces) << name(type) << " " << name(op) << " of " << inputs
                                   << " inputs in pieces of " << piece;
        }
      }
    }
  }
}

TEST(Reduce, WritesOverAnyOfItsInputs) {
  constexpr std::size_t kCount = 2500;
  for (const auto type : kTypes) {
    for (const auto op : kOps) {
      for (const int inputs : {1, 2, 3, 4, 6, 8, 11}) {
        if (!allowed(type, op)) continue;
        const auto data = draw_inputs(type, inputs, kCount);
        Bytes apart(data[0].size());
        reduce(type, op, apart.data(), pointers(data).data(), inputs, kCount, 5);
        for (int k = 0; k < inputs; ++k) {
          auto copy = data;
          reduce(type, op, copy[k].data(), pointers(copy).data(), inputs, kCount, 5);
          ASSERT_EQ(apart, copy[k])
              << name(type) << " " << name(op) << " of " << inputs << " inputs into input " << k;
        }
      }
    }
  }
}

TEST(Reduce, SumsInTheOrderGiven) {
  EXPECT_EQ(reduced(f32, ReduceOp::sum, {0x1p24, 1, 1}), 0x1p24);
  EXPECT_EQ(reduced(f32, ReduceOp::sum, {1, 1, 0x1p24}), 0x1p24 + 2);
  EXPECT_EQ(reduced(f64, ReduceOp::sum, {0x1p53, 1, 1, 1, 1}), 0x1p53);
  EXPECT_EQ(reduced(f64, ReduceOp::sum, {1, 1, 1, 1, 0x1p53}), 0x1p53 + 4);
}

TEST(Reduce, TakesAThousandInputsAndNoMore) {
  const float one = 1;
  const std::vector<const void*> in(kMostInputs + 1, &one);
  float out = 0;
  reduce(f32, ReduceOp::sum, &out, in.data(), kMostInputs, 1);
  EXPECT_EQ(out, 1024);
  const auto refused = [&](int inputs) {
    return thrown<InvalidArgument>([&] { reduce(f32, ReduceOp::sum, &out, in.data(), inputs, 1); });
  };
  EXPECT_EQ(refused(kMostInputs + 1),
            "a reduction of 1025 inputs was asked for; allowed: 1 to 1024");
  EXPECT_EQ(refused(0), "a reduction of 0 inputs was asked for; allowed: 1 to 1024");
  EXPECT_EQ(refused(-1), "a reduction of -1 inputs was asked for; allowed: 1 to 1024");
}

TEST(Reduce, GivesNanWhenAnyInputIsNanWhereverItStands) {
  for (const auto type : {f64, f32, f16, bf16}) {
    for (const auto op : kOps) {
      for (const std::size_t inputs : {2u, 3u, 4u, 5u, 8u, 9u}) {
        for (std::size_t k = 0; k < inputs; ++k) {
          std::vector<double> values(inputs, 1);
          values[k] = kNan;
          EXPECT_TRUE(std::isnan(reduced(type, op, values)))
              << name(type) << " " << name(op) << ", NaN in input " << k << " of " << inputs;
        }
      }
    }
  }
}

TEST(Reduce, CarriesInfinities) {
  for (const auto type : {f64, f32, f16, bf16}) {
    EXPECT_EQ(reduced(type, ReduceOp::sum, {1, kInfinity}), kInfinity) << name(type);
    EXPECT_EQ(reduced(type, ReduceOp::min, {1, -kInfinity}), -kInfinity) << name(type);
    EXPECT_EQ(reduced(type, ReduceOp::max, {-kInfinity, 1}), 1) << name(type);
    EXPECT_TRUE(std::isnan(reduced(type, ReduceOp::sum, {kInfinity, -kInfinity}))) << name(type);
    EXPECT_TRUE(std::isnan(reduced(type, ReduceOp::product, {0, kInfinity}))) << name(type);
  }
  EXPECT_EQ(reduced(f16, ReduceOp::sum, {65504, 16}), kInfinity);
  EXPECT_EQ(reduced(f16, ReduceOp::sum, {65504, 15}), 65504);
}

TEST(Reduce, KeepsTheSignOfZero) {
  for (const auto type : {f64, f32, f16, bf16}) {
    EXPECT_TRUE(std::signbit(reduced(type, ReduceOp::sum, {-0.0, -0.0}))) << name(type);
    EXPECT_FALSE(std::signbit(reduced(type, ReduceOp::sum, {-0.0, 0.0}))) << name(type);
    EXPECT_TRUE(std::signbit(reduced(type, ReduceOp::average, {-0.0, -0.0}, 2))) << name(type);
    for (const auto op : {ReduceOp::min, ReduceOp::max}) {
      EXPECT_TRUE(std::signbit(reduced(type, op, {-0.0, 0.0}))) << name(type) << " " << name(op);
      EXPECT_FALSE(std::signbit(reduced(type, op, {0.0, -0.0}))) << name(type) << " " << name(op);
    }
  }
}

TEST(Reduce, RoundsBf16OnceAtTheEnd) {
  // Next to 256 bf16 has even numbers alone: rounded after each step, the ones would be lost.
  EXPECT_EQ(reduced(bf16, ReduceOp::sum, {256, 1, 1, 1, 1}), 260);
  EXPECT_EQ(reduced(bf16, ReduceOp::sum, std::vector<double>(17, 1 + 0x1p-7)), 17.125);
  // The sum does not fit; the average does.
  EXPECT_EQ(reduced(f16, ReduceOp::average, {65504, 65504}, 2), 65504);
}

TEST(Reduce, RoundsFp16OnceAtTheEnd) {
  EXPECT_EQ(reduced(f16, ReduceOp::sum, {2048, 1, 1, 1, 1}), 2052);
  EXPECT_EQ(reduced(f16, ReduceOp::sum, {65504, 65504, -65504}), 65504);
}

TEST(Reduce, BreaksTiesToEven) {
  EXPECT_EQ(reduced(bf16, ReduceOp::sum, {256, 1}), 256);
  EXPECT_EQ(reduced(bf16, ReduceOp::sum, {258, 1}), 260);
  EXPECT_EQ(reduced(bf16, ReduceOp::sum, {-258, -1}), -260);
  EXPECT_EQ(reduced(f16, ReduceOp::sum, {2048, 1}), 2048);
  EXPECT_EQ(reduced(f16, ReduceOp::sum, {2050, 1}), 2052);
  EXPECT_EQ(reduced(f16, ReduceOp::sum, {-2050, -1}), -2052);
}

TEST(Reduce, WrapsIntegers) {
  const std::int32_t a = std::numeric_limits<std::int32_t>::max(), b = 1;
  const void* in[] = {&a, &b};
  std::int32_t out = 0;
  reduce(i32, ReduceOp::sum, &out, in, 2, 1);
  EXPECT_EQ(out, std::numeric_limits<std::int32_t>::min());
}

TEST(Reduce, TreatsBoolsAsOrAndAnd) {
  const Bytes a = {0, 0, 1, 1}, b = {0, 1, 0, 1};
  const void* in[] = {a.data(), b.data()};
  const Bytes either = {0, 1, 1, 1}, both = {0, 0, 0, 1};
  Bytes out(4);
  for (const auto& [op, right] : {std::pair(ReduceOp::sum, either),
                                  {ReduceOp::max, either},
                                  {ReduceOp::product, both},
                                  {ReduceOp::min, both}}) {
    reduce(boolean, op, out.data(), in, 2, out.size());
    EXPECT_EQ(out, right) << name(op);
  }
}

TEST(Reduce, AveragesExactlyByPowersOfTwoAndByTheReciprocalOtherwise) {
  EXPECT_EQ(reduced(f32, ReduceOp::average, {1, 2, 4, 8}, 4), 3.75);
  EXPECT_EQ(reduced(f32, ReduceOp::average, {5, 5}, 10), double(10 * (1.f / 10)));
  EXPECT_EQ(reduced(f32, ReduceOp::average, {40, 1}, 41), double(41 * (1.f / 41)));
  EXPECT_EQ(reduced(f64, ReduceOp::average, {40, 9}, 49), 1 - 0x1p-53);  // not quite 49 / 49
}

TEST(Reduce, RefusesAveragesThatHaveNoMeaning) {
  std::int32_t x = 0;
  const void* in[] = {&x, &x};
  EXPECT_EQ(thrown<InvalidArgument>([&] { reduce(i32, ReduceOp::average, &x, in, 2, 1, 2); }),
            "an average of int32 would have to be rounded; use sum, or a floating-point type");
  EXPECT_EQ(thrown<InvalidArgument>([&] { reduce(f32, ReduceOp::average, &x, in, 2, 1, 0); }),
            "an average was to be divided by 0; the divisor is at least 1");
  EXPECT_EQ(thrown<InvalidArgument>([&] { scale(boolean, &x, 1, 2); }),
            "an average of bool would have to be rounded; use sum, or a floating-point type");
}

TEST(Reduce, TouchesNothingWhenThereIsNothing) {
  const void* in[] = {nullptr, nullptr, nullptr};
  for (const auto type : kTypes) {
    for (const int inputs : {1, 2, 3}) {
      reduce(type, ReduceOp::sum, nullptr, in, inputs, 0);
    }
  }
  for (const auto type : {f16, bf16}) {
    convert(type, nullptr, f32, nullptr, 0);
    convert(f32, nullptr, type, nullptr, 0);
  }
}

TEST(Scale, FinishesASumToTheBitsOfAnAverage) {
  for (const auto type : {f64, f32}) {
    const auto data = draw_inputs(type, 3, 1001);
    Bytes average(data[0].size()), sum(data[0].size());
    reduce(type, ReduceOp::average, average.data(), pointers(data).data(), 3, 1001, 3);
    reduce(type, ReduceOp::sum, sum.data(), pointers(data).data(), 3, 1001);
    scale(type, sum.data(), 1001, 3);
    EXPECT_EQ(average, sum) << name(type);
  }
}

TEST(Convert, TakesEveryFp16AndBf16ToFp32AndBack) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = std::uint16_t(i);
  for (const auto type : {f16, bf16}) {
    std::vector<float> wide(all.size());
    std::vector<std::uint16_t> back(all.size());
    convert(type, all.data(), f32, wide.data(), all.size());
    convert(f32, wide.data(), type, back.data(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double right = decode(type, i);
      if (std::isnan(right)) {
        ASSERT_TRUE(std::isnan(wide[i]) && is_nan(type, back[i])) << name(type) << " " << i;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), encode(f32, right))
            << name(type) << " " << i;
        ASSERT_EQ(back[i], i) << name(type);
      }
    }
  }
}

// Around each boundary between two neighbours, where rounding decides, and at random.
TEST(Convert, RoundsFp32ToNearestEven) {
  std::mt19937 random(7);
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 65536; ++upper) {
    for (const std::uint32_t lower :
         {0x7fffu, 0x8000u, 0x8001u, std::uint32_t(random() & 0xffff)}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));  // halves of bf16
    }
    const double half = decode(f16, upper), next = decode(f16, (upper + 1) & 0xffff);
    const auto middle = float((half + next) / 2);
    for (const float value : {middle, std::nextafter(middle, 0.f), std::nextafter(middle, 1e9f)}) {
      values.push_back(value);
    }
  }
  for (const float value : {65519.996f, 65520.f, 65536.f, 0x1p-25f, 0x1.000002p-25f, 0x1p-149f}) {
    values.push_back(value);
    values.push_back(-value);
  }
  for (const auto type : {f16, bf16}) {
    std::vector<std::uint16_t> rounded(values.size());
    convert(f32, values.data(), type, rounded.data(), values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Bits right = encode(type, values[i]);
      ASSERT_TRUE(rounded[i] == right || (std::isnan(values[i]) && is_nan(type, rounded[i])))
          << values[i] << " to " << name(type) << std::hex << ": got " << rounded[i]
          << ", expected " << right;
    }
  }
}

TEST(Convert, WorksAtAnyCountAndAddress) {
  for (const auto type : {f16, bf16}) {
    for (std::size_t count = 0; count < 70; ++count) {
      const Bytes narrow = draw(type, count, 3);
      Bytes in(1, 0), wide(4 * count + 2, 0xaa), back(2 * count + 2, 0xaa);
      in.insert(in.end(), narrow.begin(), narrow.end());
      convert(type, in.data() + 1, f32, wide.data() + 1, count);
      convert(f32, wide.data() + 1, type, back.data() + 1, count);
      EXPECT_EQ(Bytes(back.begin() + 1, back.end() - 1), narrow) << name(type) << " " << count;
      EXPECT_EQ(back.front() + back.back() + wide.front() + wide.back(), 4 * 0xaa);
    }
  }
}

TEST(Convert, RefusesOtherPairs) {
  float x = 0;
  EXPECT_EQ(thrown<InvalidArgument>([&] { convert(f16, &x, bf16, &x, 1); }),
            "fp16 was to be converted to bf16; allowed: fp16 or bf16 to fp32 and back");
  EXPECT_EQ(thrown<InvalidArgument>([&] { convert(f32, &x, f32, &x, 1); }),
            "fp32 was to be converted to fp32; allowed: fp16 or bf16 to fp32 and back");
}

TEST(Type, ReadsBackItsNames) {
  for (const auto type : kTypes) EXPECT_EQ(parse_data_type(name(type)), type) << name(type);
  for (const auto op : kOps) EXPECT_EQ(parse_reduce_op(name(op)), op) << name(op);
  EXPECT_EQ(
      thrown<InvalidArgument>([] { parse_data_type("float"); }),
      "\"float\" is no type of elements; allowed: fp64, fp32, fp16, bf16, int64, int32, int8, "
      "uint8, bool");
  EXPECT_EQ(thrown<InvalidArgument>([] { parse_reduce_op("mean"); }),
            "\"mean\" is no reduction; allowed: sum, average, min, max, product");
}

}  // namespace
}  // namespace echelon
