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

class Deaf : public c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t, std::size_t, std::size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return false; }
};

}  // namespace

MemoryUncounted::MemoryUncounted() {
  c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, std::make_shared<Deaf>());
}
MemoryUncounted::~MemoryUncounted() {
  c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
}

std::uint64_t MemoryUse::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

// torch tells the profiler of its allocators' every block; we listen in its place.
class MemoryAccount::Reporter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* block, std::int64_t size, std::size_t, std::size_t,
                         c10::Device) override {
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
  std::atomic<bool> closed_ = false;
  std::mutex mutex_;  // guards all below; autograd's threads report too
  std::unordered_map<void*, Block> blocks_;
  MemoryUse now_, peak_;
  std::uint64_t total_ = 0, peak_total_ = 0;
};

MemoryAccount::MemoryAccount() : reporter_(std::make_shared<Reporter>()) {
  c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, reporter_);
}

// Accounts may end in any order and on any thread: one that is not this thread's innermost stays
// there, deaf.
MemoryAccount::~MemoryAccount() {
  reporter_->close();
  const auto kind = c10::DebugInfoKind::PROFILER_STATE;
  if (c10::ThreadLocalDebugInfo::get(kind) == reporter_.get())
    c10::ThreadLocalDebugInfo::_pop(kind);
}

MemoryUse MemoryAccount::now() const { return reporter_->now(); }
MemoryUse MemoryAccount::at_peak() const { return reporter_->at_peak(); }

}  // namespace echelon
