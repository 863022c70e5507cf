// Accounts for memory by purpose. While a MemoryCounting lives, every allocation of its thread
// through torch's allocators (CPU and GPU) is counted in its account, under the kind of the
// innermost MemoryScope. The account keeps the peak and its composition.
//
//   MemoryAccount account;                    // counts nothing by itself
//   {
//     const MemoryCounting counting(account);
//     …                                       // allocate
//   }
//   account.at_peak();
//
// Counted memory must be freed while its account counts, on any thread. Otherwise it stays counted
// until its address is reused (forget() removes it earlier).
#pragma once

#include <array>
#include <cstdint>
#include <memory>

namespace at {
class Tensor;
}

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

// Whether an account also counts the allocations of accounts that start counting while it is the
// innermost.
enum class MemoryExtent { own, with_inner };

class MemoryAccount {
 public:
  explicit MemoryAccount(MemoryExtent extent = MemoryExtent::own);
  ~MemoryAccount();
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  MemoryUse now() const;
  MemoryUse at_peak() const;

  // Stops counting this tensor: it has a new owner, who may free it while nobody counts.
  void forget(const at::Tensor& tensor);

 private:
  friend class MemoryCounting;
  friend class MemoryContext;
  class Book;
  class Listener;
  std::shared_ptr<Book> book_;
};

// Countings end in the reverse order of their creation, on the thread that created them. An account
// may count on several threads at once, and may be nested in itself.
class MemoryCounting {
 public:
  explicit MemoryCounting(MemoryAccount& account);
  ~MemoryCounting();
  MemoryCounting(const MemoryCounting&) = delete;
  MemoryCounting& operator=(const MemoryCounting&) = delete;

 private:
  bool counts_already_;
};

// Captures the account that counts on the constructing thread, for work on other threads. While a
// Join lives, allocations and frees of its thread are counted in that account, or not at all if the
// constructing thread had none.
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
  std::shared_ptr<MemoryAccount::Listener> listener_;
};

}  // namespace echelon
