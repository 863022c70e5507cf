#include "echelon/job/evaluate.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/limits.h"
#include "cli/ranks.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/log.h"
#include "echelon/comm/communicator.h"
#include "echelon/comm/gpu.h"
#include "echelon/launch/environment.h"
#include "echelon/launch/launcher.h"

namespace echelon::cli {
namespace {

constexpr const char* examples = R"(Examples:
  echelon evaluate runs/2026-01-31-120000            a run's weights/ on its own validation data
  echelon evaluate runs/2026-01-31-120000/best       the weights that train.keep_best kept
  echelon evaluate distilbert-sst2/ --data dev.tsv   a folder of transformers on a file with labels
  echelon evaluate adapter/ --data book.txt --nproc 2 --json scores.json
  echelon evaluate bert/ --data dev.csv --set data.text=review --set data.label=stars)";

struct Arguments {
  std::string model, data, summary;
  std::vector<std::string> set;
  int nproc = 1;
};

EvaluateJob job_of(const Arguments& arguments) {
  EvaluateRequest request{arguments.model, arguments.set, arguments.summary};
  if (!arguments.data.empty()) {
    const std::string source = "data.source=" + arguments.data;
    for (const std::string& assignment : arguments.set)
      if (assignment.starts_with("data.source=") && assignment != source)
        throw InvalidArgument(fmt::format("--data {} and --set {} differ; give one of them",
                                          arguments.data, assignment));
    request.set.push_back(source);
  }
  return resolve_evaluation(request);
}

// This process alone, or as one rank of several. Returns the exit code.
int evaluate_here(const EvaluateJob& job, const JobEnvironment& environment,
                  const std::string& summary) {
  std::shared_ptr<Communicator> ranks;
  if (environment.world > 1) {
    log::set_rank(environment.rank);
    if (job.options.train.device == DeviceKind::cuda) use_own_gpu();
    ranks = Communicator::world(job.options.comm, job.options.net);
  }
  const auto result = run_evaluation(job, ranks.get(), interrupted(), end_in_order);
  const bool first = environment.rank == 0;
  if (!result) {
    if (first) fmt::print("interrupted: nothing was written\n");
    return exit_interrupted;
  }
  if (!first) return 0;
  if (!summary.empty()) write_file(summary, evaluation_json(job, *result));
  fmt::print("{}", evaluation_text(job, *result));
  return 0;
}

}  // namespace

void add_evaluate(CLI::App& app, int& exit_code) {
  auto* command =
      app.add_subcommand("evaluate", "Measure a trained model: loss, perplexity, accuracy, F1");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("model", arguments->model,
                   "Run, whose weights/ count; or folder with config.json and\n"
                   "model.safetensors, or of a LoRA adapter")
      ->required()
      ->type_name("RUN-OR-DIR");
  command
      ->add_option("--data", arguments->data,
                   "Labelled file (.tsv, .csv, .jsonl), text, folder or corpus; all of it\n"
                   "counts. Default: the validation data of the run")
      ->type_name("FILE-OR-DIR");
  command->add_option("--json", arguments->summary, "Write the scores and the confusion matrix")
      ->type_name("FILE");
  const auto* nproc =
      command->add_option("--nproc", arguments->nproc, "Ranks to start; they share out the samples")
          ->check(CLI::Range(1, most_local_ranks))
          ->type_name("N")
          ->capture_default_str();
  command
      ->add_option("--set", arguments->set,
                   "Set one option of data.*, comm.*, net.*, train.batch (samples that a\n"
                   "rank computes at once), train.device, train.precision, train.threads")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->footer(examples);
  command->callback([arguments, nproc, &exit_code] {
    const JobEnvironment environment = read_environment();
    if (environment.world == 1 && !environment.not_a_rank.empty() && !nproc->count())
      throw InvalidArgument(environment.not_a_rank);
    const EvaluateJob job = job_of(*arguments);
    require_address_space();
    exit_code = environment.world == 1 && arguments->nproc > 1
                    ? launch({.program = own_command_line(),
                              .nproc = arguments->nproc,
                              .rendezvous = {},
                              .log_dir = {},
                              .prefix = false,
                              .takes_interrupts = true})
                    : evaluate_here(job, environment, arguments->summary);
  });
}

}  // namespace echelon::cli
