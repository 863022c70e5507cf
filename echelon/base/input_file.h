// An input file that is read, not mapped. If another process truncates a mapped file, an access
// kills this one (SIGBUS); a read of it throws an Error that says what happened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "echelon/base/descriptor.h"

namespace echelon {

// Equal stamps mean equal contents. The kernel updates the change time (ctime) on every write,
// truncation or rename, and it cannot be set back; the reverse does not hold: equal contents may
// have different stamps.
struct FileStamp {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t changed = 0;  // in nanoseconds
  bool operator==(const FileStamp&) const = default;
};

class InputFile {
 public:
  // Throws Error if the file cannot be opened or is not a regular file.
  explicit InputFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }          // when it was opened
  FileStamp stamp() const;                              // as it is now
  int descriptor() const { return descriptor_.get(); }  // of this object

  // Fills `out` with the bytes from `offset` on. Thread-safe. Throws Error if they cannot be read
  // or the file has become too short.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;
};

}  // namespace echelon
