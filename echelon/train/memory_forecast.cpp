#include "echelon/train/memory_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "echelon/base/block_file.h"
#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/process_memory.h"
#include "echelon/nn/gpt.h"
#include "echelon/optim/optimizer.h"
#include "echelon/optim/slice_update.h"
#include "echelon/parallel/pipeline/pipeline_table.h"
#include "echelon/parallel/tensor/split_plan.h"
#include "echelon/parallel/zero/lending_pool.h"
#include "echelon/parallel/zero/zero_shards.h"
#include "echelon/parallel/zero/zero_step.h"
#include "echelon/parallel/zero/zero_update.h"
#include "echelon/step/device.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

constexpr double mib = 1024.0 * 1024.0;

std::uint64_t& kind(MemoryUse& use, MemoryKind which) { return use.bytes[std::size_t(which)]; }

// A rank of a pipeline, or the only one: its part of the model.
struct Part {
  PipelineShape shape;
  int rank = 0;
  std::vector<StageLayers> stages;
  std::vector<bool> own;  // by layer; empty: all

  bool has(int layer) const { return own.empty() || own[std::size_t(layer)]; }
};

bool splits_rows(const JobOptions& options) {
  return options.parallel.sequence && options.model.context % options.parallel.tensor == 0;
}

// Where layers are to be balanced by what is measured when a job starts, by their count.
std::vector<Part> parts_of(const JobOptions& options, int layers, int ranks) {
  if (ranks == 1) return {Part{}};
  const PipelineShape shape{.ranks = ranks,
                            .micro_batches = int(options.train.micro_batches),
                            .chunks = int(options.pipeline.chunks)};
  const auto stages = options.pipeline.stages.empty()
                          ? balance(std::vector<LayerCost>(std::size_t(layers)), "count",
                                    options.pipeline.schedule, shape)
                          : stages_of(options.pipeline.stages, layers, shape);
  std::vector<Part> parts;
  for (int r = 0; r < ranks; ++r) {
    parts.push_back({shape, r, stages, {}});
    for (const int owner : layer_owners(stages, shape)) parts.back().own.push_back(owner == r);
  }
  return parts;
}

// The model with all parameters in their places, as its job lays it out, and without memory.
Stack laid_out(const JobOptions& options, const Part& part, int owners) {
  Stack stack = gpt(options.model);
  const auto tensor = int(options.parallel.tensor);
  if (tensor > 1)  // the first counts among those that have as much as any
    apply(gpt_plan(options.model), stack, tensor, 0, splits_rows(options));
  if (!part.own.empty()) stack.keep(part.own);
  Stack::Placement placement;
  placement.shards = owners;
  if (options.parallel.zero > 0)
    placement.smallest = smallest_group(options.zero, compute_type(options.train));
  stack.lay_out(placement);
  return stack;
}

struct Step {
  StepShape shape;
  Table computation;
};

Step step_of(const Stack& stack, const JobOptions& options, const Part& part) {
  // In one process's order what is lent and kept repeats from the second micro-batch on.
  const int micro_batches = part.own.empty()
                                ? int(std::min<std::int64_t>(options.train.micro_batches, 3))
                                : part.shape.micro_batches;
  Step step{step_shape(stack, micro_batches, part.own), {}};
  step.computation = part.own.empty()
                         ? one_process(step.shape)
                         : pipeline_table(make_schedule(options.pipeline.schedule, part.shape),
                                          part.shape, part.rank, part.stages, step.shape);
  return step;
}

