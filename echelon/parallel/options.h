// How a job is laid over its ranks.
#pragma once

#include <cstdint>

#include "echelon/base/options.h"

namespace echelon {

enum class BatchSplit { even, speed };
constexpr auto names_of(BatchSplit) { return names("even", "speed"); }

struct ParallelOptions {
  double bucket_mib = 0;
  bool exchange_alone = false;
  BatchSplit shares = BatchSplit::even;
  std::int64_t shares_every = 20;
  std::int64_t zero = 0;
  std::int64_t pipeline = 1;
  std::int64_t data = 0;
  std::int64_t tensor = 1;
  bool sequence = true;

  void fields(Fields& f) {
    f.add("bucket_mib", bucket_mib,
          "gradients that are averaged together, in MiB; 0: by the measured links",
          {.minimum = 0, .maximum = 1e6});
    f.add(
        "exchange_alone", exchange_alone,
        "one rank goes through the exchanges of several, as far as it has anything to exchange: what that costs can be measured");
    f.add(
        "shares", shares,
        "of the global batch; even: the same for every rank; speed: as fast as each was measured");
    f.add(
        "zero", zero,
        "what the ranks share out in place of holding it all: 1 optimiser state, 2 gradients too, 3 "
        "parameters too",
        {.minimum = 0, .maximum = 3, .known_as = {"stage", "zero_stage"}});
    f.add("pipeline", pipeline, "ranks that a model's layers are laid over, one after another",
          {.minimum = 1, .maximum = 1 << 20});
    f.add("data", data, "ranks that split the batch; 0: what pipeline and tensor leave",
          {.minimum = 0, .maximum = 1 << 20});
    f.add("tensor", tensor, "ranks that split every layer's matrices",
          {.minimum = 1, .maximum = 1 << 20});
    f.add("sequence", sequence,
          "parallel.tensor: those ranks split norms and dropout too, where every layer can");
    f.add("shares_every", shares_every, "steps between looks at the ranks' speeds", {.minimum = 1});
  }
};

}  // namespace echelon
