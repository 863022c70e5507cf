#include "echelon/nn/memory.h"

#include <memory>
#include <thread>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "echelon/models/gpt2/gpt2.h"

namespace echelon {
namespace {

at::Tensor bytes(std::int64_t size) { return at::empty({size}, at::kByte); }

TEST(MemoryAccount, CountsByTheInnermostScope) {
  MemoryAccount account;
  const MemoryCounting counting(account);
  MemoryScope outer(MemoryKind::parameters);
  const at::Tensor a = bytes(1000);
  at::Tensor b;
  {
    MemoryScope inner(MemoryKind::gradients);
    b = bytes(300);
  }
  const at::Tensor c = bytes(20);
  const MemoryUse now = account.now();
  EXPECT_EQ(now[MemoryKind::parameters], 1020U);
  EXPECT_EQ(now[MemoryKind::gradients], 300U);
  EXPECT_EQ(now[MemoryKind::workspace], 0U);
  EXPECT_EQ(now.total(), 1320U);
}

TEST(MemoryAccount, CountsAllocationsWithoutAScopeAsWorkspace) {
  MemoryAccount account;
  const MemoryCounting counting(account);
  const at::Tensor a = bytes(77);
  EXPECT_EQ(account.now()[MemoryKind::workspace], 77U);
}

TEST(MemoryAccount, SubtractsFreedMemoryFromItsOwnKind) {
  MemoryAccount account;
  const MemoryCounting counting(account);
  at::Tensor a, b;
  {
    MemoryScope scope(MemoryKind::activations);
    a = bytes(1000);
    b = bytes(500);
  }
  {
    MemoryScope scope(MemoryKind::optimizer);
    a.reset();
  }
  EXPECT_EQ(account.now()[MemoryKind::activations], 500U);
  EXPECT_EQ(account.now()[MemoryKind::optimizer], 0U);
}

TEST(MemoryAccount, CountsAViewOnce) {
  MemoryAccount account;
  const MemoryCounting counting(account);
  at::Tensor whole = bytes(1000);
  const at::Tensor part = whole.narrow(0, 100, 10);
  EXPECT_EQ(account.now().total(), 1000U);
  whole.reset();
  EXPECT_EQ(account.now().total(), 1000U) << "the part keeps the whole";
}

TEST(MemoryAccount, KeepsThePeakAndItsComposition) {
  MemoryAccount account;
  const MemoryCounting counting(account);
  at::Tensor a, b, c;
  {
    MemoryScope scope(MemoryKind::activations);
    a = bytes(1000);
    b = bytes(200);
  }
  a.reset();
  {
    MemoryScope scope(MemoryKind::gradients);
    c = bytes(900);  // 1100 in all: less than the peak
  }
  EXPECT_EQ(account.at_peak().total(), 1200U);
  EXPECT_EQ(account.at_peak()[MemoryKind::activations], 1200U);
  EXPECT_EQ(account.at_peak()[MemoryKind::gradients], 0U);
  const at::Tensor d = bytes(400);
  EXPECT_EQ(account.at_peak().total(), 1500U);
  EXPECT_EQ(account.at_peak()[MemoryKind::activations], 200U);
  EXPECT_EQ(account.at_peak()[MemoryKind::gradients], 900U);
  EXPECT_EQ(account.at_peak()[MemoryKind::workspace], 400U);
}

TEST(MemoryAccount, IgnoresEarlierAllocations) {
  at::Tensor before = bytes(1 << 20);
  MemoryAccount account;
  const MemoryCounting counting(account);
  before.reset();
  EXPECT_EQ(account.now().total(), 0U);
  EXPECT_EQ(account.at_peak().total(), 0U);
}

TEST(MemoryAccount, CountsNothingByItself) {
  MemoryAccount account;
  const at::Tensor before = bytes(10);
  {
    const MemoryCounting counting(account);
    const at::Tensor within = bytes(50);
  }
  const at::Tensor after = bytes(20);
  EXPECT_EQ(account.now().total(), 0U);
  EXPECT_EQ(account.at_peak().total(), 50U);
}

TEST(MemoryAccount, ContinuesWhereItLeftOff) {
  MemoryAccount account;
  at::Tensor kept;
  {
    const MemoryCounting counting(account);
    kept = bytes(50);
  }
  const MemoryCounting counting(account);
  const at::Tensor more = bytes(30);
  EXPECT_EQ(account.now().total(), 80U);
  kept.reset();
  EXPECT_EQ(account.now().total(), 30U);
}

TEST(MemoryAccount, CountsOnceIfItIsNestedInItself) {
  MemoryAccount account(MemoryExtent::with_inner);
  const MemoryCounting counting(account);
  {
    const MemoryCounting again(account);
    const at::Tensor a = bytes(50);
    EXPECT_EQ(account.now().total(), 50U);
  }
  const at::Tensor b = bytes(10);
  EXPECT_EQ(account.now().total(), 10U);
}

TEST(MemoryAccount, TakesTurnsWithAnotherOnOneThread) {
  MemoryAccount one, other;
  std::vector<at::Tensor> kept;
  for (unsigned turn = 1; turn <= 3; ++turn) {
    {
      const MemoryCounting counting(one);
      kept.push_back(bytes(100));
    }
    const MemoryCounting counting(other);
    kept.push_back(bytes(7));
    EXPECT_EQ(one.now().total(), 100U * turn);
    EXPECT_EQ(other.now().total(), 7U * turn);
  }
}

TEST(MemoryAccount, CountsInnerAccountsIfAsked) {
  MemoryAccount all(MemoryExtent::with_inner), own, inner;
  const MemoryCounting counting(all);
  at::Tensor a;
  {
    const MemoryCounting counting_inner(inner);
    a = bytes(100);
  }
  EXPECT_EQ(all.now().total(), 100U);
  EXPECT_EQ(inner.now().total(), 100U);
  a.reset();
  EXPECT_EQ(all.now().total(), 0U) << "freed while the inner one does not count";
  const MemoryCounting counting_own(own);
  const MemoryCounting counting_inner(inner);
  const at::Tensor b = bytes(30);
  EXPECT_EQ(own.now().total(), 0U);
  EXPECT_EQ(all.now().total(), 0U) << "it is not the innermost";
}

TEST(MemoryAccount, CountsOnSeveralThreadsAtOnce) {
  std::vector<std::unique_ptr<MemoryAccount>> own;
  for (int t = 0; t < 4; ++t) own.push_back(std::make_unique<MemoryAccount>());
  MemoryAccount together;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 200; ++i) {
          {
            const MemoryCounting counting(*own[std::size_t(t)]);
            const at::Tensor a = bytes(1000 * (t + 1));
          }
          const MemoryCounting counting(together);
          const at::Tensor b = bytes(10);
        }
      });
  }
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(own[std::size_t(t)]->at_peak().total(), 1000U * unsigned(t + 1));
    EXPECT_EQ(own[std::size_t(t)]->now().total(), 0U);
  }
  EXPECT_LE(together.at_peak().total(), 40U);
  EXPECT_EQ(together.now().total(), 0U);
}

