// What options may not be, whoever gives them: a job or a user's program.
#pragma once

#include "echelon/plan/options.h"

namespace echelon {

// Throws InvalidArgument where a batch does not divide over so many ranks and their micro-batches.
void check_share(const TrainOptions& options, int ranks);
// Throws InvalidArgument where train.threads is far more than the cores of this process.
void check_threads(const TrainOptions& options);

}  // namespace echelon
