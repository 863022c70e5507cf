#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/limits.h"
#include "cli/ranks.h"
#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/base/process_memory.h"
#include "echelon/comm/gpu.h"
#include "echelon/job/job.h"
#include "echelon/job/resolve.h"
#include "echelon/job/run_directory.h"
#include "echelon/launch/environment.h"
#include "echelon/launch/launcher.h"
#include "echelon/plan/memory_forecast.h"

namespace echelon::cli {
namespace {

constexpr const char* examples = R"(Examples:
  echelon train                                      the default job: a small GPT on Python's own sources
  echelon train --data book.txt                      the same on your own text
  echelon train --nproc 2                            two ranks on this machine; works under srun, mpirun, torchrun
  echelon train --nproc 4 --set parallel.pipeline=2 --set train.micro_batches=8
                                                     two pipeline stages, each on two ranks that split the batch
  echelon train job.toml --set optim.rate=1e-3       options from a file, one changed
  echelon train --print-config > job.toml            every option with its value and meaning
  echelon train job.toml --nproc 4 --dry-run         predict its memory before it starts
  echelon train --set model.init=weights/            start from weights in Hugging Face's format
  echelon train --set model.init=distilbert/ --data train.tsv --set data.validation_source=dev.tsv
                                                     fine-tune them on a file with labels
  echelon train --resume runs/2026-01-31-120000      continue an interrupted run)";

struct Arguments {
  std::string config, data, resume, name, summary, plan;
  std::vector<std::string> set;
  int nproc = 1;
  std::string trace, join, progress = "auto";
  bool print_config = false, dry_run = false, allow_other_data = false;
};

JobRequest request_of(const Arguments& arguments) {
  JobRequest request;
  const Fields fields = fields_of(request.options);
  request.resume = arguments.resume;
  request.name = arguments.name;
  request.summary = arguments.summary;
  request.join = arguments.join;
  request.progress = arguments.progress == "none"    ? ShowProgress::none
                     : arguments.progress == "plain" ? ShowProgress::plain
                                                     : ShowProgress::automatic;
  request.trace_sync = arguments.trace == "sync";
  request.trace_buckets = arguments.trace == "buckets";
  request.trace_pipeline = arguments.trace == "pipeline";
  if (!arguments.resume.empty()) {
    if (!arguments.config.empty())
      throw InvalidArgument(
          "--resume takes the run's own configuration; change single values with --set");
    if (!arguments.name.empty())
      throw InvalidArgument(fmt::format(
          "--resume goes on in {}, which keeps its name; leave --name out", arguments.resume));
    read_toml_file(fields, RunDirectory::open(arguments.resume).config());
  } else if (!arguments.config.empty()) {
    request.given = read_toml_file(fields, arguments.config);
  }
  std::vector<std::string> set;
  for (const auto& assignment : arguments.set) set.push_back(set_option(fields, assignment));
  request.given.insert(request.given.end(), set.begin(), set.end());
  // --data and --plan override a file, as --set does, but not each other.
  const auto take = [&](const std::string& value, std::string& option, const char* flag,
                        const char* key) {
    if (value.empty()) return;
    if (option != value && std::find(set.begin(), set.end(), key) != set.end())
      throw InvalidArgument(fmt::format("{0} {1} and --set {2}={3} differ; give one of them", flag,
                                        value, key, option));
    option = value;
  };
  take(arguments.data, request.options.data.source, "--data", "data.source");
  take(arguments.plan, request.options.comm.plan, "--plan", "comm.plan");
  request.options.train.allow_other_data = arguments.allow_other_data;
  return request;
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("train", "Train a language model on text");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("config,--config", arguments->config, "Options as a TOML file")
      ->type_name("JOB.toml");
  command->add_option("--set", arguments->set, "Set one option; may be given several times")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command
      ->add_option("--data", arguments->data, "Text to train on: overrides data.source of JOB.toml")
      ->type_name("FILE-OR-DIR");
  command->add_option("--name", arguments->name, "Name of the run; its directory is runs/NAME")
      ->type_name("NAME");
  command->add_option("--resume", arguments->resume, "Continue an interrupted run")
      ->type_name("RUN");
  command->add_option("--json", arguments->summary, "Write a summary of the run")
      ->type_name("FILE");
  command
      ->add_option("--plan", arguments->plan,
                   "Use the plan.json of an earlier run instead of measuring links")
      ->type_name("FILE");
  const auto* nproc =
      command
          ->add_option("--nproc", arguments->nproc,
                       "Ranks to start; they split the batch, layers or matrices (parallel.*)")
          ->check(CLI::Range(1, most_local_ranks))
          ->type_name("N")
          ->capture_default_str();
  command
      ->add_option("--join", arguments->join,
                   "Join a job with parameter servers as a worker; the job prints this command")
      ->type_name("HOST:PORT,...");
  command
      ->add_option(
          "--trace", arguments->trace,
          "buckets: show what ranks exchange, predicted and measured, as a table; sync: print every\n"
          "step's exchanges and write trace.json for Perfetto; pipeline: draw the last step as\n"
          "predicted and as it ran, and write pipeline.svg")
      ->check(CLI::IsMember({"buckets", "sync", "pipeline"}).description(""))
      ->type_name("WHAT");
  command
      ->add_option("--progress", arguments->progress,
                   "auto: a bar on a terminal, otherwise a line every few seconds; plain: lines;\n"
                   "none: no progress")
      ->check(CLI::IsMember({"auto", "plain", "none"}).description(""))  // too wide for its column
      ->type_name("HOW")
      ->capture_default_str();
  command->add_flag("--allow-other-data", arguments->allow_other_data,
                    "Only warn if ranks, or this run before, have other data");
  command->add_flag("--print-config", arguments->print_config,
                    "Print every option with its value and meaning, and stop");
  command->add_flag("--dry-run", arguments->dry_run,
                    "Predict the memory of each rank, say whether it fits, and stop");
  command->footer(examples);
  command->callback([arguments, nproc, &exit_code] {
    JobRequest request = request_of(*arguments);
    if (arguments->print_config) {
      fmt::print("{}", to_toml(fields_of(request.options), Comments::yes));
      return;
    }
    const JobEnvironment environment = read_environment();
    if (arguments->dry_run) {
      const bool here = environment.world == 1;
      const int ranks = here ? arguments->nproc : environment.world;
      check_job(request, ranks);
      if (request.resume.empty()) resolve_options(request.options, request.given);
      const auto forecast =
          report_forecast(request.options, ranks, here ? ranks : environment.local_world);
      fmt::print("{}", forecast.text);
      exit_code = forecast.fits ? 0 : 1;
      return;
    }
    require_address_space();
    if (environment.world == 1 && arguments->nproc > 1) {
      check_job(request, arguments->nproc);
      if (request.options.train.device ==
          DeviceKind::cpu) {  // the GPU must not be initialised before the fork
        JobOptions options = request.options;
        if (request.resume.empty()) resolve_options(options, request.given);
        require_memory(options, arguments->nproc, arguments->nproc);
      }
      if (request.resume.empty()) RunDirectory::require_new(request.runs, request.name);
      exit_code = launch({.program = own_command_line(),
                          .nproc = arguments->nproc,
                          .rendezvous = {},
                          .log_dir = {},
                          .prefix = false,
                          .takes_interrupts = true});
      return;
    }
    if (!environment.not_a_rank.empty() && !nproc->count())
      throw InvalidArgument(environment.not_a_rank);
    keep_freed_memory();
    if (environment.world > 1 || request.options.parallel.exchange_alone ||
        request.options.zero.offload != Offload::none) {
      log::set_rank(environment.rank);
      if (request.options.train.device == DeviceKind::cuda) use_own_gpu();
      request.ranks = Communicator::world(request.options.comm, request.options.net);
    }
    request.training_begins = end_in_order;
    exit_code =
        run_job(std::move(request), interrupted()) == JobEnd::interrupted ? exit_interrupted : 0;
  });
}

}  // namespace echelon::cli
