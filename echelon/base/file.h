// Files that are whole or absent, and files as bytes in memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace echelon {

// Appends to a file that is being written aside. Buffered; every failure throws Error with the path
// and the system's reason.
class FileWriter {
 public:
  virtual void write(std::span<const std::byte> bytes) = 0;
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

 protected:
  ~FileWriter() = default;
};

// Writes `path` so that a crash, a full disk or an exception leaves either the old file or the new
// one, never a part: the bytes go to a file aside in the same folder, are fsynced, renamed over
// `path`, and the folder is fsynced. On failure the file aside is removed and Error is thrown.
void write_file(const std::filesystem::path& path, const std::function<void(FileWriter&)>& fill);
void write_file(const std::filesystem::path& path, std::string_view text);

// The whole file as text. Throws Error.
[[nodiscard]] std::string read_file(const std::filesystem::path& path);

// A file mapped read-only. An empty file gives an empty span. Throws Error when it cannot be opened
// or is no regular file. The file must not be truncated while it is mapped.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

// Throws InvalidArgument, naming the option that was given, where a file cannot be made there: its
// folder is missing, or it is a folder itself. An empty path is fine.
void require_place_for(const std::filesystem::path& file, const char* option);

}  // namespace echelon
