#include "echelon/plan/mesh_layout.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"

namespace echelon {
namespace {

constexpr auto a_measurement = std::chrono::hours(1);  // on one rank, while the others wait

std::vector<LayerCost> of_first(const std::function<std::vector<LayerCost>(int)>& measure,
                                int layers, int data, Communicator& ranks) {
  const at::Tensor numbers = at::zeros({layers, 3}, at::kDouble);
  if (ranks.rank() == 0) {
    double* at = numbers.data_ptr<double>();
    for (const auto& cost : measure(data)) {
      *at++ = cost.seconds;
      *at++ = static_cast<double>(cost.state);
      *at++ = static_cast<double>(cost.activations);
    }
  }
  const at::Tensor there = numbers.to(ranks.device());
  ranks.broadcast(there, 0, {.tag = "layer costs", .timeout = a_measurement}).wait();
  const at::Tensor seen = there.to(at::kCPU);
  const double* at = seen.const_data_ptr<double>();
  std::vector<LayerCost> costs;
  for (int l = 0; l < layers; ++l, at += 3)
    costs.push_back({at[0], static_cast<std::int64_t>(at[1]), static_cast<std::int64_t>(at[2])});
  return costs;
}

}  // namespace

MeshShape mesh_of(const ParallelOptions& parallel, int ranks) {
  try {
    return mesh_shape(ranks, {.pipeline = int(parallel.pipeline),
                              .data = int(parallel.data),
                              .tensor = int(parallel.tensor)});
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format(
        "{}; parallel.pipeline, parallel.data and parallel.tensor make the mesh (parallel.data=0: "
        "what the others leave)",
        error.what()));
  }
}

MeshLayout lay_over(Stack& stack, std::shared_ptr<Communicator> ranks,
                    const ParallelOptions& parallel, const PipelineOptions& pipeline,
                    const SplitPlan& plan, int micro_batches, std::int64_t tokens,
                    const std::function<std::vector<LayerCost>(int)>& measure) {
  MeshLayout layout;
  const MeshShape shape = mesh_of(parallel, ranks ? ranks->size() : 1);
  if (shape.pipeline > 1 || shape.tensor > 1) {
    layout.mesh = make_mesh(std::move(ranks), shape);
  } else {
    layout.mesh.shape = shape;
    layout.mesh.place.data = ranks ? ranks->rank() : 0;
    layout.mesh.data = layout.mesh.all = std::move(ranks);
  }
  layout.pipeline = {
      .ranks = shape.pipeline, .micro_batches = micro_batches, .chunks = int(pipeline.chunks)};
  const auto split = [&] {
    if (shape.tensor == 1) return;
    apply(plan, stack, layout.mesh.tensor, parallel.sequence && tokens % shape.tensor == 0);
  };
  if (shape.pipeline == 1) {
    layout.pipeline.chunks = 1;
    layout.stages = {{0, stack.size()}};
    split();
    return layout;
  }
  make_schedule(pipeline.schedule, layout.pipeline);  // throws if there is no such schedule
  if (!pipeline.stages.empty()) {
    layout.stages = stages_of(pipeline.stages, stack.size(), layout.pipeline);
  } else {
    std::vector<LayerCost> costs(std::size_t(stack.size()));
    if (pipeline.balance != BalanceBy::count)
      costs = layout.costs = of_first(measure, stack.size(), shape.data, *layout.mesh.all);
    layout.stages = balance(costs, pipeline.balance, pipeline.schedule, layout.pipeline);
  }
  split();
  for (const int owner : layer_owners(layout.stages, layout.pipeline))
    layout.own.push_back(owner == layout.mesh.place.pipeline);
  stack.keep(layout.own);
  return layout;
}

Neighbours MeshLayout::neighbours() const {
  if (mesh.shape.pipeline == 1) return {};
  return {mesh.pipeline, layer_owners(stages, pipeline)};
}

PartSums MeshLayout::part_sums(const Stack& stack) const {
  PartSums sums;
  if (!splits_model()) return sums;
  sums.all = [tensor = mesh.tensor, pipeline = mesh.pipeline](at::Tensor square) {
    for (const auto& ranks : {tensor, pipeline})
      if (ranks)
        ranks->all_reduce(square, ReduceOp::sum, {.tag = "norm", .blocking = true}).follow();
  };
  if (!mesh.tensor) return sums;
  std::vector<double> counted;
  for (const auto& unit : stack.units())
    for (const auto& segment : unit.segments)
      if (unit.trainable)
        counted.push_back(stack.find(segment.name)->split.is_part() || mesh.place.tensor == 0);
  at::Tensor mask = at::zeros({std::int64_t(counted.size()), 1}, at::kDouble);
  std::copy(counted.begin(), counted.end(), mask.data_ptr<double>());
  sums.parameters = [tensor = mesh.tensor, mask = mask.to(stack.device())](at::Tensor rows) {
    rows.mul_(mask);
    tensor->all_reduce(rows, ReduceOp::sum, {.tag = "norms", .blocking = true}).follow();
  };
  return sums;
}

SumRanks MeshLayout::sum_ranks(const Stack& stack) {
  std::map<Dimensions, std::shared_ptr<Communicator>> by_set;
  for (const auto& parameter : stack.parameters()) {
    if (!parameter.trainable) continue;
    if (mesh.shape.data > 1 && !parameter.summed_over.contains(Dimension::data))
      throw InvalidArgument(fmt::format(
          "the gradients of {} are summed over {}, and not over data: the {} data ranks, which have "
          "copies of it, would train it apart",
          parameter.name, to_string(parameter.summed_over), mesh.shape.data));
    if (!by_set.contains(parameter.summed_over))
      by_set[parameter.summed_over] = mesh.over(parameter.summed_over);
  }
  return {mesh.over(batch_dimensions), std::move(by_set)};
}

std::string MeshLayout::description(const PipelineOptions& options) const {
  if (mesh.shape.pipeline == 1) return {};
  std::string text;
  const BalanceBy by = costs.empty() ? BalanceBy::count : options.balance;
  const auto each = stage_costs(
      stages, costs.empty() ? std::vector<LayerCost>(std::size_t(stages.back().end)) : costs, by,
      options.schedule, pipeline);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto [begin, end] = stages[s];
    text += fmt::format("{}stage {} has {}", s > 0 ? "; " : "", s,
                        end - begin == 1 ? fmt::format("layer {}", begin)
                                         : fmt::format("layers {} to {}", begin, end - 1));
    if (by == BalanceBy::time) text += fmt::format(" ({:.1f} ms)", each[s] * 1e3);
    if (by == BalanceBy::memory) text += fmt::format(" ({})", human_bytes(std::uint64_t(each[s])));
  }
  return fmt::format("{}; the dearest rank has {:.0f} % more {} than the mean", text,
                     imbalance(each, pipeline) * 100,
                     by == BalanceBy::count ? "layers" : name_of(by));
}

}  // namespace echelon
