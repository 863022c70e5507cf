#include "echelon/plan/memory_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "echelon/base/process_memory.h"
#include "echelon/models/family.h"
#include "echelon/nn/split_plan.h"
#include "echelon/optim/optimizer.h"
#include "echelon/optim/slice_update.h"
#include "echelon/parallel/pipeline/pipeline_table.h"
#include "echelon/parallel/server/roles.h"
#include "echelon/parallel/zero/pooled_bytes.h"
#include "echelon/parallel/zero/zero_step.h"
#include "echelon/parallel/zero/zero_table.h"
#include "echelon/parallel/zero/zero_update.h"
#include "echelon/plan/activation_forecast.h"
#include "echelon/plan/compute_type.h"
#include "echelon/plan/mesh_layout.h"
#include "echelon/plan/server_forecast.h"
#include "echelon/plan/tuning.h"
#include "echelon/step/device.h"
#include "echelon/step/executor.h"

namespace echelon {
namespace {

constexpr double mib = 1024.0 * 1024.0;

std::uint64_t& kind(MemoryUse& use, MemoryKind which) { return use.bytes[std::size_t(which)]; }

// The part of the model that one pipeline rank, or the only rank, has.
struct Part {
  PipelineShape shape;
  int rank = 0;
  std::vector<StageLayers> stages;
  std::vector<bool> own;  // by layer; empty: all

