#pragma once

#include <cstdint>
#include <string>

#include "echelon/base/options.h"

namespace echelon {

struct OptimOptions {
  std::string name = "adamw";
  double rate = 4e-3;
  std::string schedule = "linear";
  std::int64_t warmup = 320;
  double final_rate = 0;
  double decay = 0.1;
  double clip = 1.0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0.9;
  bool nesterov = false;

  void fields(Fields& f) {
    f.add("name", name, "the optimiser", {.choices = {"adamw", "sgd"}});
    f.add("rate", rate, "peak learning rate", {.minimum = 0});
    f.add("schedule", schedule, "how the rate goes on after the warm-up",
          {.choices = {"cosine", "linear", "constant"}});
    f.add("warmup", warmup, "the rate rises linearly from zero over these first steps",
          {.minimum = 0, .unit = "steps"});
    f.add("final_rate", final_rate, "where cosine and linear end, as a share of the peak",
          {.minimum = 0, .maximum = 1});
    f.add("decay", decay, "weight decay of matrices; norms and biases have none", {.minimum = 0});
    f.add("clip", clip, "largest norm of all gradients together; 0: no limit", {.minimum = 0});
    f.add("beta1", beta1, "adamw: decay of the mean of gradients", {.minimum = 0, .maximum = 1});
    f.add("beta2", beta2, "adamw: decay of the mean of their squares",
          {.minimum = 0, .maximum = 1});
    f.add("epsilon", epsilon, "adamw: added to the root of the mean square", {.minimum = 0});
    f.add("momentum", momentum, "sgd: decay of the velocity; 0: none",
          {.minimum = 0, .maximum = 1});
    f.add("nesterov", nesterov, "sgd: look ahead along the velocity");
  }
};

}  // namespace echelon
