// Trains a model to classify patterns and prints its accuracy: the main program of several
// examples, which differ in their model.
#pragma once

#include <echelon/nn/layer.h>
#include <echelon/nn/stack.h>
#include <echelon/plan/options.h>

#include <functional>
#include <memory>

// The last layer of such a model: takes a score for each class and returns the mean cross-entropy.
// If no backward follows, it returns the share of right answers, so Trainer::evaluate returns the
// accuracy.
std::unique_ptr<echelon::Layer> classification();

// A main program for one process or for one rank of several. `--set KEY=VALUE` changes the options.
// The exit code is 0 if the model classifies a share of `wanted` of unseen images correctly, 1 if
// it does not, and 2 if the command line is wrong.
int train_on_patterns(int argc, char** argv, echelon::TrainerOptions options,
                      const std::function<echelon::Stack()>& model, double wanted);
