#include "echelon/base/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace echelon {
namespace {

std::error_code reason() { return {errno, std::generic_category()}; }

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

}  // namespace

std::vector<FolderEntry> list_folder(const std::filesystem::path& folder, std::error_code& error) {
  error.clear();
  const std::unique_ptr<DIR, CloseFolder> open(::opendir(folder.c_str()));
  if (!open) {
    error = reason();
    return {};
  }
  std::vector<FolderEntry> entries;
  for (;;) {
    errno = 0;
    const dirent* const found = ::readdir(open.get());
    if (!found) break;
    FolderEntry entry{.name = found->d_name};
    if (entry.name == "." || entry.name == "..") continue;
    struct stat about {};
    if (::fstatat(::dirfd(open.get()), found->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno == ENOENT) continue;  // it was removed in between
      error = reason();
      return {};
    }
    entry.is_link = S_ISLNK(about.st_mode);
    if (!entry.is_link || ::fstatat(::dirfd(open.get()), found->d_name, &about, 0) == 0) {
      entry.is_folder = S_ISDIR(about.st_mode);
      entry.is_file = S_ISREG(about.st_mode);
    }
    entries.push_back(std::move(entry));
  }
  if (errno != 0) {
    error = reason();
    return {};
  }
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return entries;
}

std::error_code remove_whole(const std::filesystem::path& path) {
  struct stat about {};
  if (::lstat(path.c_str(), &about) != 0) return errno == ENOENT ? std::error_code() : reason();
  if (!S_ISDIR(about.st_mode)) return ::unlink(path.c_str()) == 0 ? std::error_code() : reason();
  std::error_code first;
  for (const auto& entry : list_folder(path, first)) {
    const std::error_code one = remove_whole(path / entry.name);
    if (!first) first = one;
  }
  if (::rmdir(path.c_str()) != 0 && !first) first = reason();
  return first;
}

}  // namespace echelon
