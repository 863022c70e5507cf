// A lock file that one process holds at a time and that names its holder. The kernel releases the
// lock when the process ends, however it ends.
//
//   const FileLock lock(folder / ".lock");
//   if (!lock.holder().empty()) throw InvalidArgument(folder + " is in use by " + lock.holder());
#pragma once

#include <filesystem>
#include <string>

#include "echelon/base/descriptor.h"

namespace echelon {

class FileLock {
 public:
  // Creates the file if it does not exist. Throws Error if that fails.
  explicit FileLock(std::filesystem::path path);
  FileLock(FileLock&& other) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();  // removes the file, if this process held it

  // The other process that holds the lock, as "process 4711 on node3"; empty if there is none.
  const std::string& holder() const { return holder_; }
  // False if the file system does not support locks.
  bool enforced() const { return enforced_; }

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;  // open while this process holds the lock
  std::string holder_;
  bool enforced_ = true;
};

}  // namespace echelon
