#include "echelon/nn/memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <mutex>
#include <numeric>
#include <unordered_map>

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

// torch tells the profiler of its allocators' every block; we listen in its place.
class MemoryAccount::Reporter : public c10::MemoryReportingInfoBase,
                                public std::enable_shared_from_this<MemoryAccount::Reporter> {
 public:
  // This thread's innermost; null where there is none.
  static std::shared_ptr<Reporter> current() {
    auto* reporter = dynamic_cast<Reporter*>(c10::ThreadLocalDebugInfo::get(our_kind));
    return reporter ? reporter->shared_from_this() : nullptr;
  }

  explicit Reporter(MemoryExtent extent) : extent_(extent) {
    const auto around = current();
    if (around && around->extent_ == MemoryExtent::with_inner) outer_ = around;
  }
  void reportMemoryUsage(void* block, std::int64_t size, std::size_t allocated,
                         std::size_t reserved, c10::Device device) override {
    if (outer_) outer_->reportMemoryUsage(block, size, allocated, reserved, device);
    std::lock_guard lock(mutex_);
    forget(block);  // also before it comes: another thread may have freed it unseen
    if (size > 0) {
      const auto kind = static_cast<std::size_t>(current_kind);
      blocks_[block] = {kind, static_cast<std::uint64_t>(size)};
      now_.bytes[kind] += static_cast<std::uint64_t>(size);
      total_ += static_cast<std::uint64_t>(size);
      if (total_ > peak_total_) {
        peak_total_ = total_;
        peak_ = now_;
      }
    }
  }
  bool memoryProfilingEnabled() const override { return !closed_; }
  void close() { closed_ = true; }

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
  void forget(void* block) {
    const auto it = blocks_.find(block);
    if (it == blocks_.end()) return;
    now_.bytes[it->second.kind] -= it->second.size;
    total_ -= it->second.size;
    blocks_.erase(it);
  }
  MemoryExtent extent_;
  std::shared_ptr<Reporter> outer_;
  std::atomic<bool> closed_ = false;
  std::mutex mutex_;  // guards all below; autograd's threads report too
  std::unordered_map<void*, Block> blocks_;
  MemoryUse now_, peak_;
  std::uint64_t total_ = 0, peak_total_ = 0;
};

MemoryAccount::MemoryAccount(MemoryExtent extent) : reporter_(std::make_shared<Reporter>(extent)) {
  c10::ThreadLocalDebugInfo::_push(our_kind, reporter_);
}

// Accounts may end in any order and on any thread: one that is not this thread's innermost stays
// there, deaf.
MemoryAccount::~MemoryAccount() {
  reporter_->close();
  if (c10::ThreadLocalDebugInfo::get(our_kind) == reporter_.get())
    c10::ThreadLocalDebugInfo::_pop(our_kind);
}

MemoryUse MemoryAccount::now() const { return reporter_->now(); }
MemoryUse MemoryAccount::at_peak() const { return reporter_->at_peak(); }

MemoryContext::MemoryContext() : reporter_(MemoryAccount::Reporter::current()) {}

MemoryContext::Join::Join(const MemoryContext& context) {
  std::shared_ptr<c10::DebugInfoBase> listener = context.reporter_;
  if (!listener) listener = std::make_shared<Deaf>();
  c10::ThreadLocalDebugInfo::_push(our_kind, std::move(listener));
}
MemoryContext::Join::~Join() { c10::ThreadLocalDebugInfo::_pop(our_kind); }

}  // namespace echelon
