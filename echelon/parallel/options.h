// How a job is split over its ranks: data, pipeline, tensor and sequence parallelism, and ZeRO.
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
    f.add("bucket_mib", bucket_mib, "size of a gradient bucket, in MiB; 0: from the measured links",
          {.minimum = 0, .maximum = 1e6});
    f.add("exchange_alone", exchange_alone,
          "one rank makes the exchanges of several, to measure their cost");
    f.add("shares", shares,
          "split of the global batch over ranks; even, or speed: by measured speed");
    f.add("zero", zero, "ZeRO stage: 1 shards optimiser state, 2 gradients too, 3 parameters too",
          {.minimum = 0, .maximum = 3, .known_as = {"stage", "zero_stage"}});
    f.add("pipeline", pipeline, "pipeline stages: ranks over which the layers are split",
          {.minimum = 1, .maximum = 1 << 20});
    f.add("data", data, "data-parallel ranks; 0: the ranks that pipeline and tensor leave",
          {.minimum = 0, .maximum = 1 << 20});
    f.add("tensor", tensor, "tensor-parallel ranks: they split the matrices of every layer",
          {.minimum = 1, .maximum = 1 << 20});
    f.add(
        "sequence", sequence,
        "sequence parallelism: tensor ranks also split norms and dropout, if every layer supports it");
    f.add("shares_every", shares_every, "steps between measurements of the ranks' speeds",
          {.minimum = 1});
  }
};

}  // namespace echelon
