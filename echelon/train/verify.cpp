#include "echelon/train/verify.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "echelon/base/build_config.h"
#include "echelon/base/error.h"
#include "echelon/base/folder.h"
#include "echelon/base/random.h"
#include "echelon/comm/texts.h"
#include "echelon/nn/gpt.h"
#include "echelon/train/server_job.h"
#include "echelon/train/verify_masters.h"

namespace echelon {
namespace {

using nlohmann::ordered_json;

// Sums of a few dozen numbers of size 1 in another order, over five steps of AdamW.
constexpr double rounding = 1e-12;
constexpr std::int64_t steps = 5, batch = 24;

JobOptions tiny() {
  JobOptions options;
  options.model = {.layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8};
  options.train.steps = steps;
  options.train.batch = batch;
  options.train.precision = "fp64";
  options.optim.warmup = 2;
  options.comm.timeout = 60;
  return options;
}

// How far the loss of a step may be from that of one process in the same type. Both round every
// activation, and a loss is the mean over the rows of a batch, which round independently: a
// rounding of about ln 32, over the root of their number. A rank whose gradients are left out moves
// it further (docs/precision.md).
double loss_band(at::ScalarType type) {
  const double rows = double(batch) * double(tiny().model.context);
  return 3.5 * (type == at::kBFloat16 ? 0x1p-8 : 0x1p-11) / std::sqrt(rows);
}

struct Strategy {
  std::string name;
  JobOptions options = tiny();
  Algorithm algorithm = Algorithm::automatic;
  std::vector<std::int64_t> shares = {};  // empty: even
  bool masters = false;                   // compares updates, does not train

  at::ScalarType type() const { return compute_type(options.train); }
  bool narrow() const { return type() != at::kDouble; }
  std::uint64_t element() const { return at::elementSize(type()); }
  std::uint64_t sum_element() const { return sums_in_fp32(options.train) ? 4 : element(); }
};

// What a rank's run came to.
struct Run {
  at::Tensor parameters;
  std::vector<double> losses;
  double difference = 0;          // of masters
  std::uint64_t sent = 0;         // for gradients and parameters
  std::uint64_t model_bytes = 0;  // the flat buffer's, with padding
  std::vector<std::uint64_t> groups;
  MemoryUse memory;
  bool works = true;
  std::uint64_t served = 0, server_part = 0;  // bytes that its server holds, and of what it owns
};

at::Tensor all_parameters(Stack& stack, Trainer& trainer) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : stack.parameters())
    all.push_back(trainer.master(parameter).reshape({-1}).clone());
  return at::cat(all);
}

std::uint64_t sent_by(Ledger& ledger) {
  std::uint64_t bytes = 0;
  for (const auto& entry : ledger.entries())
    for (const char* tag : {"gradients", "parameters", "push", "pull", "begin", "state"})
      if (entry.tag == tag) bytes += entry.bytes;
  return bytes;
}

Run train(const Strategy& strategy, std::shared_ptr<Communicator> ranks, const std::string& bind,
          const Token& token) {
  const JobOptions& options = strategy.options;
  const RandomTokens data(options.model.vocab, options.model.context, 1);
  Stack stack = gpt(options.model);
  Run run;
  std::optional<ServerJob> servers;
  if (ranks) ranks->ledger().clear();
  if (ranks && options.server.count > 0) servers.emplace(options, *ranks, bind, token);
  if (!servers || servers->works()) {
    Trainer trainer(stack, data, options.train, options.optim, servers ? nullptr : ranks,
                    options.parallel, options.zero);
    run.model_bytes = 0;
    for (const auto& group : stack.groups())
      run.groups.push_back(std::uint64_t(group.numel) * at::elementSize(stack.type()));
    for (const auto bytes : run.groups) run.model_bytes += bytes;
    if (servers) servers->attach(trainer, stack);
    trainer.reduce_by(strategy.algorithm);
    if (ranks && !strategy.shares.empty()) trainer.share_out(strategy.shares);
    trainer.on_step([&](const StepReport& report) { run.losses.push_back(report.loss); });
    trainer.run();
    run.memory = trainer.memory().now();
    run.parameters = all_parameters(stack, trainer);
    if (servers) trainer.leave_servers();
  } else {
    run.works = false;
  }
  if (servers) {
    servers->wait();
    if (const auto* server = servers->server()) {
      run.served = server->held_bytes();
      run.server_part = server->owned_bytes();
    }
  }
  if (ranks) run.sent = sent_by(ranks->ledger());
  return run;
}

