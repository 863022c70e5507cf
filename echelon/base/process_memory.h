// This process's own memory as the promises count it: anonymous memory plus shared memory that this
// rank allocated. Pages of files and of peers that are merely mapped do not count.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>

namespace echelon {

// Resident anonymous bytes now (RssAnon of /proc/self/status); 0 if the system does not report it.
std::uint64_t anonymous_bytes();

// Shared memory that this process allocated, as reported by the allocator. Mapped pages of peers do
// not count.
void count_shared_memory(std::int64_t change);
std::uint64_t shared_bytes();

// The sum of the two: the memory of a rank.
std::uint64_t own_bytes();

// Memory available to new allocations without swapping; 0 if the system does not report it.
std::uint64_t available_bytes();

// The address space that this process has mapped, and its limit (ulimit -v).
struct AddressSpace {
  std::uint64_t used = 0;
  std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();

  bool limited() const { return limit != std::numeric_limits<std::uint64_t>::max(); }
  std::uint64_t left() const { return limit > used ? limit - used : 0; }
};
AddressSpace address_space();

// Makes malloc keep freed memory for reuse. A training step frees and allocates the same large
// blocks over and over; if they were returned to the system, each would be faulted in and cleared
// again (5 % of a step on a CPU). Up to a quarter of the available memory is advised to use huge
// pages of 2 MiB, which saves TLB misses (6 % of a step). For programs that train, not for
// libraries: it affects the whole process.
void keep_freed_memory();

// Samples own_bytes in a thread of its own until it is destroyed, and keeps the largest.
class PeakMemory {
 public:
  PeakMemory();
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  std::uint64_t bytes() const;  // the largest so far, including now

 private:
  mutable std::atomic<std::uint64_t> peak_{0};
  std::jthread sampler_;
};

}  // namespace echelon
