// Buckets: runs of the flat gradient buffer that are averaged over the ranks together, as soon as
// backward has finished them.
//
// A bucket is summed over one group of ranks: it has no units that are summed over others.
//
// Gradients lie in the order of the layers and are finished from the last to the first, so buckets
// are cut from the end of the buffer. The first is small: the links get to work while backward has
// hardly begun. A parameter that two layers share belongs to the lower one, whose backward finishes
// it.
#pragma once

#include <cstdint>
#include <vector>

#include "echelon/collective/cost.h"
#include "echelon/nn/flat_unit.h"
#include "echelon/step/table.h"

namespace echelon {

struct BucketSizes {
  std::int64_t first = 0;   // elements: a bucket is closed when it has as many
  std::int64_t others = 0;  // 0: all in one
};

// In the order in which backward completes them; together they are the whole buffer.
std::vector<Bucket> cut_buckets(const std::vector<FlatUnit>& units, const BucketSizes& sizes);

// By the cost model: an exchange of n bytes takes alpha + n beta, and some 30 us pass until another
// thread has taken it up. Buckets are as small as they can be while that is a twentieth of their
// time, within 1 and 25 MiB; the first is an eighth of the others. `mib` > 0 sets the size instead.
BucketSizes bucket_sizes(const LinkFigures& link, std::int64_t element_bytes, double mib);

// Data parallel: one process's step on every rank's share of the batch; as the backward of the last
// micro-batch finishes a bucket its reduction begins, and all are settled before the update.
Table data_parallel(const StepShape& shape);

}  // namespace echelon
