#include "echelon/job/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>

#include "echelon/base/build_config.h"
#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/log.h"
#include "echelon/base/process_memory.h"
#include "echelon/comm/job_ledger.h"
#include "echelon/comm/texts.h"
#include "echelon/job/data.h"
#include "echelon/job/data_check.h"
#include "echelon/job/pipeline_trace.h"
#include "echelon/job/progress.h"
#include "echelon/job/report.h"
#include "echelon/job/resume_command.h"
#include "echelon/job/run_directory.h"
#include "echelon/job/server_job.h"
#include "echelon/job/stale_spells.h"
#include "echelon/job/sync_trace.h"
#include "echelon/launch/environment.h"
#include "echelon/models/family.h"
#include "echelon/models/weights_folder.h"
#include "echelon/net/endpoint.h"
#include "echelon/net/launcher_report.h"
#include "echelon/plan/memory_forecast.h"
#include "echelon/train/trainer.h"

namespace echelon {

using nlohmann::ordered_json;

namespace {

// Whether other ranks may be gone at the end.
bool counts_alone(const JobRequest& request, const ServerJob* servers) {
  return servers && request.options.server.mode != "sync";
}

// What all ranks sent; of this one alone where others may be gone.
std::string ledger_of(const JobRequest& request, const ServerJob* servers) {
  return job_ledger(request.ranks.get(),
                    counts_alone(request, servers) ? Extent::this_rank : Extent::all_ranks);
}

// Of the ranks with a server, other than this one.
std::vector<RankMemory> memory_of_servers(Trainer& trainer, const ServerRoles& roles) {
  std::vector<RankMemory> all;
  const auto words = trainer.memory_of_servers();
  for (std::size_t i = 0; i < words.size(); ++i)
    if (const int rank = roles.rank_of(int(i)); rank != 0)
      all.push_back(memory_from(words[i], rank));
  return all;
}

// What ranks other than 0 do: the same steps, in the same pieces, and their part of each
// validation. Where the ranks share the model out, they also take part in whatever the first shows
// and writes.
JobEnd follow(const JobRequest& request, Trainer& trainer, const Stack& stack, const JobData& data,
              ServerJob* servers, const std::function<void(std::int64_t)>& run_until,
              std::optional<SyncTrace>& trace, std::optional<PipelineTrace>& drawing,
              const MemoryAccount& account, std::uint64_t start, PeakMemory& peak) {
  if (trace)
    trainer.on_step([&](const StepReport& report) {
      if (report.ages.empty()) trace->step(report.step, trainer.executor());
    });
  if (drawing) trainer.on_step([&](const StepReport&) { drawing->keep(trainer.executor()); });
  const auto& train = request.options.train;
  if (!request.resume.empty() && !servers)
    trainer.restore(RunDirectory::open(request.resume).state());
  const auto next = [&](std::int64_t every) {
    return every > 0 ? (trainer.step() / every + 1) * every : train.steps;
  };
  const bool saves = trainer.saves_together(), evaluates = !servers && data.validation != nullptr;
  request.training_begins();
  try {
    while (trainer.step() < train.steps) {
      const auto until =
          servers ? train.steps
                  : std::min({next(train.validate_every), next(train.save_every), train.steps});
      run_until(until);
      if (trainer.step() < until) break;
      if (evaluates && until < train.steps && until % train.validate_every == 0)
        trainer.evaluate_together(*data.validation, train.validate_samples);
      if (saves && train.save_every > 0 && until % train.save_every == 0) trainer.save({});
    }
  } catch (const NotFinite&) {
    if (saves) trainer.save({});
    throw;
  }
  const bool finished = trainer.step() >= train.steps;
  if (saves && (!finished || (train.save_every == 0 && train.save_last))) trainer.save({});
  if (saves && finished && train.save_last)
    for (const auto& parameter : stack.parameters()) trainer.master(parameter);
  if (servers) {
    trainer.leave_servers();
    servers->wait();
  }
  ledger_of(request, servers);
  if (trace) trace->write({});
  if (drawing) drawing->write({}, 0);
  if (finished)
    memory_of_ranks(request.ranks.get(), account.at_peak(), start, peak.bytes(),
                    counts_alone(request, servers));
  if (evaluates && finished) trainer.evaluate_together(*data.validation, data.validation->size());
  return finished ? JobEnd::finished : JobEnd::interrupted;
}

// A worker that comes to the servers of a job that runs already.
JobEnd join_job(const JobRequest& request, const JobData& data, Stack& stack,
                const std::atomic<bool>& stop) {
  const auto& options = request.options;
  Ledger ledger;
  Trainer trainer(stack, *data.training, options);
  fmt::print("connecting  to {}\n", request.join);
  std::fflush(stdout);
  join_servers(request.join, options, data.fingerprint, trainer, stack, ledger);
  // Of what is free, this trainer has taken its part by now: only a limit can still be compared.
  if (options.train.memory_mib > 0) require_memory(options, trainer.batch_parts(), 1, Role::guest);
  request.training_begins();
  fmt::print("joined      {}\n", request.join);
  std::fflush(stdout);
  trainer.run_until(std::numeric_limits<std::int64_t>::max(), &stop);  // as long as the job goes on
  fmt::print("left        after step {}, {}\n", trainer.step(),
             stop.load() ? "since it was told to" : "the job's last");
  return JobEnd::finished;
}

// The run to go on with, which the first rank locks: every rank says so where it cannot. Nothing
// for the others, and for a new run.
std::optional<RunDirectory> lock_former_run(const JobRequest& request) {
  std::optional<RunDirectory> run;
  if (request.resume.empty()) return run;
  std::string objection;
  if (!request.ranks || request.ranks->rank() == 0) {
    run.emplace(RunDirectory::open(request.resume));
    try {
      run->lock();
    } catch (const InvalidArgument& in_use) {
      objection = in_use.what();
    }
  }
  require_no_objection(objection, request.ranks.get());
  return run;
}

// As a state keeps it: two runs on the same data have the same state, wherever the data lie.
std::string data_note(DataFingerprint data) {
  data.source.clear();
  return to_json(data);
}

FormerData former_data(const std::optional<RunDirectory>& run) {
  if (!run) return {};
  return {run->path().string(), fingerprint_of(saved_note(run->state(), "data"))};
}

// As a run keeps them: it can go on from any folder.
JobOptions with_whole_paths(JobOptions options) {
  const auto& source = options.data.source;
  for (auto* path : {source == "stdlib" || source == "random" ? nullptr : &options.data.source,
                     &options.model.init, &options.zero.offload_path, &options.comm.plan})
    if (path && !path->empty())
      *path = std::filesystem::absolute(*path).lexically_normal().string();
  return options;
}

// Where a rank was lost. That is the error to report, whatever the state is like.
void say_how_to_go_on(const RunDirectory& run) noexcept {
  try {
    if (std::filesystem::exists(run.state()))
      fmt::print(stderr, "the state after step {} is kept; go on with: {}\n",
                 saved_step(run.state()), resume_command(run.path(), read_environment()));
    else
      fmt::print(stderr, "no state was saved: with train.save_every=N one is kept every N steps\n");
  } catch (const std::exception&) {
  }
}

}  // namespace

JobEnd run_job(JobRequest request, const std::atomic<bool>& stop) {
  JobOptions& options = request.options;
  check_job(request, request.ranks ? request.ranks->size() : 1);
  const bool resuming = !request.resume.empty();
  if (!resuming) resolve_model(options.model, request.given);
  const Family& family = family_of(options.model);
  options.split = family.split(options.model);
  if (request.ranks) require_same_options(options, *request.ranks);
  std::optional<RunDirectory> former = lock_former_run(request);
  JobData data = open_data(options);
  const int all_ranks = request.ranks ? request.ranks->size() : 1;
  const int local_ranks = read_environment().local_world;
  // Before all of the data is read, which may take a while.
  if (request.join.empty())
    require_memory(options, all_ranks, local_ranks);
  else  // the job will say how many share a batch
    require_memory(options, 0, local_ranks, Role::guest);
  require_same_data(data, former_data(former), request.ranks.get(), options.train.allow_other_data);
  const std::uint64_t start = own_bytes();
  PeakMemory peak;
  Stack stack = family.build(options.model);
  if (!request.join.empty()) return join_job(request, data, stack, stop);
  std::optional<MemoryAccount> memory_here;  // of the trainer and the server in this process
  std::optional<ServerJob> servers;
  if (options.server.count > 0) {
    memory_here.emplace(MemoryExtent::with_inner);
    servers.emplace(options, *request.ranks,
                    Endpoint::listening_address(read_environment(), options.net), Token::find(),
                    data.fingerprint);
    servers->report_memory([&] {
      return memory_words({memory_here->at_peak(), start, peak.bytes()});
    });
    if (!servers->works()) {
      request.training_begins();
      servers->all_have_come();
      servers->serve(stop);
      ledger_of(request, &*servers);
      if (servers->server()->version() >= options.train.steps)
        memory_of_ranks(request.ranks.get(), memory_here->at_peak(), start, peak.bytes(),
                        counts_alone(request, &*servers));
      return servers->server()->version() < options.train.steps ? JobEnd::interrupted
                                                                : JobEnd::finished;
    }
  }
  Trainer trainer(stack, *data.training, options, servers ? nullptr : request.ranks);
  trainer.note("data", data_note(data.fingerprint));
  // Of the workers of parameter servers the first brings the parameters.
  if (!resuming && !options.model.init.empty() && (!servers || request.ranks->rank() == 0))
    trainer.load(read_weights(options.model.init, options.model, stack));
  if (servers) {
    servers->attach(trainer, stack);
    request.training_begins();  // on all of them before any goes on: none waits for one that ended
    servers->all_have_come();
  }
  trainer.slow_down(options.chaos.slowness(request.ranks ? request.ranks->rank() : 0,
                                           request.ranks ? request.ranks->size() : 1));

  JobOutcome outcome;
  const auto decided = [&outcome](const std::string& decision) {
    log::info(decision);
    ++outcome.decisions;
  };
  trainer.on_decision(decided);
  if (options.sync.adapt) trainer.adapt(options.sync);
  std::optional<StaleSpells> spells;
  if (options.sync.allow_staleness > 0)
    spells.emplace(options, trainer, stack, request.ranks,
                   Endpoint::listening_address(read_environment(), options.net), Token::find(),
                   decided);
  const auto run_until = [&](std::int64_t until) {
    spells ? spells->run_until(until, &stop) : trainer.run_until(until, &stop);
  };
  std::optional<SyncTrace> trace;
  if (request.trace_sync) {
    trainer.trace(true);
    trace.emplace(request.ranks);
  }
  std::optional<PipelineTrace> drawing;
  if (request.trace_pipeline) {
    trainer.trace(true);
    drawing.emplace(trainer.layout(), options.pipeline);
  }
  ServerJob* const served = servers ? &*servers : nullptr;
  const MemoryAccount& account = memory_here ? *memory_here : trainer.memory();
  std::vector<std::string> left_behind;  // by ranks that were killed
  if (trainer.tier() && request.ranks)
    left_behind = gather_texts(*request.ranks, trainer.tier()->left_behind(), "offload");
  if (request.ranks && is_expendable(options, request.ranks->rank(), all_ranks))
    LauncherReport(request.ranks->rank(), all_ranks).expendable();
  if (request.ranks && request.ranks->rank() != 0)
    return follow(request, trainer, stack, data, served, run_until, trace, drawing, account, start,
                  peak);

  RunDirectory run = former ? std::move(*former) : RunDirectory::create(request.runs, request.name);
  if (resuming) {
    trainer.restore(run.state());
    run.rewind_metrics(trainer.step());
  }
  JobOptions kept = with_whole_paths(options);
  write_file(run.config(), to_toml(fields_of(kept), Comments::no));
  run.write_plan(plan_of(options, data, trainer, request.ranks.get()));
  log::open(run.log());
  log::info(fmt::format("echelon {} ({}), torch {}, {} parameters, step {} of {}", ECHELON_VERSION,
                        ECHELON_COMMIT, ECHELON_TORCH_VERSION, stack.parameter_count(),
                        trainer.step(), options.train.steps));
  if (options.sync.adapt)
    log::info(fmt::format("reducing begins by {}", name(trainer.executor().reduces_by())));

  const auto say = [](std::string_view label, const std::string& text) {
    fmt::print("{}", report_line(label, text));
  };
  say("model", model_text(options, stack.parameter_count(), all_ranks));
  for (const auto& text : left_behind)
    if (!text.empty())
      log::warn(fmt::format("{}. {}", text,
                            resuming ? fmt::format("What was saved after step {} is whole, and the "
                                                   "run goes on from there",
                                                   trainer.step())
                                     : std::string("This run begins anew")));
  show_layout(options, trainer, stack);
  if (!trainer.scatter_choice().empty())
    say("gradients", "go to their owners " + trainer.scatter_choice());
  say("data", data.description);
  say("run", run.path().string());
  if (served) show_servers(options.server, served->roles().workers());
  if (served && options.server.mode != "sync")
    fmt::print("join        {}\n",
               std::getenv("ECHELON_TOKEN_MADE")
                   ? std::string("start the job with ECHELON_TOKEN set to let workers come later")
                   : fmt::format("ECHELON_TOKEN=… echelon train {} --join {}",
                                 run.config().string(), served->addresses()));
  if (resuming) say("resumed", fmt::format("after step {}", trainer.step()));
  if (const Tier* tier = trainer.tier()) say("offload", tier->description() + " a rank");
  if (options.optim.warmup >= options.train.steps) {
    log::warn(fmt::format(
        "optim.warmup = {} is not below train.steps = {}: the rate never reaches its peak; set a "
        "shorter warm-up",
        options.optim.warmup, options.train.steps));
  }

  JobOptions laid_out = options;  // with the stages that were chosen
  if (trainer.layout().pipeline.ranks > 1)
    laid_out.pipeline.stages = stages_text(trainer.layout().stages);
  const MemoryForecast forecast = forecast_memory(laid_out, all_ranks, local_ranks);
  fmt::print("{}\n{}\n", memory_head(), memory_row(name_of_forecast(all_ranks), forecast.tensors));

  request.training_begins();
  const auto began = std::chrono::steady_clock::now();
  {
    Progress progress(trainer.step(), options.train.steps, data.bytes, request.progress);
    trainer.on_step([&](const StepReport& report) {
      run.add_step(report, data.bytes);
      progress.step(report);
      if (trace && report.ages.empty())  // a stale step has no exchanges to show
        progress.say(trace->step(report.step, trainer.executor()));
      if (drawing) drawing->keep(trainer.executor());
      outcome.step_seconds.push_back(report.seconds);
      outcome.tokens_a_step = report.targets;
      outcome.final_loss = report.loss;
      outcome.loss_scale = report.loss_scale;
      outcome.skipped += report.skipped;
      for (const auto age : report.ages) ++outcome.ages[age];
    });
    const auto next = [&](std::int64_t every) {
      return every > 0 ? (trainer.step() / every + 1) * every : options.train.steps;
    };
    try {
      while (trainer.step() < options.train.steps) {
        const auto until = std::min({next(options.train.validate_every),
                                     next(options.train.save_every), options.train.steps});
        run_until(until);
        // Also when interrupted just here: a resumed run would not come back to it.
        if (trainer.step() < until) break;
        if (until < options.train.steps && data.validation != nullptr &&
            until % options.train.validate_every == 0) {
          const double loss =
              trainer.evaluate_together(*data.validation, options.train.validate_samples);
          run.add_validation(until, loss, data.bytes);
          progress.say(fmt::format("step {:>{}}  validation {:.3f} bits/byte", until,
                                   fmt::format("{}", options.train.steps).size(),
                                   loss / std::numbers::ln2));
        }
        if (options.train.save_every > 0 && until % options.train.save_every == 0)
          trainer.save(run.state());
      }
    } catch (const PeerLost&) {
      say_how_to_go_on(run);
      throw;
    } catch (const NotFinite& error) {
      log::info(error.what());
      trainer.save(run.state());
      throw Error(
          fmt::format("{}. Go on from there with: {}", error.what(),
                      resume_command(run.path(), read_environment(), "--set optim.rate=...")));
    }
  }
  std::string timelines;
  std::vector<RankMemory> servers_memory;  // where others may be gone when this one asks
  const auto leave = [&] {
    if (served) {
      if (counts_alone(request, served))
        servers_memory = memory_of_servers(trainer, served->roles());
      outcome.lost_workers = trainer.lost_workers();
      trainer.leave_servers();
      served->wait();
    }
    run.write_ledger(ledger_of(request, served));
    if (trace) trace->write(run.path() / "trace.json");
    if (drawing) timelines = drawing->write(run.path() / "pipeline.svg", 80);
  };
  if (trainer.step() < options.train.steps) {
    trainer.save(run.state());
    leave();
    log::info(fmt::format("interrupted after step {}", trainer.step()));
    show_lost_workers(outcome, served ? served->roles().workers() : 0);
    fmt::print("interrupted after step {}; go on with: {}\n", trainer.step(),
               resume_command(run.path(), read_environment()));
    return JobEnd::interrupted;
  }

  // So that a finished run can be given more steps; with save_every the states of its own grid
  // stay.
  if (options.train.save_every == 0 && options.train.save_last) trainer.save(run.state());
  if (options.train.save_last)
    write_weights(
        run.weights(), options.model, stack, master_type(stack.type()),
        [&](const Parameter& p) { return trainer.master(p); },
        data.bytes ? Tokens::bytes : Tokens::others);
  leave();
  const std::uint64_t peak_process = peak.bytes();
  auto all_memory = memory_of_ranks(request.ranks.get(), account.at_peak(), start, peak_process,
                                    counts_alone(request, served));
  all_memory.insert(all_memory.end(), servers_memory.begin(), servers_memory.end());
  run.write_memory(forecast, all_memory);
  if (data.validation != nullptr) {
    outcome.validation_loss = trainer.evaluate_together(*data.validation, data.validation->size());
    outcome.validated = true;
    run.add_validation(trainer.step(), outcome.validation_loss, data.bytes);
  }
  const ordered_json summary =
      summary_of(options, outcome, stack.parameter_count(), data.bytes, start, peak_process, run);
  if (!request.summary.empty()) write_file(request.summary, summary.dump(2) + "\n");
  log::info(summary.dump());

  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  fmt::print("trained     {} step{}, {} tokens/s; {:.0f} s in all\n", outcome.step_seconds.size(),
             outcome.step_seconds.size() == 1 ? "" : "s",
             human_count(summary["tokens_per_s"].get<double>()), seconds);
  show_synchronisation(outcome, run);
  show_lost_workers(outcome, served ? served->roles().workers() : 0);
  show_loss_scale(outcome);
  if (trace) fmt::print("trace       {}/trace.json opens in Perfetto\n", run.path().string());
  if (drawing)
    fmt::print("{}the same as a picture: {}/pipeline.svg\n", timelines, run.path().string());
  show_validation(outcome, data, options.model.context);
  show_memory(forecast, all_memory);
  if (data.bytes && !trainer.in_parts()) {
    show_sample(stack, options.model.context);
  } else if (data.bytes &&
             options.train.save_last) {  // no rank has the model: from its weights, whole
    Stack whole = family.build(options.model);
    whole.allocate(at::kCPU, at::kFloat, Gradients::no);
    whole.load(read_weights(run.weights(), options.model, whole));
    show_sample(whole, options.model.context);
  }
  if (options.train.save_last)
    fmt::print("run         {}: weights/ opens in transformers\ntry         echelon generate {}\n",
               run.path().string(), run.weights().string());
  else
    say("run", fmt::format("{}; train.save_last=false: nothing of the model was written",
                           run.path().string()));
  return JobEnd::finished;
}

}  // namespace echelon
