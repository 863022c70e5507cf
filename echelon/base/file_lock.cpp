// Uses flock, and writes the holder's name into the file. The holder removes the file before it
// unlocks it. A process that then locks a file without a name locks the file that has the name now
// instead. So no process ever removes a file that another holds.
#include "echelon/base/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {
namespace {

bool has_name(const Descriptor& file, const std::filesystem::path& path) {
  struct stat open = {}, named = {};
  return ::fstat(file.get(), &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_ino == named.st_ino && open.st_dev == named.st_dev;
}

std::string own_name() {
  std::array<char, 256> host = {};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

std::string name_in(const Descriptor& file) {
  std::array<char, 512> text = {};
  const auto got = uninterrupted([&] { return ::pread(file.get(), text.data(), text.size(), 0); });
  const std::string name(text.data(), static_cast<std::size_t>(got < 0 ? 0 : got));
  return name.starts_with("process ") ? name.substr(0, name.find('\n')) : "another process";
}

void write_name(const Descriptor& file) {
  const std::string name = own_name() + "\n";
  // A full disk keeps no one from locking: the name is only for people.
  if (::ftruncate(file.get(), 0) != 0) return;
  [[maybe_unused]] const auto wrote = ::pwrite(file.get(), name.data(), name.size(), 0);
}

}  // namespace

FileLock::FileLock(std::filesystem::path path) : path_(std::move(path)) {
  while (true) {
    Descriptor file(
        uninterrupted([&] { return ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); }));
    if (!file) throw Error(with_errno(fmt::format("cannot write {}", path_.string())));
    if (uninterrupted([&] { return ::flock(file.get(), LOCK_EX | LOCK_NB); }) != 0) {
      enforced_ = errno == EWOULDBLOCK;
      if (enforced_)
        holder_ = name_in(file);
      else
        ::unlink(path_.c_str());
      return;
    }
    if (!has_name(file, path_)) continue;
    write_name(file);
    descriptor_ = std::move(file);
    return;
  }
}

FileLock::~FileLock() {
  if (descriptor_) ::unlink(path_.c_str());
}

}  // namespace echelon
