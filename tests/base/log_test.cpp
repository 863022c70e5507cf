#include "echelon/base/log.h"

#include <csignal>
#include <cstdlib>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

template <class Call>
std::string on_stderr(Call call) {
  testing::internal::CaptureStderr();
  call();
  return testing::internal::GetCapturedStderr();
}

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  log::flush();
  std::istringstream text(read_file(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);)
    lines.push_back(line);
  return lines;
}

TEST(Log, ShowsWarningsAndErrorsToAPersonAndNothingElse) {
  EXPECT_EQ(on_stderr([] {
              log::debug("a");
              log::info("b");
              log::warn("the disk is slow");
              log::error("no {} brace");
            }),
            "echelon: warning: the disk is slow\nechelon: error: no {} brace\n");
}

TEST(Log, WritesEveryLevelToTheFileWithTimeAndRank) {
  const ScratchFolder folder;
  log::set_rank(0);
  log::open(folder / "log");
  on_stderr([] {
    log::debug("one");
    log::set_rank(12);
    log::info("resumed at step 500");
    log::warn("three %v {}");
    log::error("four");
  });
  const auto lines = lines_of(folder / "log");
  ASSERT_EQ(lines.size(), 4U);
  const std::string time = R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} )";
  const auto matches = [&](const std::string& line, const std::string& rest) {
    return std::regex_match(line, std::regex(time + rest));
  };
  EXPECT_TRUE(matches(lines[0], R"(\[0\] debug one)")) << lines[0];
  EXPECT_TRUE(matches(lines[1], R"(\[12\] info  resumed at step 500)")) << lines[1];
  EXPECT_TRUE(matches(lines[2], R"(\[12\] warn  three %v \{\})")) << lines[2];
  EXPECT_TRUE(matches(lines[3], R"(\[12\] error four)")) << lines[3];
}

TEST(Log, AppendsToAFileAndLeavesAnEarlierOne) {
  const ScratchFolder folder;
  log::open(folder / "a");
  log::info("one");
  log::open(folder / "b");
  log::info("two");
  log::open(folder / "a");
  log::info("three");
  EXPECT_EQ(lines_of(folder / "a").size(), 2U);
  EXPECT_EQ(lines_of(folder / "b").size(), 1U);
}

TEST(Log, KeepsLinesOfManyThreadsWhole) {
  const ScratchFolder folder;
  log::set_rank(3);
  log::open(folder / "log");
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 200; ++i)
          log::debug(std::string(100, static_cast<char>('a' + t)));
      });
    }
    for (int i = 0; i < 100; ++i)
      log::set_rank(3);
  }
  const auto lines = lines_of(folder / "log");
  EXPECT_EQ(lines.size(), 1600U);
  const std::regex whole(R"(.* \[3\] debug ([a-h])\1{99})");
  for (const auto& line : lines)
    EXPECT_TRUE(std::regex_match(line, whole)) << line;
}

TEST(Log, SaysWhyAFileCannotBeOpened) {
  const ScratchFolder folder;
  write_file(folder / "plain", "");
  const auto path = folder / "plain" / "log";
  EXPECT_EQ(thrown<Error>([&] { log::open(path); }),
            "cannot open the log file " + path.string() + ": Not a directory");
}

using LogDeathTest = testing::Test;

TEST(LogDeathTest, WritesOutWhenTheProcessEnds) {
  const ScratchFolder folder;
  const auto path = folder / "log";
  EXPECT_EXIT(
      {
        log::open(path);
        log::debug("last words");
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  EXPECT_NE(read_file(path).find("debug last words"), std::string::npos);
}

TEST(LogDeathTest, KeepsTheLastInfoOfAKilledProcess) {
  const ScratchFolder folder;
  const auto path = folder / "log";
  EXPECT_EXIT(
      {
        log::open(path);
        log::info("step 7");
        std::raise(SIGKILL);
      },
      testing::KilledBySignal(SIGKILL), "");
  EXPECT_NE(read_file(path).find("info  step 7"), std::string::npos);
}

}  // namespace
}  // namespace echelon
