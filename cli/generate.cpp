#include "echelon/nn/generate.h"

#include <fmt/format.h>

#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/numbers.h"
#include "echelon/base/error.h"
#include "echelon/data/token_text.h"
#include "echelon/job/resolve.h"
#include "echelon/models/family.h"
#include "echelon/models/weights_folder.h"

namespace echelon::cli {
namespace {

constexpr std::int64_t most_tokens = 1'000'000'000;

struct Arguments {
  std::string weights, prompt = "def ";
  GenerateOptions options;
};

// The prompt as the model was trained to see one: behind the token that begins a text, if the
// tokeniser has one.
std::vector<std::int32_t> prompt_tokens(const Tokenizer& tokenizer, const std::string& prompt) {
  const auto& begin = tokenizer.special().begin;
  std::vector<std::int32_t> ids = tokenizer.encode("").ids;
  ids.resize(begin && !ids.empty() && ids.front() == *begin ? 1 : 0);
  tokenizer.append(prompt, ids);
  if (ids.empty()) throw InvalidArgument("--prompt is empty; give at least one word to go on from");
  return ids;
}

void write(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void generate_bytes(Stack& stack, std::int64_t context, const Arguments& arguments) {
  generate(stack, context, arguments.prompt, arguments.options, [](char c) {
    write({&c, 1});
    return !interrupted().load();
  });
}

// Ends early at the tokeniser's end token.
void generate_tokens(Stack& stack, std::int64_t context, const Tokenizer& tokenizer,
                     std::span<const std::int32_t> prompt, const Arguments& arguments) {
  const std::vector<std::int64_t> ids(prompt.begin(), prompt.end());
  TokenText text(tokenizer, prompt);
  generate(stack, context, ids, tokenizer.size(), arguments.options, [&](std::int64_t token) {
    if (tokenizer.special().end == token) return false;
    write(text.add(static_cast<std::int32_t>(token)));
    return !interrupted().load();
  });
  write(text.rest());
}

void run(const Arguments& arguments) {
  const ModelOptions model = read_model_options(arguments.weights);
  if (const auto task = task_of(model); task != ModelTask::causal)
    throw InvalidArgument(
        fmt::format("the model in {} is an encoder (task {}), which does not continue text: give "
                    "the weights of a gpt2 or a llama",
                    arguments.weights, name_of(task)));
  const std::string path = tokenizer_beside(arguments.weights);
  std::optional<Tokenizer> tokenizer;
  std::vector<std::int32_t> prompt;
  if (!path.empty()) {
    tokenizer.emplace(Tokenizer::open(path));
    JobOptions options;
    options.model = model;
    options.data.tokenizer = path;
    require_vocabulary(*tokenizer, options);
    prompt = prompt_tokens(*tokenizer, arguments.prompt);
  }
  Stack stack = family_of(model).build(model);
  const ValueSource values = read_weights(arguments.weights, model, stack);
  stack.allocate(at::kCPU, at::kFloat, Gradients::no);
  stack.load(values);
  write(arguments.prompt);
  end_in_order();
  if (tokenizer)
    generate_tokens(stack, model.context, *tokenizer, prompt, arguments);
  else
    generate_bytes(stack, model.context, arguments);
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
  command
      ->add_option("--tokens", arguments->options.tokens,
                   "Tokens to write: bytes, or those of the tokeniser")
      ->capture_default_str()
      ->check(integer_from(0, most_tokens))
      ->type_name("N");
  command
      ->add_option("--temperature", arguments->options.temperature,
                   "0: always the likeliest token; 1: the model's own probabilities")
      ->capture_default_str()
      ->check(number_from(0, 1e6))
      ->type_name("X");
  command
      ->add_option("--top", arguments->options.top,
                   "Choose among the likeliest N tokens only; 0: all")
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
