#include "echelon/net/shared_heap.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "echelon/base/bytes.h"
#include "echelon/base/error.h"
#include "echelon/base/process_memory.h"

namespace echelon {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t first_window = std::size_t{16} << 20;

std::size_t rounded(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::size_t machine_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? std::size_t(pages) * std::size_t(size) : std::size_t{1} << 33;
}

std::byte* map_shared(int file, std::size_t from, std::size_t bytes) {
  void* start =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, off_t(from));
  return start == MAP_FAILED ? nullptr : static_cast<std::byte*>(start);
}

// Why no more memory could be mapped, as far as is known.
std::string what_is_missing() {
  const AddressSpace space = address_space();
  if (!space.limited()) return "set net.shared_memory=false, or start fewer ranks on this host";
  return fmt::format(
      "{} of the {} that 'ulimit -v' allows a process are in use: raise it (ulimit -v unlimited), "
      "or start fewer ranks on this host",
      human_bytes(space.used), human_bytes(space.limit));
}

// This process's mappings, by the identity of the file.
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
  auto mapping = std::make_shared<HeapMapping>(std::move(file), std::size_t(status.st_size));
  known = mapping;
  return mapping;
}

HeapMapping::HeapMapping(Descriptor file, std::size_t size) : file_(std::move(file)), size_(size) {
  grow(0, std::min(size, first_window));
}

HeapMapping::~HeapMapping() {
  for (const Window& window : windows_) munmap(window.bytes.data(), window.bytes.size());
}

// The newest window that contains these bytes; nullptr: none.
const HeapMapping::Window* HeapMapping::find(std::size_t offset, std::size_t bytes) const {
  const Window* window = newest_.load(std::memory_order_acquire);
  while (window && !window->has(offset, bytes)) window = window->older;
  return window;
}

// Maps the first of these that can be mapped: twice the widest window, everything up to the end of
// these bytes, or these bytes alone.
const HeapMapping::Window& HeapMapping::grow(std::size_t offset, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  if (const Window* window = find(offset, bytes)) return *window;
  std::size_t widest = 0;
  for (const Window& window : windows_) widest = std::max(widest, window.bytes.size());
  const std::size_t end = std::min(rounded(offset + bytes, page), size_);
  const std::size_t page_of_first = offset / page * page;
  struct Range {
    std::size_t from, size;
  };
  for (const Range range : {Range{0, std::min(std::max(end, 2 * widest), size_)}, Range{0, end},
                            Range{page_of_first, end - page_of_first}}) {
    std::byte* const start = map_shared(file_.get(), range.from, range.size);
    if (!start) continue;
    windows_.push_front({{start, range.size}, range.from, newest_.load(std::memory_order_relaxed)});
    newest_.store(&windows_.front(), std::memory_order_release);
    return windows_.front();
  }
  throw Error(with_errno(fmt::format("no address space for {} of the memory that ranks share; {}",
                                     human_bytes(bytes), what_is_missing())));
}

std::byte* HeapMapping::at(std::size_t offset, std::size_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) return nullptr;
  const Window* window = find(offset, bytes);
  if (!window) window = &grow(offset, bytes);
  return window->bytes.data() + (offset - window->from);
}

std::optional<std::size_t> HeapMapping::offset(const void* pointer, std::size_t bytes) const {
  const auto* start = static_cast<const std::byte*>(pointer);
  for (const auto* window = newest_.load(std::memory_order_acquire); window;
       window = window->older) {
    const std::byte* base = window->bytes.data();
    if (std::less<>()(start, base) || !std::less<>()(start, base + window->bytes.size())) continue;
    const auto within = std::size_t(start - base);
    if (bytes > window->bytes.size() - within) return {};
    return window->from + within;
  }
  return {};
}

SharedHeap::SharedHeap(std::size_t bytes) {
  const std::size_t size = rounded(bytes ? std::max(bytes, page) : machine_memory(), page);
  mapping_ = HeapMapping::map(make_file(size));
  free_[0] = size;
}

std::byte* SharedHeap::allocate(std::size_t bytes) {
  const std::size_t alignment = bytes >= page ? page : 64;
  const std::size_t length = rounded(std::max<std::size_t>(bytes, 1), alignment);
  const std::lock_guard lock(mutex_);
  const bool fits = bytes <= mapping_->size();  // otherwise the length may have wrapped around
  for (auto block = free_.begin(); fits && block != free_.end(); ++block) {
    const auto [start, size] = *block;
    const std::size_t begin = rounded(start, alignment);
    if (begin - start > size || length > size - (begin - start)) continue;
    std::byte* const memory = mapping_->at(begin, length);
    free_.erase(block);
    if (begin > start) free_[start] = begin - start;
    if (const std::size_t end = begin + length; end < start + size) free_[end] = start + size - end;
    used_[begin] = length;
    allocated_ += length;
    count_shared_memory(static_cast<std::int64_t>(length));
    return memory;
  }
  throw Error(
      fmt::format("no room for {} of registered memory: {} of {} are in use; raise net.heap",
                  human_bytes(bytes), human_bytes(allocated_), human_bytes(mapping_->size())));
}

void SharedHeap::free(void* pointer) {
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex_);
  const auto place = mapping_->offset(pointer, 1);
  const auto used = place ? used_.find(*place) : used_.end();
  if (used == used_.end())
    throw InvalidArgument("this memory is not of the shared heap, or was freed already");
  const std::size_t start = used->first, end = start + used->second;
  used_.erase(used);
  allocated_ -= end - start;
  count_shared_memory(-static_cast<std::int64_t>(end - start));
  std::size_t from = start, until = end;  // of the free block that this block joins
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
  // A page that several blocks share is released with the last of them.
  const std::size_t first = std::max(rounded(from, page), start / page * page),
                    last = std::min(until / page * page, rounded(end, page));
  if (last > first)
    fallocate(mapping_->file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(first),
              off_t(last - first));
}

std::optional<std::size_t> SharedHeap::offset(const void* pointer, std::size_t bytes) const {
  return mapping_->offset(pointer, bytes);
}

std::size_t SharedHeap::allocated() const {
  const std::lock_guard lock(mutex_);
  return allocated_;
}

}  // namespace echelon