// The memory that a step lends to groups, piece by piece as ZeroShards takes and keeps it.
std::uint64_t lent_bytes(const Stack& stack, const JobOptions& options, Step step,
                         at::ScalarType type, ZeroShards::Lending lending, Scatter scatter) {
  if (!lending.values && !lending.gradients) return 0;
  const auto stage = int(options.parallel.zero);
  const auto bytes = describe_groups(step.shape, stack, stage, type);
  step.shape.kept_away = stage == 3 && options.zero.offload != "none";
  const Table table = with_shards(step.computation, step.shape, stage, bytes,
                                  std::int64_t(options.zero.prefetch * mib), scatter);

  struct Piece {
    std::int64_t elements = 0;
    at::ScalarType type = at::kFloat;
    std::int64_t numel() const { return elements; }
    at::ScalarType scalar_type() const { return type; }
  };
  LendingPool<Piece> pool;
  std::uint64_t sum = 0;
  const auto take = [&](int group, at::ScalarType kind) {
    const auto numel = stack.groups()[std::size_t(group)].numel;
    return pool.take(numel, kind, [&] {
      sum += std::uint64_t(numel) * at::elementSize(kind);
      return Piece{numel, kind};
    });
  };
  std::vector<Piece> values(stack.groups().size()), grads(stack.groups().size());
  std::vector<std::pair<int, Piece>> scattering;
  for (const auto& action : table) {
    const int group = action.group;
    const auto g = std::size_t(group);
    switch (action.kind) {
      case Action::Kind::gather:
        if (lending.values) values[g] = take(group, type);
        break;
      case Action::Kind::release:
        if (lending.values) pool.give_back(values[g]);
        break;
      case Action::Kind::open:
        if (!lending.gradients) break;
        // As many as may be on their way to their owners, and this group's own.
        for (std::size_t i = 0; i < scattering.size(); ++i)
          if (scattering[i].first == group ||
              i + ZeroShards::most_scattering <= scattering.size()) {
            pool.give_back(scattering[i].second);
            scattering[i].first = -1;
          }
        std::erase_if(scattering, [](const auto& one) { return one.first < 0; });
        grads[g] = take(group, type);
        break;
      case Action::Kind::scatter: {
        if (!lending.gradients) break;
        Piece piece = grads[g];
        if (sums_in_fp32(options.train)) {
          piece = take(group, at::kFloat);
          pool.give_back(grads[g]);
        }
        scattering.push_back({group, piece});
        break;
      }
      default:
        break;
    }
  }
  return sum;
}

// What a layer holds of a micro-batch, in bytes.
struct LayerBytes {
  std::uint64_t kept = 0;      // from its forward to its backward
  std::uint64_t put_off = 0;   // from its input part to its weight part
  std::uint64_t forward = 0;   // beside what is kept, while it runs
  std::uint64_t backward = 0;  // likewise, with the gradient that comes in
};

// What has come and not been used, and what was sent and may not have gone, beside what layers
// hold: the most that is alive at once. An output has gone for certain when its gradient is back;
// its memory is looked at when something else is sent. Of gradients no more than two are on their
// way while forwards go on: the next input is only computed after the first was taken. When
// backwards alone are left, each frees more than it sends.
std::uint64_t most_alive(const Step& step, const std::vector<LayerBytes>& layers,
                         std::uint64_t message) {
  using Kind = Action::Kind;
  std::uint64_t alive = 0, most = 0, gone = 0;
  int gradients = 0;
  const auto send = [&] {
    alive += message;
    most = std::max(most, alive);
    alive -= std::exchange(gone, 0);
  };
  for (const auto& action : step.computation) {
    const int l = action.layer;
    const LayerBytes& layer = layers[std::size_t(l)];
    switch (action.kind) {
      case Kind::receive:
      case Kind::receive_grad:
        alive += message;
        break;
      case Kind::forward:
        if (l > 0 && !step.shape.has(l - 1)) alive -= message;  // its input now, which it keeps
        alive += layer.kept;
        most = std::max(most, alive + layer.forward);
        break;
      case Kind::backward:
      case Kind::input:
        if (l + 1 < step.shape.layers && !step.shape.has(l + 1)) {
          alive -= message;
          gone += message;
        }
        most = std::max(most, alive + layer.backward);
        alive -= layer.kept;
        // What is computed again is not put off: it would be alive whole until then.
        if (action.kind == Kind::input && !step.shape.recomputes(l)) alive += layer.put_off;
        break;
      case Kind::weight:
        if (!step.shape.recomputes(l)) alive -= layer.put_off;
        break;
      case Kind::send:
        send();
        break;
      case Kind::send_grad:
        if (++gradients > 2) alive -= message;
        send();
        break;
      default:
        break;
    }
  }
  return most;
}

