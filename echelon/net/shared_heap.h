// Memory that the ranks of one host read and write together.
//
// A rank's heap is one memfd: address space for as much as the machine has memory, of which only
// pages that are touched exist. It is handed to each peer once, over a Unix socket, and mapped
// whole; from then on a buffer in it is named by its offset, and nothing needs to be exchanged when
// one is allocated. It has no name in the file system: when the last process that maps it ends,
// however it ends, it is gone.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "echelon/net/socket.h"

namespace echelon {

// A memfd mapped into this process. Ranks that are threads of one process get the same mapping.
class HeapMapping {
 public:
  // Throws Corrupt when the file can still change its size: a peer could take pages away under us.
  static std::shared_ptr<HeapMapping> map(Descriptor file);
  HeapMapping(Descriptor file, std::span<std::byte> bytes)
      : file_(std::move(file)), bytes_(bytes) {}
  ~HeapMapping();
  HeapMapping(const HeapMapping&) = delete;
  HeapMapping& operator=(const HeapMapping&) = delete;

  std::byte* base() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  int file() const { return file_.get(); }

  // The bytes at an offset that a peer named, or nothing if they are not all inside.
  std::byte* at(std::size_t offset, std::size_t bytes) const;

 private:
  Descriptor file_;
  std::span<std::byte> bytes_;
};

// This rank's own heap, with an allocator. Thread-safe.
class SharedHeap {
 public:
  explicit SharedHeap(std::size_t bytes = 0);  // 0: the machine's memory

  // Aligned to 64 bytes (from a page on: to a page). What was never used before is zero. Throws
  // Error when the heap is full.
  std::byte* allocate(std::size_t bytes);
  void free(void* pointer);  // its pages go back to the system

  // The offset of a buffer that lies whole in this heap.
  std::optional<std::size_t> offset(const void* pointer, std::size_t bytes) const;
  std::size_t allocated() const;  // bytes in use
  const std::shared_ptr<HeapMapping>& mapping() const { return mapping_; }

 private:
  std::shared_ptr<HeapMapping> mapping_;
  mutable std::mutex mutex_;                 // the two maps and the count
  std::map<std::size_t, std::size_t> free_;  // offset -> length
  std::map<std::size_t, std::size_t> used_;
  std::size_t allocated_ = 0;
};

}  // namespace echelon
