// Classifies patterns in noisy images with an MLP-Mixer.
#include "mixer.h"
#include "patterns/patterns.h"
#include "patterns/train.h"

int main(int argc, char** argv) {
  echelon::TrainerOptions options;
  options.train = {
      .steps = 300, .batch = 64, .threads = 1};  // more threads slow so small a model down
  options.optim = {.rate = 8e-3, .warmup = 20};
  const auto model = [] { return mixer({.side = Patterns::side, .classes = Patterns::classes}); };
  // What parallel.tensor splits; the model itself does not change.
  options.split.column("mixing.*.expand").row("mixing.*.contract");
  return train_on_patterns(argc, argv, options, model, /*wanted=*/0.9);
}
