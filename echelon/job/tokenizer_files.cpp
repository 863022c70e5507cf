#include "echelon/job/tokenizer_files.h"

#include <algorithm>
#include <vector>

#include "echelon/base/file.h"

namespace echelon {

namespace fs = std::filesystem;

TokenNotes token_notes(const Tokenizer* tokenizer, bool bytes) {
  TokenNotes notes(bytes && !tokenizer ? Tokens::bytes : Tokens::others);
  if (!tokenizer) return notes;
  notes.padding = tokenizer->special().padding;
  notes.begin = tokenizer->special().begin;
  notes.end = tokenizer->special().end;
  return notes;
}

void copy_tokenizer(const Tokenizer& tokenizer, const fs::path& folder) {
  std::vector<fs::path> files = tokenizer.files();
  if (files.empty()) return;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"})
    if (const fs::path beside = files.front().parent_path() / name;
        fs::exists(beside) && std::find(files.begin(), files.end(), beside) == files.end())
      files.push_back(beside);
  for (const fs::path& file : files) {
    const fs::path to = folder / tokenizer.name_in_folder(file);
    std::error_code unknown;
    if (!fs::equivalent(file, to, unknown)) write_file(to, read_file(file));
  }
}

}  // namespace echelon
