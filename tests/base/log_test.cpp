#include "echelon/base/log.h"

#include <cctype>
#include <csignal>
#include <cstdlib>
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
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

constexpr std::size_t time_size = std::string_view("2026-03-01 12:00:00.123 ").size();

// The time at the front of a line with every digit made 0.
std::string time_form(const std::string& line) {
  auto time = line.substr(0, time_size);
  for (char& c : time) {
    if (std::isdigit(static_cast<unsigned char>(c))) c = '0';
  }
  return time;
}

std::string after_time(const std::string& line) {
  return line.size() < time_size ? line : line.substr(time_size);
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
  for (const auto& line : lines) EXPECT_EQ(time_form(line), "0000-00-00 00:00:00.000 ") << line;
  EXPECT_EQ(after_time(lines[0]), "[0] debug one");
  EXPECT_EQ(after_time(lines[1]), "[12] info  resumed at step 500");
  EXPECT_EQ(after_time(lines[2]), "[12] warn  three %v {}");
  EXPECT_EQ(after_time(lines[3]), "[12] error four");
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
        for (int i = 0; i < 200; ++i) log::debug(std::string(100, static_cast<char>('a' + t)));
      });
    }
    for (int i = 0; i < 100; ++i) log::set_rank(3);
  }
  const auto lines = lines_of(folder / "log");
  EXPECT_EQ(lines.size(), 1600U);
  for (const auto& line : lines) {
    EXPECT_EQ(after_time(line), "[3] debug " + std::string(100, line.back())) << line;
  }
}

TEST(Log, SaysWhyAFileCannotBeOpened) {
  const ScratchFolder folder;
  write_file(folder / "plain", "");
  const auto path = folder / "plain" / "log";
  EXPECT_EQ(thrown<Error>([&] { log::open(path); }),
            "cannot open the log file " + path.string() + ": Not a directory");
}

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
