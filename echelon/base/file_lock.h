// A file that one process holds at a time and that says which. The kernel lets go of it when the
// process ends, however it ends.
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
  // Makes the file where there is none. Throws Error where that cannot be.
  explicit FileLock(std::filesystem::path path);
  FileLock(FileLock&& other) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();  // removes the file, if this process held it

  // "process 4711 on node3", which has it; empty: nobody else has.
  const std::string& holder() const { return holder_; }
  // False where the file system has no locks: then others cannot be kept out.
  bool enforced() const { return enforced_; }

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;  // while this process holds it
  std::string holder_;
  bool enforced_ = true;
};

}  // namespace echelon
