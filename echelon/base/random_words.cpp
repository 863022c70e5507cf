// Philox over many counters in parallel: every round is one loop over the lanes, which the compiler
// turns into vector instructions of the processor.
#include <algorithm>
#include <array>
#include <cstddef>

#include "echelon/base/random.h"
#include "echelon/kernels/cpu/clones.h"

namespace echelon {
namespace {

constexpr std::size_t lanes = 64;

// The words of blocks block, block + 1, ..., block + lanes - 1.
ECHELON_CLONES void fill_lanes(Key key, std::uint64_t stream, std::uint64_t block,
                               std::uint32_t* out) {
  std::array<std::uint32_t, lanes> c0, c1, c2, c3;
  for (std::size_t i = 0; i < lanes; ++i) {
    c0[i] = static_cast<std::uint32_t>(block + i);
    c1[i] = static_cast<std::uint32_t>((block + i) >> 32);
    c2[i] = static_cast<std::uint32_t>(stream);
    c3[i] = static_cast<std::uint32_t>(stream >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < lanes; ++i) {
      const std::uint64_t product0 = std::uint64_t{0xD2511F53} * c0[i];
      const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * c2[i];
      c0[i] = static_cast<std::uint32_t>(product1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<std::uint32_t>(product1);
      c2[i] = static_cast<std::uint32_t>(product0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<std::uint32_t>(product0);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  for (std::size_t i = 0; i < lanes; ++i) {
    out[4 * i] = c0[i];
    out[4 * i + 1] = c1[i];
    out[4 * i + 2] = c2[i];
    out[4 * i + 3] = c3[i];
  }
}

}  // namespace

void fill_words(Key key, std::uint64_t stream, std::uint64_t first, std::span<std::uint32_t> out) {
  std::array<std::uint32_t, 4 * lanes> some;
  while (!out.empty()) {
    const std::size_t skipped = first % 4;
    if (skipped == 0 && out.size() >= some.size()) {
      fill_lanes(key, stream, first / 4, out.data());
      out = out.subspan(some.size());
      first += some.size();
      continue;
    }
    fill_lanes(key, stream, first / 4, some.data());
    const std::size_t n = std::min(out.size(), some.size() - skipped);
    std::copy_n(some.begin() + std::ptrdiff_t(skipped), n, out.begin());
    out = out.subspan(n);
    first += n;
  }
}

}  // namespace echelon
