// Which tensors the memory is for. While a MemoryAccount lives, every allocation of this thread
// through torch's allocators (CPU and GPU) is counted under the kind of the innermost MemoryScope;
// the account keeps the peak and how it was made up.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

namespace echelon {

enum class MemoryKind { parameters, gradients, optimizer, activations, workspace, communication };
inline constexpr std::array<const char*, 6> memory_kind_names = {
    "parameters", "gradients", "optimizer", "activations", "workspace", "communication"};

class MemoryScope {
 public:
  explicit MemoryScope(MemoryKind kind);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryKind outer_;
};

// While it lives, what this thread takes and gives back is not counted: the memory of other
// threads, which have no account.
class MemoryUncounted {
 public:
  MemoryUncounted();
  ~MemoryUncounted();
  MemoryUncounted(const MemoryUncounted&) = delete;
  MemoryUncounted& operator=(const MemoryUncounted&) = delete;
};

struct MemoryUse {
  std::array<std::uint64_t, memory_kind_names.size()> bytes{};
  std::uint64_t total() const;
  std::uint64_t operator[](MemoryKind kind) const { return bytes[static_cast<std::size_t>(kind)]; }
};

class MemoryAccount {
 public:
  MemoryAccount();
  ~MemoryAccount();
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  MemoryUse now() const;
  MemoryUse at_peak() const;

 private:
  class Reporter;
  std::shared_ptr<Reporter> reporter_;
};

}  // namespace echelon