// docs/recompute.md has the terms; what a block's backward holds beside them was measured.
std::uint64_t activation_bytes(const JobOptions& options, const Step& step, int workers) {
  const auto& model = options.model;
  const auto samples = (options.train.batch + workers * options.train.micro_batches - 1) /
                       (workers * options.train.micro_batches);
  const auto tokens = std::uint64_t(samples * model.context);
  const auto element = at::elementSize(compute_type(options.train));
  const auto d = std::uint64_t(model.width), h = std::uint64_t(model.heads),
             vocab = std::uint64_t(model.vocab);
  // Ranks that split matrices have a part of what products give (of 16 d elements of a token 12),
  // and, where they split rows, of the rest too.
  const auto tensor = std::uint64_t(options.parallel.tensor);
  const std::uint64_t by_rows = tensor > 1 && splits_rows(options) ? tensor : 1;
  const std::uint64_t narrow = (4 / by_rows + h / tensor) * std::max<std::uint64_t>(4, element);
  const auto of = [&](std::uint64_t parts, std::uint64_t others) {
    return (parts * d / tensor + others * d / by_rows) * element;
  };
  const std::uint64_t whole = of(12, 4) + narrow;
  const std::uint64_t kept = model.recompute == "full"        ? of(0, 1)
                             : model.recompute == "selective" ? of(8, 2) + narrow
                                                              : whole;
  const std::uint64_t backward = model.recompute == "full" ? whole - of(0, 1) + 5 * d * element
                                 : model.recompute == "selective" ? 9 * d * element
                                                                  : 5 * d * element;
  // The head: its input, the norm's output and the logits' gradient, and a block of rows of
  // logarithms.
  const std::uint64_t part = (vocab + tensor - 1) / tensor;  // of the vocabulary
  const std::uint64_t normed = model.recompute == "selective" ? 0 : d;
  const std::uint64_t a_block = std::min<std::uint64_t>(
      tokens * part * element, options.train.device == "cpu" ? 4 << 20 : 512 << 20);
  // fp16 has that block in fp32; of bf16 a CPU has an fp32 copy, and what it makes of it.
  const std::uint64_t rows = options.train.precision == "fp16" ? 2 * a_block
                             : options.train.precision == "bf16" && options.train.device == "cpu"
                                 ? 4 * a_block
                                 : a_block;
  const std::uint64_t stream = tokens * d * element;  // a gradient that comes in
  std::vector<LayerBytes> layers(std::size_t(step.shape.layers));
  layers.front().backward = stream;
  for (std::size_t l = 1; l + 1 < layers.size(); ++l)
    layers[l] = {.kept = tokens * kept,
                 .put_off = tokens * of(12, 4),
                 .backward = stream + tokens * backward};
  layers.back() = {.kept = tokens * (d + normed + part) * element,
                   .put_off = tokens * (d + part) * element,
                   .forward = rows + tokens * (d - normed) * element,
                   .backward = stream};
  // A gradient and its masked copy; on a GPU, masks are made of integers, 16 Mi at a time.
  std::uint64_t masks = 0;
  if (model.dropout > 0)
    masks =
        tokens * d * element +
        (options.train.device == "cuda" ? std::min<std::uint64_t>(tokens * d, 1 << 24) * 28 : 0);
  return masks + 8 * tokens + most_alive(step, layers, tokens * of(0, 1));
}

}  // namespace

