#include "echelon/base/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Names = std::vector<std::string>;

// Letters that differ from one place to the next, so that a lost or repeated piece shows.
std::string letters(std::size_t size) {
  std::string text(size, ' ');
  for (std::size_t i = 0; i < size; ++i)
    text[i] = static_cast<char>('a' + (i * 7 + i / 26 + i / 4099) % 26);
  return text;
}

// No file may grow past `bytes` while it lives: a full disk for everyone.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit = {bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_ = {};
  void (*old_handler_)(int);
};

// A signal every millisecond while it lives, caught without SA_RESTART: system calls that wait are
// interrupted.
class FrequentSignals {
 public:
  FrequentSignals() {
    struct sigaction action = {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &action, &old_action_);
    const itimerval often = {{0, 1000}, {0, 1000}};
    ::setitimer(ITIMER_REAL, &often, &old_timer_);
  }
  FrequentSignals(const FrequentSignals&) = delete;
  FrequentSignals& operator=(const FrequentSignals&) = delete;
  ~FrequentSignals() {
    ::setitimer(ITIMER_REAL, &old_timer_, nullptr);
    ::sigaction(SIGALRM, &old_action_, nullptr);
  }

 private:
  struct sigaction old_action_ = {};
  itimerval old_timer_ = {};
};

