#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/parallel/pipeline/pipeline_table.h"
#include "echelon/parallel/pipeline/schedule.h"
#include "echelon/step/walk.h"

namespace echelon {

using Kind = Slot::Kind;

namespace {

// What one rank has run so far. It decides whether the next slot may run, as far as this rank alone
// is concerned.
class RankCheck {
 public:
  RankCheck(const PipelineShape& shape, int most_activations)
      : shape_(shape),
        most_activations_(most_activations),
        states_(std::size_t(shape.chunks) * std::size_t(shape.micro_batches), State::none) {}

  // Runs the slot. Returns why it cannot run; empty if it ran.
  std::string run(const Slot& slot) {
    if (slot.chunk < 0 || slot.chunk >= shape_.chunks)
      return fmt::format("the number of chunks is {}", shape_.chunks);
    if (slot.micro_batch < 0 || slot.micro_batch >= shape_.micro_batches)
      return fmt::format("the number of micro-batches is {}", shape_.micro_batches);
    State& state = states_[index(slot.chunk, slot.micro_batch)];
    switch (slot.kind) {
      case Kind::forward:
        if (std::exchange(state, State::forwarded) != State::none) return "it ran before";
        if (++alive_ > most_activations_ && most_activations_ > 0)
          return fmt::format("{} activations would be alive, and the bound is {}", alive_,
                             most_activations_);
        return {};
      case Kind::backward:
      case Kind::input:
        if (state == State::none) return "its forward has not run";
        if (state != State::forwarded) return "it ran before";
        state = slot.kind == Kind::input ? State::parted : State::done;
        alive_ -= state == State::done;
        return {};
      case Kind::weight:
        if (state == State::done) return "it ran before";
        if (std::exchange(state, State::done) != State::parted) return "its input has not run";
        --alive_;
        return {};
    }
    return {};
  }

  // Returns a slot that has not run.
  std::string missing() const {
    for (int chunk = 0; chunk < shape_.chunks; ++chunk)
      for (int m = 0; m < shape_.micro_batches; ++m) switch (states_[index(chunk, m)]) {
          case State::none:
            return to_string(Slot{Kind::forward, chunk, m});
          case State::forwarded:
            return to_string(Slot{Kind::backward, chunk, m});
          case State::parted:
            return to_string(Slot{Kind::weight, chunk, m});
          case State::done:
            break;
        }
    return {};
  }

 private:
  enum class State { none, forwarded, parted, done };

  std::size_t index(int chunk, int micro_batch) const {
    return std::size_t(chunk) * std::size_t(shape_.micro_batches) + std::size_t(micro_batch);
  }

  const PipelineShape& shape_;
  int most_activations_;
  int alive_ = 0;
  std::vector<State> states_;
};

void check_rank(const Order& order, const PipelineShape& shape, int rank, int most_activations) {
  RankCheck check(shape, most_activations);
  for (std::size_t i = 0; i < order.size(); ++i)
    if (const std::string why = check.run(order[i]); !why.empty())
      throw InvalidArgument(
          fmt::format("slot {} of rank {}, {}, cannot run: {}", i, rank, to_string(order[i]), why));
  if (const std::string missing = check.missing(); !missing.empty())
    throw InvalidArgument(
        fmt::format("rank {} ends after slot {} without {}", rank, std::ssize(order) - 1, missing));
}

void check_waits(const PipelineSchedule& schedule, const PipelineShape& shape) {
  const auto tables = stage_tables(schedule, shape);
  try {
    walk(tables, {});
  } catch (const Deadlock& deadlock) {
    std::string waits;
    for (const auto& [rank, index, stage, other] : deadlock.circle()) {
      const auto& table = tables[std::size_t(rank)];
      const auto slot = std::count_if(table.begin(), table.begin() + std::ptrdiff_t(index),
                                      [](const Action& a) { return computes(a); });
      waits += fmt::format("{} slot {} of rank {}, {}, waits for chunk {} of rank {}",
                           waits.empty() ? "" : ";", slot, rank,
                           to_string(schedule[std::size_t(rank)][std::size_t(slot)]),
                           shape.chunk_of(stage), other);
    }
    throw InvalidArgument("the ranks of the pipeline wait for each other for ever:" + waits);
  }
}

}  // namespace

void validate(const PipelineSchedule& schedule, const PipelineShape& shape,
              const std::vector<int>& most_activations) {
  if (shape.ranks < 1 || shape.micro_batches < 1 || shape.chunks < 1)
    throw InvalidArgument(fmt::format(
        "a pipeline has 1 or more ranks, micro-batches and chunks: {}, {} and {} cannot be",
        shape.ranks, shape.micro_batches, shape.chunks));
  if (std::ssize(schedule) != shape.ranks)
    throw InvalidArgument(
        fmt::format("a pipeline of {} ranks has orders for {}", shape.ranks, schedule.size()));
  if (!most_activations.empty() && most_activations.size() != schedule.size())
    throw InvalidArgument(fmt::format("a pipeline of {} ranks has bounds on activations for {}",
                                      shape.ranks, most_activations.size()));
  for (std::size_t rank = 0; rank < schedule.size(); ++rank)
    check_rank(schedule[rank], shape, int(rank),
               most_activations.empty() ? 0 : most_activations[rank]);
  check_waits(schedule, shape);
}

int peak_activations(const PipelineSchedule& schedule, int rank) {
  int alive = 0, peak = 0;
  for (const Slot& slot : schedule.at(std::size_t(rank))) {
    if (slot.kind == Kind::forward) peak = std::max(peak, ++alive);
    if (slot.kind == Kind::backward || slot.kind == Kind::weight) --alive;
  }
  return peak;
}

}  // namespace echelon
