// Whether two tensors agree. The message shows where they differ.
#pragma once

#include <cmath>
#include <string>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

namespace echelon {

// Every element must be within `tolerance` times the largest expected value (or 1 if that is
// smaller), because the rounding error of a sum grows with it. A tolerance of 0 requires equal
// values.
inline testing::AssertionResult close(const at::Tensor& actual, const at::Tensor& expected,
                                      double tolerance) {
  if (!actual.defined() || !expected.defined()) {
    return testing::AssertionFailure()
           << (actual.defined() ? "the expected" : "the actual") << " tensor is undefined";
  }
  const auto shape = [](const at::Tensor& t) {
    std::string text = "[";
    for (const auto size : t.sizes()) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
    return text + "]";
  };
  if (actual.sizes() != expected.sizes()) {
    return testing::AssertionFailure()
           << "shape " << shape(actual) << ", expected " << shape(expected);
  }
  const auto doubles = [](const at::Tensor& t) {
    return t.detach().to(at::kCPU, at::kDouble).contiguous();
  };
  const at::Tensor a = doubles(actual), b = doubles(expected);
  const double *x = a.const_data_ptr<double>(), *y = b.const_data_ptr<double>();
  double largest = 1;
  for (std::int64_t i = 0; i < b.numel(); ++i) largest = std::max(largest, std::abs(y[i]));
  std::int64_t wrong = 0, worst = 0;
  double off = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const double difference = std::abs(x[i] - y[i]);
    if (difference <= tolerance * largest || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    if (wrong++ == 0 || difference > off) {
      worst = i;
      off = difference;
    }
  }
  if (wrong == 0) return testing::AssertionSuccess();
  std::string message(160, '\0');
  message.resize(static_cast<std::size_t>(
      std::snprintf(message.data(), message.size(),
                    "%lld of %lld elements differ; the most at %lld: %.17g, expected %.17g",
                    static_cast<long long>(wrong), static_cast<long long>(a.numel()),
                    static_cast<long long>(worst), x[worst], y[worst])));
  return testing::AssertionFailure() << message;
}

}  // namespace echelon
