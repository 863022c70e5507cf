// A folder that is complete or absent: its files are written to a folder with another name beside
// it, which gets its name at the end.
#pragma once

#include <filesystem>

#include "echelon/base/descriptor.h"

namespace echelon {

class AsideFolder {
 public:
  // Makes ".NAME.XXXXXX" beside `target`, locked, and removes those of processes that were killed.
  // Throws Error.
  explicit AsideFolder(const std::filesystem::path& target);
  AsideFolder(const AsideFolder&) = delete;
  AsideFolder& operator=(const AsideFolder&) = delete;
  ~AsideFolder();  // removes it if it was not committed

  const std::filesystem::path& path() const { return path_; }

  // Renames it to `target`, whose former contents are removed. Durable when it returns.
  void commit();

 private:
  std::filesystem::path target_, path_;
  Descriptor lock_;
};

}  // namespace echelon