MemoryForecast forecast_state(const Stack& stack, const TrainOptions& train,
                              const OptimOptions& optim, const ZeroOptions& zero, int stage,
                              int owners) {
  MemoryForecast result;
  const auto type = compute_type(train);
  const std::uint64_t element = at::elementSize(type), wide = at::elementSize(master_type(type));
  std::int64_t numel = 0;  // of all trainable units, with padding
  for (const auto& group : stack.groups()) numel += group.numel;
  const auto n = std::uint64_t(numel), part = n / std::uint64_t(owners);
  const bool sums = sums_in_fp32(train);
  const std::uint64_t states = make_optimizer(optim)->state_names().size();

  kind(result.tensors, MemoryKind::parameters) = (stage >= 3 ? part : n) * element;
  kind(result.tensors, MemoryKind::gradients) =
      stage >= 2 ? part * (sums ? 4 : element) : n * element + (sums ? 4 * n : 0);
  kind(result.tensors, MemoryKind::optimizer) = (states + (wide != element ? 1 : 0)) * wide * part;
  const bool offloads = zero.offload != "none" && stage > 0;
  // Gradients are widened a piece at a time, where the optimiser does not take them as they are.
  const bool on_cpu = train.device == "cpu" || offloads;
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
    const auto device = train.device == "cpu" ? at::Device(at::kCPU) : at::Device(at::kCUDA);
    std::uint64_t kept = 0;
    for (const auto& array :
         ZeroUpdate::arrays(optim, type, sums ? at::kFloat : type, stage, device))
      kept += part * at::elementSize(array.type);
    if (zero.offload == "disk") {
      result.disk = kept;
      kind(result.tensors, MemoryKind::optimizer) = 0;
      if (stage >= 3)
        kind(result.tensors, MemoryKind::parameters) = kind(result.tensors, MemoryKind::gradients) =
            0;
    } else if (!device.is_cpu()) {
      result.host = kept;
      // A wide model has its masters there too, beside its values.
      if (stage < 3 && wide == element) kind(result.tensors, MemoryKind::optimizer) += part * wide;
    }
    // What waits to be written; pieces that are updated and that come next, of each array; and
    // slices that are gathered.
    if (zero.offload == "disk") {
      std::uint64_t largest = 0;
      for (const auto& group : stack.groups())
        largest = std::max(largest, std::uint64_t(group.numel) / std::uint64_t(owners) * wide);
      const auto piece = std::min<std::uint64_t>(std::uint64_t(zero.piece * mib), largest);
      const auto writing =
          std::min<std::uint64_t>(std::max<std::uint64_t>(Tier::most_writing, largest), kept);
      kind(result.tensors, MemoryKind::workspace) +=
          writing + 2 * (states + 2) * piece + (stage >= 3 ? 2 * largest : 0);
    }
  }
  return result;
}

ScatterRoom scatter_room(const Stack& stack, const TrainOptions& train, const OptimOptions& optim,
                         const ZeroOptions& zero, int stage, int owners, int local) {
  ScatterRoom room;
  for (const auto& group : stack.groups())
    room.gradients += std::uint64_t(group.numel) * at::elementSize(compute_type(train));
  const std::uint64_t budget = memory_budget(train, local),
                      state = forecast_state(stack, train, optim, zero, stage, owners).on_device();
  room.left = budget > state ? budget - state : 0;
  return room;
}

namespace {

Scatter scatter_of(const Stack& stack, const JobOptions& options, const Part& part, int owners,
                   int local) {
  const auto stage = int(options.parallel.zero);
  if (stage < 2 || options.train.micro_batches == 1) return Scatter::micro_batch;
  if (options.zero.scatter != "auto")
    return options.zero.scatter == "step" ? Scatter::step : Scatter::micro_batch;
  if (part.own.empty() || sums_in_fp32(options.train)) return Scatter::micro_batch;
  return scatter_room(stack, options.train, options.optim, options.zero, stage, owners, local)
                 .once_a_step()
             ? Scatter::step
             : Scatter::micro_batch;
}

// `ranks` split the batch; `local` ranks of the job are on this host.
MemoryForecast forecast_part(const JobOptions& options, const Part& of, int ranks, int local) {
  const auto type = compute_type(options.train);
  const std::uint64_t element = at::elementSize(type);
  const auto stage = int(options.parallel.zero);
  const bool servers = options.server.count > 0;
  const int owners = stage == 0 ? 1 : options.zero.shard == "host" ? std::min(local, ranks) : ranks;
  const Stack stack = laid_out(options, of, owners);
  const Step step = step_of(stack, options, of);
  MemoryForecast result =
      forecast_state(stack, options.train, options.optim, options.zero, stage, owners);
  if (servers) kind(result.tensors, MemoryKind::optimizer) = 0;
  kind(result.tensors, MemoryKind::activations) = activation_bytes(
      options, step,
      servers ? ranks - (options.server.place == "separate" ? int(options.server.count) : 0)
              : ranks);
  const bool offloads = options.zero.offload != "none" && stage > 0;
  kind(result.tensors, MemoryKind::communication) = lent_bytes(
      stack, options, step, type,
      ZeroShards::lending(stage, owners, owners < ranks, offloads, sums_in_fp32(options.train)),
      scatter_of(stack, options, of, owners, local));
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
  return result;
}

}  // namespace

