// A file of a fixed size whose blocks are read and written while the program goes on, past the
// kernel's page cache where the file system allows it: data is kept on disk because memory is
// short, so caching it would defeat the purpose.
//
//   BlockFile file(path, bytes);
//   const auto coming = file.read(0, buffer);
//   …                                          // compute meanwhile
//   file.wait(coming);
//
// Not thread-safe. Uses io_uring where the build and the kernel support it, otherwise threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>

#include "echelon/base/block_engine.h"

namespace echelon {

// Explains why `folder` has no room for files of `bytes` in total; empty if it has. Existing files
// whose names end in `ending` are reused, so their space counts as available.
std::string why_no_room(const std::filesystem::path& folder, std::uint64_t bytes,
                        std::string_view ending);

class BlockFile {
 public:
  // Offsets, sizes and addresses must be multiples of this.
  static constexpr std::size_t alignment = 4096;
  static std::uint64_t aligned(std::uint64_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  // Creates or reuses the file, allocates `bytes` on disk and locks it. Throws InvalidArgument if
  // the folder is not writable, the disk is too full (says how much is missing), or another process
  // holds the lock. Without an engine, the best available one is used.
  BlockFile(std::filesystem::path path, std::uint64_t bytes,
            std::unique_ptr<BlockEngine> engine = nullptr);
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  using Ticket = std::uint64_t;
  // The memory must stay valid until wait(ticket) returns. Concurrent reads and writes are not
  // ordered.
  Ticket read(std::uint64_t offset, std::span<std::byte> into);
  Ticket write(std::uint64_t offset, std::span<const std::byte> from);
  bool done(Ticket ticket);
  // Throws Error with the path and the system's reason, or Timeout after a minute.
  void wait(Ticket ticket);
  void clear();  // fills the file with zeros; no transfer may be in flight

  const std::filesystem::path& path() const { return path_; }
  const char* engine() const { return engine_->name(); }
  void remove();  // unlinks the file; open descriptors stay valid

 private:
  Ticket begin(std::uint64_t offset, void* memory, std::size_t bytes, bool write);
  void check(const BlockRequest& request) const;
  void open_locked();
  void reserve();

  std::filesystem::path path_;
  int descriptor_ = -1;
  bool made_ = false;  // created by this process
  std::uint64_t bytes_;
  std::unique_ptr<BlockEngine> engine_;
  std::map<Ticket, std::unique_ptr<BlockRequest>> under_way_;
  Ticket next_ = 1;
};

}  // namespace echelon
