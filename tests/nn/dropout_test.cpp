#include "echelon/nn/dropout.h"

#include <cmath>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/models/gpt2/gpt2.h"
#include "tests/base/thrown.h"
#include "tests/nn/close.h"

namespace echelon {
namespace {

at::Tensor step_of(std::int64_t step) { return at::zeros({}, at::kLong).fill_(step); }

Pass pass_of(std::uint64_t seed, std::int64_t step, std::int64_t first_sample = 0) {
  Pass pass;
  pass.draw = {seed, step_of(step), first_sample};
  return pass;
}

// Which elements are kept: applies dropout to ones and tests which are not zero afterwards.
at::Tensor mask(const std::string& place, std::uint64_t seed, std::int64_t step, double share,
                std::int64_t samples, std::int64_t each, std::int64_t first_sample = 0) {
  const Dropout dropout(share, place);
  return dropout.forward(at::ones({samples, each}), pass_of(seed, step, first_sample)).ne(0);
}

double total(const at::Tensor& t) { return t.sum().item<double>(); }

// For n draws, each true with probability p: how many standard deviations the count is off.
double deviations(double count, double n, double p) {
  return std::abs(count - n * p) / std::sqrt(n * p * (1 - p));
}
// A deviation of 5 happens by chance in 6e-7 of cases. The draws are fixed, so a test that passes
// once always passes.
constexpr double bound = 5;

TEST(Dropout, DropsItsShareAndKeepsTheMean) {
  constexpr std::int64_t n = 1 << 20;
  for (const double share : {0.01, 0.1, 0.5, 0.9}) {
    const at::Tensor stays = mask("here", 1, 0, share, 1, n);
    EXPECT_LT(deviations(total(stays), n, 1 - share), bound) << share;
    const at::Tensor ones =
        Dropout(share, "here").forward(at::ones({1, n}, at::kDouble), pass_of(1, 0));
    // The mean of n values that are 1/(1-share) or 0 has the variance share/(1-share)/n.
    EXPECT_NEAR(total(ones) / n, 1, bound * std::sqrt(share / (1 - share) / n)) << share;
  }
}

// Two masks are independent: both drop an element as often as the product of their shares predicts.
TEST(Dropout, DrawsIndependentlyForElementsStepsPlacesAndSeeds) {
  constexpr std::int64_t n = 1 << 20;
  constexpr double share = 0.3;
  const at::Tensor one = mask("here", 1, 5, share, 1, n).logical_not().view({-1});
  const auto together = [&](const at::Tensor& other, const std::string& what) {
    const auto count = static_cast<double>(other.numel());
    const at::Tensor both = one.narrow(0, 0, other.numel()).logical_and(other);
    EXPECT_LT(deviations(total(both), count, share * share), bound) << what;
  };
  for (const std::int64_t lag : {1, 2, 3, 4, 5, 8, 64, 256, 1024})
    together(one.narrow(0, lag, n - lag), "elements apart by " + std::to_string(lag));
  const auto dropped = [&](const char* place, std::uint64_t seed, std::int64_t step) {
    return mask(place, seed, step, share, 1, n).logical_not().view({-1});
  };
  together(dropped("here", 1, 6), "the next step");
  together(dropped("here", 1, (std::int64_t{1} << 32) + 5), "a step of the same low word");
  together(dropped("there", 1, 5), "another place");
  together(dropped("here", 2, 5), "another seed");
}

TEST(Dropout, GivesASampleTheSameMaskHoweverTheBatchIsCut) {
  constexpr std::int64_t samples = 24;
  for (const std::int64_t each : {1, 7, 12, 101}) {
    const at::Tensor whole = mask("here", 3, 17, 0.4, samples, each);
    for (const auto& cuts : std::vector<std::vector<std::int64_t>>{
             {12, 12}, {6, 6, 6, 6}, {1, 15, 8}, std::vector<std::int64_t>(24, 1)}) {
      std::int64_t first = 0;
      for (const auto part : cuts) {
        EXPECT_TRUE(
            at::equal(mask("here", 3, 17, 0.4, part, each, first), whole.narrow(0, first, part)))
            << part << " samples of " << each << " elements from " << first;
        first += part;
      }
    }
  }
}

// Tests the GPU's code on the CPU: the same operators on the same integers.
TEST(Dropout, GivesTheSameBitsWithOperatorsAsWithTheLoop) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    for (const std::int64_t step : {std::int64_t{0}, std::int64_t{9}, std::int64_t{1} << 35})
      for (const std::int64_t first_sample :
           {std::int64_t{0}, std::int64_t{5}, std::int64_t{1} << 33})
        for (const double share : {0.1, 0.25, 0.99}) {
          const at::Tensor x = at::randn({3, 5, 337}, at::kDouble).to(type);
          const at::Tensor stay = stays({derive_key(7, "dropout here"), step_of(step), share},
                                        first_sample * 5 * 337, x.numel())
                                      .view_as(x);
          const at::Tensor expected = x.mul(1 / (1 - share)).masked_fill(stay.logical_not(), 0);
          const at::Tensor actual =
              Dropout(share, "here").forward(x.clone(), pass_of(7, step, first_sample));
          EXPECT_TRUE(at::equal(actual, expected))
              << at::toString(type) << ", step " << step << ", sample " << first_sample
              << ", share " << share;
        }
}

TEST(Dropout, DrawsTheSameMaskForTheGradientAndKeepsItsInput) {
  const Dropout dropout(0.4, "here");
  const at::Tensor x = at::randn({4, 50}, at::kDouble);
  const Pass pass = pass_of(1, 2);
  const at::Tensor grad = at::randn({4, 50}, at::kDouble), before = grad.clone();
  const at::Tensor stay = dropout.forward(at::ones({4, 50}, at::kDouble), pass);
  EXPECT_TRUE(close(dropout.forward(x.clone(), pass), x * stay, 1e-15));
  EXPECT_TRUE(close(dropout.backward(grad, pass), grad * stay, 1e-15));
  EXPECT_TRUE(at::equal(grad, before));
  // A gradient that is a view with another layout: the mask follows the index, not the address.
  EXPECT_TRUE(close(dropout.backward(grad.t().contiguous().t(), pass), grad * stay, 1e-15));
}

TEST(Dropout, DoesNothingOutsideTrainingAndAtZero) {
  const at::Tensor x = at::randn({4, 50});
  Pass looking;
  looking.training = false;
  EXPECT_TRUE(at::equal(Dropout(0.4, "here").forward(x.clone(), looking), x));
  EXPECT_TRUE(at::equal(Dropout(0, "here").forward(x.clone(), Pass()), x));
  EXPECT_TRUE(Dropout(0, "here").backward(x, Pass()).is_same(x));
  Stack stack =
            gpt({.layers = 2, .width = 8, .heads = 2, .vocab = 16, .context = 4, .dropout = 0.5}),
        plain = gpt({.layers = 2, .width = 8, .heads = 2, .vocab = 16, .context = 4});
  for (Stack* one : {&stack, &plain}) {
    one->allocate(at::kCPU, at::kFloat, Gradients::no);
    one->load(random_values(1));
  }
  const at::Tensor tokens = at::ones({3, 4}, at::kLong);
  EXPECT_TRUE(at::equal(stack.infer(tokens), plain.infer(tokens)));
}

TEST(Dropout, RefusesAPassWithoutAStep) {
  EXPECT_NE(thrown<Error>([] {
              Dropout(0.4, "here").forward(at::ones({2, 2}), Pass());
            }).find("dropout at here needs"),
            std::string::npos);
}

}  // namespace
}  // namespace echelon
