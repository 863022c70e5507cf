// A file of a fixed size whose blocks are read and written while the program goes on, past the
// kernel's cache where the file system allows that: what is kept on disk because memory is short
// must not fill memory with copies of it.
//
//   BlockFile file(path, bytes);
//   const auto coming = file.read(0, buffer);
//   …                                          // compute meanwhile
//   file.wait(coming);
//
// For one thread. io_uring does the work where the build and the kernel have it, threads elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>

#include "echelon/base/block_engine.h"

namespace echelon {

// Why a folder cannot take files of so many bytes together: empty where it can. Files that end so
// are used again, and what they have is not needed anew.
std::string why_no_room(const std::filesystem::path& folder, std::uint64_t bytes,
                        std::string_view ending);

class BlockFile {
 public:
  // Of offsets, sizes and addresses.
  static constexpr std::size_t alignment = 4096;
  static std::uint64_t aligned(std::uint64_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  // Makes the file, or takes the one that is there, gives it `bytes` of disk and locks it. Throws
  // InvalidArgument where the folder cannot be written to, the disk has no room (says how much is
  // missing), or another process has it. Without an engine: the best that is there.
  BlockFile(std::filesystem::path path, std::uint64_t bytes,
            std::unique_ptr<BlockEngine> engine = nullptr);
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  using Ticket = std::uint64_t;
  // The memory must stay until the ticket was waited for. Reads and writes under way are not
  // ordered.
  Ticket read(std::uint64_t offset, std::span<std::byte> into);
  Ticket write(std::uint64_t offset, std::span<const std::byte> from);
  bool done(Ticket ticket);
  // Throws Error with the path and the system's reason, or Timeout after a minute.
  void wait(Ticket ticket);
  void clear();  // all of it becomes zeros; nothing may be under way

  const std::filesystem::path& path() const { return path_; }
  const char* engine() const { return engine_->name(); }
  void remove();  // the file's name; what is open stays

 private:
  Ticket begin(std::uint64_t offset, void* memory, std::size_t bytes, bool write);
  void check(const BlockRequest& request) const;
  void open_locked();
  void reserve();

  std::filesystem::path path_;
  int descriptor_ = -1;
  bool made_ = false;  // by this process, not found
  std::uint64_t bytes_;
  std::unique_ptr<BlockEngine> engine_;
  std::map<Ticket, std::unique_ptr<BlockRequest>> under_way_;
  Ticket next_ = 1;
};

}  // namespace echelon
