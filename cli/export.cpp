// Writes the weights of a run's saved state as a folder that transformers loads. The run need not
// be finished.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/job/data.h"
#include "echelon/job/options.h"
#include "echelon/job/tokenizer_files.h"
#include "echelon/models/family.h"
#include "echelon/models/frozen_values.h"
#include "echelon/models/lora.h"
#include "echelon/models/weights_folder.h"
#include "echelon/nn/tensor_file.h"
#include "echelon/plan/tuning.h"
#include "echelon/train/trainer.h"

namespace echelon::cli {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string run, folder;
  bool force = false, adapter = false;
};

// Where a parameter's values are in a state (state_file.cpp): masters if it is trainable.
const safetensors::Entry& entry_of(const safetensors::Reader& state, const Parameter& parameter) {
  const std::string name = (parameter.trainable ? "master/" : "fixed/") + parameter.name;
  const auto* entry = state.find(name);
  if (entry == nullptr || entry->shape != parameter.shape)
    throw InvalidArgument(fmt::format(
        "{} does not fit the model of {}: it has {}, and the model needs [{}]",
        state.path().string(), (state.path().parent_path() / "config.toml").string(),
        entry == nullptr ? "no " + name
                         : fmt::format("{} of [{}]", name, fmt::join(entry->shape, ", ")),
        fmt::join(parameter.shape, ", ")));
  return *entry;
}

// Refuses to replace what is there.
void require_new(const fs::path& folder, bool force) {
  if (fs::exists(folder) && !fs::is_directory(folder))
    throw InvalidArgument(fmt::format(
        "{} is a file, and export writes a folder; choose another with -o", folder.string()));
  if (force) return;
  for (const char* name :
       {"config.json", "model.safetensors", "adapter_config.json", "adapter_model.safetensors"})
    if (fs::exists(folder / name))
      throw InvalidArgument(
          fmt::format("{} exists; choose another folder with -o, or overwrite it with --force",
                      (folder / name).string()));
}

// A run in progress replaces its state file as a whole, so the opened file stays consistent. Export
// only reads the run and needs no lock on it.
void run(const Arguments& arguments) {
  const fs::path run(arguments.run), config = run / "config.toml";
  if (!fs::is_directory(run))
    throw InvalidArgument(fmt::format("there is no run {}", run.string()));
  if (!fs::exists(config) || !fs::exists(run / "state.safetensors"))
    throw InvalidArgument(fmt::format(
        "{} holds no saved state; a run writes one when it ends or is interrupted, and every "
        "train.save_every steps",
        run.string()));
  const fs::path folder = arguments.folder.empty() ? run / "weights" : fs::path(arguments.folder);
  require_new(folder, arguments.force);
  const safetensors::Reader state(run / "state.safetensors");
  JobOptions options;
  read_toml_file(fields_of(options), config);
  if (arguments.adapter && options.model.lora.rank == 0)
    throw InvalidArgument(fmt::format(
        "{} was trained without LoRA, so there is no adapter: leave --adapter out", run.string()));
  std::optional<Tokenizer> tokenizer;
  if (!options.data.tokenizer.empty()) tokenizer.emplace(Tokenizer::open(options.data.tokenizer));
  Stack stack = family_of(options.model).build(options.model);
  tune(stack, options.train, options.optim);
  at::ScalarType type = at::kFloat;
  for (const auto& parameter : stack.parameters())  // all are looked at before anything is written
    if (type_of(state, entry_of(state, parameter)) == at::kDouble) type = at::kDouble;
  FrozenValues frozen(options.model, stack, std::uint64_t(options.train.seed));
  const auto value = [&](const Parameter& parameter) {
    return frozen.exact(parameter, tensor_of(state, entry_of(state, parameter)));
  };
  const auto warn = [&] {
    if (!frozen.warning().empty())
      log::warn(fmt::format("{}: {}", folder.string(), frozen.warning()));
  };
  if (arguments.adapter) {
    write_adapter(folder, options.model, stack, type, value);
    warn();
    fmt::print("exported    the adapter after step {} of {}: {} opens in PEFT\n", saved_step(state),
               options.train.steps, folder.string());
    return;
  }
  write_weights(folder, options.model, stack, type, value,
                token_notes(tokenizer ? &*tokenizer : nullptr, tokens_are_bytes(options.data)));
  warn();
  if (tokenizer) copy_tokenizer(*tokenizer, folder);
  fmt::print(
      "exported    the weights after step {} of {}: {} opens in transformers, or try: echelon "
      "generate {}\n",
      saved_step(state), options.train.steps, folder.string(), folder.string());
}

}  // namespace

void add_export(CLI::App& app, int& exit_code) {
  auto* command =
      app.add_subcommand("export", "Write the weights of a run's saved state for transformers");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("run", arguments->run,
                   "Folder of a run with a saved state: finished, interrupted or still running")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("-o,--output", arguments->folder,
                   "Folder for config.json and model.safetensors; default: weights/ of the run")
      ->type_name("DIR");
  command->add_flag("--adapter", arguments->adapter,
                    "Write only the LoRA adapter, for PEFT; default: the model with its additions");
  command->add_flag("--force", arguments->force,
                    "Overwrite weights that are already in the folder");
  command->footer("Example:\n  echelon export runs/2026-01-31-120000 -o half-way");
  command->callback([arguments, &exit_code] {
    run(*arguments);
    exit_code = 0;
  });
}

}  // namespace echelon::cli
