#include "echelon/net/shared_heap.h"

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "echelon/base/process_memory.h"

#include <cstdint>
#include <cstring>
#include <random>

#include "tests/net/connection.h"

namespace echelon {
namespace {

constexpr std::size_t mebibyte = 1 << 20;

TEST(SharedHeap, GivesAlignedZeroedMemoryThatDoesNotOverlap) {
  SharedHeap heap(4 * mebibyte);
  std::byte* last = nullptr;
  for (const std::size_t bytes : {1, 63, 64, 65, 4095, 4096, 4097, 100000}) {
    std::byte* memory = heap.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % (bytes >= 4096 ? 4096 : 64), 0u) << bytes;
    for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(int(memory[i]), 0) << bytes << " at " << i;
    if (last) {
      EXPECT_GE(memory, last);
    }
    std::memset(memory, 0xff, bytes);
    last = memory + bytes;
    EXPECT_EQ(heap.offset(memory, bytes), std::size_t(memory - heap.mapping()->at(0, 0)));
  }
}

TEST(SharedHeap, TakesWhatIsFreedBackWhole) {
  SharedHeap heap(mebibyte);
  std::mt19937 engine(7);
  std::vector<std::byte*> held;
  for (int turn = 0; turn < 2000; ++turn) {
    if (!held.empty() && engine() % 2) {
      std::swap(held[engine() % held.size()], held.back());
      heap.free(held.back());
      held.pop_back();
    } else if (held.size() < 30) {
      const std::size_t bytes = engine() % 9000;
      held.push_back(heap.allocate(bytes));
      std::memset(held.back(), 0xab, bytes);
    }
  }
  for (auto* one : held) heap.free(one);
  EXPECT_EQ(heap.allocated(), 0u);
  // One block again, and pages of it are as new though small pieces shared them.
  std::byte* all = heap.allocate(mebibyte);
  for (std::size_t i = 0; i < mebibyte; ++i) ASSERT_EQ(int(all[i]), 0) << "at " << i;
}

TEST(SharedHeap, GivesPagesBackToTheSystem) {
  SharedHeap heap(64 * mebibyte);
  const auto pages = [&] {
    struct stat status = {};
    fstat(heap.mapping()->file(), &status);
    return std::size_t(status.st_blocks) * 512;
  };
  std::byte* memory = heap.allocate(32 * mebibyte);
  EXPECT_LT(pages(), mebibyte) << "untouched pages do not exist";
  std::memset(memory, 1, 32 * mebibyte);
  EXPECT_GE(pages(), 32 * mebibyte);
  heap.free(memory);
  EXPECT_LT(pages(), mebibyte);
}

TEST(SharedHeap, RefusesWhatDoesNotFitAndSaysSo) {
  SharedHeap heap(mebibyte);
  for (const std::size_t bytes : {mebibyte + 1, SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX - 4096}) {
    const auto full = outcome([&] { heap.allocate(bytes); });
    EXPECT_EQ(full, "another error") << bytes << ": " << full;
    EXPECT_NE(full.message.find("net.heap"), std::string::npos) << full;
  }
  EXPECT_EQ(heap.allocated(), 0u);
  heap.free(heap.allocate(mebibyte));
}

TEST(SharedHeap, RefusesToFreeWhatIsNotItsOwn) {
  SharedHeap heap(mebibyte);
  std::byte* memory = heap.allocate(100);
  heap.free(nullptr);
  EXPECT_EQ(outcome([&] { heap.free(memory + 1); }), "InvalidArgument");
  heap.free(memory);
  EXPECT_EQ(outcome([&] { heap.free(memory); }), "InvalidArgument");
  std::byte elsewhere;
  EXPECT_FALSE(heap.offset(&elsewhere, 1).has_value());
  EXPECT_FALSE(heap.offset(heap.mapping()->at(0, 0), mebibyte + 1).has_value());
  EXPECT_TRUE(heap.offset(heap.mapping()->at(0, 0), mebibyte).has_value());
}

TEST(HeapMapping, GivesOnlyBytesThatLieInside) {
  SharedHeap heap(mebibyte);
  const auto& mapping = *heap.mapping();
  std::byte* const base = mapping.at(0, mebibyte);
  ASSERT_NE(base, nullptr);
  EXPECT_EQ(mapping.at(mebibyte, 0), base + mebibyte);
  EXPECT_EQ(mapping.at(1, mebibyte), nullptr);
  EXPECT_EQ(mapping.at(mebibyte + 1, 0), nullptr);
  EXPECT_EQ(mapping.at(8, SIZE_MAX), nullptr);
  EXPECT_EQ(mapping.at(SIZE_MAX, 8), nullptr);
}

TEST(HeapMapping, RefusesAFileThatCouldShrink) {
  Descriptor file(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.get(), 4096), 0);
  const auto refused = outcome([&] { HeapMapping::map(std::move(file)); });
  EXPECT_EQ(refused, "Corrupt") << refused;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Descriptor writing(ends[1]);
  EXPECT_EQ(outcome([&] { HeapMapping::map(Descriptor(ends[0])); }), "Corrupt") << "a pipe";
}

