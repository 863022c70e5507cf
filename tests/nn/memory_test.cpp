#include "echelon/nn/memory.h"

#include <memory>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "echelon/models/gpt2/gpt2.h"

namespace echelon {
namespace {

at::Tensor bytes(std::int64_t size) { return at::empty({size}, at::kByte); }

TEST(MemoryAccount, CountsByTheInnermostScope) {
  MemoryAccount account;
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

TEST(MemoryAccount, CountsAsWorkspaceWhatHasNoScope) {
  MemoryAccount account;
  const at::Tensor a = bytes(77);
  EXPECT_EQ(account.now()[MemoryKind::workspace], 77U);
}

TEST(MemoryAccount, TakesBackWhatIsFreedFromTheKindItWasMadeFor) {
  MemoryAccount account;
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
  at::Tensor whole = bytes(1000);
  const at::Tensor part = whole.narrow(0, 100, 10);
  EXPECT_EQ(account.now().total(), 1000U);
  whole.reset();
  EXPECT_EQ(account.now().total(), 1000U) << "the part keeps the whole";
}

TEST(MemoryAccount, KeepsThePeakAndWhatItWasMadeOf) {
  MemoryAccount account;
  at::Tensor a, b, c;
  {
    MemoryScope scope(MemoryKind::activations);
    a = bytes(1000);
    b = bytes(200);
  }
  a.reset();
  {
    MemoryScope scope(MemoryKind::gradients);
    c = bytes(900);  // 1100 in all: less than there was
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

TEST(MemoryAccount, KnowsNothingOfWhatWasThereBefore) {
  at::Tensor before = bytes(1 << 20);
  MemoryAccount account;
  before.reset();
  EXPECT_EQ(account.now().total(), 0U);
  EXPECT_EQ(account.at_peak().total(), 0U);
}

TEST(MemoryAccount, EndsWithItself) {
  at::Tensor left;
  {
    MemoryAccount account;
    left = bytes(50);
  }
  left.reset();
  MemoryAccount next;
  EXPECT_EQ(next.now().total(), 0U);
}

TEST(MemoryAccount, DoesNotGrowWithWhatOtherThreadsFree) {
  constexpr std::int64_t size = 1 << 20;
  MemoryAccount account;
  for (int i = 0; i < 50; ++i) {
    std::thread([block = bytes(size)]() mutable { block.reset(); }).join();
  }
  EXPECT_LE(account.now().total(), 5U * size) << "an address that comes back is one block, not two";
}

TEST(MemoryAccount, MayEndOnAnotherThread) {
  auto account = std::make_unique<MemoryAccount>();
  std::thread([gone = std::move(account)] {}).join();
  MemoryAccount next;
  const at::Tensor a = bytes(10);
  EXPECT_EQ(next.now().total(), 10U);
}

TEST(MemoryAccount, MayEndBeforeOneThatBeganLater) {
  auto first = std::make_unique<MemoryAccount>(), second = std::make_unique<MemoryAccount>();
  first.reset();
  const at::Tensor a = bytes(10);
  EXPECT_EQ(second->now().total(), 10U);
}

TEST(MemoryAccount, CountsAModelsBuffersExactly) {
  MemoryAccount account;
  Stack stack = gpt({.layers = 2, .width = 8, .heads = 2, .vocab = 16, .context = 4});
  EXPECT_EQ(account.now().total(), 0U) << "a description costs nothing";
  stack.allocate(at::kCPU, at::kBFloat16, Gradients::yes);
  // Each segment is padded to 32 elements: the matrices are multiples already, each vector of 8
  // takes 32 and that of 24 takes 32, too.
  const std::uint64_t block = (8 * 24 + 8 * 8 + 8 * 32 + 32 * 8) + 32 + 32 + 4 * 32 + 32 + 32;
  const std::uint64_t elements = 16 * 8 + 4 * 8 + 2 * block + 2 * 32;
  EXPECT_EQ(account.now()[MemoryKind::parameters], 2 * elements);
  EXPECT_EQ(account.now()[MemoryKind::gradients], 2 * elements);
  EXPECT_EQ(account.now().total(), 4 * elements);
}

}  // namespace
}  // namespace echelon
