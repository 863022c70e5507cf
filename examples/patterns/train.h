// Trains a model to tell patterns apart, and says how well it does: the main program of several
// examples, which differ in their model.
#pragma once

#include <echelon/nn/layer.h>
#include <echelon/nn/stack.h>
#include <echelon/plan/options.h>

#include <functional>
#include <memory>

// The last layer of such a model: takes a score for each class and gives the mean cross-entropy.
// When no backward will follow it gives the share of right answers: what Trainer::evaluate averages
// is then the accuracy.
std::unique_ptr<echelon::Layer> classification();

// Runs as main does, as one process or as a rank of several. The exit code: 0 where the model
// answers `wanted` of the images right that it was not trained on, 1 where it does not, 2 where the
// command line is at fault, in which `--set KEY=VALUE` changes the options.
int train_on_patterns(int argc, char** argv, echelon::TrainerOptions options,
                      const std::function<echelon::Stack()>& model, double wanted);
