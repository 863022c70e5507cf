#include "echelon/base/mapped_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

TEST(MappedFile, IsTheBytesOfAFile) {
  const ScratchFolder folder;
  write_file(folder / "a", "0123456789");
  const MappedFile file(folder / "a");
  EXPECT_EQ(file.text(), "0123456789");
  EXPECT_EQ(file.bytes().size(), 10U);
  EXPECT_EQ(file.path(), folder / "a");
  file.require_unchanged();
}

TEST(MappedFile, MayBeEmpty) {
  const ScratchFolder folder;
  write_file(folder / "a", "");
  EXPECT_EQ(MappedFile(folder / "a").text(), "");
}

TEST(MappedFile, StaysWhatItWasWhenAnotherTakesItsName) {
  const ScratchFolder folder;
  write_file(folder / "a", "old");
  const MappedFile file(folder / "a");
  write_file(folder / "a", "other");
  EXPECT_EQ(file.text(), "old");
}

TEST(MappedFile, SaysThatItWasChanged) {
  const ScratchFolder folder;
  const std::string path = (folder / "a").string();
  write_file(path, std::string(100'000, 'x'));
  const MappedFile longer(path);
  ASSERT_EQ(::truncate(path.c_str(), 50'000), 0);
  EXPECT_EQ(thrown<Error>([&] { longer.require_unchanged(); }),
            path +
                " was changed while it was being read: it had 100000 bytes and has 50000 now; "
                "leave it as it is until the job has ended");
  const MappedFile same(path);
  ::usleep(20'000);  // the clock of file times ticks every few milliseconds
  std::fstream(path, std::ios::in | std::ios::out) << "y";
  EXPECT_EQ(thrown<Error>([&] { same.require_unchanged(); }),
            path +
                " was changed while it was being read; leave it as it is until the job has "
                "ended");
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const ScratchFolder folder;
  EXPECT_NE(thrown<Error>([&] { MappedFile(folder / "none"); }), "(nothing was thrown)");
  EXPECT_EQ(thrown<Error>([&] { MappedFile(folder.path()); }),
            "cannot read " + folder.path().string() + ": this is no regular file");
}

}  // namespace
}  // namespace echelon
