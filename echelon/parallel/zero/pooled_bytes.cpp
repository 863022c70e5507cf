#include "echelon/parallel/zero/pooled_bytes.h"

#include <vector>

#include "echelon/parallel/zero/group_memory.h"
#include "echelon/step/walk.h"
#include "echelon/step/widening.h"

namespace echelon {
namespace {

// The size and type of a tensor, without memory.
struct Piece {
  std::int64_t elements = 0;
  at::ScalarType type = at::kFloat;
  std::int64_t numel() const { return elements; }
  at::ScalarType scalar_type() const { return type; }
};

}  // namespace

std::uint64_t pooled_bytes(const Table& table, const Stack& stack, const Placement& placement,
                           at::ScalarType type, bool fp32_sums) {
  using Kind = Action::Kind;
  const bool values = placement.values.pooled, gradients = placement.gradients.pooled;
  std::vector<std::int64_t> numels;
  for (const auto& group : stack.groups()) numels.push_back(group.numel);
  std::uint64_t sum = 0;
  GroupMemory<Piece> memory(numels, type, fp32_sums, [&](std::int64_t numel, at::ScalarType of) {
    sum += std::uint64_t(numel) * at::elementSize(of);
    return Piece{numel, of};
  });
  Widening widening(stack);
  walk(table, {}, [&](int, std::size_t, const TimedAction& timed, const RankCosts&) {
    const auto& [kind, layer, micro_batch, bucket, group] = timed.action;
    if (gradients && fp32_sums)
      for (const int other : widening.before(timed.action)) memory.widen(other);
    if (values && kind == Kind::gather) memory.gather(group);
    if (values && kind == Kind::reshard) memory.reshard(group);
    if (gradients && kind == Kind::alloc_grads) {
      for (const int other : memory.due(group)) memory.finish(other);
      memory.alloc_grads(group);
    }
    if (gradients && kind == Kind::scatter) memory.scatter(group);
  });
  return sum;
}

}  // namespace echelon