  bool has(int layer) const { return own.empty() || own[std::size_t(layer)]; }
};

// If a job balances layers by measured cost when it starts, the forecast balances them by count.
std::vector<Part> parts_of(const PlanOptions& options, int layers, int ranks) {
  if (ranks == 1) return {Part{}};
  const PipelineShape shape{.ranks = ranks,
                            .micro_batches = int(options.train.micro_batches),
                            .chunks = int(options.pipeline.chunks)};
  const auto stages = options.pipeline.stages.empty()
                          ? balance(std::vector<LayerCost>(std::size_t(layers)), BalanceBy::count,
                                    options.pipeline.schedule, shape)
                          : stages_of(options.pipeline.stages, layers, shape);
  std::vector<Part> parts;
  for (int r = 0; r < ranks; ++r) {
    parts.push_back({shape, r, stages, {}});
    for (const int owner : layer_owners(stages, shape)) parts.back().own.push_back(owner == r);
  }
  return parts;
}

// The model laid out as its job lays it out: all parameters in place, without memory.
Stack laid_out(const PlanOptions& options, const Part& part, const Placement& placement) {
  const Family& family = family_of(options.model);
  Stack stack = family.build(options.model);
  tune(stack, options.train, options.optim);
  const auto tensor = int(options.parallel.tensor);
  if (tensor > 1)  // the first tensor rank needs as much memory as any
    apply(family.split(options.model), stack, tensor, 0, splits_rows(options));
  if (!part.own.empty()) stack.keep(part.own);
  Stack::Allocation allocation;
  allocation.shards = placement.owners;
  if (placement.is_sharded())
    allocation.smallest = smallest_group(options.zero, compute_type(options.train));
  stack.lay_out(allocation);
  return stack;
}

StepOrder step_of(const Stack& stack, const PlanOptions& options, const Part& part) {
  // In the one-process order, pooled and kept memory repeat from the second micro-batch on.
  const int micro_batches = part.own.empty()
                                ? int(std::min<std::int64_t>(options.train.micro_batches, 3))
                                : part.shape.micro_batches;
  StepOrder step{step_shape(stack, micro_batches, part.own), {}};
  step.computation = part.own.empty()
                         ? one_process(step.shape)
                         : pipeline_table(make_schedule(options.pipeline.schedule, part.shape),
                                          part.shape, part.rank, part.stages, step.shape);
  return step;
}

std::uint64_t pooled_bytes(const Stack& stack, const PlanOptions& options, StepOrder step,
                           at::ScalarType type, const Placement& placement, Scatter scatter) {
  if (!placement.values.pooled && !placement.gradients.pooled) return 0;
  const auto bytes = describe_groups(step.shape, stack, placement, type);
  const Table table = with_shards(step.computation, step.shape, bytes,
                                  std::int64_t(options.zero.prefetch * mib), scatter);
  return pooled_bytes(table, stack, placement, type, sums_in_fp32(options.train));
}

}  // namespace

MemoryForecast forecast_state(const Stack& stack, const TrainOptions& train,
                              const OptimOptions& optim, const ZeroOptions& zero,
                              const Placement& placement) {
  MemoryForecast result;
  const auto type = compute_type(train);
  const std::uint64_t element = at::elementSize(type), wide = at::elementSize(master_type(type));
  std::int64_t numel = 0;  // of all trainable units, including padding
  for (const auto& group : stack.groups()) numel += group.numel;
  const auto n = std::uint64_t(numel), part = n / std::uint64_t(placement.owners);
  const bool sums = sums_in_fp32(train);
  const std::uint64_t states = make_optimizer(optim)->state_names().size();

  kind(result.tensors, MemoryKind::parameters) = (placement.values.sliced ? part : n) * element;
  kind(result.tensors, MemoryKind::gradients) =
      placement.gradients.sliced ? part * (sums ? 4 : element) : n * element + (sums ? 4 * n : 0);
  kind(result.tensors, MemoryKind::optimizer) = (states + (wide != element ? 1 : 0)) * wide * part;
  const bool offloads = placement.offloads();
  // Gradients are widened one piece at a time if the optimiser does not accept their type.
  const bool on_cpu = train.device == DeviceKind::cpu || offloads;
  const bool taken = make_optimizer(optim)->takes(type, on_cpu ? at::kCPU : at::kCUDA);
  if (wide != element && !sums && !taken) {
    std::int64_t longest = 0;
    for (const auto& range : ranges_within(stack.units(), 0, numel, type, grain_of(optim)))
      longest = std::max(longest, range.numel);
    longest = std::min(longest, std::int64_t(part));
    if (offloads) longest = std::min(longest, std::int64_t(zero.piece * mib / 4));
    kind(result.tensors, MemoryKind::workspace) = std::uint64_t(longest) * wide;
  }
  if (offloads) {
    const auto device =
        train.device == DeviceKind::cpu ? at::Device(at::kCPU) : at::Device(at::kCUDA);
    std::uint64_t kept = 0;
    for (const auto& array :
         ZeroUpdate::arrays(optim, type, sums ? at::kFloat : type, placement, device))
      kept += part * at::elementSize(array.type);
    const bool on_disk = placement.state.store == Placement::Store::disk;
    if (on_disk) {
      result.disk = kept;
      kind(result.tensors, MemoryKind::optimizer) = 0;
      if (placement.offloads_values())
        kind(result.tensors, MemoryKind::parameters) = kind(result.tensors, MemoryKind::gradients) =
            0;
    } else if (!device.is_cpu()) {
      result.host = kept;
      // A wide model then also has its masters there, besides its values.
      if (!placement.values.sliced && wide == element)
        kind(result.tensors, MemoryKind::optimizer) += part * wide;
    }
    // Data waiting to be written, the current and the next piece of each array, and gathered
    // slices.
    if (on_disk) {
      std::uint64_t largest = 0;
      for (const auto& group : stack.groups())
        largest =
            std::max(largest, std::uint64_t(group.numel) / std::uint64_t(placement.owners) * wide);
      const auto piece = std::min<std::uint64_t>(std::uint64_t(zero.piece * mib), largest);
      const auto writing =
          std::min<std::uint64_t>(std::max<std::uint64_t>(Tier::most_writing, largest), kept);
      kind(result.tensors, MemoryKind::workspace) +=
          writing + 2 * (states + 2) * piece + (placement.values.sliced ? 2 * largest : 0);
    }
  }
  // Every rank has all frozen parameters of its layers, with any placement.
  std::uint64_t frozen = 0;
  for (const auto& unit : stack.units())
    if (!unit.trainable) frozen += std::uint64_t(unit.numel);
  kind(result.tensors, MemoryKind::parameters) += frozen * element;
  return result;
}

ScatterRoom scatter_room(const Stack& stack, const TrainOptions& train, const OptimOptions& optim,
                         const ZeroOptions& zero, const Placement& placement, int local) {
  ScatterRoom room;
  for (const auto& group : stack.groups())
    room.gradients += std::uint64_t(group.numel) * at::elementSize(compute_type(train));
  const std::uint64_t budget = memory_budget(train, local),
                      state = forecast_state(stack, train, optim, zero, placement).on_device();
  room.left = budget > state ? budget - state : 0;
  return room;
}

namespace {

Scatter scatter_of(const Stack& stack, const PlanOptions& options, const Part& part,
                   const Placement& placement, int local) {
  if (!placement.gradients.sliced || options.train.micro_batches == 1) return Scatter::micro_batch;
  if (options.zero.scatter != ScatterOption::automatic)
    return options.zero.scatter == ScatterOption::step ? Scatter::step : Scatter::micro_batch;
  if (part.own.empty() || sums_in_fp32(options.train)) return Scatter::micro_batch;
  return scatter_room(stack, options.train, options.optim, options.zero, placement, local)
                 .once_a_step()
             ? Scatter::step
             : Scatter::micro_batch;
}

// `ranks` split the batch; `local` ranks of the job are on this host.
MemoryForecast forecast_part(const PlanOptions& options, const Part& of, int ranks, int local,
                             Role role) {
  const auto type = compute_type(options.train);
  const std::uint64_t element = at::elementSize(type);
  const bool servers = options.server.count > 0;
  // The batch is split over the workers that a job starts with.
  const int workers = servers && ranks > 1 && role == Role::rank
                          ? ServerRoles(options.server, ranks).workers()
                          : ranks;
  const int owners = options.zero.shard == ShardOver::host ? std::min(local, ranks) : ranks;
  const Placement placement = placement_of(options.parallel.zero, options.zero, owners,
                                           owners < ranks, sums_in_fp32(options.train));
  const Stack stack = laid_out(options, of, placement);
  const StepOrder step = step_of(stack, options, of);
  MemoryForecast result =
      forecast_state(stack, options.train, options.optim, options.zero, placement);
  kind(result.tensors, MemoryKind::activations) = activation_bytes(options, step, workers);
  kind(result.tensors, MemoryKind::communication) = pooled_bytes(
      stack, options, step, type, placement, scatter_of(stack, options, of, placement, local));
  for (const auto& group : stack.groups()) {
    const auto bytes = std::uint64_t(group.numel) * element * 2;
    if (bytes <= result.largest_group_bytes) continue;
    result.largest_group_bytes = bytes;
    std::vector<std::string> names;
    for (const auto& unit : stack.units())
      if (unit.trainable && unit.begin >= group.begin && unit.begin < group.begin + group.numel)
        for (const auto& segment : unit.segments) names.push_back(segment.name);
    result.largest_group =
        names.size() == 1 ? names[0] : fmt::format("{} … {}", names.front(), names.back());
  }
  std::int64_t numel = 0;
  for (const auto& group : stack.groups()) numel += group.numel;
  if (role == Role::guest)
    result.tensors = forecast_guest(result.tensors);
  else if (servers)
    result.tensors = forecast_servers(options, ranks, result.tensors, numel);
  else if (options.sync.allow_staleness > 0 && ranks > 1)
    result.tensors = forecast_async_phases(options, ranks, result.tensors, numel);
  return result;
}

}  // namespace

// The forecast of the rank that needs the most.
MemoryForecast forecast_memory(const PlanOptions& options, int ranks, int local, Role role) {
  // No worker's part of the batch is smaller than one sample per micro-batch.
  if (role == Role::guest && ranks == 0)
    ranks = int(std::max<std::int64_t>(1, options.train.batch / options.train.micro_batches));
  const MeshShape mesh = mesh_of(options.parallel, ranks);
  std::optional<MemoryForecast> most;
  const int layers = family_of(options.model).build(options.model).size();
  for (const auto& part : parts_of(options, layers, mesh.pipeline)) {
    const auto one = forecast_part(options, part, mesh.data, local, role);
    if (!most || one.tensors.total() > most->tensors.total()) most = one;
  }
  return *most;
}

std::uint64_t memory_budget(const TrainOptions& train, int local) {
  if (train.memory_mib > 0) return std::uint64_t(train.memory_mib * mib);
  if (train.device == DeviceKind::cpu) return available_bytes() / std::uint64_t(std::max(1, local));
  return cuda_devices() > 0 ? device_bytes() : 0;
}

}  // namespace echelon
