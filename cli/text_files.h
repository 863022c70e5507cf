// The files of text that a command line names.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <vector>

namespace echelon::cli {

struct TextFiles {
  std::vector<std::string> names;
  std::string column;
  bool no_header = false;
  int threads = 0;

  // Adds FILES, --text, --no-header and --threads.
  void add_to(CLI::App& command);
  // Files of folders and of stdlib in the order of their names. Throws InvalidArgument if there is
  // none.
  std::vector<std::filesystem::path> files() const;
  int threads_or_cores() const;
};

}  // namespace echelon::cli
