#include "echelon/parallel/pipeline/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/options.h"

namespace echelon {

using Kind = Slot::Kind;

std::string_view to_string(Kind kind) {
  static constexpr std::array names{"forward", "backward", "input", "weight"};
  return names[std::size_t(kind)];
}

std::string to_string(const Slot& slot) {
  return fmt::format("{}(chunk {}, micro-batch {})", to_string(slot.kind), slot.chunk,
                     slot.micro_batch);
}

namespace {

void check_positive(std::string_view name, const PipelineShape& shape) {
  const std::array<std::pair<std::string_view, int>, 3> numbers{
      {{"ranks", shape.ranks},
       {"micro-batches", shape.micro_batches},
       {"chunks a rank", shape.chunks}}};
  for (const auto& [what, number] : numbers)
    if (number < 1)
      throw InvalidArgument(
          fmt::format("pipeline, {}, needs 1 or more {}: {} cannot be", name, what, number));
}

void check_one_chunk(std::string_view name, const PipelineShape& shape) {
  check_positive(name, shape);
  if (shape.chunks > 1)
    throw InvalidArgument(
        fmt::format("pipeline of {} ranks, {}, needs 1 chunk a rank: {} are for interleaved",
                    shape.ranks, name, shape.chunks));
}

void check_interleaved(std::string_view name, const PipelineShape& shape) {
  check_positive(name, shape);
  const std::int64_t m = shape.micro_batches, below = m - m % shape.ranks;
  if (below == m) return;
  throw InvalidArgument(fmt::format(
      "pipeline of {} ranks, {}, needs micro-batches that divide by {}: {} {} not, {}{} "
      "do",
      shape.ranks, name, shape.ranks, m, m == 1 ? "does" : "do",
      below > 0 ? fmt::format("{} and ", below) : "", below + shape.ranks));
}

// All forwards or all backwards of a rank in execution order: p micro-batches through one chunk,
// the same through the next chunk, then the next p. Backwards begin with the last chunk.
Order all(Kind kind, const PipelineShape& shape) {
  Order order;
  const int slots = shape.micro_batches * shape.chunks;
  order.reserve(std::size_t(slots));
  for (int k = 0; k < slots; ++k) {
    const int turn = k / shape.ranks, chunk = turn % shape.chunks;
    order.push_back({kind, kind == Kind::forward ? chunk : shape.chunks - 1 - chunk,
                     turn / shape.chunks * shape.ranks + k % shape.ranks});
  }
  return order;
}

// Some forwards first, then forward and backward alternating until no forward remains, then the
// rest.
Order in_turn(const PipelineShape& shape, Kind backward, int forwards_first) {
  const Order forwards = all(Kind::forward, shape), backwards = all(backward, shape);
  auto next = forwards.begin() + std::min<std::ptrdiff_t>(forwards_first, std::ssize(forwards));
  Order order(forwards.begin(), next);
  order.reserve(2 * forwards.size());
  for (const Slot& slot : backwards) {
    if (next != forwards.end()) order.push_back(*next++);
    order.push_back(slot);
  }
  return order;
}

// Each weight part follows the input part of the micro-batch that is `late` later.
Order with_weights(const Order& order, const PipelineShape& shape, int late) {
  Order all;
  for (const Slot& slot : order) {
    all.push_back(slot);
    if (slot.kind == Kind::input && slot.micro_batch >= late)
      all.push_back({Kind::weight, 0, slot.micro_batch - late});
  }
  for (int m = std::max(0, shape.micro_batches - late); m < shape.micro_batches; ++m)
    all.push_back({Kind::weight, 0, m});
  return all;
}

}  // namespace

PipelineSchedule gpipe(const PipelineShape& shape) {
  check_one_chunk("gpipe", shape);
  const Order order = in_turn(shape, Kind::backward, shape.micro_batches);
  return PipelineSchedule(std::size_t(shape.ranks), order);
}

PipelineSchedule one_f_one_b(const PipelineShape& shape) {
  check_one_chunk("1f1b", shape);
  PipelineSchedule schedule;
  for (int i = 0; i < shape.ranks; ++i)
    schedule.push_back(in_turn(shape, Kind::backward, shape.ranks - i - 1));
  return schedule;
}

PipelineSchedule interleaved(const PipelineShape& shape) {
  check_interleaved("interleaved", shape);
  PipelineSchedule schedule;
  for (int i = 0; i < shape.ranks; ++i)
    schedule.push_back(in_turn(shape, Kind::backward,
                               2 * (shape.ranks - i - 1) + (shape.chunks - 1) * shape.ranks));
  return schedule;
}

PipelineSchedule zero_bubble(const PipelineShape& shape) {
  check_one_chunk("zero-bubble", shape);
  PipelineSchedule schedule;
  for (int i = 0; i < shape.ranks; ++i)
    schedule.push_back(with_weights(in_turn(shape, Kind::input, shape.ranks - i - 1), shape, i));
  return schedule;
}

namespace {

// Idle and busy time of a rank in one unit of time, and the formulas of both.
struct Bubble {
  std::string_view idle_form, work_form;
  std::int64_t idle, work;
};

Bubble plain_bubble(const PipelineShape& shape) {
  return {"p-1", shape.chunks > 1 ? "v m" : "m", shape.ranks - 1,
          std::int64_t{shape.chunks} * shape.micro_batches};
}

Bubble zero_bubble_bubble(const PipelineShape& shape) {
  const std::int64_t p = shape.ranks, m = shape.micro_batches;
  if (m < p) return {"2p-1-m", "3m", 2 * p - 1 - m, 3 * m};
  return {"p-1", "3m", p - 1, 3 * m};
}

int gpipe_activations(const PipelineShape& shape, int) { return shape.micro_batches; }

int one_f_one_b_activations(const PipelineShape& shape, int rank) {
  return std::min(shape.micro_batches, shape.ranks - rank);
}

int interleaved_activations(const PipelineShape& shape, int rank) {
  const int p = shape.ranks, m = shape.micro_batches, v = shape.chunks;
  return std::min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1);
}

int zero_bubble_activations(const PipelineShape& shape, int) {
  return std::min(shape.micro_batches, shape.ranks);
}

// Everything that is known about a schedule.
struct Known {
  void (*check)(std::string_view name, const PipelineShape& shape);
  PipelineSchedule (*make)(const PipelineShape& shape);
  Bubble (*bubble)(const PipelineShape& shape);
  int (*activations)(const PipelineShape& shape, int rank);
};

const Known& known(PipelineOrder order) {
  static constexpr std::array<Known, all_names<PipelineOrder>.size()> schedules{{
      {check_one_chunk, gpipe, plain_bubble, gpipe_activations},
      {check_one_chunk, one_f_one_b, plain_bubble, one_f_one_b_activations},
      {check_interleaved, interleaved, plain_bubble, interleaved_activations},
      {check_one_chunk, zero_bubble, zero_bubble_bubble, zero_bubble_activations},
  }};
  return schedules.at(std::size_t(order));
}

Bubble bubble_of(PipelineOrder order, const PipelineShape& shape) {
  const Known& schedule = known(order);
  schedule.check(name_of(order), shape);
  return schedule.bubble(shape);
}

}  // namespace

