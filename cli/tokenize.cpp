// echelon tokenize: subcommands, one file each.
#include "cli/commands.h"

namespace echelon::cli {

void add_tokenize(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("tokenize", "Turn text into token ids");
  command->require_subcommand(1);
  add_tokenize_encode(*command, exit_code);
  command->footer(
      "Example:\n  echelon tokenize encode --tokenizer distilbert-base-uncased text.txt");
}

}  // namespace echelon::cli
