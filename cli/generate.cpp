#include "echelon/nn/generate.h"

#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <memory>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/numbers.h"
#include "echelon/base/error.h"
#include "echelon/models/family.h"
#include "echelon/models/weights_folder.h"

namespace echelon::cli {
namespace {

constexpr std::int64_t most_tokens = 1'000'000'000;

struct Arguments {
  std::string weights, prompt = "def ";
  GenerateOptions options;
};

void run(const Arguments& arguments) {
  const ModelOptions model = read_model_options(arguments.weights);
  require_byte_tokens(arguments.weights);
  Stack stack = family_of(model).build(model);
  const ValueSource values = read_weights(arguments.weights, model, stack);
  stack.allocate(at::kCPU, at::kFloat, Gradients::no);
  stack.load(values);
  fmt::print("{}", arguments.prompt);
  end_in_order();
  generate(stack, model.context, arguments.prompt, arguments.options, [](char c) {
    std::fputc(c, stdout);
    std::fflush(stdout);
    return !interrupted().load();
  });
  fmt::print("\n");
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("generate", "Write text with trained weights");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("weights", arguments->weights, "Folder with config.json and model.safetensors")
      ->required()
      ->type_name("DIR");
  command->add_option("--prompt", arguments->prompt, "Text to continue")
      ->capture_default_str()
      ->type_name("TEXT");
  command->add_option("--tokens", arguments->options.tokens, "Bytes to write")
      ->capture_default_str()
      ->check(integer_from(0, most_tokens))
      ->type_name("N");
  command
      ->add_option("--temperature", arguments->options.temperature,
                   "0: always the likeliest byte; 1: the model's own probabilities")
      ->capture_default_str()
      ->check(number_from(0, 1e6))
      ->type_name("X");
  command
      ->add_option("--top", arguments->options.top,
                   "Choose among the likeliest N bytes only; 0: all")
      ->capture_default_str()
      ->check(integer_from(0, 1 << 30))
      ->type_name("N");
  command->add_option("--seed", arguments->options.seed, "Seed; the same seed gives the same text")
      ->capture_default_str()
      ->check(integer_from(0, std::numeric_limits<std::int64_t>::max()))
      ->type_name("N");
  command->footer(
      "Example:\n  echelon generate runs/2026-01-31-120000/weights --prompt 'class Node' --tokens 500");
  command->callback([arguments, &exit_code] {
    run(*arguments);
    exit_code = interrupted().load() ? 130 : 0;
  });
}

}  // namespace echelon::cli
