// A folder that is complete or absent: its files are written to a folder with another name beside
// it, which gets its name at the end.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#include "echelon/base/descriptor.h"

namespace echelon {

// Throws unless a folder may be removed.
using FolderCheck = std::function<void(const std::filesystem::path& folder)>;

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

  // Renames it to `target`. False, and nothing is changed: `target` exists and is not an empty
  // folder. Durable when it returns true.
  [[nodiscard]] bool commit();
  // The same where a folder with files may be, which the destructor removes. It is moved away and
  // checked; what `require_removable` throws is thrown, and the folder is back in its place.
  void replace(const FolderCheck& require_removable);

 private:
  void exchange_back();
  bool lock();
  std::filesystem::path target_, path_;
  Descriptor lock_;
};

// Puts the folder `from` in the place of the folder `target`, where the file system cannot exchange
// the two: if the process is killed in between, the old folder is beside it as ".NAME.XXXXXX.old".
// Throws Error, or what `require_removable` throws about the old folder, which is then in its place
// again.
void replace_folder(const std::filesystem::path& from, const std::filesystem::path& target,
                    const FolderCheck& require_removable);

}  // namespace echelon
