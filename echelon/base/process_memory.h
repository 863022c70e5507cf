// This process's own memory as the promises count it: anonymous memory plus shared memory that this
// rank allocated. Pages of files and of peers that are merely mapped do not count.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>

namespace echelon {

// Resident anonymous bytes now (RssAnon of /proc/self/status); 0 where the system does not say.
std::uint64_t anonymous_bytes();

// Shared memory that this process allocated, as whoever allocates it tells; pages of peers that are
// mapped here are theirs.
void count_shared_memory(std::int64_t change);
std::uint64_t shared_bytes();

// The two together: what a rank's memory is.
std::uint64_t own_bytes();

// What new allocations can take before the system swaps or kills; 0 where the system does not say.
std::uint64_t available_bytes();

// What this process has mapped, whether it uses it or not, and the most that it may (ulimit -v).
struct AddressSpace {
  std::uint64_t used = 0;
  std::uint64_t limit = std::numeric_limits<std::uint64_t>::max();

  bool limited() const { return limit != std::numeric_limits<std::uint64_t>::max(); }
  std::uint64_t left() const { return limit > used ? limit - used : 0; }
};
AddressSpace address_space();

// From now on, memory that is freed stays with the process to be used again. A training step frees
// and takes the same large blocks over and over; given back, each would be faulted in and cleared
// anew (5 % of a step on a CPU). The heap's first quarter of what is available now comes in pages
// of 2 MiB where the system has them, so that the processor finds addresses faster (6 % of a step).
// For programs that train, not for libraries: it holds for the whole process.
void keep_freed_memory();

// Samples own_bytes in a thread of its own until it is destroyed, and keeps the largest.
class PeakMemory {
 public:
  PeakMemory();
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;

  std::uint64_t bytes() const;  // the largest so far, this moment included

 private:
  mutable std::atomic<std::uint64_t> peak_{0};
  std::jthread sampler_;
};

}  // namespace echelon
