#include "echelon/nn/generate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/models/gpt2/gpt2.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

const ModelOptions sizes{
    .layers = 1, .width = 16, .heads = 2, .vocab = 256, .context = 6, .tied = true};

Stack model() {
  Stack stack = gpt(sizes);
  stack.allocate(at::kCPU, at::kFloat, Gradients::no);
  stack.load([](const Parameter& p, at::Tensor out) {
    random_values(1)(p, out);
    if (p.shape.size() == 2) out.mul_(20);  // strong preferences, not noise
  });
  return stack;
}

// The most likely next byte after `text`, computed by the model directly.
char likeliest(Stack& stack, const std::string& text) {
  const auto length = std::min<std::int64_t>(sizes.context, static_cast<std::int64_t>(text.size()));
  at::Tensor tokens = at::empty({1, length}, at::kLong);
  for (std::int64_t i = 0; i < length; ++i) {
    tokens[0][i] =
        static_cast<unsigned char>(text[text.size() - static_cast<std::size_t>(length - i)]);
  }
  return static_cast<char>(stack.infer(tokens)[0][length - 1].argmax().item<std::int64_t>());
}

TEST(Generate, ChoosesTheMostLikelyByteAtTemperatureZero) {
  Stack stack = model();
  std::string text = "ab";
  for (int i = 0; i < 20; ++i) text.push_back(likeliest(stack, text));  // past the context
  EXPECT_EQ(generate(stack, sizes.context, "ab", {.tokens = 20, .temperature = 0}), text.substr(2));
  EXPECT_EQ(generate(stack, sizes.context, "ab", {.tokens = 20, .temperature = 1, .top = 1}),
            text.substr(2));
}

TEST(Generate, GivesTheSameTextForTheSameSeed) {
  Stack stack = model();
  const auto made = [&](std::uint64_t seed) {
    return generate(stack, sizes.context, "x",
                    {.tokens = 30, .temperature = 1, .top = 0, .seed = seed});
  };
  EXPECT_EQ(made(1).size(), 30U);
  EXPECT_EQ(made(1), made(1));
  EXPECT_NE(made(1), made(2));
}

// A layer that gives the same logits after every token.
class Fixed : public Layer {
 public:
  explicit Fixed(std::vector<double> logits) : logits_(std::move(logits)) {}
  at::Tensor forward(const at::Tensor& tokens, Pass&) override {
    at::Tensor out =
        at::zeros({tokens.size(0), tokens.size(1), static_cast<std::int64_t>(logits_.size())});
    for (std::size_t i = 0; i < logits_.size(); ++i)
      out.select(2, static_cast<std::int64_t>(i)).fill_(logits_[i]);
    return out;
  }
  at::Tensor backward(const at::Tensor& grad, Pass&) override { return grad; }

 private:
  std::vector<double> logits_;
};

std::vector<double> frequencies(const std::vector<double>& logits, double temperature,
                                std::int64_t top) {
  Stack stack;
  stack.add(std::make_unique<Fixed>(logits));
  constexpr std::int64_t n = 20'000;
  std::vector<double> share(logits.size());
  for (const char c : generate(stack, 1, std::string(1, '\0'),
                               {.tokens = n, .temperature = temperature, .top = top})) {
    share.at(static_cast<unsigned char>(c)) += 1.0 / n;
  }
  return share;
}

TEST(Generate, SamplesInProportionToTheSoftmaxAtItsTemperature) {
  const std::vector<double> logits = {0, 1, -2, 0.5};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    double sum = 0;
    for (const double z : logits) sum += std::exp(z / temperature);
    const auto share = frequencies(logits, temperature, 0);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_NEAR(share[i], std::exp(logits[i] / temperature) / sum, 0.015)
          << "byte " << i << " at " << temperature;
    }
  }
}

TEST(Generate, SamplesOnlyAmongTheMostLikelyBytes) {
  const auto share = frequencies({0, 1, -2, 0.5}, 1, 2);
  EXPECT_EQ(share[0], 0);
  EXPECT_EQ(share[2], 0);
  EXPECT_NEAR(share[1], 1 / (1 + std::exp(-0.5)), 0.015);
}

TEST(Generate, ShowsEveryByteAndStopsOnRequest) {
  Stack stack = model();
  std::string shown;
  const auto text = generate(stack, sizes.context, "x", {.tokens = 30}, [&](char c) {
    shown.push_back(c);
    return shown.size() < 7;
  });
  EXPECT_EQ(text.size(), 7U);
  EXPECT_EQ(text, shown);
}

TEST(Generate, GeneratesOnlyBytes) {
  std::vector<double> logits(300, 0.0);
  logits[299] = 50;  // a token beyond the bytes, as in a larger vocabulary
  const auto share = frequencies(logits, 1, 0);
  EXPECT_EQ(share[299], 0);
}

TEST(Generate, RefusesAnEmptyPrompt) {
  Stack stack = model();
  EXPECT_EQ(thrown<InvalidArgument>([&] { generate(stack, 6, "", {}); }),
            "the prompt is empty; give at least one byte to go on from");
}

}  // namespace
}  // namespace echelon
