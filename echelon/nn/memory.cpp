#include "echelon/nn/memory.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <mutex>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace echelon {
namespace {

thread_local MemoryKind current_kind = MemoryKind::workspace;

}  // namespace

MemoryScope::MemoryScope(MemoryKind kind) : outer_(current_kind) { current_kind = kind; }
MemoryScope::~MemoryScope() { current_kind = outer_; }

namespace {

const auto our_kind = c10::DebugInfoKind::PROFILER_STATE;

class Deaf : public c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t, std::size_t, std::size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return false; }
};

}  // namespace

std::uint64_t MemoryUse::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

// The allocated blocks and the sums by kind. Several threads write.
class MemoryAccount::Book {
 public:
  explicit Book(MemoryExtent extent) : extent_(extent) {}

  MemoryExtent extent() const { return extent_; }
  void report(void* block, std::int64_t size) {
    std::lock_guard lock(mutex_);
    drop(block);  // also on allocation: the block may have been freed unseen
    if (size <= 0) return;
    const auto kind = static_cast<std::size_t>(current_kind);
    blocks_[block] = {kind, static_cast<std::uint64_t>(size)};
    now_.bytes[kind] += static_cast<std::uint64_t>(size);
    total_ += static_cast<std::uint64_t>(size);
    if (total_ > peak_total_) {
      peak_total_ = total_;
      peak_ = now_;
    }
  }
  MemoryUse now() {
    std::lock_guard lock(mutex_);
    return now_;
  }
  MemoryUse at_peak() {
    std::lock_guard lock(mutex_);
    return peak_;
  }

 private:
  struct Block {
    std::size_t kind;
    std::uint64_t size;
  };
  void drop(void* block) {
    const auto it = blocks_.find(block);
    if (it == blocks_.end()) return;
    now_.bytes[it->second.kind] -= it->second.size;
    total_ -= it->second.size;
    blocks_.erase(it);
  }
  MemoryExtent extent_;
  std::mutex mutex_;  // guards all below
  std::unordered_map<void*, Block> blocks_;
  MemoryUse now_, peak_;
  std::uint64_t total_ = 0, peak_total_ = 0;
};

// Torch reports every block of its allocators to the profiler; this class listens in its place.
class MemoryAccount::Listener : public c10::MemoryReportingInfoBase,
                                public std::enable_shared_from_this<MemoryAccount::Listener> {
 public:
  // This thread's innermost listener; null if there is none.
  static std::shared_ptr<Listener> current() {
    auto* listener = dynamic_cast<Listener*>(c10::ThreadLocalDebugInfo::get(our_kind));
    return listener ? listener->shared_from_this() : nullptr;
  }

  explicit Listener(std::shared_ptr<Book> book) : book_(std::move(book)) {
    const auto around = current();
    if (around && around->book_->extent() == MemoryExtent::with_inner) outer_ = around;
  }
  void reportMemoryUsage(void* block, std::int64_t size, std::size_t allocated,
                         std::size_t reserved, c10::Device device) override {
    if (outer_) outer_->reportMemoryUsage(block, size, allocated, reserved, device);
    book_->report(block, size);
  }
  bool memoryProfilingEnabled() const override { return true; }
  const std::shared_ptr<Book>& book() const { return book_; }

 private:
  std::shared_ptr<Book> book_;
  std::shared_ptr<Listener> outer_;
};

MemoryAccount::MemoryAccount(MemoryExtent extent) : book_(std::make_shared<Book>(extent)) {}
MemoryAccount::~MemoryAccount() = default;

MemoryUse MemoryAccount::now() const { return book_->now(); }
MemoryUse MemoryAccount::at_peak() const { return book_->at_peak(); }

void MemoryAccount::forget(const at::Tensor& tensor) {
  if (tensor.defined() && tensor.has_storage())
    book_->report(tensor.storage().mutable_data(), /*size=*/0);
}

MemoryCounting::MemoryCounting(MemoryAccount& account) {
  const auto around = MemoryAccount::Listener::current();
  counts_already_ = around && around->book() == account.book_;
  if (!counts_already_)
    c10::ThreadLocalDebugInfo::_push(our_kind,
                                     std::make_shared<MemoryAccount::Listener>(account.book_));
}
MemoryCounting::~MemoryCounting() {
  if (!counts_already_) c10::ThreadLocalDebugInfo::_pop(our_kind);
}

MemoryContext::MemoryContext() : listener_(MemoryAccount::Listener::current()) {}

MemoryContext::Join::Join(const MemoryContext& context) {
  std::shared_ptr<c10::DebugInfoBase> listener = context.listener_;
  if (!listener) listener = std::make_shared<Deaf>();
  c10::ThreadLocalDebugInfo::_push(our_kind, std::move(listener));
}
MemoryContext::Join::~Join() { c10::ThreadLocalDebugInfo::_pop(our_kind); }

}  // namespace echelon
