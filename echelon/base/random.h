// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", 2011). A number is a pure function of a key and a counter, so any rank can make any
// part of a sequence without making the rest: initial weights, sample order and dropout are the
// same under every layout.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace echelon {

using Key = std::uint64_t;

// One block of four independent 32-bit words.
std::array<std::uint32_t, 4> philox(Key key, std::uint64_t counter, std::uint64_t stream = 0);

// Words first, first + 1, ... of a stream: word i is philox(key, i / 4, stream)[i % 4]. Many blocks
// at once, for as many as a tensor has elements.
void fill_words(Key key, std::uint64_t stream, std::uint64_t first, std::span<std::uint32_t> out);

// A key from a seed and what it is for, e.g. a parameter's name. Stable across machines and
// versions.
Key derive_key(std::uint64_t seed, std::string_view purpose);

// Uniform in [0, 1) and standard normal (Box-Muller), element `index` of the sequence of `key`.
// Made with IEEE additions, multiplications, divisions and square roots only, so every machine gets
// the same bits whatever its math library.
double uniform_at(Key key, std::uint64_t index);
double normal_at(Key key, std::uint64_t index);

// Elements first, first + 1, ... of the normal sequence, as mean + stddev * normal_at (rounded once
// more to float), at half the price: two elements share a block. A part of a range gets what the
// whole range would.
void fill_normal(Key key, std::uint64_t first, std::span<float> out, double mean, double stddev);
void fill_normal(Key key, std::uint64_t first, std::span<double> out, double mean, double stddev);

// A permutation of 0..n-1 as a function of position (a Feistel network with cycle walking): every
// index exactly once, nothing stored. n > 0, position < n.
std::uint64_t permute(Key key, std::uint64_t position, std::uint64_t n);

}  // namespace echelon
