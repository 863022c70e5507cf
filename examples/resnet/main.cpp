// Classifies patterns in noisy images with a residual network.
#include "patterns/patterns.h"
#include "patterns/train.h"
#include "resnet.h"

int main(int argc, char** argv) {
  echelon::TrainerOptions options;
  options.train = {
      .steps = 120, .batch = 64, .threads = 1};  // more threads slow so small a model down
  options.optim = {.name = echelon::OptimizerKind::sgd, .rate = 0.05, .warmup = 20, .decay = 1e-4};
  const auto model = [] { return resnet({.classes = Patterns::classes}); };
  return train_on_patterns(argc, argv, options, model, /*wanted=*/0.9);
}
