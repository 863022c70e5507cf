#include "cli/text_files.h"

#include <algorithm>
#include <thread>

#include "cli/numbers.h"
#include "echelon/data/text.h"

namespace echelon::cli {

void TextFiles::add_to(CLI::App& command) {
  command
      .add_option("files", names,
                  "Text files, files of records (.jsonl, .tsv, .csv), folders of them, or stdlib: "
                  "the Python standard library's sources")
      ->required()
      ->type_name("FILES");
  command.add_option("--text", column, "Records: column of the text")->type_name("COLUMN");
  command.add_flag("--no-header", no_header,
                   "TSV and CSV: the first line has no names; columns are 1, 2, …");
  command.add_option("--threads", threads, "Threads; 0: one for each core")
      ->capture_default_str()
      ->check(integer_from(0, 1024))
      ->type_name("N");
}

std::vector<std::filesystem::path> TextFiles::files() const {
  std::vector<std::filesystem::path> all;
  for (const auto& name : names)
    for (auto& file : source_files(name)) all.push_back(std::move(file));
  return all;
}

int TextFiles::threads_or_cores() const {
  return threads > 0 ? threads : int(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace echelon::cli
