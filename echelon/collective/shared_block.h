// What a rank lays open to its neighbours of a SharedGroup: a block of its heap, which only it
// writes to, except where a reader has to answer (sleepers, gone, rings' read positions).
//
//   lines      one for operations of even and one for those of odd number, so that a rank that goes
//              on does not write over what a slower one still reads
//   standing   whether it still takes part, and who has left
//   tables     two, likewise, for all_to_all: what this rank has for each
//   slots      two, for input that travels by copy: a slice for every member
//   results    two, for sums that the others copy out
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

  // Everything that others look at when an operation begins, in one cache line.
  struct alignas(64) Line {
    std::atomic<std::uint64_t> sequence;  // the last barrier that was reached
    // The piece in the staging slot << 32 | bytes of it that are there.
    std::atomic<std::uint64_t> filled;
    std::atomic<std::uint32_t> sleepers;  // ranks asleep until `sequence` changes
    std::uint32_t flags;                  // of the post
    std::uint64_t signature;
    std::uint64_t bytes;    // of the input
    std::uint64_t counts;   // of the pieces, in one word
    std::uint64_t in, out;  // offsets in the heap, or addresses
  };
  static_assert(sizeof(Line) == 64);

  struct alignas(64) Standing {
    std::atomic<std::uint32_t> withdrawn;  // it gave up: its buffers are its own again
    std::atomic<std::uint32_t> gone;       // members that do not look at this block any more
  };

  static std::size_t bytes(int members);
  SharedBlock(std::byte* base, int members);
  // Makes a block that may have been used before as good as new. Before others know of it.
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

// The blocks of a process. One that its group has left is freed when all the other members have
// left it too; one that a lost rank never left stays until the heap goes. Thread-safe.
class BlockStore {
 public:
  explicit BlockStore(std::shared_ptr<SharedHeap> heap) : heap_(std::move(heap)) {}
  std::size_t make(int members);  // a clear block's offset in the heap
  // The same as the first allocation of all. Neighbours know where that is and may be in it
  // already, so it is left as the kernel gave it: zero.
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
