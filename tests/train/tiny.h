// What tests of several ways to train have in common: a little data, and a model's parameters.
#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/randint.h>

#include <vector>

#include "echelon/data/dataset.h"
#include "echelon/train/trainer.h"

namespace echelon {

// 60 sequences of 8 tokens below 32, and what follows each.
inline const TensorDataset& tokens() {
  static const TensorDataset data = [] {  // once: torch's generator is everybody's
    at::manual_seed(3);
    const at::Tensor text = at::randint(32, {60, 9});
    return TensorDataset(text.narrow(1, 0, 8).contiguous(), text.narrow(1, 1, 8).contiguous());
  }();
  return data;
}

// All of them, one after another; where they are shared out, every rank calls it.
inline at::Tensor all_parameters(Stack& stack, Trainer& trainer) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : stack.parameters())
    all.push_back(trainer.master(parameter).reshape({-1}).clone());
  return at::cat(all);
}

}  // namespace echelon
