// Numbers for the tests of kernels, the same on every machine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace echelon::kernels {

// In [-1, 1).
template <class T = float>
std::vector<T> noise(std::int64_t count, std::uint32_t seed) {
  std::vector<T> out(static_cast<std::size_t>(count));
  std::uint32_t state = seed * 2654435761u + 1;
  for (T& x : out) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<T>(static_cast<double>(state >> 8) / (1 << 23) - 1);
  }
  return out;
}

// Expects every element within `tolerance` times the largest expected value, or times 1 if that is
// smaller.
template <class T, class Expected>
testing::AssertionResult close(const std::vector<T>& actual, const std::vector<Expected>& expected,
                               double tolerance) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure()
           << actual.size() << " elements, expected " << expected.size();
  }
  double largest = 1;
  for (const auto x : expected) largest = std::max(largest, std::abs(static_cast<double>(x)));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const auto x = static_cast<double>(actual[i]), y = static_cast<double>(expected[i]);
    if (std::abs(x - y) <= tolerance * largest) continue;
    char text[80];
    std::snprintf(text, sizeof text, "%.17g, expected %.17g", x, y);
    return testing::AssertionFailure() << "element " << i << " is " << text;
  }
  return testing::AssertionSuccess();
}

}  // namespace echelon::kernels
