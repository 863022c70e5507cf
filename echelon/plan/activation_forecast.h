// Forecasts the peak memory of a rank's activations, from options and the step's table: the formula
// of the model's family (models/activations.h) plus an estimate of what a backward holds besides.
#pragma once

#include <cstdint>

#include "echelon/plan/options.h"
#include "echelon/step/table.h"

namespace echelon {

// The computation of a rank in a step, without gathers and reductions.
struct StepOrder {
  StepShape shape;
  Table computation;
};

// `workers` is the number of ranks that split the batch.
std::uint64_t activation_bytes(const PlanOptions& options, const StepOrder& step, int workers);

// Whether sequence parallelism applies: between products, each rank of a tensor group has a part of
// a sample's tokens.
bool splits_rows(const PlanOptions& options);

}  // namespace echelon
