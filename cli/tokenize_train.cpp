#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/numbers.h"
#include "cli/text_files.h"
#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/data/corpus/count_words.h"
#include "echelon/data/tokenizer/bpe_trainer.h"

namespace echelon::cli {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  TextFiles text;
  BpeTrainerOptions options;
  std::string folder;
  bool across_lines = false, force = false;
};

void require_new(const fs::path& folder, bool force) {
  if (fs::exists(folder) && !fs::is_directory(folder))
    throw InvalidArgument(fmt::format(
        "{} is a file, and a tokeniser is a folder; choose another with -o", folder.string()));
  if (force) return;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json"})
    if (fs::exists(folder / name))
      throw InvalidArgument(
          fmt::format("{} exists; choose another folder with -o, or overwrite it with --force",
                      (folder / name).string()));
}

void run(const Arguments& arguments) {
  const fs::path folder(arguments.folder);
  require_new(folder, arguments.force);
  check_bpe_options(arguments.options);
  const auto words = arguments.across_lines ? WordsOf::documents : WordsOf::lines;
  TextSource source(arguments.text.files(), {.column = arguments.text.column,
                                             .header = !arguments.text.no_header,
                                             .cut = cut_for(words)});
  const WordCounts counts = count_words(source, words, arguments.text.threads_or_cores());
  const BpeVocabulary bpe = train_bpe(counts, arguments.options);
  write_tokenizer(folder, bpe);
  fmt::print("trained     {} tokens, {} merges, on {} of text with {} different words\n",
             bpe.tokens.size(), bpe.merges.size(), human_bytes(std::uint64_t(source.bytes())),
             counts.size());
  fmt::print("            {:.2f} bytes of this text are a token\n",
             double(source.bytes()) / double(bpe.text_tokens));
  if (std::int64_t(bpe.tokens.size()) < arguments.options.vocab)
    fmt::print("            fewer than --vocab {}: no other pair occurs {} times\n",
               arguments.options.vocab, std::max<std::int64_t>(1, arguments.options.min_frequency));
  fmt::print("written     {}\n", (folder / "tokenizer.json").string());
}

}  // namespace

void add_tokenize_train(CLI::App& tokenize, int& exit_code) {
  auto* command = tokenize.add_subcommand("train", "Train a byte-level BPE on text");
  auto arguments = std::make_shared<Arguments>();
  arguments->text.add_to(*command);
  command
      ->add_option("--vocab", arguments->options.vocab, "Tokens, bytes and special ones included")
      ->capture_default_str()
      ->check(integer_from(1, 1 << 30))
      ->type_name("N");
  command
      ->add_option("--min-frequency", arguments->options.min_frequency,
                   "Merge pairs that occur so often at least")
      ->capture_default_str()
      ->check(integer_from(0, 1'000'000'000'000))
      ->type_name("N");
  command
      ->add_option("--special", arguments->options.special,
                   "Special tokens, which get the first ids; once for each")
      ->capture_default_str()
      ->type_name("TOKEN");
  command->add_flag("--across-lines", arguments->across_lines,
                    "Let tokens span line ends: fewer tokens of code and other indented text");
  command->add_option("-o,--output", arguments->folder, "Folder for tokenizer.json")
      ->required()
      ->type_name("DIR");
  command->add_flag("--force", arguments->force, "Overwrite a tokeniser in the folder");
  command->footer("Example:\n  echelon tokenize train stdlib --vocab 8192 -o tokenizer");
  command->callback([arguments, &exit_code] {
    run(*arguments);
    exit_code = 0;
  });
}

}  // namespace echelon::cli