Run update_masters(const Strategy& strategy, std::shared_ptr<Communicator> ranks) {
  ranks->ledger().clear();
  const auto check = check_masters(ranks, strategy.options, steps);
  Run run;
  run.difference = check.difference;
  run.memory = check.memory;
  run.groups = check.groups;
  for (const auto bytes : run.groups) run.model_bytes += bytes;
  run.sent = sent_by(ranks->ledger());
  return run;
}

double difference(const Strategy& strategy, const Run& run, const Run& alone) {
  if (strategy.masters) return run.difference;
  if (!run.works) return 0;
  if (!strategy.narrow()) return (run.parameters - alone.parameters).abs().max().item<double>();
  double most = run.losses.size() == alone.losses.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(run.losses.size(), alone.losses.size()); ++i) {
    const double one = std::abs(run.losses[i] - alone.losses[i]);
    most = std::isnan(one) ? INFINITY : std::max(most, one);
  }
  return most;
}

// Bytes that all ranks send to all-reduce n, from the descriptions of the algorithms (docs:
// communication.md).
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
    default:  // rings, shared memory, servers beside the workers
      return 2 * (p - 1) * n;
  }
}

// Pushes and pulls of all ranks: in every step each worker sends its gradient, and fetches the
// parameters, of what it does not own itself; and at the end it fetches them once more. The first
// worker begins with masters and two moments for every part that is not its own server's; at the
// end each worker asks for them once, to compare (all_parameters).
std::uint64_t server_bytes(const JobOptions& options, std::uint64_t n, int p) {
  const ServerJob::Roles roles(options.server, p);
  const auto element = at::elementSize(at::kDouble);
  const auto ranges =
      cut_ranges(std::int64_t(n / element), std::vector<double>(std::size_t(roles.servers), 1.0));
  std::uint64_t bytes = 0;
  for (int rank = 0; rank < roles.workers(); ++rank) {
    const int mine = roles.server_of(rank);
    const std::uint64_t own =
        mine < 0 ? 0 : std::uint64_t(ranges[std::size_t(mine)].numel()) * element;
    bytes += (2 * steps + 1) * (n - own);
    bytes += (rank == 0 ? 2 : 1) * 3 * (n - own);
  }
  return bytes;
}

// Gradients once to their owners. Stages 1 and 2: parameters once to all, and once before the first
// step. Stage 3: a group is gathered for forward and for backward; the last stays in between, and
// the embedding, which the head is tied to, comes once more for the head.
// Hybrid: so on every host, and each slice is summed once more, over the hosts. Where only masters
// are updated nobody uses parameters, and stage 3 gathers none.
std::uint64_t zero_bytes(const Strategy& strategy, const std::vector<std::uint64_t>& groups,
                         std::uint64_t world, std::uint64_t all_hosts) {
  const JobOptions& options = strategy.options;
  const auto stage = options.parallel.zero;
  const auto micro_batches = std::uint64_t(options.train.micro_batches);
  const std::uint64_t hosts = options.zero.shard == "host" ? all_hosts : 1, p = world / hosts;
  std::uint64_t n = 0, gathered = 0;
  for (const auto bytes : groups) n += bytes;
  const std::uint64_t m = n / strategy.element() * strategy.sum_element();  // of gradients
  const std::uint64_t sums = stage >= 2 ? micro_batches : 1;
  const std::uint64_t across = 2 * (hosts - 1) * sums * steps * m;
  if (stage < 3) return hosts * (p - 1) * (sums * steps * m + (steps + 1) * n) + across;
  if (strategy.masters) return hosts * (p - 1) * steps * m + across;
  for (std::size_t g = 0; g < groups.size(); ++g)
    gathered += (g == 0 && options.model.tied ? 3 : g + 1 == groups.size() ? 1 : 2) * groups[g];
  // From one micro-batch to the next the first group stays.
  return hosts * (p - 1) * steps *
             (micro_batches * (m + gathered) - (micro_batches - 1) * groups[0]) +
         across;
}

void add_narrow(std::vector<Strategy>& all, bool two_hosts) {
  for (const char* type : {"bf16", "fp16"})
    for (int stage = 0; stage <= 3; ++stage) {
      const auto name = stage == 0 ? std::string("data parallel") : fmt::format("ZeRO {}", stage);
      Strategy one{fmt::format("{}, {}", name, type)};
      one.algorithm = two_hosts ? Algorithm::ring : Algorithm::shared;
      one.options.train.precision = type;
      one.options.parallel.zero = stage;
      one.options.zero.group = 0;
      all.push_back(one);
      Strategy wide = one;
      wide.name += ", fp32 sums, 3 micro-batches";
      wide.options.train.reduce = "fp32";
      wide.options.train.micro_batches = 3;
      all.push_back(wide);
      if (stage == 0) continue;
      wide.name += ", offload host";
      wide.options.zero.offload = "host";
      wide.options.zero.piece = 0.02;
      all.push_back(wide);
      one.name += ", masters given the same gradients";
      one.masters = true;
      all.push_back(one);
    }
}

