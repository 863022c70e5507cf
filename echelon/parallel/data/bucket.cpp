#include "echelon/parallel/data/bucket.h"

#include <algorithm>
#include <cmath>

namespace echelon {

std::vector<Bucket> cut_buckets(const std::vector<FlatUnit>& units, const BucketSizes& sizes) {
  std::vector<Bucket> buckets;
  bool open = false;
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    if (!unit->trainable || unit->numel == 0) continue;
    if (!open || buckets.back().summed_over != unit->summed_over)
      buckets.push_back({.begin = unit->begin,
                         .end = unit->begin + unit->numel,
                         .layer = unit->layer,
                         .top = unit->layer,
                         .summed_over = unit->summed_over});
    Bucket& bucket = buckets.back();
    bucket.begin = unit->begin;
    bucket.layer = unit->layer;
    const std::int64_t enough = buckets.size() == 1 ? sizes.first : sizes.others;
    open = sizes.others == 0 || bucket.numel() < enough;
  }
  return buckets;
}

BucketSizes bucket_sizes(const LinkFigures& link, std::int64_t element_bytes, double mib) {
  constexpr double mebibyte = 1 << 20, handover = 30e-6, twentieth = 20;
  double bytes = mib * mebibyte;
  if (mib <= 0)
    bytes = link.beta > 0 ? std::clamp(twentieth * (link.alpha + handover) / link.beta, mebibyte,
                                       25 * mebibyte)
                          : 4 * mebibyte;
  const auto others = std::max<std::int64_t>(1, std::llround(bytes / double(element_bytes)));
  return {std::max<std::int64_t>(1, others / 8), others};
}

Table data_parallel(const StepShape& shape) { return with_reductions(one_process(shape), shape); }

}  // namespace echelon
