#include "echelon/plan/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "echelon/base/error.h"
#include "echelon/net/host.h"
#include "echelon/optim/group_rule.h"
#include "echelon/optim/optimizer.h"
#include "echelon/optim/slice_update.h"
#include "echelon/parallel/pipeline/schedule.h"
#include "echelon/parallel/server/roles.h"
#include "echelon/plan/compute_type.h"
#include "echelon/plan/mesh_layout.h"

namespace echelon {
namespace {

using Options = const PlanOptions&;
constexpr auto cannot_run = Breach::cannot_run;
constexpr auto does_nothing = Breach::does_nothing;

// ---- Words for predicates

bool servers(Options o) { return o.server.count > 0; }
bool stale(Options o) { return o.sync.allow_staleness > 0; }
bool zero(Options o) { return o.parallel.zero > 0; }
bool offloads(Options o) { return o.zero.offload != Offload::none; }
bool splits_model(Options o) { return o.parallel.pipeline > 1 || o.parallel.tensor > 1; }
bool cpu(Options o) { return o.train.device == DeviceKind::cpu; }
bool graph(Options o) { return o.train.graph == Switch::on; }

// The objection of a lower component to the options; empty: none.
template <class Ask>
std::string objection(Ask ask) {
  try {
    ask();
    return {};
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

std::string of_roles(Options o, int ranks) {
  return servers(o) ? objection([&] { ServerRoles(o.server, ranks); }) : std::string();
}

// Workers of parameter servers reduce nothing among themselves: each is a mesh of one.
std::string of_mesh(Options o, int ranks) {
  return servers(o) ? std::string() : objection([&] { mesh_of(o.parallel, ranks); });
}

bool has_mesh(Options o, int ranks) { return !servers(o) && of_mesh(o, ranks).empty(); }

std::string of_schedule(Options o, int ranks) {
  if (o.parallel.pipeline == 1 || !has_mesh(o, ranks)) return {};
  return objection([&] {
    make_schedule(o.pipeline.schedule, {.ranks = int(o.parallel.pipeline),
                                        .micro_batches = int(o.train.micro_batches),
                                        .chunks = int(o.pipeline.chunks)});
  });
}

std::string of_share(Options o, int ranks) {
  if (servers(o) ? !of_roles(o, ranks).empty() : !has_mesh(o, ranks)) return {};
  const int parts =
      servers(o) ? ServerRoles(o.server, ranks).workers() : mesh_of(o.parallel, ranks).data;
  return objection([&] { check_share(o.train, parts); });
}

std::string of_optimizer(Options o, int) {
  return objection([&] { make_optimizer(o.optim); });
}

std::string of_groups(Options o, int) {
  return objection([&] { parse_groups(o.optim.groups); });
}

// What compares validations.
bool watches(Options o) { return o.train.patience > 0 || o.train.keep_best; }

Fields fields_of_plan(PlanOptions& options) {
  Fields fields = fields_of(static_cast<TrainerOptions&>(options));
  fields.section("server", options.server);
  fields.section("sync", options.sync);
  return fields;
}

// ---- The table

std::vector<Rule<PlanOptions>> all_rules() {
  const std::vector<std::string_view> shards = {"parallel.zero", "zero.offload",
                                                "zero.offload_path", "zero.shard", "zero.scatter"};
  return {
      {"server options without servers",
       does_nothing,
       [](Options o, int) {
         return !servers(o) &&
                (o.server.mode != ServerMode::sync || o.server.place != ServerPlace::colocated);
       },
       "server.mode and server.place are for jobs with parameter servers: set server.count too, or "
       "{fix}",
       {"server.mode", "server.place"}},
      {"servers of one rank",
       does_nothing,
       [](Options o, int ranks) { return servers(o) && ranks == 1; },
       "server.count is for jobs of several ranks: start them with --nproc, or {fix}",
       {"server.count", "server.mode", "server.place"}},
      {"servers and whole parameters",
       cannot_run,
       [](Options o, int) {
         return (servers(o) || stale(o)) && grain_of(o.optim) == Grain::parameter;
       },
       "optim.name=lars and lamb look at whole parameters, which parameter servers cut; use adamw or "
       "sgd with server.count and sync.allow_staleness",
       {}},
      {"servers and fp16",
       cannot_run,
       [](Options o, int) {
         return (servers(o) || stale(o)) && o.train.precision == Precision::fp16;
       },
       "train.precision=fp16 needs a loss scale that all ranks agree on, and parameter servers have "
       "none; use bf16 with server.count and sync.allow_staleness",
       {}},
      {"servers and fp32 sums",
       cannot_run,
       [](Options o, int) {
         return (servers(o) || stale(o)) && o.train.precision != Precision::fp16 &&
                sums_in_fp32(o.train);
       },
       "train.reduce=fp32 is for ranks that reduce among themselves; parameter servers widen "
       "gradients themselves: {fix} with server.count and sync.allow_staleness",
       {"train.reduce"}},
      {"servers and GPUs",
       cannot_run,
       [](Options o, int) { return servers(o) && !cpu(o); },
       "parameter servers take gradients from CPUs; set train.device=cpu, or server.count=0",
       {}},
      {"fp32 sums of wide gradients",
       does_nothing,
       [](Options o, int) { return o.train.reduce == ReduceType::fp32 && !sums_in_fp32(o.train); },
       "train.reduce=fp32 is for gradients that are narrower: set train.precision=bf16 or fp16, or "
       "{fix}",
       {"train.reduce"}},
      {"less memory than a MiB",
       cannot_run,
       [](Options o, int) { return o.train.memory_mib > 0 && o.train.memory_mib < 1; },
       "train.memory_mib = {value} is less than a MiB, and no job fits into that: give at least 1, "
       "or {fix}",
       {"train.memory_mib"},
       [](Options o, int) { return fmt::format("{}", o.train.memory_mib); }},
      {"offload without ZeRO", cannot_run, [](Options o, int) { return offloads(o) && !zero(o); },
       "zero.offload keeps what parallel.zero shares out: set parallel.zero too, to 1, 2 or 3, or "
       "{fix}",
       shards},
      {"offload to no folder",
       cannot_run,
       [](Options o, int) {
         return o.zero.offload == Offload::disk && o.zero.offload_path.empty();
       },
       "zero.offload=disk needs a folder on a disk with room: set zero.offload_path",
       {}},
      {"a folder for no offload",
       does_nothing,
       [](Options o, int) {
         return o.zero.offload != Offload::disk && !o.zero.offload_path.empty();
       },
       "zero.offload_path is for zero.offload=disk: set that too, or {fix}",
       {"zero.offload_path"}},
      {"shards of hosts without ZeRO",
       cannot_run,
       [](Options o, int) { return o.zero.shard == ShardOver::host && !zero(o); },
       "zero.shard is for parallel.zero: set that too, or {fix}",
       {"zero.shard"}},
      {"ZeRO of one rank", does_nothing,
       [](Options o, int ranks) {
         return zero(o) && ranks == 1 && !o.parallel.exchange_alone && !offloads(o);
       },
       "parallel.zero shares a model's state out over ranks: start several with --nproc, keep it "
       "elsewhere with zero.offload, or to train alone {fix}",
       shards},
      {"a mesh and servers or sync",
       cannot_run,
       [](Options o, int) { return splits_model(o) && (servers(o) || o.sync.adapt || stale(o)); },
       "server.count, sync.adapt and sync.allow_staleness are for ranks that each have the whole "
       "model: with parallel.pipeline and parallel.tensor, {fix}",
       {"server.count", "server.mode", "server.place", "sync.adapt", "sync.allow_staleness"}},
      {"pipeline options without a pipeline",
       does_nothing,
       [](Options o, int) {
         const PipelineOptions plain;
         return o.parallel.pipeline == 1 &&
                (o.pipeline.schedule != plain.schedule || o.pipeline.chunks > 1 ||
                 o.pipeline.balance != plain.balance || !o.pipeline.stages.empty());
       },
       "pipeline.schedule, pipeline.chunks, pipeline.balance and pipeline.stages are for "
       "parallel.pipeline: set that too, or {fix}",
       {"pipeline.schedule", "pipeline.chunks", "pipeline.balance", "pipeline.stages"}},
      {"interleaved with one chunk",
       does_nothing,
       [](Options o, int) {
         return o.parallel.pipeline > 1 && o.pipeline.schedule == PipelineOrder::interleaved &&
                o.pipeline.chunks == 1;
       },
       "pipeline.schedule=interleaved gives a rank several chunks of layers: set pipeline.chunks to "
       "2 or more",
       {}},
      {"scatter of whole gradients",
       does_nothing,
       [](Options o, int) {
         return o.zero.scatter != ScatterOption::automatic && o.parallel.zero < 2;
       },
       "zero.scatter is for parallel.zero=2 and 3: set that too, or {fix}",
       {"zero.scatter"}},
      {"ZeRO and servers",
       cannot_run,
       [](Options o, int) { return zero(o) && servers(o); },
       "parallel.zero and server.count both say who owns the optimiser's state: set parallel.zero=0 "
       "or server.count=0",
       {}},
      {"ZeRO and sync",
       cannot_run,
       [](Options o, int) { return zero(o) && (o.sync.adapt || stale(o)); },
       "sync.adapt and sync.allow_staleness are for data parallel: with parallel.zero, {fix}",
       {"sync.adapt", "sync.allow_staleness"}},
      {"shares by speed alone",
       does_nothing,
       [](Options o, int ranks) {
         return o.parallel.shares == BatchSplit::speed && (servers(o) || ranks == 1);
       },
       "parallel.shares=speed is for several ranks that reduce among themselves; workers of "
       "parameter servers take shares as they come: {fix}",
       {"parallel.shares"}},
      {"shares by speed in parts",
       cannot_run,
       [](Options o, int ranks) {
         return o.parallel.shares == BatchSplit::speed && !servers(o) && ranks > 1 &&
                (!cpu(o) || splits_model(o));
       },
       "parallel.shares=speed measures ranks on CPUs that each have the whole model: with "
       "train.device=cuda, parallel.pipeline and parallel.tensor, {fix}",
       {"parallel.shares"}},
      {"adapting alone",
       cannot_run,
       [](Options o, int ranks) { return o.sync.adapt && (servers(o) || ranks == 1 || !cpu(o)); },
       "sync.adapt=true is for several ranks on CPUs that reduce among themselves: {fix}, or give "
       "--nproc and no servers",
       {"sync.adapt"}},
      {"staleness alone",
       cannot_run,
       [](Options o, int ranks) { return stale(o) && (servers(o) || ranks == 1 || !cpu(o)); },
       "sync.allow_staleness is for several ranks on CPUs that reduce among themselves; with "
       "server.count, server.mode says how old gradients may be: {fix}",
       {"sync.allow_staleness"}},
      {"a graph on a CPU",
       cannot_run,
       [](Options o, int) { return graph(o) && cpu(o); },
       "train.graph=on needs train.device=cuda",
       {}},
      {"a graph of a pipeline",
       cannot_run,
       [](Options o, int) { return graph(o) && !cpu(o) && o.parallel.pipeline > 1; },
       "train.graph=on, but messages of a pipeline are not recorded; use auto or off",
       {}},
      {"a graph and offload",
       cannot_run,
       [](Options o, int) { return graph(o) && !cpu(o) && offloads(o); },
       "train.graph=on, but with zero.offload the host takes part in every step; use auto or off",
       {}},
      {"more servers than ranks",
       cannot_run,
       [](Options o, int ranks) { return !of_roles(o, ranks).empty(); },
       "{value}",
       {},
       of_roles},
      {"data ranks among servers",
       cannot_run,
       [](Options o, int) { return servers(o) && o.parallel.data > 1; },
       "parallel.data is for ranks that reduce among themselves; workers of parameter servers take "
       "shares as they come: {fix}",
       {"parallel.data"}},
      {"an uneven mesh",
       cannot_run,
       [](Options o, int ranks) { return !of_mesh(o, ranks).empty(); },
       "{value}",
       {},
       of_mesh},
      {"no such schedule",
       cannot_run,
       [](Options o, int ranks) { return !of_schedule(o, ranks).empty(); },
       "{value}",
       {},
       of_schedule},
      {"a tensor group without a plan",
       cannot_run,
       [](Options o, int) { return o.parallel.tensor > 1 && o.split.rules().empty(); },
       "parallel.tensor={value} splits matrices by a plan over the names of their layers, and this "
       "model has none: give the trainer a SplitPlan",
       {},
       [](Options o, int) { return fmt::format("{}", o.parallel.tensor); }},
      {"ZeRO over one data rank", cannot_run,
       [](Options o, int ranks) {
         return zero(o) && !offloads(o) && ranks > 1 && has_mesh(o, ranks) &&
                mesh_of(o.parallel, ranks).data == 1;
       },
       "parallel.zero shares a model's state out over the ranks that split the batch, and in a mesh "
       "of {value} there is one: give more ranks, or {fix}",
       shards, [](Options o, int ranks) { return to_string(mesh_of(o.parallel, ranks)); }},
      {"a batch of too few samples",
       cannot_run,
       [](Options o, int ranks) { return !of_share(o, ranks).empty(); },
       "{value}",
       {},
       of_share},
      {"an optimiser that cannot be",
       cannot_run,
       [](Options o, int ranks) { return !of_optimizer(o, ranks).empty(); },
       "{value}",
       {},
       of_optimizer},
      {"a parameter group that cannot be",
       cannot_run,
       [](Options o, int ranks) { return !of_groups(o, ranks).empty(); },
       "{value}",
       {},
       of_groups},
      {"a score that nothing compares",
       does_nothing,
       [](Options o, int) {
         return !watches(o) && o.train.stop_metric != TrainOptions().stop_metric;
       },
       "train.stop_metric is what train.patience and train.keep_best compare: set one of them, or "
       "{fix}",
       {"train.stop_metric"}},
      {"watching without validations",
       does_nothing,
       [](Options o, int) { return watches(o) && o.train.validate_every == 0; },
       "train.patience and train.keep_best compare validations, and train.validate_every=0 has "
       "none: set it to a number of steps, or {fix}",
       {"train.patience", "train.keep_best"}},
      {"watching beside servers",
       does_nothing,
       [](Options o, int) { return watches(o) && servers(o); },
       "train.patience and train.keep_best are for ranks that wait for a validation, and workers of "
       "parameter servers go on meanwhile: {fix}",
       {"train.patience", "train.keep_best"}},
  };
}

void check(Options options, int ranks, bool all) {
  for (const auto& rule : plan_rules())
    if ((all || rule.breach == cannot_run) && rule.broken(options, ranks))
      throw InvalidArgument(sentence_of(rule, options, ranks));
}

}  // namespace

const std::vector<Rule<PlanOptions>>& plan_rules() {
  static const std::vector<Rule<PlanOptions>> rules = all_rules();
  return rules;
}

std::string sentence_of(const Rule<PlanOptions>& rule, const PlanOptions& options, int ranks) {
  PlanOptions now = options, usual;
  return fmt::format(
      fmt::runtime(rule.sentence),
      fmt::arg("value", rule.value ? rule.value(options, ranks) : std::string()),
      fmt::arg("fix", set_as_usual(fields_of_plan(now), fields_of_plan(usual), rule.reset)));
}

bool breaks(std::string_view rule, const PlanOptions& options, int ranks) {
  const auto found = std::ranges::find(plan_rules(), rule, &Rule<PlanOptions>::name);
  if (found == plan_rules().end()) throw Error(fmt::format("there is no rule \"{}\"", rule));
  return found->broken(options, ranks);
}

void check_rules(const PlanOptions& options, int ranks) { check(options, ranks, true); }

void require_can_run(const PlanOptions& options, int ranks) { check(options, ranks, false); }

void require_can_run(const TrainerOptions& options, int ranks) {
  PlanOptions plan;
  static_cast<TrainerOptions&>(plan) = options;
  require_can_run(plan, ranks);
}

std::string set_as_usual(const Fields& now, const Fields& usual,
                         const std::vector<std::string_view>& keys) {
  std::vector<std::string> set;
  for (std::size_t i = 0; i < now.all().size(); ++i) {
    const auto& field = now.all()[i];
    const std::string value = text_of(usual.all()[i]);
    if (std::ranges::find(keys, field.key) != keys.end() && text_of(field) != value)
      set.push_back(fmt::format("{}={}", field.key, value));
  }
  return fmt::format("set {}", fmt::join(set, " and "));
}

void check_share(const TrainOptions& options, int ranks) {
  const std::int64_t least = options.micro_batches * ranks;
  if (options.batch < least)
    throw InvalidArgument(
        fmt::format("train.batch = {} is too small for {} rank{} of {} micro-batch{}: each needs a "
                    "sample; set train.batch={} or more",
                    options.batch, ranks, ranks == 1 ? "" : "s", options.micro_batches,
                    options.micro_batches == 1 ? "" : "es", least));
}

void check_threads(const TrainOptions& options) {
  // Torch's threads spin while they wait for each other: with many more threads than cores, a step
  // never ends.
  constexpr int most = 4;  // per core
  const int here = cores();
  if (options.threads > most * here)
    throw InvalidArgument(fmt::format(
        "train.threads = {} is too many for the {} core{} that this process may use: set "
        "train.threads={}, or 0 for one each (up to {} a core are taken)",
        options.threads, here, here == 1 ? "" : "s", here, most));
}

std::string no_graph_over(std::string_view backend) {
  return fmt::format(
      "train.graph=on, but exchanges over comm.backend={} are not recorded; use auto or off, or "
      "comm.backend=nccl",
      backend);
}

}  // namespace echelon
