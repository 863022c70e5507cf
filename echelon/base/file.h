// Files that are whole or absent.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Removes what write_file has left aside of `path` when its process was killed, and says how many
// bytes that were. A file whose writer lives stays; so that none can have just been made and not
// locked yet, the caller holds a lock that writers of this folder take first.
std::uint64_t remove_abandoned(const std::filesystem::path& path);

// The whole file as text. Throws Error.
[[nodiscard]] std::string read_file(const std::filesystem::path& path);

// Throws InvalidArgument, naming the option that was given, where a file cannot be made there: its
// folder is missing, or it is a folder itself. An empty path is fine.
void require_place_for(const std::filesystem::path& file, const char* option);

}  // namespace echelon
