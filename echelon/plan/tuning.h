// Applies the options of fine-tuning to a model: which parameters train (train.freeze), and how
// fast (optim.groups, optim.layer_decay).
//
// Patterns match the names that the Stack has for its parameters. These are Hugging Face's names,
// except that queries, keys and values are one parameter where the layer computes them in one
// product ("...attention.self.qkv.weight").
#pragma once

#include "echelon/nn/stack.h"
#include "echelon/plan/options.h"

namespace echelon {

// Call it before the stack is laid out; every rank does, and a forecast of a rank's memory. Throws
// InvalidArgument, and changes nothing, if a pattern matches no parameter, a rule of optim.groups
// applies to none that trains, or nothing would train.
//
//   train.freeze       A parameter whose name matches one of the patterns does not train. A tied
//                      parameter is one parameter with one name.
//   optim.groups       optim/group_rule.h. The first rule that matches counts.
//   optim.layer_decay  Multiplies the rate of a layer by layer_decay^k, where k is the number of
//                      layers from it up to the highest one with parameters (the head), which has
//                      the whole rate. The embedding has the lowest. A tied table counts as a part
//                      of the embedding. Factors of optim.groups come on top.
void tune(Stack& stack, const TrainOptions& train, const OptimOptions& optim);

}  // namespace echelon