TEST(HeapMapping, IsOneForAllWhoMapTheSameHeap) {
  SharedHeap heap(mebibyte);
  const auto again = HeapMapping::map(Descriptor(dup(heap.mapping()->file())));
  EXPECT_EQ(again, heap.mapping());
}

constexpr std::size_t gibibyte = 1 << 30;

TEST(HeapMapping, TakesAddressSpaceForWhatIsInUse) {
  const std::uint64_t before = address_space().used;
  SharedHeap heap(512 * gibibyte);
  const auto taken = [&] { return address_space().used - before; };
  EXPECT_LT(taken(), 64 * mebibyte);
  heap.allocate(200 * mebibyte);
  EXPECT_LT(taken(), 800 * mebibyte);
  for (int i = 0; i < 100; ++i) heap.allocate(10 * mebibyte);
  EXPECT_LT(taken(), 4800 * mebibyte) << "four times what is in use";
}

TEST(HeapMapping, KeepsAddressesGoodWhileItGrows) {
  SharedHeap heap(8 * gibibyte);
  std::byte* const first = heap.allocate(4096);
  first[7] = std::byte(42);
  const auto place = heap.offset(first, 4096);
  ASSERT_TRUE(place);
  std::byte* large = nullptr;
  for (const std::size_t size : {100, 300, 900}) large = heap.allocate(size * mebibyte);
  EXPECT_NE(heap.mapping()->at(*place, 4096), first) << "a larger window was mapped";
  EXPECT_EQ(int(first[7]), 42);
  EXPECT_EQ(int(heap.mapping()->at(*place, 4096)[7]), 42) << "the same memory";
  EXPECT_EQ(heap.offset(first, 4096), place);
  first[8] = std::byte(43);
  EXPECT_EQ(int(heap.mapping()->at(*place, 4096)[8]), 43);
  heap.free(first);
  heap.free(large);
  EXPECT_EQ(heap.allocated(), 400 * mebibyte);
}

// A child, so that the limit is its own.
TEST(HeapMapping, SaysWhatIsMissingWhereAddressSpaceIsLimited) {
  EXPECT_EXIT(
      {
        SharedHeap heap(64 * gibibyte);
        rlimit limit = {};
        limit.rlim_cur = limit.rlim_max = address_space().used + 900 * mebibyte;
        setrlimit(RLIMIT_AS, &limit);
        heap.allocate(600 * mebibyte);
        const auto error = outcome([&] { heap.allocate(2 * gibibyte); });
        const bool told = error.message.find("no address space for 2.0 GiB") == 0 &&
                          error.message.find("'ulimit -v'") != std::string::npos;
        if (!told) fmt::print(stderr, "{}\n", error.message);
        std::byte* small = heap.allocate(4096);  // and it still works, in a window of its own
        small[4095] = std::byte(7);
        const auto place = heap.offset(small, 4096);
        const bool works = place && *place == 600 * mebibyte &&
                           heap.mapping()->at(*place, 4096)[4095] == std::byte(7);
        heap.free(small);
        _exit(told && works ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(SharedHeap, CountsAsThisProcesssMemory) {
  SharedHeap heap(64 << 20);
  const auto before = shared_bytes();
  std::byte* block = heap.allocate(8 << 20);
  EXPECT_EQ(shared_bytes(), before + (8 << 20)) << "touched or not";
  heap.free(block);
  EXPECT_EQ(shared_bytes(), before);
}

}  // namespace
}  // namespace echelon