// Of the rank that needs the most.
MemoryForecast forecast_memory(const JobOptions& options, int ranks, int local) {
  const MeshShape mesh = mesh_of(options.parallel, ranks);
  std::optional<MemoryForecast> most;
  for (const auto& part : parts_of(options, int(options.model.layers) + 2, mesh.pipeline)) {
    const auto one = forecast_part(options, part, mesh.data, local);
    if (!most || one.tensors.total() > most->tensors.total()) most = one;
  }
  return *most;
}

std::uint64_t memory_budget(const TrainOptions& train, int local) {
  if (train.memory_mib > 0) return std::uint64_t(train.memory_mib * mib);
  if (train.device == "cpu") return available_bytes() / std::uint64_t(std::max(1, local));
  return cuda_devices() > 0 ? device_bytes() : 0;
}

namespace {

// Why it cannot be: empty where it can.
std::string lack(const MemoryForecast& needs, const JobOptions& options, int local) {
  const std::uint64_t budget = memory_budget(options.train, local);
  if (budget == 0) return {};
  if (needs.largest_group_bytes > budget)
    return fmt::format("the values and gradients of {} are {} in one piece, and a rank may take {}",
                       needs.largest_group, human_bytes(needs.largest_group_bytes),
                       human_bytes(budget));
  if (needs.on_device() > budget)
    return fmt::format("a rank needs {}, and may take {}", human_bytes(needs.on_device()),
                       human_bytes(budget));
  const std::uint64_t host = available_bytes() / std::uint64_t(std::max(1, local));
  if (host > 0 && needs.host > host)
    return fmt::format("a rank needs {} of the host's memory, and may take {}",
                       human_bytes(needs.host), human_bytes(host));
  return {};
}

// What differs, as arguments: "parallel.zero=2 model.recompute=full".
std::string changed(const JobOptions& from, const JobOptions& to) {
  std::string text;
  const auto add = [&](const char* key, const auto& before, const auto& after) {
    if (before != after) text += fmt::format("{}{}={}", text.empty() ? "" : " ", key, after);
  };
  add("parallel.zero", from.parallel.zero, to.parallel.zero);
  add("model.recompute", from.model.recompute, to.model.recompute);
  add("train.micro_batches", from.train.micro_batches, to.train.micro_batches);
  add("zero.prefetch", from.zero.prefetch, to.zero.prefetch);
  add("zero.group", from.zero.group, to.zero.group);
  add("zero.scatter", from.zero.scatter, to.zero.scatter);
  add("zero.offload", from.zero.offload, to.zero.offload);
  if (to.zero.offload == "disk" && to.zero.offload_path.empty())
    text += " zero.offload_path=FOLDER";
  return text;
}

// What could be changed, the cheapest first: to send gradients more often and stages that share
// more cost little, to compute again costs time, more micro-batches make each less efficient, to
// keep state elsewhere costs most.
std::vector<JobOptions> changes(const JobOptions& options, int ranks) {
  std::vector<std::int64_t> micro_batches = {options.train.micro_batches};
  const auto most = options.train.batch / mesh_of(options.parallel, ranks).data;
  while (micro_batches.back() < most)
    micro_batches.push_back(std::min(most, micro_batches.back() * 2));
  std::vector<std::string> recompute = {"none", "selective", "full"};
  recompute.erase(recompute.begin(),
                  std::find(recompute.begin(), recompute.end(), options.model.recompute));
  // What the job would refuse together with stages.
  const bool unshared =
      options.server.count > 0 || options.sync.adapt || options.sync.allow_staleness > 0;
  const bool several = mesh_of(options.parallel, ranks).data > 1;
  const std::int64_t last = several && !unshared ? 3 : options.parallel.zero;

  std::vector<JobOptions> all;
  JobOptions next = options;
  for (const auto pieces : micro_batches)
    for (const auto& again : recompute)
      for (auto stage = options.parallel.zero; stage <= last; ++stage) {
        next.train.micro_batches = pieces;
        next.model.recompute = again;
        next.parallel.zero = stage;
        next.zero.scatter = options.zero.scatter;
        all.push_back(next);
        const bool once = options.zero.scatter == "step" ||
                          (options.zero.scatter == "auto" && options.parallel.pipeline > 1);
        if (!once || stage < 2 || pieces == 1) continue;
        next.zero.scatter = "micro_batch";
        all.push_back(next);
      }
  if (next.parallel.zero == 3) {
    next.zero.prefetch = next.zero.group = 0;
    all.push_back(next);
  }
  if (options.zero.offload != "none" || unshared) return all;
  for (const char* tier : {"host", "disk"}) {
    if (std::string(tier) == "host" && options.train.device == "cpu") continue;
    next = options;
    next.zero.offload = tier;
    for (const auto pieces : {micro_batches.front(), micro_batches.back()})
      for (const auto& again : recompute)
        for (const int stage : several ? std::vector{3} : std::vector{2, 3}) {
          next.parallel.zero = std::max<std::int64_t>(stage, options.parallel.zero);
          next.model.recompute = again;
          next.train.micro_batches = pieces;
          all.push_back(next);
        }
  }
  return all;
}

std::optional<JobOptions> first_that_fits(const JobOptions& options, int ranks, int local) {
  for (const auto& change : changes(options, ranks))
    if (lack(forecast_memory(change, ranks, local), change, local).empty()) return change;
  return {};
}

}  // namespace

