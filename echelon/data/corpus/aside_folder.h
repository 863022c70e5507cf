// A folder that is complete or absent: its files are written to a folder with another name beside
// it, which gets its name at the end.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#include "echelon/base/descriptor.h"

namespace echelon {

class AsideFolder {
 public:
  // Makes ".NAME.XXXXXX.aside" beside `target`, locked, and removes those of processes that were
  // killed: folders with such a name that nobody has locked, and that have nothing but files for
  // which `is_ours` is true, and temporary files of write_file() for them. Throws Error.
  AsideFolder(const std::filesystem::path& target,
              const std::function<bool(std::string_view name)>& is_ours);
  AsideFolder(const AsideFolder&) = delete;
  AsideFolder& operator=(const AsideFolder&) = delete;
  ~AsideFolder();  // removes it if it was not committed

  const std::filesystem::path& path() const { return path_; }

  // Renames it to `target`, whose former contents are removed. Durable when it returns.
  void commit();

 private:
  bool lock();
  std::filesystem::path target_, path_;
  Descriptor lock_;
};

// Puts the folder `from` in the place of the folder `target`, where the file system cannot exchange
// the two: if the process is killed in between, the old folder is beside it as ".NAME.XXXXXX.old".
// Throws Error.
void replace_folder(const std::filesystem::path& from, const std::filesystem::path& target);

}  // namespace echelon
