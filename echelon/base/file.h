// Atomic file writes: a file is complete or absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace echelon {

// Appends to the temporary file of write_file(). Buffered; every failure throws Error with the path
// and the system's reason.
class FileWriter {
 public:
  virtual void write(std::span<const std::byte> bytes) = 0;
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

 protected:
  ~FileWriter() = default;
};

// Writes `path` so that a crash, a full disk or an exception leaves either the old file or the new
// one, never a part: the bytes go to a temporary file in the same folder, are fsynced, renamed over
// `path`, and the folder is fsynced. On failure the temporary file is removed and Error is thrown.
void write_file(const std::filesystem::path& path, const std::function<void(FileWriter&)>& fill);
void write_file(const std::filesystem::path& path, std::string_view text);

// Removes temporary files that write_file() left for `path` when its process was killed; returns
// their size in bytes. Files of living writers are kept: they are locked. The caller must hold a
// lock that writers to this folder take first, since a writer creates its file before it locks it.
std::uint64_t remove_abandoned(const std::filesystem::path& path);

// The whole file as text. Throws Error.
[[nodiscard]] std::string read_file(const std::filesystem::path& path);

// Throws InvalidArgument naming `option` if `file` cannot be created: its folder is missing, or the
// path is a folder. An empty path is accepted.
void require_place_for(const std::filesystem::path& file, const char* option);

}  // namespace echelon