// What every stage and optimiser is tried with.
const std::vector<std::pair<const char*, void (*)(JobOptions&, const std::string& folder)>>
    variations = {
        {"", [](JobOptions&, const std::string&) {}},
        {", accumulation over 3 micro-batches",
         [](JobOptions& o, const std::string&) { o.train.micro_batches = 3; }},
        {", clipping", [](JobOptions& o, const std::string&) { o.optim.clip = 0.01; }},
        {", untied", [](JobOptions& o, const std::string&) { o.model.tied = false; }},
        {", offload host",
         [](JobOptions& o, const std::string&) {
           o.zero.offload = "host";
           o.zero.piece = 0.02;
         }},
        {", offload disk, accumulation, clipping",
         [](JobOptions& o, const std::string& folder) {
           o.zero.offload = "disk";
           o.zero.offload_path = folder;
           o.zero.piece = 0.02;
           o.train.micro_batches = 3;
           o.optim.clip = 0.01;
         }},
};

void add_zero(std::vector<Strategy>& all, const std::string& folder, bool per_host) {
  for (int stage = 1; stage <= 3; ++stage)
    for (const char* optimizer : {"sgd", "adamw", "lars", "lamb"})
      for (const auto& [name, vary] : variations) {
        Strategy one{fmt::format("ZeRO {}{}, {}{}", stage, per_host ? " within hosts" : "",
                                 optimizer, name)};
        one.options.parallel.zero = stage;
        one.options.zero.group = 0;
        one.options.zero.shard = per_host ? "host" : "all";
        one.options.optim.name = optimizer;
        if (one.options.optim.name == "lars") one.options.optim.rate = 5;  // times optim.trust
        vary(one.options, folder);
        all.push_back(one);
      }
}

// Recompute and dropout, where nothing is shared out (stage 0) and in every stage. The one process
// that they are compared with computes nothing again, and has its batch in one piece where elements
// are dropped: a mask that depended on who draws it would show.
void add_recompute(std::vector<Strategy>& all, Algorithm usual) {
  for (int stage = 0; stage <= 3; ++stage) {
    const auto cell = [&](const char* name, const char* recompute, double dropout,
                          std::int64_t micro_batches) {
      Strategy one{fmt::format("{}, {}",
                               stage == 0 ? "data parallel" : fmt::format("ZeRO {}", stage), name)};
      one.algorithm = usual;
      one.options.parallel.zero = stage;
      one.options.zero.group = 0;
      one.options.model.recompute = recompute;
      one.options.model.dropout = dropout;
      one.options.train.micro_batches = micro_batches;
      all.push_back(one);
    };
    cell("recompute full", "full", 0, 1);
    cell("recompute selective", "selective", 0, 1);
    cell("dropout", "none", 0.1, 1);
    cell("recompute full, dropout, accumulation", "full", 0.1, 3);
    cell("recompute selective, dropout, accumulation", "selective", 0.1, 3);
    if (stage == 0) continue;
    cell("recompute full, dropout, offload host", "full", 0.1, 1);
    all.back().options.zero.offload = "host";
    all.back().options.zero.piece = 0.02;
  }
}

// One process whose parameters a strategy's must be.
Strategy alone(Strategy strategy) {
  strategy.options.zero = {};
  strategy.options.model.recompute = "none";
  if (strategy.options.model.dropout > 0) strategy.options.train.micro_batches = 1;
  return strategy;
}