TEST(MemoryAccount, ForgetsMemoryThatItHandsOut) {
  MemoryAccount account;
  at::Tensor theirs;
  {
    const MemoryCounting counting(account);
    theirs = bytes(50);
    account.forget(theirs);
  }
  EXPECT_EQ(account.now().total(), 0U);
  EXPECT_EQ(account.at_peak().total(), 50U);
  theirs.reset();
}

TEST(MemoryAccount, LeavesNothingBehindWhenItEnds) {
  at::Tensor left;
  {
    MemoryAccount account;
    const MemoryCounting counting(account);
    left = bytes(50);
  }
  left.reset();
  MemoryAccount next;
  const MemoryCounting counting_next(next);
  EXPECT_EQ(next.now().total(), 0U);
}

TEST(MemoryAccount, DoesNotGrowWhenOtherThreadsFreeMemory) {
  constexpr std::int64_t size = 1 << 20;
  MemoryAccount account;
  const MemoryCounting counting(account);
  for (int i = 0; i < 50; ++i) {
    std::thread([block = bytes(size)]() mutable { block.reset(); }).join();
  }
  EXPECT_LE(account.now().total(), 5U * size) << "an address that comes back is one block, not two";
}

TEST(MemoryAccount, MayEndOnAnotherThread) {
  auto account = std::make_unique<MemoryAccount>();
  std::thread([gone = std::move(account)] {}).join();
  MemoryAccount next;
  const MemoryCounting counting_next(next);
  const at::Tensor a = bytes(10);
  EXPECT_EQ(next.now().total(), 10U);
}

TEST(MemoryAccount, MayEndBeforeALaterAccount) {
  auto first = std::make_unique<MemoryAccount>(), second = std::make_unique<MemoryAccount>();
  const MemoryCounting counting_first(*first), counting_second(*second);
  first.reset();
  const at::Tensor a = bytes(10);
  EXPECT_EQ(second->now().total(), 10U);
}

TEST(MemoryAccount, CountsAModelsBuffersExactly) {
  MemoryAccount account;
  const MemoryCounting counting(account);
  Stack stack = gpt({.layers = 2, .width = 8, .heads = 2, .vocab = 16, .context = 4});
  EXPECT_EQ(account.now().total(), 0U) << "a description costs nothing";
  stack.allocate(at::kCPU, at::kBFloat16, Gradients::yes);
  // Each segment is padded to 32 elements: the matrices are multiples already, and each vector of 8
  // or 24 takes 32.
  const std::uint64_t block = (8 * 24 + 8 * 8 + 8 * 32 + 32 * 8) + 32 + 32 + 4 * 32 + 32 + 32;
  const std::uint64_t elements = 16 * 8 + 4 * 8 + 2 * block + 2 * 32;
  EXPECT_EQ(account.now()[MemoryKind::parameters], 2 * elements);
  EXPECT_EQ(account.now()[MemoryKind::gradients], 2 * elements);
  EXPECT_EQ(account.now().total(), 4 * elements);
}

}  // namespace
}  // namespace echelon
