#include "echelon/plan/rules.h"

#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/net/host.h"

namespace echelon {

void check_share(const TrainOptions& options, int ranks) {
  if (options.batch < options.micro_batches * ranks)
    throw InvalidArgument(
        fmt::format("train.batch = {} is too small for {} rank{} of {} micro-batch{}: each needs a "
                    "sample",
                    options.batch, ranks, ranks == 1 ? "" : "s", options.micro_batches,
                    options.micro_batches == 1 ? "" : "es"));
}

void check_threads(const TrainOptions& options) {
  // Threads of torch spin while they wait for each other: with many more than cores a step does not
  // end.
  constexpr int most = 4;  // a core
  const int here = cores();
  if (options.threads > most * here)
    throw InvalidArgument(fmt::format(
        "train.threads = {} is too many for the {} core{} that this process may use: set "
        "train.threads={}, or 0 for one each (up to {} a core are taken)",
        options.threads, here, here == 1 ? "" : "s", here, most));
}

}  // namespace echelon
