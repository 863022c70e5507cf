#include "echelon/base/input_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

std::string read(const InputFile& file, std::uint64_t offset, std::size_t bytes) {
  std::string text(bytes, '\0');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(InputFile, ReadsBytesFromAnyPlace) {
  const ScratchFolder folder;
  write_file(folder / "a", "0123456789");
  const InputFile file(folder / "a");
  EXPECT_EQ(file.path(), folder / "a");
  EXPECT_EQ(file.size(), 10U);
  EXPECT_EQ(read(file, 0, 10), "0123456789");
  EXPECT_EQ(read(file, 7, 3), "789");
  EXPECT_EQ(read(file, 10, 0), "");
}

TEST(InputFile, StaysWhatItWasWhenAnotherTakesItsName) {
  const ScratchFolder folder;
  write_file(folder / "a", "old");
  const InputFile file(folder / "a");
  write_file(folder / "a", "new");
  EXPECT_EQ(read(file, 0, 3), "old");
}

TEST(InputFile, SaysThatItHasBecomeShorter) {
  const ScratchFolder folder;
  write_file(folder / "a", std::string(100'000, 'x'));
  const InputFile file(folder / "a");
  ASSERT_EQ(::truncate((folder / "a").c_str(), 50'000), 0);
  EXPECT_EQ(read(file, 49'999, 1), "x");
  EXPECT_EQ(thrown<Error>([&] { read(file, 49'999, 2); }),
            (folder / "a").string() +
                " has become shorter while it was being read: it had 100000 bytes, and there are "
                "none at 50000 any more; leave it as it is until the job has ended");
}

TEST(InputFile, HasAStampThatChangesWithTheFile) {
  const ScratchFolder folder;
  write_file(folder / "a", "12345");
  const InputFile file(folder / "a");
  const FileStamp first = file.stamp();
  read(file, 0, 5);
  EXPECT_EQ(file.stamp(), first) << "reading changes nothing";
  EXPECT_EQ(InputFile(folder / "a").stamp(), first);
  ::usleep(20'000);  // the kernel's clock of files ticks every few milliseconds
  std::fstream(folder / "a", std::ios::in | std::ios::out) << "54321";
  EXPECT_NE(file.stamp(), first) << "as many bytes, and other ones";
  write_file(folder / "b", "12345");
  EXPECT_NE(InputFile(folder / "b").stamp(), first) << "another file";
}

TEST(InputFile, SaysWhyItCannot) {
  const ScratchFolder folder;
  EXPECT_EQ(thrown<Error>([&] { InputFile file(folder / "none"); }),
            "cannot open " + (folder / "none").string() + ": No such file or directory");
  EXPECT_EQ(thrown<Error>([&] { InputFile file(folder.path()); }),
            "cannot read " + folder.path().string() + ": this is no regular file");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(thrown<Error>([&] { InputFile file(folder / "pipe"); }),
            "cannot read " + (folder / "pipe").string() + ": this is no regular file");
}

}  // namespace
}  // namespace echelon