void require_memory(const JobOptions& options, int ranks, int local) {
  const MemoryForecast needs = forecast_memory(options, ranks, local);
  const std::string missing = lack(needs, options, local);
  if (missing.empty()) return;
  const auto change = first_that_fits(options, ranks, local);
  throw InvalidArgument(fmt::format(
      "{}. {}", missing,
      change ? fmt::format("It would fit with {}", changed(options, *change))
             : std::string("Give a smaller model, a smaller batch or more ranks; echelon train "
                           "--dry-run shows what takes the memory")));
}

std::string memory_head() {
  std::string line = fmt::format("{:<12}{:<20}", "memory", "MiB");
  for (const char* name : memory_kind_names) line += fmt::format("  {}", name);
  return line + "  together";
}

std::string memory_row(const std::string& label, const MemoryUse& use) {
  std::string line = fmt::format("{:<12}{:<20}", "", label);
  for (std::size_t i = 0; i < use.bytes.size(); ++i)
    line += fmt::format("{:>{}.1f}", double(use.bytes[i]) / mib,
                        std::string_view(memory_kind_names[i]).size() + 2);
  return line + fmt::format("{:>10.1f}", double(use.total()) / mib);
}

bool show_forecast(const JobOptions& options, int ranks, int local) {
  const MemoryForecast needs = forecast_memory(options, ranks, local);
  const std::uint64_t budget = memory_budget(options.train, local);
  fmt::print("{}\n{}\n", memory_head(), memory_row(name_of_forecast(ranks), needs.tensors));
  if (needs.host > 0) fmt::print("and in the host's memory {}\n", human_bytes(needs.host));
  if (needs.disk > 0)
    fmt::print("and on disk {}{}\n", human_bytes(needs.disk), ranks > 1 ? " a rank" : "");
  fmt::print("largest group of layers: {}, {} with its gradients\n", needs.largest_group,
             human_bytes(needs.largest_group_bytes));
  if (needs.disk > 0) {
    const std::string why = why_no_room(options.zero.offload_path,
                                        needs.disk * std::uint64_t(std::max(1, local)), ".slices");
    if (!why.empty()) {
      fmt::print("does not fit: zero.offload_path: {}\n", why);
      return false;
    }
  }
  if (budget == 0) {
    fmt::print("there is no {} here to say whether it fits\n",
               options.train.device == "cuda" ? "GPU" : "way to tell what is free");
    return true;
  }
  const std::string missing = lack(needs, options, local);
  if (missing.empty()) {
    fmt::print("fits: a rank may take {}\n", human_bytes(budget));
    return true;
  }
  fmt::print("does not fit: {}\n", missing);
  if (const auto change = first_that_fits(options, ranks, local)) {
    fmt::print("it would fit with {}:\n{}\n", changed(options, *change),
               memory_row("then", forecast_memory(*change, ranks, local).tensors));
  } else {
    fmt::print(
        "no other stage, recompute, number of micro-batches or place of the state that was tried "
        "makes it fit: give a smaller model, a smaller batch or more ranks\n");
  }
  return false;
}

}  // namespace echelon
