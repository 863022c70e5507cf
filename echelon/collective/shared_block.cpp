#include "echelon/collective/shared_block.h"

#include <cstring>
#include <utility>

namespace echelon {
namespace {

constexpr std::size_t page = 4096, line_bytes = sizeof(SharedBlock::Line);

std::size_t rounded(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct Layout {
  std::size_t tables, slots, results, rings, end;
  explicit Layout(std::size_t members)
      : tables(2 * line_bytes + sizeof(SharedBlock::Standing)),
        slots(rounded(tables + 2 * members * sizeof(std::uint64_t), page)),
        results(slots + 2 * members * SharedBlock::slice),
        rings(results + 2 * SharedBlock::slice),
        end(rings + members * SharedBlock::rings * sizeof(SharedRing::Memory)) {}
};

}  // namespace

static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

std::size_t SharedBlock::bytes(int members) { return Layout(std::size_t(members)).end; }

SharedBlock::SharedBlock(std::byte* base, int members)
    : base_(base), slot_bytes_(std::size_t(members) * slice), members_(members) {
  const Layout layout{std::size_t(members)};
  slots_ = layout.slots;
  results_ = layout.results;
}

void SharedBlock::clear() const {
  const Layout layout{std::size_t(members_)};
  std::memset(base_, 0, layout.slots);
  for (std::size_t at = layout.rings; at < layout.end; at += sizeof(SharedRing::Memory))
    std::memset(base_ + at, 0, offsetof(SharedRing::Memory, bytes));
}

std::uint64_t* SharedBlock::table(std::uint64_t number) const {
  const Layout layout{std::size_t(members_)};
  return reinterpret_cast<std::uint64_t*>(base_ + layout.tables) +
         number % 2 * std::size_t(members_);
}

SharedRing SharedBlock::ring(int to, int number) const {
  const Layout layout{std::size_t(members_)};
  const std::size_t index = std::size_t(to) * rings + std::size_t(number);
  return SharedRing(reinterpret_cast<SharedRing::Memory*>(base_ + layout.rings +
                                                          index * sizeof(SharedRing::Memory)));
}

std::size_t BlockStore::make(int members) {
  sweep();
  std::byte* memory = heap_->allocate(SharedBlock::bytes(members));
  SharedBlock(memory, members).clear();
  return *heap_->offset(memory, 1);
}

std::size_t BlockStore::make_first(int members) {
  return *heap_->offset(heap_->allocate(SharedBlock::bytes(members)), 1);
}

void BlockStore::retire(std::size_t offset, int members) {
  {
    const std::lock_guard lock(mutex_);
    retired_.push_back({offset, members});
  }
  sweep();
}

void BlockStore::sweep() {
  const std::lock_guard lock(mutex_);
  std::erase_if(retired_, [&](const Retired& one) {
    std::byte* memory = heap_->mapping()->at(one.offset, SharedBlock::bytes(one.members));
    const SharedBlock block(memory, one.members);
    if (block.standing().gone.load(std::memory_order_acquire) < std::uint32_t(one.members - 1))
      return false;
    heap_->free(memory);
    return true;
  });
}

}  // namespace echelon
