// What the models of the certificate are trained on: random tokens, or random padded sentences with
// labels or masked words.
#pragma once

#include <cstdint>
#include <memory>

#include "echelon/data/dataset.h"
#include "echelon/job/options.h"

namespace echelon {

std::unique_ptr<const Dataset> data_of(const JobOptions& job);

// The rows whose logits are computed in all steps of a job: those with a target.
std::uint64_t target_rows(const JobOptions& job);
// The fewest in a step.
std::uint64_t fewest_target_rows(const JobOptions& job);

}  // namespace echelon
