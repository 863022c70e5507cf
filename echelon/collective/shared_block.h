// The memory that a rank shares with the other members of a SharedGroup: a block of its heap. Only
// the rank itself writes to it, except for the fields by which readers answer (sleepers, gone, read
// positions of rings).
//
//   lines      one for even and one for odd operations, so that a fast rank does not overwrite what
//              a slower one still reads
//   standing   whether the rank still takes part, and which members have left
//   tables     two, for even and odd all_to_all operations: the counts for each member
//   slots      two, for input that is copied: a slice for every member
//   results    two, for sums that the others copy
//   rings      for messages to each member
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "echelon/net/link.h"
#include "echelon/net/shared_heap.h"

namespace echelon {

class SharedBlock {
 public:
  static constexpr std::size_t slice = 128 << 10;  // bytes of a slot for one member
  // Between each pair: two for the lanes of a collective, one for send and receive.
  static constexpr int rings = 3;

  // All that others read when an operation begins, in one cache line.
  struct alignas(64) Line {
    std::atomic<std::uint64_t> sequence;  // the last barrier that this rank has reached
    // Piece in the staging slot << 32 | bytes of it that are complete.
    std::atomic<std::uint64_t> filled;
    std::atomic<std::uint32_t> sleepers;  // ranks that sleep until `sequence` changes
    std::uint32_t flags;                  // of the post
    std::uint64_t signature;
    std::uint64_t bytes;    // of the input
    std::uint64_t counts;   // a checksum of the counts
    std::uint64_t in, out;  // offsets in the heap, or addresses
  };
  static_assert(sizeof(Line) == 64);

  struct alignas(64) Standing {
    std::atomic<std::uint32_t> withdrawn;  // it gave up: its buffers must not be used any more
    std::atomic<std::uint32_t> gone;       // members that do not use this block any more
  };

  static std::size_t bytes(int members);
  SharedBlock(std::byte* base, int members);
  // Resets a block that may have been used before. Call it before others know the block.
  void clear() const;

  Line& line(std::uint64_t number) const { return reinterpret_cast<Line*>(base_)[number % 2]; }
  Standing& standing() const { return *reinterpret_cast<Standing*>(base_ + 2 * sizeof(Line)); }
  std::uint64_t* table(std::uint64_t number) const;
  std::byte* slot(std::uint64_t piece) const { return base_ + slots_ + piece % 2 * slot_bytes_; }
  std::byte* result(std::uint64_t piece) const { return base_ + results_ + piece % 2 * slice; }
  SharedRing ring(int to, int number) const;

 private:
  std::byte* base_;
  std::size_t slot_bytes_, slots_, results_;
  int members_;
};

// The blocks of a process. A block is freed when all members of its group have left it; if a lost
// rank never left it, it stays until the heap is freed. Thread-safe.
class BlockStore {
 public:
  explicit BlockStore(std::shared_ptr<SharedHeap> heap) : heap_(std::move(heap)) {}
  std::size_t make(int members);  // returns the offset of a cleared block in the heap
  // Makes the first allocation of the heap. Neighbours know its offset and may use it already, so
  // it is not cleared: the kernel provides zeros.
  std::size_t make_first(int members);
  void retire(std::size_t offset, int members);

 private:
  struct Retired {
    std::size_t offset;
    int members;
  };
  void sweep();

  std::shared_ptr<SharedHeap> heap_;
  std::mutex mutex_;  // retired_
  std::vector<Retired> retired_;
};

}  // namespace echelon
