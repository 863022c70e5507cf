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
#include "echelon/parallel/zero/lending_pool.h"
#include "echelon/parallel/zero/zero_shards.h"
#include "echelon/parallel/zero/zero_update.h"
#include "echelon/step/device.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

constexpr double mib = 1024.0 * 1024.0;

std::uint64_t& kind(MemoryUse& use, MemoryKind which) { return use.bytes[std::size_t(which)]; }

// The model with all parameters in their places, as its job lays it out, and without memory.
Stack laid_out(const JobOptions& options, int owners) {
  Stack stack = gpt(options.model);
  Stack::Placement placement;
  placement.shards = owners;
  if (options.parallel.zero > 0)
    placement.smallest = std::int64_t(options.zero.group * mib /
                                      double(at::elementSize(compute_type(options.train))));
  stack.lay_out(placement);
  return stack;
}

// The memory that a step lends to groups, piece by piece as ZeroShards takes and keeps it.
std::uint64_t lent_bytes(const Stack& stack, const JobOptions& options, at::ScalarType type,
                         ZeroShards::Lending lending) {
  if (!lending.values && !lending.gradients) return 0;
  const auto stage = int(options.parallel.zero);
  StepShape shape;
  shape.layers = stack.size();
  // What is lent repeats from the second on.
  shape.micro_batches = int(std::min<std::int64_t>(options.train.micro_batches, 3));
  for (int l = 0; l < stack.size(); ++l) shape.uses.push_back(stack.groups_of(l));
  shape.groups = int(stack.groups().size());
  shape.lent_values = stage >= 3;
  shape.lent_gradients = stage >= 2;
  std::vector<std::int64_t> bytes;
  for (const auto& group : stack.groups())
    bytes.push_back(group.numel * std::int64_t(at::elementSize(type)));
  const Table table = zero(shape, stage, bytes, std::int64_t(options.zero.prefetch * mib));

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

// docs/recompute.md has the terms; what a block's backward holds beside them was measured.
std::uint64_t activation_bytes(const JobOptions& options, int workers) {
  const auto& model = options.model;
  const auto samples = (options.train.batch + workers * options.train.micro_batches - 1) /
                       (workers * options.train.micro_batches);
  const auto tokens = std::uint64_t(samples * model.context);
  const auto element = at::elementSize(compute_type(options.train));
  const auto d = std::uint64_t(model.width), h = std::uint64_t(model.heads),
             layers = std::uint64_t(model.layers), vocab = std::uint64_t(model.vocab);
  const std::uint64_t narrow = (4 + h) * std::max<std::uint64_t>(4, element);
  const std::uint64_t whole = 16 * d * element + narrow;
  const std::uint64_t kept = model.recompute == "full"        ? d * element
                             : model.recompute == "selective" ? 10 * d * element + narrow
                                                              : whole;
  const std::uint64_t backward = model.recompute == "full" ? whole - d * element + 5 * d * element
                                 : model.recompute == "selective" ? 9 * d * element
                                                                  : 5 * d * element;
  // The head: its input, the norm's output and the logits' gradient, and a block of rows of
  // logarithms.
  const std::uint64_t a_block = std::min<std::uint64_t>(
      tokens * vocab * element, options.train.device == "cpu" ? 4 << 20 : 512 << 20);
  // fp16 has that block in fp32; of bf16 a CPU's operators make an fp32 copy.
  const std::uint64_t rows = options.train.precision == "fp16" ? 2 * a_block
                             : options.train.precision == "bf16" && options.train.device == "cpu"
                                 ? 3 * a_block
                                 : a_block;
  const std::uint64_t head = tokens * (2 * d + vocab) * element + rows;
  // A gradient and its masked copy; on a GPU, masks are made of integers, 16 Mi at a time.
  std::uint64_t masks = 0;
  if (model.dropout > 0)
    masks =
        tokens * d * element +
        (options.train.device == "cuda" ? std::min<std::uint64_t>(tokens * d, 1 << 24) * 28 : 0);
  return masks + 8 * tokens + tokens * kept * layers +
         std::max(head, tokens * (d * element + backward));
}

}  // namespace

