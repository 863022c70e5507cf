#include "echelon/verify/verify.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "echelon/base/error.h"
#include "echelon/base/folder.h"
#include "echelon/comm/mesh.h"
#include "echelon/comm/texts.h"
#include "echelon/models/family.h"
#include "echelon/plan/compute_type.h"
#include "echelon/train/trainer.h"
#include "echelon/verify/faults.h"
#include "echelon/verify/forms.h"
#include "echelon/verify/matrix.h"
#include "echelon/verify/mesh_forms.h"

namespace echelon {
namespace {

using nlohmann::ordered_json;

// A folder of this process for offload to disk.
class ScratchDisk {
 public:
  ScratchDisk()
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("echelon-verify-{}", ::getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~ScratchDisk() { remove_whole(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

// The runs of one process, by what they compute. The first rank trains and broadcasts the result.
class References {
 public:
  explicit References(Communicator& ranks) : ranks_(ranks) {}

  const Run& of(const Strategy& strategy) {
    const JobOptions options = alone(strategy);
    const auto [found, missing] = runs_.try_emplace(computation(options));
    Run& run = found->second;
    if (!missing) return run;
    const auto steps = options.train.steps;
    const bool exact = compute_type(options.train) == at::kDouble;
    const std::int64_t count =
        exact ? family_of(options.model).build(options.model).parameter_count() : 0;
    at::Tensor all = at::full({steps + count}, NAN, at::kDouble);
    if (ranks_.rank() == 0) {
      const Run mine = train_alone(options);
      std::copy(mine.losses.begin(), mine.losses.end(), all.data_ptr<double>());
      if (count > 0) all.narrow(0, steps, count).copy_(mine.parameters);
    }
    ranks_.broadcast(all, 0, {.tag = "verify", .blocking = true}).wait();
    run.losses.assign(all.data_ptr<double>(), all.data_ptr<double>() + steps);
    run.parameters = all.narrow(0, steps, count);
    return run;
  }

 private:
  Communicator& ranks_;
  std::map<std::string, Run> runs_;
};

// NaN must not count as small.
double larger(double most, double one) { return std::isnan(one) ? INFINITY : std::max(most, one); }

double difference(const Strategy& strategy, const Run& run, References& references) {
  if (strategy.masters) return run.difference;
  const Run& alone = references.of(strategy);
  if (!run.error.empty()) return INFINITY;
  if (!run.works) return 0;
  if (!strategy.narrow())
    return larger(0, (run.parameters - alone.parameters).abs().max().item<double>());
  double most = run.losses.size() == alone.losses.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(run.losses.size(), alone.losses.size()); ++i)
    most = larger(most, std::abs(run.losses[i] - alone.losses[i]));
  return most;
}

MeshShape shape_of(const Strategy& strategy, int world) {
  const auto& parallel = strategy.options.parallel;
  return strategy.mesh ? MeshShape{.pipeline = int(parallel.pipeline),
                                   .data = int(parallel.data),
                                   .tensor = int(parallel.tensor)}
                       : MeshShape{.data = world};
}

std::string memory_fault(const Strategy& strategy, const Run& run, int rank, int world, int hosts) {
  const MeshShape shape = shape_of(strategy, world);
  if (strategy.mesh)
    return memory_fault(strategy, run, part_bytes(strategy, place_at(shape, rank).pipeline),
                        frozen_bytes(strategy, place_at(shape, rank).pipeline), shape.data);
  const bool per_host = strategy.options.zero.shard == ShardOver::host;
  return memory_fault(strategy, run, run.model_bytes, frozen_bytes(strategy, 0),
                      per_host ? world / hosts : world);
}

void check_bytes(const Strategy& strategy, const std::map<std::string, std::uint64_t>& sent,
                 const std::vector<std::uint64_t>& groups, int hosts, VerifyCell& cell) {
  const auto compare = [&](const std::string& what, std::uint64_t seen, std::uint64_t expected) {
    if (seen == expected) return;
    cell.bytes_ok = false;
    cell.notes.push_back(fmt::format("bytes: {} were sent{}, not {}", seen, what, expected));
  };
  cell.bytes_ok = true;
  if (!strategy.mesh)
    return compare("", replica_bytes_sent(sent),
                   replica_bytes(strategy, groups, cell.world, hosts));
  const auto at = [](const auto& all, const std::string& tag) {
    const auto found = all.find(tag);
    return found == all.end() ? 0 : found->second;
  };
  const auto expected = mesh_bytes(strategy);
  for (const char* tag : {"activations", "tensor", "vocabulary", "norms", "lora", "tied gradients",
                          "gradients", "parameters", "norm", "loss"})
    compare(fmt::format(" for {}", tag), at(sent, tag), at(expected, tag));
}

// Checks the order in which ranks ran: every pipeline of the mesh must have the bubble of the
// formula, and keep the activations of as many micro-batches as its schedule says.
void check_pipelines(const Strategy& strategy, const std::vector<Order>& orders, VerifyCell& cell) {
  const PipelineShape shape = pipeline_of(strategy.options);
  const PipelineOrder order = strategy.options.pipeline.schedule;
  const MeshShape mesh = shape_of(strategy, cell.world);
  const Ratio expected = bubble_form(order, shape);
  for (int column = 0; column < mesh.data * mesh.tensor; ++column) {
    PipelineSchedule ran;
    for (int rank = 0; rank < mesh.pipeline; ++rank)
      ran.push_back(orders[std::size_t(rank * mesh.data * mesh.tensor + column)]);
    ran = with_left_out(strategy, std::move(ran));
    try {
      const Ratio bubble = bubble_of(ran, shape);
      cell.bubble = to_string(bubble);
      if (!(bubble == expected)) {
        cell.bubble_ok = false;
        cell.notes.push_back(
            fmt::format("bubble: it is {}, not {}", to_string(bubble), to_string(expected)));
      }
    } catch (const InvalidArgument& impossible) {
      cell.bubble_ok = false;
      cell.notes.push_back(fmt::format("bubble: {}", impossible.what()));
      return;
    }
    for (int rank = 0; rank < mesh.pipeline; ++rank) {
      const int kept = peak_activations(ran, rank),
                allowed = closed_form_activations(order, shape, rank);
      if (kept == allowed) continue;
      cell.memory_ok = false;
      cell.notes.push_back(fmt::format(
          "memory: rank {} of the pipeline keeps the activations of {} micro-batches, not {}", rank,
          kept, allowed));
    }
  }
}

ordered_json to_json(const Order& order) {
  auto slots = ordered_json::array();
  for (const auto& slot : order) slots.push_back({int(slot.kind), slot.chunk, slot.micro_batch});
  return slots;
}

Order order_of(const ordered_json& slots) {
  Order order;
  for (const auto& one : slots)
    order.push_back({Slot::Kind(one[0].get<int>()), one[1].get<int>(), one[2].get<int>()});
  return order;
}

// The complaints of all ranks, each once.
class Complaints {
 public:
  void add(int rank, const std::string& what) {
    const auto at =
        std::find_if(all_.begin(), all_.end(), [&](const auto& one) { return one.first == what; });
    (at == all_.end() ? all_.emplace_back(what, std::vector<int>()) : *at).second.push_back(rank);
  }
  std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    for (const auto& [what, ranks] : all_)
      lines.push_back(
          fmt::format("{} (rank{} {})", what, ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", ")));
    return lines;
  }

 private:
  std::vector<std::pair<std::string, std::vector<int>>> all_;
};

// An error names the cell in which it happened.
Run run_of(const Strategy& strategy, const std::shared_ptr<Communicator>& ranks,
           const Meeting& meeting, const Fault* fault) {
  try {
    return strategy.masters ? update_masters(strategy, ranks)
                            : train_ranks(strategy, ranks, meeting, fault);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", strategy.name, error.what()));
  }
}

VerifyCell verify(const Strategy& strategy, const std::shared_ptr<Communicator>& ranks,
                  const Meeting& meeting, int hosts, References& references, const Fault* fault) {
  const auto start = std::chrono::steady_clock::now();
  const int world = ranks->size();
  const Run run = run_of(strategy, ranks, meeting, fault);
  const ordered_json mine = {{"sent", run.sent},
                             {"difference", difference(strategy, run, references)},
                             {"memory", memory_fault(strategy, run, ranks->rank(), world, hosts)},
                             {"error", run.error},
                             {"slots", to_json(run.slots)}};
  VerifyCell cell{.name = strategy.name, .world = world, .bound = strategy.bound()};
  if (hosts > 1) cell.name += fmt::format(", {} hosts", hosts);
  const MeshShape shape = shape_of(strategy, world);
  cell.mesh = fmt::format("{}x{}x{}", shape.pipeline, shape.data, shape.tensor);
  cell.memory_ok = true;
  std::map<std::string, std::uint64_t> sent;
  std::vector<Order> orders;
  Complaints complaints;
  const auto texts = gather_texts(*ranks, mine.dump(), "verify");
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const auto one = ordered_json::parse(texts[r]);
    for (const auto& [tag, bytes] : one["sent"].items()) sent[tag] += bytes.get<std::uint64_t>();
    // JSON has no infinity.
    cell.max_abs_diff =
        larger(cell.max_abs_diff,
               one["difference"].is_null() ? INFINITY : one["difference"].get<double>());
    orders.push_back(order_of(one["slots"]));
    if (const auto why = one["memory"].get<std::string>(); !why.empty()) {
      cell.memory_ok = false;
      complaints.add(int(r), "memory: " + why);
    }
    if (const auto why = one["error"].get<std::string>(); !why.empty())
      complaints.add(int(r), "error: " + why);
  }
  if (!(cell.max_abs_diff <= cell.bound))
    cell.notes.push_back(fmt::format("max diff: {:.1e} from one process, more than {:.1e}",
                                     cell.max_abs_diff, cell.bound));
  const auto lines = complaints.lines();
  cell.notes.insert(cell.notes.end(), lines.begin(), lines.end());
  check_bytes(strategy, sent, run.groups, hosts, cell);
  if (shape.pipeline > 1) check_pipelines(strategy, orders, cell);
  cell.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return cell;
}

std::vector<Strategy> strategies_for(int world, int hosts, const VerifyOptions& options,
                                     const std::string& folder) {
  std::vector<Strategy> all;
  const bool replicas = options.quick ? world == 2 : world >= 2 && world <= 4;
  if (replicas) all = replica_strategies(world, hosts, folder);
  if (hosts > 1) return all;
  for (const auto& choice : options.quick ? quick_choices() : pairwise_choices())
    if (world_of(choice) == world)
      all.push_back({.name = name_of(choice),
                     .options = job_of(choice, folder),
                     .algorithm = Algorithm::shared,
                     .mesh = true});
  return all;
}

// Some of the cells that a fault affects, spread over all of them.
std::vector<Strategy> concerned(const std::vector<Strategy>& all, const Fault& fault, int world) {
  constexpr std::size_t enough = 4;
  std::vector<Strategy> found, some;
  for (const auto& one : all)
    if (!one.masters && fault.concerns(one.options, world)) found.push_back(one);
  const std::size_t count = std::min(enough, found.size());
  for (std::size_t i = 0; i < count; ++i)
    some.push_back(found[i * (found.size() - 1) / std::max<std::size_t>(1, count - 1)]);
  return some;
}

}  // namespace

std::vector<VerifyCell> verify_cells(std::shared_ptr<Communicator> ranks, const Meeting& meeting,
                                     const VerifyOptions& options,
                                     const std::function<void(const VerifyCell&)>& show) {
  at::set_num_threads(1);
  const auto plan = ordered_json::parse(ranks->plan());
  const int world = ranks->size(),
            hosts = plan.contains("shape") ? plan["shape"].at("hosts").get<int>() : 1;
  const ScratchDisk disk;
  auto strategies = strategies_for(world, hosts, options, disk.path());
  if (options.fault) strategies = concerned(strategies, *options.fault, world);
  References references(*ranks);
  std::vector<VerifyCell> cells;
  for (const auto& strategy : strategies) {
    cells.push_back(verify(strategy, ranks, meeting, hosts, references, options.fault));
    if (ranks->rank() == 0 && show) show(cells.back());
  }
  return cells;
}

}  // namespace echelon
