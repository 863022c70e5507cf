// Checks of a job before it runs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/options_section.h"
#include "echelon/collective/plan.h"
#include "echelon/comm/texts.h"
#include "echelon/job/job.h"
#include "echelon/job/option_difference.h"
#include "echelon/job/resolve.h"
#include "echelon/job/rules.h"
#include "echelon/job/run_directory.h"
#include "echelon/job/server_job.h"
#include "echelon/models/family.h"
#include "echelon/net/socket.h"
#include "echelon/optim/optimizer.h"
#include "echelon/parallel/pipeline/balance.h"
#include "echelon/plan/compute_type.h"
#include "echelon/plan/mesh_layout.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

// The number of heads nearest to the requested one that divides the width and is divisible by the
// tensor group. If there is none because the group does not divide the width, also the nearest
// width.
std::string heads_to_set(const ModelOptions& model, std::int64_t tensor) {
  const auto nearest_multiple = [](std::int64_t n, std::int64_t step) {
    return std::max(step, (n + step / 2) / step * step);
  };
  std::int64_t best = 0;
  for (auto heads = tensor; heads <= model.width; heads += tensor)
    if (model.width % heads == 0 &&
        (best == 0 || std::abs(heads - model.heads) < std::abs(best - model.heads)))
      best = heads;
  if (best > 0) return fmt::format("model.heads={}", best);
  const auto heads = nearest_multiple(model.heads, tensor);
  return fmt::format("{}model.width={}",
                     heads == model.heads ? "" : fmt::format("model.heads={} ", heads),
                     nearest_multiple(model.width, heads));
}

// The largest tensor group that divides the heads and that the ranks allow.
std::string tensor_to_set(const JobOptions& options, const ModelOptions& model,
                          const MeshShape& mesh) {
  const auto allowed = [&](std::int64_t tensor) {
    ParallelOptions parallel = options.parallel;
    parallel.tensor = tensor;
    try {
      check_share(options.train, mesh_of(parallel, mesh.ranks()).data);
      return true;
    } catch (const InvalidArgument&) {
      return false;
    }
  };
  std::int64_t most = 0;  // for any number of ranks
  for (std::int64_t tensor = mesh.tensor - 1; tensor >= 1; --tensor) {
    if (model.heads % tensor != 0) continue;
    if (allowed(tensor)) return fmt::format("parallel.tensor={}", tensor);
    most = std::max(most, tensor);
  }
  const auto ranks = mesh.ranks() / mesh.tensor * most;
  return fmt::format("parallel.tensor={} on {} rank{}", most, ranks, ranks == 1 ? "" : "s");
}

// The heads must divide the width, and each rank of a tensor group must have whole heads. The
// advice satisfies both.
void check_heads(const JobRequest& request, const ModelOptions& model, const MeshShape& mesh) {
  const bool divides = model.width % model.heads == 0;
  if (mesh.tensor == 1 || (divides && model.heads % mesh.tensor == 0)) return;
  // Existing weights and states determine the sizes of a model.
  const bool decided = !model.init.empty() || !request.resume.empty();
  if (decided && !divides) return;  // the model itself refuses it
  std::vector<std::string> ways;
  if (!decided) ways.push_back(heads_to_set(model, mesh.tensor));
  if (divides) ways.push_back(tensor_to_set(request.options, model, mesh));
  throw InvalidArgument(
      divides ? fmt::format("model.heads = {} cannot be split over parallel.tensor = {}: set {}",
                            model.heads, mesh.tensor, fmt::join(ways, ", or "))
              : fmt::format("model.heads = {} does not divide model.width = {}: set {}",
                            model.heads, model.width, fmt::join(ways, ", or ")));
}

// Checks that the model can be laid out over the mesh, as far as is known without ranks.
void check_layout(const JobOptions& options, const ModelOptions& model, const MeshShape& mesh) {
  const Family& family = family_of(model);
  Stack stack = family.build(model);  // described, not allocated
  if (mesh.tensor > 1) apply(family.split(model), stack, mesh.tensor, 0);
  if (mesh.pipeline == 1) return;
  const PipelineShape shape{.ranks = mesh.pipeline,
                            .micro_batches = int(options.train.micro_batches),
                            .chunks = int(options.pipeline.chunks)};
  make_schedule(options.pipeline.schedule, shape);
  if (options.pipeline.stages.empty())
    balance(std::vector<LayerCost>(std::size_t(stack.size())), BalanceBy::count,
            options.pipeline.schedule, shape);
  else
    stages_of(options.pipeline.stages, stack.size(), shape);
}

// What a resumed run may change of its model: where the weights came from and how they are written,
// what a step keeps in memory, and what only training does. Everything else changes the parameters
// or the function of the same parameters.
bool may_change(const std::string& key, const ModelOptions& model) {
  return key == "model.init" || key == "model.lora.init" || key == "model.lora.merge" ||
         key == "model.recompute" || key == "model.dropout" || key == "task.mask" ||
         (key == "model.context" && family_of(model).any_context);
}

