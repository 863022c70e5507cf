#include "echelon/data/corpus/aside_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <random>
#include <string_view>

#include "echelon/base/error.h"
#include "echelon/base/folder.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz0123456789";
constexpr std::size_t random_letters = 6;

[[noreturn]] void fail(const char* doing, const fs::path& path) {
  throw Error(with_errno(fmt::format("cannot {} {}", doing, path.string())));
}

Descriptor opened(const fs::path& folder) {
  return Descriptor(uninterrupted(
      [&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW); }));
}

void sync(const fs::path& folder) {
  const Descriptor fd = opened(folder);
  if (!fd) fail("open the folder", folder);
  // Some file systems cannot sync a folder and need not.
  if (uninterrupted([&] { return ::fsync(fd.get()); }) != 0 && errno != EINVAL)
    fail("write the folder", folder);
}

fs::path parent_of(const fs::path& target) {
  return target.has_parent_path() ? target.parent_path() : fs::path(".");
}

std::string prefix_of(const fs::path& target) { return "." + target.filename().string() + "."; }

// Folders that nobody has locked: their writers are dead.
void remove_abandoned(const fs::path& target) {
  const std::string prefix = prefix_of(target);
  std::error_code unread;
  for (const auto& entry : list_folder(parent_of(target), unread)) {
    const bool ours = entry.is_folder && !entry.is_link &&
                      entry.name.size() == prefix.size() + random_letters &&
                      entry.name.starts_with(prefix);
    if (!ours) continue;
    const auto path = parent_of(target) / entry.name;
    const Descriptor fd = opened(path);
    if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) remove_whole(path);
  }
}

}  // namespace

AsideFolder::AsideFolder(const fs::path& target)
    : target_(target.has_filename() ? target : target.parent_path()) {
  remove_abandoned(target_);
  std::random_device random;
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string name = prefix_of(target_);
    for (std::size_t i = 0; i < random_letters; ++i) name += letters[random() % letters.size()];
    path_ = parent_of(target_) / name;
    if (::mkdir(path_.c_str(), 0755) == 0) break;
    if (errno != EEXIST) fail("make the folder", target_);
  }
  lock_ = opened(path_);
  if (!lock_) fail("make the folder", target_);
  ::flock(lock_.get(), LOCK_EX | LOCK_NB);
}

AsideFolder::~AsideFolder() {
  if (!path_.empty()) remove_whole(path_);
}

void AsideFolder::commit() {
  sync(path_);
  // An exchange leaves the old folder here, whose removal is the destructor's.
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0) {
    if (::rename(path_.c_str(), target_.c_str()) != 0) fail("write", target_);
    path_.clear();
  }
  sync(parent_of(target_));
}

}  // namespace echelon
