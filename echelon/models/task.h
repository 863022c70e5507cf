#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/base/options.h"

namespace echelon {

// What a model is trained to do. automatic: what the weights of model.init do, or else what the
// family does first. causal: to predict the next token. classify: to give a sample one of several
// labels. mlm: to fill in masked words.
enum class ModelTask { automatic, causal, classify, mlm };
constexpr auto names_of(ModelTask) { return names("auto", "causal", "classify", "mlm"); }

struct TaskOptions {
  ModelTask name = ModelTask::automatic;
  std::int64_t labels = 0;
  std::vector<std::string> label_names = {};
  double mask = 0.15;

  void fields(Fields& f) {
    f.add("name", name,
          "what the model learns; auto: what the weights of model.init do, or what the family does "
          "first");
    f.add("labels", labels,
          "classify: number of labels; 0: that of the data, or of the weights of model.init",
          {.minimum = 0, .maximum = 1e6, .known_as = {"num_labels"}});
    f.add("label_names", label_names,
          "classify: names of the labels 0, 1, 2, …; empty: those of the data");
    f.add("mask", mask, "mlm: share of the words to predict",
          {.minimum = 0, .maximum = 1, .above_minimum = true, .known_as = {"mlm_probability"}});
  }
};

}  // namespace echelon
