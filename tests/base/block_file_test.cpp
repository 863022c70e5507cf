#include "echelon/base/block_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "echelon/base/error.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

constexpr std::size_t block = BlockFile::alignment;

struct Block {
  explicit Block(std::size_t bytes)
      : memory(static_cast<std::byte*>(std::aligned_alloc(block, bytes))), size(bytes) {}
  ~Block() { std::free(memory); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  void fill(unsigned seed) {
    std::mt19937 random(seed);
    std::generate_n(memory, size, [&] { return std::byte(random()); });
  }
  std::span<std::byte> bytes() const { return {memory, size}; }
  bool operator==(const Block& other) const {
    return size == other.size && std::equal(memory, memory + size, other.memory);
  }
  std::byte* memory;
  std::size_t size;
};

template <class Kind, class Call>
testing::AssertionResult says(const Call& call, const std::string& words) {
  const std::string message = thrown<Kind>(call);
  if (message.find(words) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << message;
}

class BlockFiles : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<BlockEngine> engine() const {
    return GetParam() == "threads" ? thread_engine() : uring_engine();
  }
  void SetUp() override {
    if (!engine()) GTEST_SKIP() << "io_uring is not built in or not allowed here";
  }
  ScratchFolder folder;
};

// More pieces than an engine takes at once, written and read in different orders.
TEST_P(BlockFiles, GiveBackWhatWasWritten) {
  constexpr std::size_t pieces = 200;
  BlockFile file(folder / "blocks", pieces * 3 * block, engine());
  EXPECT_EQ(file.engine(), GetParam());
  std::vector<std::unique_ptr<Block>> out, in;
  std::vector<BlockFile::Ticket> tickets;
  for (std::size_t i = 0; i < pieces; ++i) {
    out.push_back(std::make_unique<Block>((i % 3 + 1) * block));
    out.back()->fill(unsigned(i));
    tickets.push_back(file.write(i * 3 * block, out.back()->bytes()));
  }
  for (const auto ticket : tickets) file.wait(ticket);
  tickets.clear();
  for (std::size_t i = pieces; i-- > 0;) {
    in.push_back(std::make_unique<Block>((i % 3 + 1) * block));
    tickets.push_back(file.read(i * 3 * block, in.back()->bytes()));
  }
  for (std::size_t i = tickets.size(); i-- > 0;) file.wait(tickets[i]);
  for (std::size_t i = 0; i < pieces; ++i) EXPECT_EQ(*in[pieces - 1 - i], *out[i]) << "piece " << i;
}

TEST_P(BlockFiles, KeepWhatIsThereAndAreOneProcesss) {
  Block out(block), in(block);
  out.fill(7);
  {
    BlockFile file(folder / "blocks", block, engine());
    file.wait(file.write(0, out.bytes()));
    EXPECT_TRUE(says<InvalidArgument>([&] { BlockFile again(folder / "blocks", block, engine()); },
                                      "another process is using it"));
  }
  BlockFile file(folder / "blocks", 2 * block, engine());
  file.wait(file.read(0, in.bytes()));
  EXPECT_EQ(in, out);
  file.clear();
  file.wait(file.read(0, in.bytes()));
  EXPECT_TRUE(
      std::all_of(in.memory, in.memory + block, [](std::byte b) { return b == std::byte(0); }));
}

TEST_P(BlockFiles, RefuseWhatIsNoBlock) {
  BlockFile file(folder / "blocks", 2 * block, engine());
  Block two(2 * block);
  EXPECT_THROW(file.read(512, two.bytes().first(block)), InvalidArgument);
  EXPECT_THROW(file.read(0, two.bytes().first(100)), InvalidArgument);
  EXPECT_THROW(file.read(0, two.bytes().subspan(64, block)), InvalidArgument);
  EXPECT_THROW(file.read(block, two.bytes()), InvalidArgument);
}

// The file was cut behind our back.
TEST_P(BlockFiles, SayWhichBytesCouldNotBeRead) {
  BlockFile file(folder / "blocks", 2 * block, engine());
  ASSERT_EQ(::truncate((folder / "blocks").c_str(), 0), 0);
  Block one(block);
  const auto ticket = file.read(block, one.bytes());
  EXPECT_TRUE(says<Error>([&] { file.wait(ticket); }, "reading 4096 bytes at 4096 failed"));
}

INSTANTIATE_TEST_SUITE_P(Engines, BlockFiles, testing::Values("io_uring", "threads"));

// Whoever loses must not take the winner's file away, also where neither found one.
TEST(BlockFile, KeepsItsNameWhenOthersComeAtTheSameTime) {
  ScratchFolder folder;
  for (int round = 0; round < 300; ++round) {
    std::latch all(4);
    std::vector<std::unique_ptr<BlockFile>> files(4);
    std::vector<std::thread> threads;
    for (auto& file : files)
      threads.emplace_back([&] {
        all.arrive_and_wait();
        try {
          file = std::make_unique<BlockFile>(folder / "blocks", block, thread_engine());
        } catch (const InvalidArgument&) {
        }
      });
    for (auto& thread : threads) thread.join();
    ASSERT_EQ(std::count(files.begin(), files.end(), nullptr), 3) << "round " << round;
    ASSERT_EQ(folder.names(), std::vector<std::string>{"blocks"}) << "round " << round;
    for (auto& file : files)
      if (file) file->remove();
  }
}

TEST(BlockFile, IsRefusedWhereItCannotBe) {
  ScratchFolder folder;
  EXPECT_TRUE(says<InvalidArgument>(
      [&] { BlockFile file(folder / "no/such/folder/blocks", block); }, "cannot be written"));
  EXPECT_TRUE(
      says<InvalidArgument>([&] { BlockFile file(folder / "blocks", std::uint64_t{1} << 60); },
                            "give a folder with more room"));
}

}  // namespace
}  // namespace echelon
