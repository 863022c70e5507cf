#include "echelon/verify/run.h"

#include <ATen/ops/cat.h>

#include <optional>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/job/pipeline_trace.h"
#include "echelon/job/server_job.h"
#include "echelon/models/family.h"
#include "echelon/train/trainer.h"
#include "echelon/verify/data.h"
#include "echelon/verify/faults.h"
#include "echelon/verify/masters.h"

namespace echelon {
namespace {

at::Tensor all_parameters(Stack& stack, Trainer& trainer) {
  std::vector<at::Tensor> all;
  for (const auto& parameter : stack.parameters())
    all.push_back(trainer.master(parameter).reshape({-1}).clone());
  return at::cat(all);
}

// A trace numbers parts, "gradients 0", "gradients 1", …; here they count together.
std::map<std::string, std::uint64_t> sent_by(Ledger& ledger) {
  std::map<std::string, std::uint64_t> bytes;
  for (const auto& entry : ledger.entries())
    bytes[std::string(without_part(entry.tag))] += entry.bytes;
  return bytes;
}

void keep_groups(Run& run, const std::vector<std::uint64_t>& groups) {
  run.groups = groups;
  run.model_bytes = 0;
  for (const auto bytes : groups) run.model_bytes += bytes;
}

// `servers` is null without parameter servers.
void train(const JobOptions& options, const Strategy* strategy, std::shared_ptr<Communicator> ranks,
           ServerJob* servers, Run& run) {
  const auto data = data_of(options);
  Stack stack = family_of(options.model).build(options.model);
  Trainer trainer(stack, *data, options, servers ? nullptr : ranks);
  std::vector<std::uint64_t> groups;
  for (const auto& group : stack.groups())
    groups.push_back(std::uint64_t(group.numel) * at::elementSize(stack.type()));
  keep_groups(run, groups);
  if (servers) servers->attach(trainer, stack);
  if (strategy) trainer.reduce_by(strategy->algorithm);
  if (strategy && !strategy->shares.empty()) trainer.split_batch(strategy->shares);
  trainer.on_step([&](const StepReport& report) { run.losses.push_back(report.loss); });
  const bool pipeline = ranks && options.parallel.pipeline > 1;
  if (pipeline) trainer.trace(true);
  trainer.run();
  run.memory = trainer.memory().now();
  if (ranks) run.sent = sent_by(ranks->ledger());  // before all parameters are gathered
  if (pipeline)
    for (const auto& timed : slots_of(trainer.executor(), trainer.layout()))
      run.slots.push_back(timed.slot);
  run.parameters = all_parameters(stack, trainer);
  if (servers) trainer.leave_servers();
}

}  // namespace

Run train_alone(const JobOptions& options) {
  Run run;
  train(options, nullptr, nullptr, nullptr, run);
  return run;
}

Run train_ranks(const Strategy& strategy, std::shared_ptr<Communicator> ranks,
                const Meeting& meeting, const Fault* fault) {
  JobOptions options = fault ? fault->changed(strategy.options) : strategy.options;
  options.split = family_of(options.model).split(options.model);
  if (fault) ranks = fault->alter(std::move(ranks));
  Run run;
  ranks->ledger().clear();
  std::optional<ServerJob> servers;
  if (options.server.count > 0) servers.emplace(options, *ranks, meeting.bind, meeting.token);
  run.works = !servers || servers->works();
  try {
    if (run.works) train(options, &strategy, ranks, servers ? &*servers : nullptr, run);
  } catch (const Error& error) {
    if (!fault) throw;
    run.error = error.what();
  }
  if (!servers) return run;
  servers->wait();
  if (const auto* server = servers->server()) {
    run.served = server->held_bytes();
    run.server_part = server->owned_bytes();
  }
  run.sent = sent_by(ranks->ledger());
  return run;
}

Run update_masters(const Strategy& strategy, std::shared_ptr<Communicator> ranks) {
  Run run;
  ranks->ledger().clear();
  const auto check = check_masters(ranks, strategy.options, strategy.options.train.steps);
  run.difference = check.difference;
  run.memory = check.memory;
  keep_groups(run, check.groups);
  run.sent = sent_by(ranks->ledger());
  return run;
}

}  // namespace echelon
