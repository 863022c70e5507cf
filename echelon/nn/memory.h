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

struct MemoryUse {
  std::array<std::uint64_t, memory_kind_names.size()> bytes{};
  std::uint64_t total() const;
  std::uint64_t operator[](MemoryKind kind) const { return bytes[static_cast<std::size_t>(kind)]; }
};

// Whether an account also counts what accounts count that are made while it is the innermost.
enum class MemoryExtent { own, with_inner };

class MemoryAccount {
 public:
  explicit MemoryAccount(MemoryExtent extent = MemoryExtent::own);
  ~MemoryAccount();
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  MemoryUse now() const;
  MemoryUse at_peak() const;

 private:
  friend class MemoryContext;
  class Reporter;
  std::shared_ptr<Reporter> reporter_;
};

// The account of the thread that makes it, for work that other threads do: while a Join lives, what
// its thread takes and gives back is counted there, or nowhere where that thread had none.
class MemoryContext {
 public:
  MemoryContext();

  class Join {
   public:
    explicit Join(const MemoryContext& context);
    ~Join();
    Join(const Join&) = delete;
    Join& operator=(const Join&) = delete;
  };

 private:
  std::shared_ptr<MemoryAccount::Reporter> reporter_;
};

}  // namespace echelon
