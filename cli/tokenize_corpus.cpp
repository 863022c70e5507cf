#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/text_files.h"
#include "echelon/base/bytes.h"
#include "echelon/data/corpus/corpus.h"
#include "echelon/data/corpus/corpus_tokenizer.h"
#include "echelon/data/corpus/corpus_writer.h"
#include "echelon/data/tokenizer/tokenizer.h"

namespace echelon::cli {
namespace {

struct Arguments {
  TextFiles text;
  std::string tokenizer, folder;
  bool force = false;
};

// Seconds since its construction, and a line on a terminal four times a second.
class Progress {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  void show(std::int64_t bytes) {
    if (!shown_on_terminal_ || seconds() < next_) return;
    next_ = seconds() + 0.25;
    fmt::print(stderr, "\r\033[K{} of text, {}", human_bytes(std::uint64_t(bytes)),
               human_rate(double(bytes) / seconds()));
    std::fflush(stderr);
  }
  void clear() const {
    if (shown_on_terminal_) fmt::print(stderr, "\r\033[K");
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool shown_on_terminal_ = ::isatty(STDERR_FILENO) == 1;
  double next_ = 0.25;
};

void write(const Arguments& arguments) {
  require_corpus_place(arguments.folder, arguments.force);
  const Tokenizer tokenizer = Tokenizer::open(arguments.tokenizer);
  end_in_order();
  Progress progress;
  const CorpusTotals totals = write_corpus(arguments.text.files(), tokenizer, arguments.folder,
                                           {.column = arguments.text.column,
                                            .header = !arguments.text.no_header,
                                            .replace = arguments.force,
                                            .threads = arguments.text.threads_or_cores(),
                                            .progress = [&](std::int64_t bytes) {
                                              progress.show(bytes);
                                              return !interrupted().load();
                                            }});
  progress.clear();
  fmt::print("encoded     {} of text as {} tokens ({:.2f} bytes each), at {}\n",
             human_bytes(std::uint64_t(totals.text_bytes)), human_count(double(totals.tokens)),
             double(totals.text_bytes) / double(totals.tokens),
             human_rate(double(totals.text_bytes) / progress.seconds()));
  fmt::print("written     {}: {} document{} in {} shard{}, {}\n", arguments.folder,
             totals.documents, totals.documents == 1 ? "" : "s", totals.shards,
             totals.shards == 1 ? "" : "s", human_bytes(std::uint64_t(totals.file_bytes)));
}

void check(const std::string& folder) {
  const auto corpus = std::make_shared<const Corpus>(folder);
  const Tokenizer tokenizer = Tokenizer::open(folder);
  require_same_tokenizer(corpus->description(), folder, tokenizer);
  CorpusCheck(corpus).run(Deadline::never());
  const auto& description = corpus->description();
  fmt::print("{} is whole: {} tokens of {} documents in {} shard{}, vocabulary {}\n", folder,
             description.tokens(), description.documents(), description.shards.size(),
             description.shards.size() == 1 ? "" : "s", description.vocab);
}

}  // namespace

void add_tokenize_corpus(CLI::App& tokenize, int& exit_code) {
  auto* command = tokenize.add_subcommand("corpus", "Write text as tokens to train on");
  auto arguments = std::make_shared<Arguments>();
  arguments->text.add_to(*command);
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "Folder with tokenizer.json, vocab.txt, or vocab.json and merges.txt")
      ->required()
      ->type_name("DIR");
  command->add_option("-o,--output", arguments->folder, "Folder for the corpus")
      ->required()
      ->type_name("DIR");
  command->add_flag("--force", arguments->force, "Replace a corpus that is in the folder");
  command->footer(
      "A text file is a document, and so is each record of a file of records.\n"
      "Example:\n  echelon tokenize corpus stdlib --tokenizer tokenizer -o corpus");
  command->callback([arguments, &exit_code] {
    try {
      write(*arguments);
      exit_code = 0;
    } catch (const Interrupted&) {
      exit_code = 130;
    }
  });
}

void add_tokenize_check(CLI::App& tokenize, int& exit_code) {
  auto* command = tokenize.add_subcommand("check", "Compare a corpus with its checksums");
  auto folder = std::make_shared<std::string>();
  command->add_option("corpus", *folder, "Folder of a corpus")->required()->type_name("DIR");
  command->footer("Example:\n  echelon tokenize check corpus");
  command->callback([folder, &exit_code] {
    check(*folder);
    exit_code = 0;
  });
}

}  // namespace echelon::cli
