#include "echelon/net/shared_heap.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/process_memory.h"

namespace echelon {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t smallest_heap = std::size_t{64} << 20;
// Every rank maps the heaps of all on its host: 256 of these are half of a process's address space.
constexpr std::size_t largest_default = std::size_t{1} << 38;

std::size_t rounded(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::size_t machine_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? std::size_t(pages) * std::size_t(size) : std::size_t{1} << 33;
}

void* map_shared(int file, std::size_t bytes) {
  return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
}

// Mappings of this process by the file's identity.
struct Mappings {
  std::mutex mutex;
  std::map<std::pair<dev_t, ino_t>, std::weak_ptr<HeapMapping>> known;
};

Mappings& mappings() {
  static auto* all = new Mappings;  // outlives every heap, whatever the order of destruction
  return *all;
}

Descriptor make_file(std::size_t bytes) {
  Descriptor file(memfd_create("echelon", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) throw Error(with_errno("cannot make shared memory (memfd_create)"));
  if (ftruncate(file.get(), off_t(bytes)) != 0)
    throw Error(with_errno("cannot size shared memory to " + human_bytes(bytes)));
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw Error(with_errno("cannot seal shared memory"));
  return file;
}

}  // namespace

std::shared_ptr<HeapMapping> HeapMapping::map(Descriptor file) {
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) throw Error(with_errno("cannot look at shared memory"));
  const int seals = fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || status.st_size <= 0)
    throw Corrupt("a peer offered shared memory that is not sealed against shrinking");
  auto& all = mappings();
  const std::lock_guard lock(all.mutex);
  auto& known = all.known[{status.st_dev, status.st_ino}];
  if (auto mapping = known.lock()) return mapping;
  const auto bytes = std::size_t(status.st_size);
  void* start = map_shared(file.get(), bytes);
  if (start == MAP_FAILED)
    throw Error(with_errno(fmt::format(
        "cannot map {} of shared memory; a smaller net.heap may help", human_bytes(bytes))));
  auto mapping = std::make_shared<HeapMapping>(std::move(file),
                                               std::span(static_cast<std::byte*>(start), bytes));
  known = mapping;
  return mapping;
}

HeapMapping::~HeapMapping() { munmap(bytes_.data(), bytes_.size()); }

std::byte* HeapMapping::at(std::size_t offset, std::size_t bytes) const {
  if (offset > size() || bytes > size() - offset) return nullptr;
  return base() + offset;
}

SharedHeap::SharedHeap(std::size_t bytes) {
  std::size_t size =
      rounded(bytes ? std::max(bytes, page) : std::min(machine_memory(), largest_default), page);
  for (;; size = rounded(size / 2, page)) {
    try {
      mapping_ = HeapMapping::map(make_file(size));
      break;
    } catch (const Error&) {
      // Limits on address space (ulimit -v) are met by taking less.
      if (bytes || size <= smallest_heap) throw;
    }
  }
  free_[0] = size;
}

std::byte* SharedHeap::allocate(std::size_t bytes) {
  const std::size_t alignment = bytes >= page ? page : 64;
  const std::size_t length = rounded(std::max<std::size_t>(bytes, 1), alignment);
  const std::lock_guard lock(mutex_);
  const bool fits = bytes <= mapping_->size();  // else the length may have wrapped around
  for (auto block = free_.begin(); fits && block != free_.end(); ++block) {
    const auto [start, size] = *block;
    const std::size_t begin = rounded(start, alignment);
    if (begin - start > size || length > size - (begin - start)) continue;
    free_.erase(block);
    if (begin > start) free_[start] = begin - start;
    if (const std::size_t end = begin + length; end < start + size) free_[end] = start + size - end;
    used_[begin] = length;
    allocated_ += length;
    count_shared_memory(static_cast<std::int64_t>(length));
    return mapping_->base() + begin;
  }
  throw Error(
      fmt::format("no room for {} of registered memory: {} of {} are in use; raise net.heap",
                  human_bytes(bytes), human_bytes(allocated_), human_bytes(mapping_->size())));
}

void SharedHeap::free(void* pointer) {
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(std::size_t(static_cast<std::byte*>(pointer) - mapping_->base()));
  if (used == used_.end())
    throw InvalidArgument("this memory is not of the shared heap, or was freed already");
  const std::size_t start = used->first, end = start + used->second;
  used_.erase(used);
  allocated_ -= end - start;
  count_shared_memory(-static_cast<std::int64_t>(end - start));
  std::size_t from = start, until = end;  // of the free block that this becomes part of
  auto next = free_.upper_bound(start);
  if (next != free_.end() && next->first == end) {
    until += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == start) from = previous->first;
  }
  free_[from] = until - from;
  // A page that it shared with others goes with the last of them.
  const std::size_t first = std::max(rounded(from, page), start / page * page),
                    last = std::min(until / page * page, rounded(end, page));
  if (last > first)
    fallocate(mapping_->file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(first),
              off_t(last - first));
}

std::optional<std::size_t> SharedHeap::offset(const void* pointer, std::size_t bytes) const {
  const auto* start = static_cast<const std::byte*>(pointer);
  const std::byte* base = mapping_->base();
  if (std::less<>()(start, base) || !std::less<>()(start, base + mapping_->size())) return {};
  const auto offset = std::size_t(start - base);
  if (bytes > mapping_->size() - offset) return {};
  return offset;
}

std::size_t SharedHeap::allocated() const {
  const std::lock_guard lock(mutex_);
  return allocated_;
}

}  // namespace echelon
