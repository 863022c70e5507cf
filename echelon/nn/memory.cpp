#include "echelon/nn/memory.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <mutex>
#include <numeric>
#include <unordered_map>

namespace echelon {
namespace {

thread_local MemoryKind current_kind = MemoryKind::workspace;

}  // namespace

MemoryScope::MemoryScope(MemoryKind kind) : outer_(current_kind) { current_kind = kind; }
MemoryScope::~MemoryScope() { current_kind = outer_; }

std::uint64_t MemoryUse::total() const { return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0}); }

// torch tells the profiler of its allocators' every block; we listen in its place.
class MemoryAccount::Reporter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* block, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    std::lock_guard lock(mutex_);
    if (size > 0) {
      const auto kind = static_cast<std::size_t>(current_kind);
      blocks_[block] = {kind, static_cast<std::uint64_t>(size)};
      now_.bytes[kind] += static_cast<std::uint64_t>(size);
      total_ += static_cast<std::uint64_t>(size);
      if (total_ > peak_total_) {
        peak_total_ = total_;
        peak_ = now_;
      }
    } else if (const auto it = blocks_.find(block); it != blocks_.end()) {
      now_.bytes[it->second.kind] -= it->second.size;
      total_ -= it->second.size;
      blocks_.erase(it);
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

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
  std::mutex mutex_;  // guards all below; autograd's threads report too
  std::unordered_map<void*, Block> blocks_;
  MemoryUse now_, peak_;
  std::uint64_t total_ = 0, peak_total_ = 0;
};

MemoryAccount::MemoryAccount() : reporter_(std::make_shared<Reporter>()) {
  c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, reporter_);
}

MemoryAccount::~MemoryAccount() { c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE); }

MemoryUse MemoryAccount::now() const { return reporter_->now(); }
MemoryUse MemoryAccount::at_peak() const { return reporter_->at_peak(); }

}  // namespace echelon