MemoryForecast forecast_memory(const JobOptions& options, int ranks, int local) {
  MemoryForecast result;
  const auto type = compute_type(options.train);
  const std::uint64_t element = at::elementSize(type), wide = at::elementSize(master_type(type));
  const auto stage = int(options.parallel.zero);
  const bool servers = options.server.count > 0;
  const int owners = stage == 0 ? 1 : options.zero.shard == "host" ? local : ranks;
  const Stack stack = laid_out(options, owners);
  std::int64_t numel = 0;  // of all trainable units, with padding
  for (const auto& group : stack.groups()) numel += group.numel;
  const auto n = std::uint64_t(numel), part = n / std::uint64_t(owners);
  const bool sums = sums_in_fp32(options.train);
  const std::uint64_t states = make_optimizer(options.optim)->state_names().size();

  kind(result.tensors, MemoryKind::parameters) = (stage >= 3 ? part : n) * element;
  kind(result.tensors, MemoryKind::gradients) =
      stage >= 2 ? part * (sums ? 4 : element) : n * element + (sums ? 4 * n : 0);
  kind(result.tensors, MemoryKind::optimizer) =
      servers ? 0 : (states + (wide != element ? 1 : 0)) * wide * part;
  kind(result.tensors, MemoryKind::activations) = activation_bytes(
      options, servers
                   ? ranks - (options.server.place == "separate" ? int(options.server.count) : 0)
                   : ranks);
  const bool offloads = options.zero.offload != "none" && stage > 0;
  kind(result.tensors, MemoryKind::communication) = lent_bytes(
      stack, options, type, ZeroShards::lending(stage, owners, owners < ranks, offloads, sums));
  // Gradients are widened a piece at a time, where the optimiser does not take them as they are.
  const bool on_cpu = options.train.device == "cpu" || offloads;
  const bool taken = make_optimizer(options.optim)->takes(type, on_cpu ? at::kCPU : at::kCUDA);
  if (wide != element && !sums && !taken) {
    std::int64_t longest = 0;
    for (const auto& range : ranges_within(stack.units(), 0, numel, type, grain_of(options.optim)))
      longest = std::max(longest, range.numel);
    longest = std::min(longest, std::int64_t(part));
    if (offloads) longest = std::min(longest, std::int64_t(options.zero.piece * mib / 4));
    kind(result.tensors, MemoryKind::workspace) = std::uint64_t(longest) * wide;
  }
  if (offloads) {
    const auto device =
        options.train.device == "cpu" ? at::Device(at::kCPU) : at::Device(at::kCUDA);
    std::uint64_t kept = 0;
    for (const auto& array :
         ZeroUpdate::arrays(options.optim, type, sums ? at::kFloat : type, stage, device))
      kept += part * at::elementSize(array.type);
    if (options.zero.offload == "disk") {
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
    if (options.zero.offload == "disk") {
      std::uint64_t largest = 0;
      for (const auto& group : stack.groups())
        largest = std::max(largest, std::uint64_t(group.numel) / std::uint64_t(owners) * wide);
      const auto piece = std::min<std::uint64_t>(std::uint64_t(options.zero.piece * mib), largest);
      const auto writing =
          std::min<std::uint64_t>(std::max<std::uint64_t>(Tier::most_writing, largest), kept);
      kind(result.tensors, MemoryKind::workspace) +=
          writing + 2 * (states + 2) * piece + (stage >= 3 ? 2 * largest : 0);
    }
  }
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

std::uint64_t memory_budget(const JobOptions& options, int local) {
  if (options.train.memory_mib > 0) return std::uint64_t(options.train.memory_mib * mib);
  if (options.train.device == "cpu") return available_bytes() / std::uint64_t(std::max(1, local));
  return cuda_devices() > 0 ? device_bytes() : 0;
}

namespace {

// Why it cannot be: empty where it can.
std::string lack(const MemoryForecast& needs, const JobOptions& options, int local) {
  const std::uint64_t budget = memory_budget(options, local);
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
  add("zero.offload", from.zero.offload, to.zero.offload);
  if (to.zero.offload == "disk" && to.zero.offload_path.empty())
    text += " zero.offload_path=FOLDER";
  return text;
}

// What could be changed, the cheapest first: stages that share more cost little, to compute again
// costs time, more micro-batches make each less efficient, to keep state elsewhere costs most.
std::vector<JobOptions> changes(const JobOptions& options, int ranks) {
  std::vector<std::int64_t> micro_batches = {options.train.micro_batches};
  const auto most = options.train.batch / ranks;
  while (micro_batches.back() < most)
    micro_batches.push_back(std::min(most, micro_batches.back() * 2));
  std::vector<std::string> recompute = {"none", "selective", "full"};
  recompute.erase(recompute.begin(),
                  std::find(recompute.begin(), recompute.end(), options.model.recompute));
  // What the job would refuse together with stages.
  const bool unshared =
      options.server.count > 0 || options.sync.adapt || options.sync.allow_staleness > 0;
  const std::int64_t last = ranks > 1 && !unshared ? 3 : options.parallel.zero;

  std::vector<JobOptions> all;
  JobOptions next = options;
  for (const auto pieces : micro_batches)
    for (const auto& again : recompute)
      for (auto stage = options.parallel.zero; stage <= last; ++stage) {
        next.train.micro_batches = pieces;
        next.model.recompute = again;
        next.parallel.zero = stage;
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
        for (const int stage : ranks > 1 ? std::vector{3} : std::vector{2, 3}) {
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
  const std::uint64_t budget = memory_budget(options, local);
  fmt::print("{}\n{}\n", memory_head(),
             memory_row(ranks > 1 ? "each rank, predicted" : "predicted", needs.tensors));
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