TEST(WriteFile, MakesAndReplacesAFile) {
  const ScratchFolder folder;
  write_file(folder / "a", "first");
  EXPECT_EQ(read_file(folder / "a"), "first");
  write_file(folder / "a", "second, longer");
  EXPECT_EQ(read_file(folder / "a"), "second, longer");
  write_file(folder / "a", "");
  EXPECT_EQ(read_file(folder / "a"), "");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(WriteFile, KeepsTheOrderOfSmallAndLargePieces) {
  const ScratchFolder folder;
  const auto text = letters(5'000'000);
  write_file(folder / "a", [&](FileWriter& file) {
    std::string_view rest = text;
    for (const std::size_t piece : {1, 1000, 1 << 20, 3, (1 << 20) - 1, 2, 1'500'000, 70'000}) {
      file.write(rest.substr(0, piece));
      rest.remove_prefix(piece);
    }
    while (!rest.empty()) {
      file.write(rest.substr(0, 9973));
      rest.remove_prefix(std::min<std::size_t>(9973, rest.size()));
    }
  });
  EXPECT_TRUE(read_file(folder / "a") == text);
}

TEST(WriteFile, LeavesTheOldFileUntilTheNewOneIsWhole) {
  const ScratchFolder folder;
  write_file(folder / "a", "old");
  write_file(folder / "a", [&](FileWriter& file) {
    file.write(letters(3 << 20));
    EXPECT_EQ(read_file(folder / "a"), "old");
    EXPECT_EQ(folder.names().size(), 2U);
    for (const auto& name : folder.names()) {
      EXPECT_TRUE(name == "a" || (name.starts_with(".a.") && name.size() == 9)) << name;
    }
  });
  EXPECT_EQ(read_file(folder / "a").size(), 3U << 20);
}

TEST(WriteFile, LeavesTheOldFileAloneWhenTheCallerThrows) {
  const ScratchFolder folder;
  write_file(folder / "a", "old");
  const auto message = thrown<std::runtime_error>([&] {
    write_file(folder / "a", [](FileWriter& file) {
      file.write(letters(2 << 20));
      throw std::runtime_error("the caller's own");
    });
  });
  EXPECT_EQ(message, "the caller's own");
  EXPECT_EQ(read_file(folder / "a"), "old");
  EXPECT_EQ(folder.names(), Names{"a"});
}

TEST(WriteFile, LeavesTheOldFileAloneWhenTheDiskIsFull) {
  const ScratchFolder folder;
  write_file(folder / "a", "old");
  for (const std::size_t piece : {1000, 3'000'000}) {  // through the buffer, and past it
    std::string message;
    {
      const FileSizeLimit limit(1'500'000);
      message = thrown<Error>([&] {
        write_file(folder / "a", [&](FileWriter& file) {
          for (std::size_t written = 0; written < 3'000'000; written += piece)
            file.write(letters(piece));
        });
      });
    }
    EXPECT_EQ(message, "cannot write " + (folder / "a").string() + ": File too large");
    EXPECT_EQ(read_file(folder / "a"), "old");
    EXPECT_EQ(folder.names(), Names{"a"});
  }
}

TEST(WriteFile, NoticesAFullDiskInTheLastBufferOfAFile) {
  const ScratchFolder folder;
  std::string message;
  {
    const FileSizeLimit limit(10);
    message = thrown<Error>([&] { write_file(folder / "a", "eleven bytes"); });
  }
  EXPECT_EQ(message, "cannot write " + (folder / "a").string() + ": File too large");
  EXPECT_EQ(folder.names(), Names{});
}

TEST(WriteFile, FinishesThoughSignalsInterruptIt) {
  const ScratchFolder folder;
  const auto text = letters(8 << 20);
  {
    const FrequentSignals signals;
    for (int i = 0; i < 3; ++i) write_file(folder / "a", text);
  }
  EXPECT_TRUE(read_file(folder / "a") == text);
}

TEST(WriteFile, HoldsNoMoreThanABufferInMemory) {
  const ScratchFolder folder;
  write_file(folder / "a", [&](FileWriter& file) {
    for (int i = 0; i < 300; ++i) file.write(letters(10'000));
    const auto aside = folder.path() / folder.names().front();
    EXPECT_GE(std::filesystem::file_size(aside), 3'000'000U - (1 << 20));
  });
}

TEST(WriteFile, RespectsUmask) {
  const ScratchFolder folder;
  const auto mode_under = [&](mode_t mask) {
    const mode_t old = ::umask(mask);
    write_file(folder / "a", "text");
    ::umask(old);
    struct stat status = {};
    ::stat((folder / "a").c_str(), &status);
    return status.st_mode & 0777;
  };
  EXPECT_EQ(mode_under(022), 0644U);
  EXPECT_EQ(mode_under(000), 0644U);
  EXPECT_EQ(mode_under(077), 0600U);
}

TEST(WriteFile, TakesAPathWithoutAFolder) {
  const ScratchFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_file("bare", "text");
  std::filesystem::current_path(before);
  EXPECT_EQ(read_file(folder / "bare"), "text");
}

TEST(WriteFile, TakesTheLongestNameThatTheSystemTakes) {
  const ScratchFolder folder;
  const std::string name(255, 'n');
  write_file(folder / name, "text");
  EXPECT_EQ(read_file(folder / name), "text");
  EXPECT_EQ(folder.names(), Names{name});
}

TEST(WriteFile, SaysWhyItCannot) {
  const ScratchFolder folder;
  const auto missing = folder / "no" / "a";
  EXPECT_EQ(thrown<Error>([&] { write_file(missing, "text"); }),
            "cannot write " + missing.string() + ": No such file or directory");
  std::filesystem::create_directory(folder / "d");
  EXPECT_EQ(thrown<Error>([&] { write_file(folder / "d", "text"); }),
            "cannot write " + (folder / "d").string() + ": Is a directory");
  EXPECT_EQ(folder.names(), Names{"d"});
  EXPECT_NE(thrown<Error>([&] { write_file("", "text"); }), "(nothing was thrown)");
  EXPECT_NE(thrown<Error>([&] { write_file((folder / "d").string() + "/", "text"); }),
            "(nothing was thrown)");
}

TEST(ReadFile, ReadsBytesAsTheyAre) {
  const ScratchFolder folder;
  for (const std::size_t size : {0, 1, 4095, 4096, 4097, 100'000}) {
    auto text = letters(size);
    if (size > 2) text[1] = '\0';
    write_file(folder / "a", text);
    EXPECT_TRUE(read_file(folder / "a") == text) << size;
  }
}

TEST(ReadFile, ReadsFilesThatDoNotKnowTheirSize) {
  const auto text = read_file("/proc/self/smaps");
  EXPECT_GT(text.size(), 10'000U);
  EXPECT_NE(text.find("[stack]"), std::string::npos);  // near the end
}

TEST(ReadFile, WaitsOnThoughSignalsInterruptIt) {
  const ScratchFolder folder;
  const auto path = folder / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const pid_t writer = ::fork();
  if (writer == 0) {  // opens late, writes later: both the open and the read of the other end wait
    ::usleep(20'000);
    const int fd = ::open(path.c_str(), O_WRONLY);
    ::usleep(20'000);
    ::_exit(::write(fd, "late", 4) == 4 ? 0 : 1);
  }
  std::string text;
  {
    const FrequentSignals signals;
    text = read_file(path);
  }
  ::waitpid(writer, nullptr, 0);
  EXPECT_EQ(text, "late");
}

TEST(ReadFile, SaysWhyItCannot) {
  const ScratchFolder folder;
  EXPECT_EQ(thrown<Error>([&] { (void)read_file(folder / "none"); }),
            "cannot read " + (folder / "none").string() + ": No such file or directory");
  EXPECT_EQ(thrown<Error>([&] { (void)read_file(folder.path()); }),
            "cannot read " + folder.path().string() + ": Is a directory");
}

// What a child that was killed while it wrote `path` has left.
void write_and_be_killed(const std::filesystem::path& path, std::size_t bytes) {
  const pid_t child = ::fork();
  if (child == 0)
    write_file(path, [&](FileWriter& file) {
      file.write(std::string(bytes, 'x'));
      file.write(std::string(std::size_t{1} << 20, 'x'));  // so that the first is on disk
      ::raise(SIGKILL);
    });
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
}

TEST(RemoveAbandoned, RemovesWhatAKilledWriterLeft) {
  const ScratchFolder folder;
  write_file(folder / "state", "whole");
  write_and_be_killed(folder / "state", 3 << 20);
  write_and_be_killed(folder / "state", 5 << 20);
  ASSERT_EQ(folder.names().size(), 3U);
  EXPECT_GE(remove_abandoned(folder / "state"), 8U << 20);
  EXPECT_EQ(folder.names(), Names{"state"});
  EXPECT_EQ(read_file(folder / "state"), "whole");
  EXPECT_EQ(remove_abandoned(folder / "state"), 0U);
}

TEST(RemoveAbandoned, LeavesAFileWhoseWriterLives) {
  const ScratchFolder folder;
  write_file(folder / "state", [&](FileWriter& file) {
    file.write("half");
    EXPECT_EQ(remove_abandoned(folder / "state"), 0U);
    EXPECT_EQ(folder.names().size(), 1U);
    file.write(" and half");
  });
  EXPECT_EQ(read_file(folder / "state"), "half and half");
}

TEST(RemoveAbandoned, LeavesWhatIsNotAsideOfThatFile) {
  const ScratchFolder folder;
  Names names = {".config.backup", ".state",        ".state.12345",
                 ".state.1234567", ".state.abc.ef", ".state.txt.abcdef",
                 "state.abcdef"};
  for (const auto& name : names) write_file(folder / name, "mine");
  std::filesystem::create_directory(folder / ".state.folder");
  std::filesystem::create_symlink(folder / "state.abcdef", folder / ".state.linked");
  names.insert(names.end(), {".state.folder", ".state.linked"});
  EXPECT_EQ(remove_abandoned(folder / "state"), 0U);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(folder.names(), names);
  EXPECT_EQ(remove_abandoned(folder / "no/such/state"), 0U);
}

}  // namespace
}  // namespace echelon
