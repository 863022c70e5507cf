// Trains a model to tell patterns apart, and says how well it does: the main program of several
// examples, which differ in their model.
#pragma once

#include <echelon/base/options.h>
#include <echelon/nn/layer.h>
#include <echelon/nn/stack.h>
#include <echelon/optim/options.h>
#include <echelon/parallel/options.h>
#include <echelon/parallel/pipeline/options.h>
#include <echelon/parallel/tensor/split_plan.h>
#include <echelon/parallel/zero/options.h>
#include <echelon/train/options.h>

#include <functional>
#include <memory>

// What `--set KEY=VALUE` may change.
struct TrainingOptions {
  echelon::TrainOptions train;
  echelon::OptimOptions optim;
  echelon::ParallelOptions parallel;
  echelon::ZeroOptions zero;
  echelon::PipelineOptions pipeline;

  void fields(echelon::Fields& f) {
    f.section("train", train);
    f.section("optim", optim);
    f.section("parallel", parallel);
    f.section("zero", zero);
    f.section("pipeline", pipeline);
  }
};

// The last layer of such a model: takes a score for each class and gives the mean cross-entropy.
// When no backward will follow it gives the share of right answers: what Trainer::evaluate averages
// is then the accuracy.
std::unique_ptr<echelon::Layer> classification();

// Runs as main does, as one process or as a rank of several. The exit code: 0 where the model
// answers `wanted` of the images right that it was not trained on, 1 where it does not, 2 where the
// command line is at fault. `plan` says which of the model's products ranks may split.
int train_on_patterns(int argc, char** argv, TrainingOptions options,
                      const std::function<echelon::Stack()>& model, double wanted,
                      const echelon::SplitPlan& plan = {});