// The options by which two models compute different functions.
std::vector<OptionDifference> differing_models(ModelOptions one, ModelOptions other) {
  const auto text = [](ModelOptions& model) {
    return to_toml(fields_in("model", model), Comments::no) +
           to_toml(fields_in("task", model.task), Comments::no);
  };
  auto all = differences(text(one), text(other), Among::ranks);
  std::erase_if(all, [&](const auto& difference) { return may_change(difference.key, other); });
  for (auto& one_of_them : all)
    for (std::string* value : {&one_of_them.mine, &one_of_them.theirs})
      if (!value->starts_with('[')) std::erase(*value, '"');
  return all;
}

// Checks that the state of a resumed run fits this model and optimiser, by the options with which
// it was saved.
void check_state(const JobRequest& request) {
  const auto config = RunDirectory::open(request.resume).config();
  if (!std::filesystem::exists(config)) return;  // restoring the state reports what does not fit
  JobOptions before, now = request.options;
  read_toml_file(fields_of(before), config);
  std::vector<std::string> had, has, set;
  const auto compare = [&](const char* key, const auto& saved, const auto& wanted, bool fits) {
    if (fits) return;
    had.push_back(fmt::format("{} = {}", key, shown(saved)));
    has.push_back(fmt::format("{}", shown(wanted)));
    set.push_back(fmt::format("{}={}", key, shown(saved)));
  };
  for (const auto& [key, saved, wanted] : differing_models(before.model, now.model))
    compare(key.c_str(), saved, wanted, /*fits=*/false);
  compare("train.precision", before.train.precision, now.train.precision,
          master_type(compute_type(before.train)) == master_type(compute_type(now.train)));
  compare("train.freeze", before.train.freeze, now.train.freeze,
          before.train.freeze == now.train.freeze);
  const auto states = [](const JobOptions& job) {
    return make_optimizer(job.optim)->state_names();
  };
  const bool same_name = before.optim.name == now.optim.name;
  const bool same_state = states(before) == states(now);
  compare("optim.name", before.optim.name, now.optim.name, same_name || same_state);
  compare("optim.momentum", before.optim.momentum, now.optim.momentum, !same_name || same_state);
  if (had.empty()) return;
  throw InvalidArgument(
      fmt::format("the state of {} was saved with {}, and this job has {}: it does not fit; set {}",
                  request.resume.string(), fmt::join(had, " and "), fmt::join(has, " and "),
                  fmt::join(set, " and ")));
}

// Checks that files and devices which a job names exist: before there are ranks that would all
// report it, and also for options that a job of one rank does not use.
void check_surroundings(const JobRequest& request) {
  const auto& options = request.options;
  if (!options.net.interface.empty()) interface_address(options.net.interface);
  // Several ranks have already read rank 0's plan to connect.
  if (!options.comm.plan.empty() && !request.ranks) Plan::read(options.comm.plan);
  if (options.zero.offload == Offload::disk &&
      !std::filesystem::is_directory(options.zero.offload_path))
    throw InvalidArgument(
        fmt::format("zero.offload_path: there is no folder {}; make it on a disk with room",
                    options.zero.offload_path));
}

}  // namespace

void check_job(const JobRequest& request, int ranks) {
  const auto& options = request.options;
  JobRequest planned = request;
  planned.options.split = family_of(options.model).split(options.model);
  check_rules(planned, ranks);
  check_threads(options.train);
  options.chaos.slowness(0, ranks);
  JobOptions resolved = options;
  if (request.resume.empty()) resolve_options(resolved, request.given);
  const ModelOptions& model = resolved.model;
  const MeshShape mesh = options.server.count > 0 ? MeshShape{} : mesh_of(options.parallel, ranks);
  check_heads(request, model, mesh);
  check_layout(options, model, mesh);
  if (!request.resume.empty()) {
    check_state(request);
    const auto done = saved_step(RunDirectory::open(request.resume).state());
    if (done >= options.train.steps)
      throw InvalidArgument(fmt::format(
          "{} has done {} {} steps{}; give more with --set train.steps=N", request.resume.string(),
          done == options.train.steps ? "its" : "already", done,
          done == options.train.steps
              ? ""
              : fmt::format(", and train.steps = {}", options.train.steps)));
  }
  require_place_for(request.summary, "--json");
  check_surroundings(request);
}

bool is_expendable(const JobOptions& options, int rank, int ranks) {
  if (rank == 0 || options.server.count == 0 || options.server.mode == ServerMode::sync)
    return false;
  const ServerRoles roles(options.server, ranks);
  return roles.works(rank) && roles.server_of(rank) < 0;
}

void require_same_options(JobOptions& options, Communicator& ranks) {
  const auto texts = gather_texts(ranks, to_toml(fields_of(options), Comments::no), "setup");
  for (std::size_t r = 1; r < texts.size(); ++r) {
    std::string all;
    for (const auto& one : differences(texts[r], texts[0], Among::ranks))
      all += fmt::format("{}{} = {} where rank 0 has {}", all.empty() ? "" : "; ", one.key,
                         one.mine, one.theirs);
    if (!all.empty())
      throw InvalidArgument(fmt::format("ranks have different options: rank {} has {}", r, all));
  }
}

}  // namespace echelon
