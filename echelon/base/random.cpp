// Philox4x32-10: ten rounds of two 32x32-bit multiplications over a 128-bit counter. The low half
// of the counter is the caller's counter, the high half the stream. Each kind of number has its own
// stream, so uniform numbers, normal numbers and permutations of one key are independent.
//
// Normals are generated in pairs (Box-Muller): with u in (0, 1] and v in [0, 1),
//   r = sqrt(-2 ln u),  elements 2k and 2k+1 = r cos(2 pi v), r sin(2 pi v).
// ln, sin and cos are polynomials written out here: math libraries use different code on different
// processors, and ranks would then start with weights that differ in the last bit.
#ifdef __clang__
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC optimize( \
    "fp-contract=off")  // fused multiply-adds round differently, and not all machines have them
#endif

#include "echelon/base/random.h"

#include <bit>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "echelon/base/error.h"

namespace echelon {

namespace {

// Large values, so that no caller's small stream number collides with them.
constexpr std::uint64_t uniform_stream = 0x756e69666f726d00;  // "uniform"
constexpr std::uint64_t normal_stream = 0x6e6f726d616c0000;   // "normal"
constexpr std::uint64_t permute_stream =
    0x7065726d75746500;  // "permute", the round in the last byte
constexpr std::uint64_t derive_stream = 0x6465726976650000;  // "derive"

constexpr std::uint64_t join(std::uint32_t low, std::uint32_t high) {
  return static_cast<std::uint64_t>(high) << 32 | low;
}

std::array<std::uint32_t, 4> philox_block(Key key, std::uint64_t counter, std::uint64_t stream) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  auto c0 = static_cast<std::uint32_t>(counter);
  auto c1 = static_cast<std::uint32_t>(counter >> 32);
  auto c2 = static_cast<std::uint32_t>(stream);
  auto c3 = static_cast<std::uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * c0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(product1);
    c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(product0);
    k0 += 0x9E3779B9;  // the golden ratio
    k1 += 0xBB67AE85;  // sqrt(3) - 1
  }
  return {c0, c1, c2, c3};
}

// first + x (second + x (third + ...)).
template <double first, double... rest>
double polynomial(double x) {
  if constexpr (sizeof...(rest) == 0) {
    return first;
  } else {
    return first + x * polynomial<rest...>(x);
  }
}

// ln(count / 2^53) for 1 <= count <= 2^53. With count = 2^e z, z in [sqrt(1/2), sqrt(2)), and
// f = (z-1)/(z+1):
//   ln z = 2 (f + f^3/3 + f^5/5 + ...),  |f| < 0.172, so f^27/27 is below the last bit.
double log_of_fraction(std::uint64_t count) {
  const auto bits = std::bit_cast<std::uint64_t>(static_cast<double>(count));
  double z = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFF) | 0x3FF0000000000000);  // in [1, 2)
  double exponent = static_cast<double>(static_cast<int>(bits >> 52) - 1023 - 53);
  if (z > std::numbers::sqrt2) {
    z *= 0.5;
    exponent += 1;
  }
  const double f = (z - 1) / (z + 1);
  const double s = f * f;
  const double series = polynomial<1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15,
                                   1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25>(s);
  return exponent * std::numbers::ln2 + 2 * (f + f * s * series);
}

struct Pair {
  double even;
  double odd;
};

// cos and sin of 2 pi bits / 2^64. The top two bits and the rounding choose the quadrant. The rest
// is an angle of at most pi/4, where the Taylor series to x^17 is exact to the last bit.
Pair cos_and_sin(std::uint64_t bits) {
  const auto signed_rest = static_cast<std::int64_t>(bits << 2) >> 11;  // 53 bits, in [-2^52, 2^52)
  const double x = static_cast<double>(signed_rest) * (std::numbers::pi / 2 * 0x1p-53);
  const double s = x * x;
  const double sine =
      x * polynomial<1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800,
                     1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000>(s);
  const double cosine = polynomial<1.0, -1.0 / 2, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800,
                                   1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000>(s);
  const std::uint64_t quadrant = bits >> 62;
  const double a = quadrant & 1 ? sine : cosine;
  const double b = quadrant & 1 ? cosine : sine;
  return {quadrant == 1 || quadrant == 2 ? -a : a, quadrant >= 2 ? -b : b};
}

// Elements 2k and 2k+1.
Pair normal_pair(Key key, std::uint64_t k) {
  const auto word = philox_block(key, k, normal_stream);
  const double r = std::sqrt(-2 * log_of_fraction((join(word[0], word[1]) >> 11) + 1));
  const auto [cosine, sine] = cos_and_sin(join(word[2], word[3]));
  return {r * cosine, r * sine};
}

template <class T>
void fill(Key key, std::uint64_t first, std::span<T> out, double mean, double stddev) {
  const auto scaled = [=](double normal) { return static_cast<T>(mean + stddev * normal); };
  std::size_t i = 0;
  if (first % 2 == 1 && !out.empty()) out[i++] = scaled(normal_pair(key, first / 2).odd);
  for (; i + 1 < out.size(); i += 2) {
    const auto pair = normal_pair(key, (first + i) / 2);
    out[i] = scaled(pair.even);
    out[i + 1] = scaled(pair.odd);
  }
  if (i < out.size()) out[i] = scaled(normal_pair(key, (first + i) / 2).even);
}

}  // namespace

std::array<std::uint32_t, 4> philox(Key key, std::uint64_t counter, std::uint64_t stream) {
  return philox_block(key, counter, stream);
}

// FNV-1a hashes the text to a number. Philox derives a key from this number and the seed.
Key derive_key(std::uint64_t seed, std::string_view purpose) {
  std::uint64_t hash = 0xCBF29CE484222325;
  for (const char c : purpose) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3;
  const auto word = philox_block(seed, hash, derive_stream);
  return join(word[0], word[1]);
}

double uniform_at(Key key, std::uint64_t index) {
  const auto word = philox_block(key, index / 2, uniform_stream);
  const auto bits = index % 2 == 0 ? join(word[0], word[1]) : join(word[2], word[3]);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

double normal_at(Key key, std::uint64_t index) {
  const auto pair = normal_pair(key, index / 2);
  return index % 2 == 0 ? pair.even : pair.odd;
}

void fill_normal(Key key, std::uint64_t first, std::span<float> out, double mean, double stddev) {
  fill(key, first, out, mean, stddev);
}

void fill_normal(Key key, std::uint64_t first, std::span<double> out, double mean, double stddev) {
  fill(key, first, out, mean, stddev);
}

// A Feistel network permutes 0..4^h-1, the smallest such range that holds n: each round mixes one
// half of the bits into the other. A result of n or more is permuted again (cycle walking): the
// cycle returns to a value below n, so the map of these values onto themselves is a permutation.
// The range has at most 4 n values: at most 4 passes on average.
std::uint64_t permute(Key key, std::uint64_t position, std::uint64_t n) {
  if (position >= n) {
    throw InvalidArgument(fmt::format(
        "permute needs a position below n, but position {} of {} was given", position, n));
  }
  if (n == 1) return 0;
  const int half = (std::bit_width(n - 1) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  std::uint64_t value = position;
  do {
    std::uint64_t left = value >> half;
    std::uint64_t right = value & mask;
    for (std::uint64_t round = 0; round < 8; ++round) {
      const auto mixed = left ^ (philox_block(key, right, permute_stream + round)[0] & mask);
      left = right;
      right = mixed;
    }
    value = left << half | right;
  } while (value >= n);
  return value;
}

}  // namespace echelon
