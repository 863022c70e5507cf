#include "echelon/data/corpus/aside_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <string_view>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/folder.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz0123456789";
constexpr std::size_t random_letters = 6;
constexpr std::string_view suffix = ".aside";

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

std::string random_name(const fs::path& target, std::string_view end) {
  std::random_device random;
  std::string name = prefix_of(target);
  for (std::size_t i = 0; i < random_letters; ++i) name += letters[random() % letters.size()];
  return name.append(end);
}

// Renames a folder. False: `target` exists and is not an empty folder.
bool rename_to_free(const fs::path& from, const fs::path& target) {
  // rename(2) replaces an empty folder and nothing else by a folder.
  if (::rename(from.c_str(), target.c_str()) == 0) return true;
  if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR) fail("write", target);
  return false;
}

bool exchange(const fs::path& one, const fs::path& other) {
  return ::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0;
}

using IsOurs = std::function<bool(std::string_view name)>;

// Whether all that is in the folder was written by us.
bool is_all_ours(const fs::path& folder, const IsOurs& is_ours) {
  std::error_code unread;
  const auto entries = list_folder(folder, unread);
  return !unread && std::ranges::all_of(entries, [&](const FolderEntry& entry) {
    if (!entry.is_file || entry.is_link) return false;
    const std::string_view name = entry.name;
    const auto dot = name.rfind('.');
    const bool temporary = name.starts_with('.') && dot > 0 && dot != name.npos &&
                           name.size() == dot + 1 + random_letters;
    return is_ours(temporary ? name.substr(1, dot - 1) : name);
  });
}

// Folders of ours that nobody has locked: their writers are dead.
void remove_abandoned(const fs::path& target, const IsOurs& is_ours) {
  const std::string prefix = prefix_of(target);
  std::error_code unread;
  for (const auto& entry : list_folder(parent_of(target), unread)) {
    const bool named = entry.is_folder && !entry.is_link &&
                       entry.name.size() == prefix.size() + random_letters + suffix.size() &&
                       entry.name.starts_with(prefix) && entry.name.ends_with(suffix);
    if (!named) continue;
    const auto path = parent_of(target) / entry.name;
    const Descriptor fd = opened(path);
    if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && is_all_ours(path, is_ours))
      remove_whole(path);
  }
}

}  // namespace

AsideFolder::AsideFolder(const fs::path& target, const IsOurs& is_ours)
    : target_(target.has_filename() ? target : target.parent_path()) {
  remove_abandoned(target_, is_ours);
  for (int attempt = 0; attempt < 100; ++attempt) {
    path_ = parent_of(target_) / random_name(target_, suffix);
    if (::mkdir(path_.c_str(), 0755) != 0) {
      if (errno != EEXIST) fail("make the folder", target_);
    } else if (lock()) {
      return;
    }
  }
  throw Error(fmt::format("cannot lock a folder beside {}", target_.string()));
}

// False: another writer took the new folder for an abandoned one before it was locked.
bool AsideFolder::lock() {
  lock_ = opened(path_);
  if (!lock_) {
    if (errno == ENOENT) return false;
    fail("open the folder", path_);
  }
  // A file system without locks has none for other writers either.
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  struct stat mine {
  }, there{};
  return ::fstat(lock_.get(), &mine) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

AsideFolder::~AsideFolder() {
  if (!path_.empty()) remove_whole(path_);
}

bool AsideFolder::commit() {
  sync(path_);
  if (!rename_to_free(path_, target_)) return false;
  path_.clear();
  sync(parent_of(target_));
  return true;
}

// The old folder is checked after it has lost its name, so that nobody who uses the name adds a
// file between the check and the removal.
void AsideFolder::replace(const FolderCheck& require_removable) {
  if (commit()) return;
  if (exchange(path_, target_)) {
    try {
      require_removable(path_);
    } catch (...) {
      exchange_back();
      throw;
    }
  } else {
    replace_folder(path_, target_, require_removable);
    path_.clear();
  }
  sync(parent_of(target_));
}

// If the old folder cannot be moved back, the destructor must not remove it.
void AsideFolder::exchange_back() {
  if (exchange(path_, target_)) return;
  const std::string old = std::exchange(path_, {}).string();
  throw Error(with_errno(fmt::format("cannot move {} back to {}", old, target_.string())));
}

void replace_folder(const fs::path& from, const fs::path& target,
                    const FolderCheck& require_removable) {
  if (rename_to_free(from, target)) return;
  const fs::path old = parent_of(target) / random_name(target, ".old");
  if (::rename(target.c_str(), old.c_str()) != 0) fail("move away", target);
  try {
    require_removable(old);
    if (!rename_to_free(from, target)) fail("write", target);
  } catch (...) {
    ::rename(old.c_str(), target.c_str());
    throw;
  }
  remove_whole(old);
}

}  // namespace echelon
