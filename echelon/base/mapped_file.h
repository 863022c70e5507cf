// An input file as memory. Where another process truncates a mapped file, an access kills this
// process (SIGBUS). So a reader calls require_unchanged() before it reads, which costs one system
// call; only a file that is truncated during the read itself is still fatal. Files that others may
// write to while they are read belong to InputFile.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "echelon/base/input_file.h"

namespace echelon {

class MappedFile {
 public:
  // Throws Error if the file cannot be opened or mapped, or is not a regular file.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return file_.path(); }
  const FileStamp& stamp() const { return stamp_; }  // when the file was opened
  FileStamp stamp_now() const { return file_.stamp(); }

  std::span<const std::byte> bytes() const { return bytes_; }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

  // Throws an Error that names the file if it was written to since it was opened.
  void require_unchanged() const;

 private:
  InputFile file_;
  FileStamp stamp_;
  std::span<const std::byte> bytes_;
};

}  // namespace echelon