void add_data_parallel(std::vector<Strategy>& all, int world, bool two_hosts) {
  const auto cell = [&](const std::string& name, Algorithm algorithm, double mib) {
    Strategy one{"data parallel, " + name};
    one.algorithm = algorithm;
    one.options.parallel.bucket_mib = mib;
    all.push_back(one);
  };
  auto algorithms = std::vector{Algorithm::ring,         Algorithm::bidirectional_ring,
                                Algorithm::direct,       Algorithm::recursive_doubling,
                                Algorithm::rabenseifner, Algorithm::server};
  if (two_hosts)
    algorithms.push_back(Algorithm::hierarchical);
  else
    algorithms.insert(algorithms.end(), {Algorithm::shared, Algorithm::shared_direct});
  for (const auto algorithm : algorithms) {
    cell(fmt::format("{}, a bucket a layer", name(algorithm)), algorithm, 1e-6);
    cell(fmt::format("{}, one bucket", name(algorithm)), algorithm, 100);
  }
  const Algorithm usual = two_hosts ? Algorithm::ring : Algorithm::shared;
  Strategy pieces{"data parallel, accumulation over 3 micro-batches"};
  pieces.algorithm = usual;
  pieces.options.train.micro_batches = 3;
  all.push_back(pieces);
  Strategy uneven{"data parallel, weighted shares"};
  uneven.algorithm = usual;
  uneven.shares.assign(std::size_t(world), 1);  // one each, and the rest to two of them
  uneven.shares[0] += (batch - world) / 3;
  uneven.shares.back() += batch - world - (batch - world) / 3;
  all.push_back(uneven);
  uneven.name += ", dropout";
  uneven.options.model.dropout = 0.1;
  all.push_back(uneven);
  add_recompute(all, usual);
}

void add_servers(std::vector<Strategy>& all, int world) {
  for (int servers = 1; servers <= 3; ++servers) {
    for (const bool separate : {false, true}) {
      if (separate ? servers >= world : servers > world) continue;
      Strategy one{fmt::format("server sync, {} {}", servers, separate ? "separate" : "colocated")};
      one.options.server = {.count = servers, .place = separate ? "separate" : "colocated"};
      all.push_back(one);
    }
  }
  Strategy bounded{"server bounded with staleness 0, 1 separate"};
  bounded.options.server = {.count = 1, .place = "separate", .mode = "bounded", .staleness = 0};
  all.push_back(bounded);
  Strategy again{"server sync, 1 colocated, recompute full, dropout"};
  again.options.server = {.count = 1, .place = "colocated"};
  again.options.model.recompute = "full";
  again.options.model.dropout = 0.1;
  all.push_back(again);
}

// Parameters, gradients and AdamW's two moments; in bf16 and fp16 masters and moments in fp32, and
// where gradients are summed in fp32 those sums: beside the gradients of one backward where every
// rank has all. Workers of servers keep no moments, and a server has of its part the values it
// gives out, their masters and the moments.
std::string memory_fault(const Strategy& strategy, const Run& run, int world, int hosts) {
  if (run.served != 4 * run.server_part)
    return fmt::format("the server holds {} bytes and should hold {}", run.served,
                       4 * run.server_part);
  if (!run.works) return {};
  const std::uint64_t n = run.model_bytes;
  const auto zero = strategy.options.parallel.zero;
  const bool disk = strategy.options.zero.offload == "disk";
  const int owners = strategy.options.zero.shard == "host" ? world / hosts : world;
  const std::uint64_t elements = n / strategy.element(), wide = strategy.narrow() ? 4 : 8;
  const std::uint64_t sums = elements * strategy.sum_element();
  const auto held = [&](std::uint64_t bytes, int from) {  // with all, or shared out from a stage on
    return zero < from ? bytes : disk && zero >= 3 ? 0 : bytes / std::uint64_t(owners);
  };
  const std::uint64_t moments =
      strategy.options.optim.name == "adamw" || strategy.options.optim.name == "lamb" ? 2 : 1;
  const std::uint64_t state = strategy.options.server.count > 0 || disk
                                  ? 0
                                  : (moments + (strategy.narrow() ? 1 : 0)) * wide * elements;
  for (const auto& [kind, expected] :
       {std::pair{MemoryKind::parameters, held(n, 3)},
        {MemoryKind::gradients, held(zero >= 2 || sums == n ? sums : n + sums, 2)},
        {MemoryKind::optimizer, held(state, 1)}})
    if (run.memory[kind] != expected)
      return fmt::format("{} are {} bytes and should be {}", memory_kind_names[std::size_t(kind)],
                         run.memory[kind], expected);
  return {};
}

// A folder of this process, for slices on disk.
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

// What two jobs have in common that must end with the same parameters.
std::string computation(JobOptions options) {
  const auto text = [](auto& section) { return to_toml(fields_of(section), Comments::no); };
  return text(options.model) + text(options.train) + text(options.optim);
}

}  // namespace

