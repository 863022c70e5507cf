// Memory that the ranks of a host share.
//
// A rank's heap is one memfd as large as the machine's memory; only touched pages exist. Its
// descriptor is passed to each peer once, over a Unix socket; from then on a buffer is identified
// by its offset, and nothing needs to be exchanged when one is allocated. A process maps only as
// much of a heap as is in use: address space may be limited (ulimit -v), and every rank of a host
// maps the heaps of all. The file has no name: it disappears when the last process that maps it
// ends, however it ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <forward_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "echelon/net/socket.h"

namespace echelon {

// A memfd mapped into this process. Ranks that are threads of one process get the same mapping.
//
// A window from the start of the file is mapped. If a buffer ends beyond it, a window of at least
// twice the size is mapped in addition; the old one stays, so addresses in it remain valid. All
// windows together take less than four times the address space of the bytes in use. If there is not
// enough address space for that, the buffer gets a window of its own.
class HeapMapping {
 public:
  // Throws Corrupt if the size of the file is not sealed: a peer could truncate it under us.
  static std::shared_ptr<HeapMapping> map(Descriptor file);
  HeapMapping(Descriptor file, std::size_t size);
  ~HeapMapping();
  HeapMapping(const HeapMapping&) = delete;
  HeapMapping& operator=(const HeapMapping&) = delete;

  std::size_t size() const { return size_; }  // of the file
  int file() const { return file_.get(); }

  // The bytes at an offset given by a peer, or nothing if they are not all inside the file. Throws
  // Error, saying what is missing, if this process has no address space for them.
  std::byte* at(std::size_t offset, std::size_t bytes) const;
  // The offset of bytes that lie entirely in a window.
  std::optional<std::size_t> offset(const void* pointer, std::size_t bytes) const;

 private:
  struct Window {
    std::span<std::byte> bytes;
    std::size_t from;  // offset of its first byte in the file
    const Window* older;
    bool has(std::size_t offset, std::size_t length) const {
      return offset >= from && offset - from <= bytes.size() &&
             length <= bytes.size() - (offset - from);
    }
  };
  const Window* find(std::size_t offset, std::size_t bytes) const;
  const Window& grow(std::size_t offset, std::size_t bytes) const;

  Descriptor file_;
  std::size_t size_;
  mutable std::mutex mutex_;  // growing
  mutable std::forward_list<Window> windows_;
  mutable std::atomic<const Window*> newest_ = nullptr;
};

// This rank's own heap, with an allocator. Thread-safe.
class SharedHeap {
 public:
  explicit SharedHeap(std::size_t bytes = 0);  // 0: the machine's memory

  // Aligned to 64 bytes, or to a page if it is at least a page. Memory that was never used before
  // is zero. Throws Error if the heap is full.
  std::byte* allocate(std::size_t bytes);
  void free(void* pointer);  // returns its pages to the system

  // The offset of a buffer that lies entirely in this heap.
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
