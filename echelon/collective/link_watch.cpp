#include "echelon/collective/link_watch.h"

#include <fmt/format.h>

#include <utility>

#include "echelon/base/bytes.h"
#include "echelon/base/log.h"

namespace echelon {

LinkWatch::LinkWatch(LinkCache cache, const Figures& figures)
    : cache_(std::move(cache)), figures_(figures) {}

namespace {

bool waits_for_others(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce_scatter ||
         operation == Operation::all_gather || operation == Operation::all_to_all;
}

}  // namespace

void LinkWatch::retire() { done_ = true; }

void LinkWatch::saw(Operation operation, std::size_t bytes, double seconds, double predicted) {
  if (bytes < large || predicted <= 0 || !waits_for_others(operation)) return;
  const std::lock_guard lock(mutex_);
  if (done_) return;
  const double ratio = seconds / predicted;
  if (seen_++ == 0 || ratio < ratio_) {
    ratio_ = ratio;
    seconds_ = seconds;
    predicted_ = predicted;
    bytes_ = bytes;
    operation_ = operation;
  }
  if (seen_ < enough) return;
  done_ = true;
  if (ratio_ < far && ratio_ > 1 / far) return;
  cache_.discard();
  log::warn(fmt::format(
      "the links are not what they were when an earlier job measured them ({} ago): {} of {} takes "
      "{} where {} were predicted. The next job measures them again; comm.measure=always does when "
      "a job starts",
      human_age(figures_.age()), name(operation_), human_bytes(bytes_), human_seconds(seconds_),
      human_seconds(predicted_)));
}

}  // namespace echelon
