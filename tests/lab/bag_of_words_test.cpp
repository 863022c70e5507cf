#include "echelon/lab/bag_of_words.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/lbfgs.h>

#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

constexpr int words = 30, labels = 3, texts = 400;

struct Texts {
  std::vector<std::string> text;
  std::vector<LabelledText> all;
  at::Tensor counts = at::zeros({texts, words}, at::kDouble);
  at::Tensor label = at::empty({texts}, at::kLong);
};

// Words that say something about the label, with noise.
Texts noisy_texts() {
  Texts made;
  const Key key = derive_key(1, "texts");
  std::uint64_t drawn = 0;
  const auto below = [&](int n) { return int(uniform_at(key, drawn++) * n); };
  for (int i = 0; i < texts; ++i) {
    const int label = below(labels);
    std::string text;
    for (int w = 0, length = 2 + below(12); w < length; ++w) {
      const int word = below(2) == 0 ? below(words) : label * (words / labels) + below(10);
      text += (w > 0 ? " w" : "w") + std::to_string(word);
      made.counts[i][word] += 1;
    }
    made.label[i] = label;
    made.text.push_back(text);
  }
  for (int i = 0; i < texts; ++i)
    made.all.push_back({made.text[std::size_t(i)], int(made.label[i].item<std::int64_t>())});
  return made;
}

TEST(BagOfWords, EndsAtTheOptimumThatTorchFinds) {
  const Texts made = noisy_texts();
  constexpr double penalty = 1e-3;
  const auto options = at::TensorOptions(at::kDouble).requires_grad(true);
  const at::Tensor weights = torch::zeros({words, labels}, options),
                   constants = torch::zeros({labels}, options);
  torch::optim::LBFGS search({weights, constants},
                             torch::optim::LBFGSOptions().max_iter(500).tolerance_grad(1e-9));
  const auto objective = [&] {
    return torch::nn::functional::cross_entropy(at::mm(made.counts, weights) + constants,
                                                made.label) +
           penalty / 2 * (weights.square().sum() + constants.square().sum());
  };
  search.step([&] {
    search.zero_grad();
    const at::Tensor value = objective();
    value.backward();
    return value;
  });
  const BagOfWords found = bag_of_words(made.all, made.all, penalty);
  EXPECT_NEAR(found.objective, objective().item<double>(), 1e-6);
  const auto right = (at::mm(made.counts, weights) + constants).argmax(1).eq(made.label);
  EXPECT_NEAR(found.accuracy(), right.to(at::kDouble).mean().item<double>(), 1.0 / texts);
}

TEST(BagOfWords, DoesNotSeeTheOrderOfWords) {
  const std::vector<LabelledText> both = {{"not bad but good", 1}, {"not good but bad", 0}};
  EXPECT_EQ(bag_of_words(both, both).accuracy(), 0.5);
  const std::vector<LabelledText> telling = {{"good film", 1}, {"bad film", 0}};
  EXPECT_EQ(bag_of_words(telling, telling).accuracy(), 1);
}

TEST(BagOfWords, IgnoresWordsThatItHasNotSeen) {
  const std::vector<LabelledText> training = {{"good", 1}, {"bad", 0}},
                                  unseen = {{"good  unknown words", 1}};
  EXPECT_EQ(bag_of_words(training, unseen).accuracy(), 1);
}

TEST(BagOfWords, TellsWhichTextsItGetsRight) {
  const std::vector<LabelledText> training = {{"good", 1}, {"bad", 0}},
                                  unseen = {{"good", 1}, {"bad", 1}, {"bad", 0}};
  const BagOfWords found = bag_of_words(training, unseen);
  EXPECT_EQ(found.right, (std::vector<bool>{true, false, true}));
  EXPECT_DOUBLE_EQ(found.accuracy(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(found.accuracy(/*begin=*/1), 0.5);
  EXPECT_TRUE(found.converged);
}

TEST(BagOfWords, RefusesLabelsAndSetsThatMakeNoSense) {
  const std::vector<LabelledText> none, odd = {{"word", -1}}, some = {{"word", 1}};
  EXPECT_EQ(thrown<InvalidArgument>([&] { bag_of_words(none, some); }),
            "a bag of words needs texts to train on and texts to validate");
  EXPECT_EQ(thrown<InvalidArgument>([&] { bag_of_words(odd, some); }),
            "label -1 of a text is not between 0 and 65535");
}

}  // namespace
}  // namespace echelon