PipelineSchedule make_schedule(PipelineOrder order, const PipelineShape& shape) {
  return known(order).make(shape);
}

double ideal_bubble(PipelineOrder order, const PipelineShape& shape) {
  const Bubble one = bubble_of(order, shape);
  return double(one.idle) / double(one.work);
}

std::string ideal_bubble_text(PipelineOrder order, const PipelineShape& shape) {
  const auto [idle_form, work_form, idle, work] = bubble_of(order, shape);
  return fmt::format("({})/{} = {}/{} = {:.1f} %", idle_form,
                     work_form.size() > 1 ? fmt::format("({})", work_form) : std::string(work_form),
                     idle, work, 100.0 * double(idle) / double(work));
}

std::string ideal_idle_text(PipelineOrder order, const PipelineShape& shape) {
  const auto [idle_form, work_form, idle, work] = bubble_of(order, shape);
  return fmt::format("({0})/({1}+{0}) = {2}/{3} = {4:.1f} %", idle_form, work_form, idle,
                     work + idle, 100.0 * double(idle) / double(work + idle));
}

int closed_form_activations(PipelineOrder order, const PipelineShape& shape, int rank) {
  const Known& schedule = known(order);
  schedule.check(name_of(order), shape);
  if (rank < 0 || rank >= shape.ranks)
    throw InvalidArgument(
        fmt::format("rank {} is not in a pipeline of {} ranks", rank, shape.ranks));
  return schedule.activations(shape, rank);
}

}  // namespace echelon
