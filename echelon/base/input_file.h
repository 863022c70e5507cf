// A file from outside that is read, not mapped. A mapped file that somebody cuts kills the process
// that looks at it (SIGBUS); a read of it is an Error with a sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "echelon/base/descriptor.h"

namespace echelon {

// Two equal stamps are of the same bytes. The kernel sets the time of a change whenever a file is
// written to, cut or renamed, and nobody can set it back; so different stamps may be of the same
// bytes too.
struct FileStamp {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t changed = 0;  // in nanoseconds
  bool operator==(const FileStamp&) const = default;
};

class InputFile {
 public:
  // Throws Error when the file cannot be opened or is no regular file.
  explicit InputFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // when it was opened
  FileStamp stamp() const;                      // as it is now

  // Fills `out` with the bytes from `offset` on; several threads may. Throws Error when they cannot
  // be read, or are not there since the file has become shorter.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;
};

}  // namespace echelon
