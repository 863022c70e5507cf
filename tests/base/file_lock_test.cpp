#include "echelon/base/file_lock.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "echelon/base/error.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

TEST(FileLock, IsOnesAtATimeAndNamesWho) {
  const ScratchFolder folder;
  {
    const FileLock first(folder / ".lock");
    EXPECT_EQ(first.holder(), "");
    EXPECT_TRUE(first.enforced());
    const FileLock second(folder / ".lock");
    const std::string name = fmt::format("process {} on ", ::getpid());
    EXPECT_EQ(second.holder().substr(0, name.size()), name);
  }
  EXPECT_TRUE(folder.names().empty()) << "nothing is left of it";
  EXPECT_EQ(FileLock(folder / ".lock").holder(), "");
}

TEST(FileLock, StaysHeldWhenALoserGoes) {
  const ScratchFolder folder;
  const FileLock first(folder / ".lock");
  { const FileLock loser(folder / ".lock"); }
  EXPECT_NE(FileLock(folder / ".lock").holder(), "");
}

TEST(FileLock, IsFreeOnceItsHolderIsKilled) {
  const ScratchFolder folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FileLock lock(folder / ".lock");
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const std::string holder = FileLock(folder / ".lock").holder();
  EXPECT_EQ(holder.find(fmt::format("process {} on ", child)), 0U) << holder;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(folder.names(), std::vector<std::string>{".lock"});
  EXPECT_EQ(FileLock(folder / ".lock").holder(), "");
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST(FileLock, HasNeverTwoHolders) {
  const ScratchFolder folder;
  std::atomic<int> inside = 0, most = 0, got = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const FileLock lock(folder / ".lock");
        if (!lock.holder().empty()) continue;
        const int now = ++inside;
        if (now > most) most = now;
        ++got;
        --inside;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(most, 1);
  EXPECT_GT(got, 100);
}

TEST(FileLock, SaysWhereItCannotBe) {
  const ScratchFolder folder;
  EXPECT_EQ(thrown<Error>([&] { FileLock lock(folder / "none/.lock"); }),
            "cannot write " + (folder / "none/.lock").string() + ": No such file or directory");
}

}  // namespace
}  // namespace echelon
