// echelon tokenize: subcommands, one file each.
#include "cli/commands.h"

namespace echelon::cli {

void add_tokenize(CLI::App& app, int& exit_code) {
  auto* command = app.add_subcommand("tokenize", "Train a tokeniser, or turn text into tokens");
  command->require_subcommand(1);
  add_tokenize_train(*command, exit_code);
  add_tokenize_encode(*command, exit_code);
  add_tokenize_corpus(*command, exit_code);
  add_tokenize_check(*command, exit_code);
  command->footer(
      "Example:\n  echelon tokenize train stdlib --vocab 8192 -o tokenizer\n"
      "  echelon tokenize corpus stdlib --tokenizer tokenizer -o corpus");
}

}  // namespace echelon::cli
