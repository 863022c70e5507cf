#include "echelon/parallel/pipeline/walk.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

#include "echelon/base/error.h"

namespace echelon {

using Kind = Slot::Kind;

std::optional<int> source(const PipelineShape& shape, Kind kind, int stage) {
  if (kind == Kind::weight) return {};
  const int from = kind == Kind::forward ? stage - 1 : stage + 1;
  return from < 0 || from >= shape.stages() ? std::nullopt : std::optional(from);
}

std::optional<int> destination(const PipelineShape& shape, Kind kind, int stage) {
  if (kind == Kind::weight) return {};
  const int to = kind == Kind::forward ? stage + 1 : stage - 1;
  return to < 0 || to >= shape.stages() ? std::nullopt : std::optional(to);
}

namespace {

class Walk {
 public:
  Walk(const PipelineSchedule& schedule, const PipelineShape& shape)
      : schedule_(schedule), shape_(shape), at_(schedule.size()) {
    const auto all = std::size_t(shape.stages()) * std::size_t(shape.micro_batches);
    forwards_.resize(all);
    backwards_.resize(all);
  }

  int at(int rank) const { return int(at_[std::size_t(rank)]); }
  bool ended(int rank) const { return at_[std::size_t(rank)] == order(rank).size(); }

  // The stage that a rank's next slot still waits for.
  std::optional<int> awaited(int rank) const {
    const Slot& slot = next(rank);
    const auto from = source(shape_, slot.kind, shape_.stage(rank, slot.chunk));
    const auto& done = slot.kind == Kind::forward ? forwards_ : backwards_;
    return from && !done[index(*from, slot.micro_batch)] ? from : std::nullopt;
  }

  void step(int rank) {
    const Slot& slot = next(rank);
    const auto i = index(shape_.stage(rank, slot.chunk), slot.micro_batch);
    if (slot.kind == Kind::forward) forwards_[i] = true;
    if (slot.kind == Kind::backward || slot.kind == Kind::input) backwards_[i] = true;
    ++at_[std::size_t(rank)];
  }

  // A rank that waits waits for one other, so going from each to the next ends in a circle.
  std::string circle(int rank) const {
    const auto next_rank = [&](int r) { return shape_.rank_of(*awaited(r)); };
    for (int i = 0; i < shape_.ranks; ++i) rank = next_rank(rank);
    const int first = rank;
    std::string text = "the ranks of the pipeline wait for each other for ever:";
    do {
      const Slot& slot = next(rank);
      const int from = *awaited(rank);
      text += fmt::format("{} slot {} of rank {}, {}, waits for chunk {} of rank {}",
                          rank == first ? "" : ";", at(rank), rank, to_string(slot),
                          shape_.chunk_of(from), shape_.rank_of(from));
      rank = next_rank(rank);
    } while (rank != first);
    return text;
  }

 private:
  const Order& order(int rank) const { return schedule_[std::size_t(rank)]; }
  const Slot& next(int rank) const { return order(rank)[at_[std::size_t(rank)]]; }
  std::size_t index(int stage, int micro_batch) const {
    return std::size_t(stage) * std::size_t(shape_.micro_batches) + std::size_t(micro_batch);
  }

  const PipelineSchedule& schedule_;
  const PipelineShape& shape_;
  std::vector<std::size_t> at_;             // by rank: its next slot
  std::vector<bool> forwards_, backwards_;  // by stage and micro-batch: whether it has run
};

}  // namespace

void walk(const PipelineSchedule& schedule, const PipelineShape& shape,
          const std::function<void(int rank, int index)>& run) {
  Walk walk(schedule, shape);
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < shape.ranks; ++rank)
      for (; !walk.ended(rank) && !walk.awaited(rank); moved = true) {
        run(rank, walk.at(rank));
        walk.step(rank);
      }
  }
  for (int rank = 0; rank < shape.ranks; ++rank)
    if (!walk.ended(rank)) throw InvalidArgument(walk.circle(rank));
}

}  // namespace echelon
