#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/base/options.h"

namespace echelon {

class Optimizer;

enum class OptimizerKind { adamw, sgd, lars, lamb };
constexpr auto names_of(OptimizerKind) { return names("adamw", "sgd", "lars", "lamb"); }

enum class RateScale { none, linear, sqrt };
constexpr auto names_of(RateScale) { return names("none", "linear", "sqrt"); }

enum class RateSchedule { cosine, linear, constant };
constexpr auto names_of(RateSchedule) { return names("cosine", "linear", "constant"); }

struct OptimOptions {
  OptimizerKind name = OptimizerKind::adamw;
  double rate = 4e-3;
  RateScale scale = RateScale::none;
  std::int64_t base_batch = 8;
  RateSchedule schedule = RateSchedule::linear;
  std::int64_t warmup = 320;
  double final_rate = 0;
  double decay = 0.1;
  double clip = 1.0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double momentum = 0.9;
  bool nesterov = false;
  double trust = 1e-3;
  std::vector<std::string> groups = {};
  double layer_decay = 1;

  // A program's own optimiser in place of `name` (optimizer.h), and its own schedule in place of
  // `schedule` and `warmup`: the share of the rate at a step (0-based) of `steps`. Not named
  // options.
  std::shared_ptr<const Optimizer> custom = nullptr;
  std::function<double(std::int64_t step, std::int64_t steps)> custom_schedule = {};

  void fields(Fields& f) {
    f.add("name", name, "the optimiser");
    f.add("rate", rate, "peak learning rate",
          {.minimum = 0, .maximum = 3e38, .known_as = {"lr", "learning_rate", "max_lr"}});
    f.add(
        "scale", scale,
        "scaling of the rate with the batch; linear: times train.batch / optim.base_batch; sqrt: times its square root");
    f.add("base_batch", base_batch, "batch for which optim.rate is meant",
          {.minimum = 1, .unit = "sequences"});
    f.add("schedule", schedule, "learning rate schedule after the warm-up");
    f.add("warmup", warmup, "steps over which the rate rises linearly from zero",
          {.minimum = 0, .unit = "steps", .known_as = {"warmup_steps", "num_warmup_steps"}});
    f.add("final_rate", final_rate, "final rate of cosine and linear, as a share of the peak",
          {.minimum = 0, .maximum = 1});
    f.add("decay", decay, "weight decay of matrices; norms and biases have none",
          {.minimum = 0, .known_as = {"weight_decay"}});
    f.add("clip", clip, "largest allowed norm of all gradients; 0: no clipping",
          {.minimum = 0, .known_as = {"max_grad_norm", "grad_clip", "clip_grad"}});
    f.add("beta1", beta1, "adamw, lamb: decay of the mean of gradients",
          {.minimum = 0, .maximum = 0.9999999});
    f.add("beta2", beta2, "adamw, lamb: decay of the mean of their squares",
          {.minimum = 0, .maximum = 0.9999999});
    f.add("epsilon", epsilon, "adamw, lamb: added to the root of the mean square",
          {.minimum = 0, .known_as = {"eps"}});
    f.add("momentum", momentum, "sgd, lars: decay of the velocity; sgd: 0 for none",
          {.minimum = 0, .maximum = 1});
    f.add("nesterov", nesterov, "sgd: Nesterov momentum");
    f.add("trust", trust,
          "lars: trust coefficient: a step's length as a share of the parameter's norm, at rate 1",
          {.minimum = 0});
    f.add(
        "groups", groups,
        "rates and decays of parameters by name: \"NAME: rate=FACTOR decay=D\", a * in NAME stands for anything; the first that matches counts",
        {.known_as = {"param_groups", "no_decay"}});
    f.add(
        "layer_decay", layer_decay,
        "factor of the rate from each layer to the one below; the last one with parameters has the "
        "whole rate",
        {.minimum = 0, .maximum = 1, .above_minimum = true, .known_as = {"llrd"}});
  }
};

}  // namespace echelon
