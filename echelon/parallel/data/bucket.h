// Buckets: ranges of the flat gradient buffer. Each bucket is averaged over the ranks as soon as
// backward has finished its gradients.
//
// A bucket is summed over one group of ranks: all its units are summed over the same ranks.
//
// Gradients are stored in the order of the layers, and backward finishes them from the last to the
// first, so buckets are cut from the end of the buffer. The first bucket is small, so that
// communication starts while backward has hardly begun. A parameter that two layers share belongs
// to the lower layer, whose backward finishes it.
#pragma once

#include <cstdint>
#include <vector>

#include "echelon/collective/cost.h"
#include "echelon/nn/flat_unit.h"
#include "echelon/step/table.h"

namespace echelon {

struct BucketSizes {
  std::int64_t first = 0;   // elements: a bucket is closed once it has this many
  std::int64_t others = 0;  // 0: one bucket for all
};

// Returns the buckets in the order in which backward completes them. Together they hold all
// trainable parameters.
std::vector<Bucket> cut_buckets(const std::vector<FlatUnit>& units, const BucketSizes& sizes);

// Bucket sizes by the cost model: a reduction of n bytes takes alpha + n beta, plus about 30 us
// until another thread picks it up. Buckets are as small as possible while alpha + 30 us is at most
// a twentieth of the transfer time n beta, between 1 and 25 MiB. The first is an eighth of the
// others. `mib` > 0 sets the size instead.
BucketSizes bucket_sizes(const LinkFigures& link, std::int64_t element_bytes, double mib);

// Data parallelism: every rank runs one process's step on its part of the batch. The reduction of a
// bucket begins when the backward of the last micro-batch finishes it. All reductions are
// synchronised before the update.
Table data_parallel(const StepShape& shape);

}  // namespace echelon
