// What activations take of a rank's memory at most, from options and the step's table: by the
// formula of the model's family (models/activations.h), and an estimate of what a backward holds
// beside them.
#pragma once

#include <cstdint>

#include "echelon/plan/options.h"
#include "echelon/step/table.h"

namespace echelon {

// What a rank does in a step, before anything is gathered or reduced.
struct StepOrder {
  StepShape shape;
  Table computation;
};

// `workers` split the batch.
std::uint64_t activation_bytes(const PlanOptions& options, const StepOrder& step, int workers);

// Whether the ranks of a tensor group each have a part of a sample's tokens between its products.
bool splits_rows(const PlanOptions& options);

}  // namespace echelon
