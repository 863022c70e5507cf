#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "echelon/base/options.h"

namespace echelon {

// Low-rank adaptation (lora.h): the model is frozen, and some of its matrices get a trainable
// addition.
struct LoraOptions {
  std::int64_t rank = 0;
  double alpha = 16;
  std::vector<std::string> matrices = {"query", "value"};
  std::string init = "";
  bool merge = true;

  void fields(Fields& f) {
    f.add("rank", rank,
          "rank of the additions to frozen matrices, which are all that is trained; 0: the whole "
          "model is trained",
          {.minimum = 0, .maximum = 1e6, .known_as = {"lora_r"}});
    f.add("alpha", alpha, "the additions are scaled by alpha / rank",
          {.minimum = 0, .maximum = 1e6, .above_minimum = true, .known_as = {"lora_alpha"}});
    f.add("matrices", matrices,
          "which: query, key, value, output, gate, up, down; attention, mlp, all; or names of the "
          "weights file, where * stands for anything",
          {.known_as = {"target_modules"}});
    f.add("init", init,
          "folder of an adapter in PEFT's format to start from; empty: additions of zero");
    f.add("merge", merge,
          "weights/ of a run holds the whole model with the additions; false: only the adapter, in "
          "PEFT's format");
  }
};

}  // namespace echelon
