#include "echelon/lab/lab.h"

#include <memory>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/limits.h"
#include "cli/numbers.h"
#include "cli/ranks.h"
#include "echelon/base/error.h"
#include "echelon/launch/environment.h"

namespace echelon::cli {
namespace {

struct Arguments {
  LabOptions options;
  std::string folder = "lab", model, data, summary, shape = "small";
  bool no_sweep = false;
};

}  // namespace

void add_lab(CLI::App& app, int& exit_code) {
  auto* command =
      app.add_subcommand("lab", "Learn: one fine-tuning on two workers, distributed in three ways");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--out", arguments->folder, "Folder to make, with all that the lab writes")
      ->type_name("DIR")
      ->capture_default_str();
  command
      ->add_option(
          "--model", arguments->model,
          "A DistilBERT or a BERT, such as distilbert-base-uncased; default: one that the\n"
          "lab makes and pre-trains")
      ->type_name("DIR");
  command
      ->add_option(
          "--data", arguments->data,
          "A folder with train.tsv and dev.tsv, such as SST-2; default: sentences that the\n"
          "lab makes")
      ->type_name("DIR");
  command
      ->add_option("--shape", arguments->shape,
                   "The encoder that the lab makes. small: a million parameters, for two cores;\n"
                   "distilbert: 66 million, for a GPU or hours of CPU time")
      ->check(CLI::IsMember({"small", "distilbert"}).description(""))
      ->type_name("SHAPE")
      ->capture_default_str();
  command->add_option("--steps", arguments->options.steps, "Steps of fine-tuning")
      ->check(integer_from(1, 1'000'000'000))
      ->type_name("N");
  command->add_option("--pretraining", arguments->options.pretraining, "Steps of pre-training")
      ->check(integer_from(1, 1'000'000'000))
      ->type_name("N");
  command->add_flag("--no-sweep", arguments->no_sweep,
                    "Leave out bucket size x bandwidth, which needs network namespaces and root");
  command
      ->add_option(
          "--set", arguments->options.set,
          "Set one option of every job (echelon train), such as train.device=cuda; may be\n"
          "given several times")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--json", arguments->summary, "Write the results")->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  echelon lab                                   everything made here, in some minutes\n"
      "  echelon lab --model distilbert-base-uncased --data SST-2 --set train.device=cpu\n"
      "                                                the real model and the real reviews");
  command->callback([arguments, &exit_code] {
    if (read_environment().world > 1)
      throw InvalidArgument("the lab starts its own ranks: run it once, without a launcher");
    require_address_space();
    LabOptions& options = arguments->options;
    options.folder = arguments->folder;
    options.model = arguments->model;
    options.data = arguments->data;
    options.summary = arguments->summary;
    options.real_shape = arguments->shape == "distilbert";
    options.sweep = !arguments->no_sweep;
    end_in_order();
    exit_code = run_lab(options, own_command_line().front(), interrupted());
  });
}

}  // namespace echelon::cli
