// Which tensors the memory is for. While a MemoryCounting lives, every allocation of its thread
// through torch's allocators (CPU and GPU) is counted in its account, under the kind of the
// innermost MemoryScope; the account keeps the peak and how it was made up.
//
//   MemoryAccount account;                    // counts nothing by itself
//   {
//     const MemoryCounting counting(account);
//     …                                       // allocate
//   }
//   account.at_peak();
//
// What is counted must be freed while its account counts, on any thread; or it is counted until its
// address is used again (forget() takes it off before).
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

// Whether an account also counts what accounts count that begin to while it is the innermost.
enum class MemoryExtent { own, with_inner };

class MemoryAccount {
 public:
  explicit MemoryAccount(MemoryExtent extent = MemoryExtent::own);
  ~MemoryAccount();
  MemoryAccount(const MemoryAccount&) = delete;
  MemoryAccount& operator=(const MemoryAccount&) = delete;

  MemoryUse now() const;
  MemoryUse at_peak() const;

  // It is somebody else's from now on, who may free it while nobody counts.
  void forget(const at::Tensor& tensor);

 private:
  friend class MemoryCounting;
  friend class MemoryContext;
  class Book;
  class Listener;
  std::shared_ptr<Book> book_;
};

// They end in the opposite order of that in which they began, on the thread that they began on.
// Accounts may count on several threads at once, and again while they do already.
class MemoryCounting {
 public:
  explicit MemoryCounting(MemoryAccount& account);
  ~MemoryCounting();
  MemoryCounting(const MemoryCounting&) = delete;
  MemoryCounting& operator=(const MemoryCounting&) = delete;

 private:
  bool counts_already_;
};

// The account that counts on the thread that makes it, for work that other threads do: while a Join
// lives, what its thread takes and gives back is counted there, or nowhere where that thread had
// none.
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