std::vector<VerifyCell> verify_cells(std::shared_ptr<Communicator> ranks, const std::string& bind,
                                     const Token& token,
                                     const std::function<void(const VerifyCell&)>& show) {
  at::set_num_threads(1);
  const int world = ranks->size();
  const int hosts = ordered_json::parse(ranks->plan()).at("shape").at("hosts").get<int>();
  std::vector<Strategy> strategies;
  add_data_parallel(strategies, world, hosts > 1);
  if (hosts == 1) add_servers(strategies, world);
  const ScratchDisk disk;
  add_zero(strategies, disk.path(), false);
  if (hosts > 1 && world % hosts == 0) add_zero(strategies, disk.path(), true);
  add_narrow(strategies, hosts > 1);
  std::map<std::string, Run> references;  // by what is computed
  std::vector<VerifyCell> cells;
  for (const auto& strategy : strategies) {
    const Run run =
        strategy.masters ? update_masters(strategy, ranks) : train(strategy, ranks, bind, token);
    const Strategy single = alone(strategy);
    auto& reference = references[computation(single.options)];
    if (!strategy.masters && !reference.parameters.defined())
      reference = train(single, nullptr, bind, token);
    const ordered_json mine = {{"sent", run.sent},
                               {"difference", difference(strategy, run, reference)},
                               {"model", run.model_bytes},
                               {"fault", memory_fault(strategy, run, world, hosts)}};
    VerifyCell cell{strategy.name + (hosts > 1 ? fmt::format(", {} hosts", hosts) : ""),
                    world,
                    0,
                    strategy.masters    ? 0
                    : strategy.narrow() ? loss_band(strategy.type())
                                        : rounding,
                    false,
                    true,
                    {}};
    std::uint64_t sent = 0, model = 0;
    const auto texts = gather_texts(*ranks, mine.dump(), "verify");
    for (std::size_t r = 0; r < texts.size(); ++r) {
      const auto one = ordered_json::parse(texts[r]);
      sent += one["sent"].get<std::uint64_t>();
      model = std::max(model, one["model"].get<std::uint64_t>());
      // A parameter that is not a number must not pass for small.
      const double difference =
          one["difference"].is_null() ? INFINITY : one["difference"].get<double>();
      cell.max_abs_diff = std::max(cell.max_abs_diff, difference);
      if (const auto fault = one["fault"].get<std::string>(); !fault.empty()) {
        cell.memory_ok = false;
        cell.note += fmt::format("rank {}: {}; ", r, fault);
      }
    }
    const std::uint64_t expected =
        strategy.options.parallel.zero > 0
            ? zero_bytes(strategy, run.groups, std::uint64_t(world), std::uint64_t(hosts))
        : strategy.options.server.count > 0
            ? server_bytes(strategy.options, model, world)
            : steps * all_reduce_bytes(strategy.algorithm,
                                       model / strategy.element() * strategy.sum_element(),
                                       std::uint64_t(world), std::uint64_t(hosts));
    cell.bytes_ok = sent == expected;
    if (!cell.bytes_ok) cell.note += fmt::format("{} bytes were sent, not {}; ", sent, expected);
    if (ranks->rank() == 0 && show) show(cell);
    cells.push_back(std::move(cell));
  }
  return cells;
}

std::string certificate(const std::vector<VerifyCell>& cells, int broken_worlds) {
  auto list = ordered_json::array();
  int failed = broken_worlds;
  for (const auto& cell : cells) {
    list.push_back({{"name", cell.name},
                    {"world", cell.world},
                    {"max_abs_diff", cell.max_abs_diff},
                    {"bound", cell.bound},
                    {"bytes_ok", cell.bytes_ok},
                    {"memory_ok", cell.memory_ok},
                    {"note", cell.note}});
    failed += !cell.ok();
  }
  char machine[256] = {};
  ::gethostname(machine, sizeof machine - 1);
  return ordered_json({{"echelon", ECHELON_VERSION},
                       {"commit", ECHELON_COMMIT},
                       {"torch", ECHELON_TORCH_VERSION},
                       {"machine", machine},
                       {"cells", list},
                       {"broken_worlds", broken_worlds},
                       {"failed", failed}})
             .dump(2) +
         "\n";
}

std::vector<VerifyCell> parse_cells(const std::string& json) {
  std::vector<VerifyCell> cells;
  const auto all = ordered_json::parse(json);
  for (const auto& one : all.at("cells"))
    cells.push_back(
        {one.at("name"), one.at("world"),
         one.at("max_abs_diff").is_null() ? INFINITY : one.at("max_abs_diff").get<double>(),
         one.at("bound"), one.at("bytes_ok"), one.at("memory_ok"), one.at("note")});
  return cells;
}

}  // namespace echelon
