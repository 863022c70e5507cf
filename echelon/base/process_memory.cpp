#include "echelon/base/process_memory.h"

#include <algorithm>

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <stop_token>
#include <string_view>

namespace echelon {

namespace {

// Reading /proc/self/status takes about ten microseconds. One read per period costs about one
// percent of a core.
constexpr auto sample_period = std::chrono::milliseconds(2);

void raise_to(std::atomic<std::uint64_t>& peak, std::uint64_t bytes) {
  auto seen = peak.load(std::memory_order_relaxed);
  while (seen < bytes && !peak.compare_exchange_weak(seen, bytes, std::memory_order_relaxed)) {
  }
}

// The number of kibibytes after `label` at the start of a line of a file in /proc, in bytes; 0 if
// it is missing.
std::uint64_t proc_bytes(const char* path, std::string_view label) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  std::array<char, 8192> text;
  std::size_t size = 0;
  while (size < text.size()) {
    const auto got = ::read(fd, text.data() + size, text.size() - size);
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  ::close(fd);

  const std::string_view status(text.data(), size);
  const auto at = status.find(label);
  if (at == std::string_view::npos) return 0;
  const auto digits = status.find_first_of("0123456789", at + label.size());
  if (digits == std::string_view::npos) return 0;
  std::uint64_t kibibytes = 0;
  std::from_chars(status.data() + digits, status.data() + status.size(), kibibytes);
  return kibibytes * 1024;
}

}  // namespace

// Allocates nothing, so that it does not disturb the measurement.
std::uint64_t anonymous_bytes() { return proc_bytes("/proc/self/status", "\nRssAnon:"); }

namespace {

std::atomic<std::int64_t> shared_memory{0};

}  // namespace

void count_shared_memory(std::int64_t change) {
  shared_memory.fetch_add(change, std::memory_order_relaxed);
}

std::uint64_t shared_bytes() {
  return static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, shared_memory.load(std::memory_order_relaxed)));
}

std::uint64_t own_bytes() { return anonymous_bytes() + shared_bytes(); }

AddressSpace address_space() {
  AddressSpace space;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    space.limit = limit.rlim_cur;
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  space.used = pages * std::uint64_t(::sysconf(_SC_PAGESIZE));
  return space;
}

std::uint64_t available_bytes() { return proc_bytes("/proc/meminfo", "\nMemAvailable:"); }

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ECHELON_OTHER_ALLOCATOR
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ECHELON_OTHER_ALLOCATOR
#endif

#if defined(__GLIBC__) && !defined(ECHELON_OTHER_ALLOCATOR)

namespace {

// If the system does not overcommit memory, reserved memory would be missing elsewhere.
bool reserving_is_free() {
  const int fd = ::open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char mode = '2';
  const bool known = ::read(fd, &mode, 1) == 1;
  ::close(fd);
  return known && mode != '2';
}

// Asks for huge pages for the future heap, as far as its place is known. Advice applies to existing
// addresses only, so the heap grows first, which costs no memory yet.
void ask_for_huge_pages() {
  if (!reserving_is_free()) return;
  constexpr std::uintptr_t page = 2 << 20;
  const std::size_t size = std::min(available_bytes(), address_space().left()) / 4;
  void* const block = std::malloc(size);
  if (!block) return;  // for example under a limit of the shell
  const auto begin = reinterpret_cast<std::uintptr_t>(block), end = begin + size;
  const std::uintptr_t first = (begin + page - 1) / page * page, last = end / page * page;
  // A system without huge pages refuses, and nothing changes.
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  std::free(block);
}

}  // namespace

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);         // large blocks come from the heap too,
  mallopt(M_TRIM_THRESHOLD, -1);  // which never shrinks
  mallopt(M_TOP_PAD, 64 << 20);
  ask_for_huge_pages();
}

#else

void keep_freed_memory() {}

#endif

PeakMemory::PeakMemory() : peak_(own_bytes()) {
  sampler_ = std::jthread([this](std::stop_token stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      raise_to(peak_, own_bytes());
      stopped.wait_for(lock, stop, sample_period, [] { return false; });
    }
  });
}

PeakMemory::~PeakMemory() = default;  // the jthread asks its thread to stop, wakes it and joins it

std::uint64_t PeakMemory::bytes() const {
  raise_to(peak_, own_bytes());
  return peak_.load(std::memory_order_relaxed);
}

}  // namespace echelon
