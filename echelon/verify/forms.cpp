#include "echelon/verify/forms.h"

#include <fmt/format.h>

#include <bit>

#include "echelon/job/server_job.h"
#include "echelon/verify/model_forms.h"

namespace echelon {

std::uint64_t all_reduce_bytes(Algorithm algorithm, std::uint64_t n, std::uint64_t p,
                               std::uint64_t hosts) {
  const std::uint64_t q = std::bit_floor(p), folded = 2 * (p - q) * n;
  switch (algorithm) {
    case Algorithm::recursive_doubling:
      return q * std::uint64_t(std::countr_zero(q)) * n + folded;
    case Algorithm::rabenseifner:
      return 2 * (q - 1) * n + folded;
    case Algorithm::direct:
    case Algorithm::shared_direct:
      return p * (p - 1) * n;
    case Algorithm::hierarchical:
      return 2 * (p - hosts) * n + 2 * (hosts - 1) * n;
    default:  // rings, shared memory, servers next to the workers
      return 2 * (p - 1) * n;
  }
}

namespace {

// Pushes and pulls of all ranks: in every step each worker pushes its gradient and pulls the
// parameters of the slices that it does not own, and at the end it pulls them once more. At the
// start the first worker pushes masters and two moments for every slice that is not its own
// server's. Reads at the end that only serve the comparison (all_parameters, "masters") are not
// counted. Zero rows of a gradient are not pushed: with LoRA those of every A in the first step,
// since B begins with zeros. The form holds for one server then.
std::uint64_t server_bytes(const JobOptions& options, std::uint64_t n, int p) {
  const auto steps = std::uint64_t(options.train.steps);
  const ServerRoles roles(options.server, p);
  const auto element = at::elementSize(at::kDouble);
  const auto ranges =
      cut_ranges(std::int64_t(n / element), std::vector<double>(std::size_t(roles.servers), 1.0));
  std::uint64_t bytes = 0;
  for (int rank = 0; rank < roles.workers(); ++rank) {
    const int mine = roles.server_of(rank);
    const std::uint64_t own =
        mine < 0 ? 0 : std::uint64_t(ranges[std::size_t(mine)].numel()) * element;
    bytes += (2 * steps + 1) * (n - own);
    if (own == 0 && options.model.lora.rank > 0) {
      const auto adapted = form_of(options.model).adapted(options.model, 1).parameters;
      bytes -= std::uint64_t(options.model.layers) * (adapted[0] + adapted[2]) * element;
    }
    if (rank == 0) bytes += 3 * (n - own);
  }
  return bytes;
}

// Gradients are reduced to their owners once. Stages 1 and 2 gather parameters once per step, and
// once before the first. Stage 3 gathers a group for forward and for backward; the last group stays
// in between, and the embedding is gathered once more for the tied head.
// Hybrid sharding does so on every host, and sums each slice once more over the hosts. If only
// masters are updated, nothing uses the parameters, and stage 3 gathers none.
std::uint64_t zero_bytes(const Strategy& strategy, const std::vector<std::uint64_t>& groups,
                         std::uint64_t world, std::uint64_t all_hosts) {
  const JobOptions& options = strategy.options;
  const auto stage = options.parallel.zero;
  const auto steps = std::uint64_t(options.train.steps),
             micro_batches = std::uint64_t(options.train.micro_batches);
  const std::uint64_t hosts = options.zero.shard == ShardOver::host ? all_hosts : 1,
                      p = world / hosts;
  std::uint64_t n = 0, gathered = 0;
  for (const auto bytes : groups) n += bytes;
  const std::uint64_t m = n / strategy.element() * strategy.sum_element();  // of gradients
  const std::uint64_t sums = stage >= 2 ? micro_batches : 1;
  const std::uint64_t across = 2 * (hosts - 1) * sums * steps * m;
  if (stage < 3) return hosts * (p - 1) * (sums * steps * m + (steps + 1) * n) + across;
  if (strategy.masters) return hosts * (p - 1) * steps * m + across;
  for (std::size_t g = 0; g < groups.size(); ++g)
    gathered += (g == 0 && options.model.tied ? 3 : g + 1 == groups.size() ? 1 : 2) * groups[g];
  // The first group stays from one micro-batch to the next.
  return hosts * (p - 1) * steps *
             (micro_batches * (m + gathered) - (micro_batches - 1) * groups[0]) +
         across;
}

}  // namespace

std::uint64_t replica_bytes(const Strategy& strategy, const std::vector<std::uint64_t>& groups,
                            int world, int hosts) {
  const JobOptions& options = strategy.options;
  if (options.parallel.zero > 0)
    return zero_bytes(strategy, groups, std::uint64_t(world), std::uint64_t(hosts));
  std::uint64_t model = 0;
  for (const auto bytes : groups) model += bytes;
  if (options.server.count > 0) return server_bytes(options, model, world);
  return std::uint64_t(options.train.steps) *
         all_reduce_bytes(strategy.algorithm, model / strategy.element() * strategy.sum_element(),
                          std::uint64_t(world), std::uint64_t(hosts));
}

std::uint64_t replica_bytes_sent(const std::map<std::string, std::uint64_t>& sent) {
  std::uint64_t bytes = 0;
  for (const char* tag : {"gradients", "parameters", "push", "pull", "begin"})
    if (const auto found = sent.find(tag); found != sent.end()) bytes += found->second;
  return bytes;
}

// Parameters, gradients and AdamW's two moments. In bf16 and fp16 masters and moments are fp32.
// With fp32 sums of gradients, those sums are added, next to the gradients of one backward if every
// rank has all gradients. Workers of servers keep no moments; a server holds the values, masters
// and moments of its slice.
std::string memory_fault(const Strategy& strategy, const Run& run, std::uint64_t n,
                         std::uint64_t frozen, int owners) {
  if (run.served != 4 * run.server_part)
    return fmt::format("the server holds {} bytes and should hold {}", run.served,
                       4 * run.server_part);
  if (!run.works) return {};
  const auto zero = strategy.options.parallel.zero;
  const bool disk = strategy.options.zero.offload == Offload::disk;
  const std::uint64_t elements = n / strategy.element(), wide = strategy.narrow() ? 4 : 8;
  const std::uint64_t sums = elements * strategy.sum_element();
  const auto held = [&](std::uint64_t bytes, int from) {  // whole, or sharded from a ZeRO stage on
    return zero < from ? bytes : disk && zero >= 3 ? 0 : bytes / std::uint64_t(owners);
  };
  const std::uint64_t moments = strategy.options.optim.name == OptimizerKind::adamw ||
                                        strategy.options.optim.name == OptimizerKind::lamb
                                    ? 2
                                    : 1;
  const std::uint64_t state = strategy.options.server.count > 0 || disk
                                  ? 0
                                  : (moments + (strategy.narrow() ? 1 : 0)) * wide * elements;
  for (const auto& [kind, expected] :
       {std::pair{MemoryKind::parameters, held(n, 3) + frozen},
        {MemoryKind::gradients, held(zero >= 2 || sums == n ? sums : n + sums, 2)},
        {MemoryKind::optimizer, held(state, 1)}})
    if (run.memory[kind] != expected)
      return fmt::format("{} are {} bytes and should be {}", memory_kind_names[std::size_t(kind)],
                         run.memory[kind], expected);
  return {};
}

}  // namespace echelon
