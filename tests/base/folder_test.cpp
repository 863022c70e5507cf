#include "echelon/base/folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "echelon/base/file.h"
#include "tests/base/scratch_folder.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

TEST(Folder, ListsFilesFoldersAndLinks) {
  const ScratchFolder scratch;
  write_file(scratch / "b", "text");
  write_file(scratch / ".hidden", "text");
  fs::create_directory(scratch / "a");
  fs::create_symlink(scratch / "a", scratch / "to a");
  fs::create_symlink(scratch / "b", scratch / "to b");
  fs::create_symlink(scratch / "nothing", scratch / "to nothing");
  ASSERT_EQ(::mkfifo((scratch / "pipe").c_str(), 0600), 0);

  std::string seen;
  std::error_code error;
  for (const auto& entry : list_folder(scratch.path(), error))
    seen += entry.name + (entry.is_link ? " link" : "") + (entry.is_folder ? " folder" : "") +
            (entry.is_file ? " file" : "") + "\n";
  EXPECT_FALSE(error);
  EXPECT_EQ(
      seen,
      ".hidden file\na folder\nb file\npipe\nto a link folder\nto b link file\nto nothing link\n");
}

TEST(Folder, SaysWhyItCannotBeListed) {
  const ScratchFolder scratch;
  write_file(scratch / "file", "text");
  std::error_code error;
  EXPECT_TRUE(list_folder(scratch / "missing", error).empty());
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
  EXPECT_TRUE(list_folder(scratch / "file", error).empty());
  EXPECT_EQ(error, std::errc::not_a_directory);
  EXPECT_TRUE(list_folder(scratch.path(), error).size() == 1);
  EXPECT_FALSE(error) << "an earlier reason was kept";
}

TEST(Folder, IsRemovedWithAllInItAndNothingElse) {
  const ScratchFolder scratch;
  fs::create_directories(scratch / "gone" / "deep" / "er");
  fs::create_directory(scratch / "stays");
  write_file(scratch / "stays" / "file", "text");
  write_file(scratch / "gone" / "deep" / "file", "text");
  fs::create_directory_symlink(scratch / "stays", scratch / "gone" / "link");
  EXPECT_FALSE(remove_whole(scratch / "gone"));
  EXPECT_FALSE(fs::exists(scratch / "gone"));
  EXPECT_EQ(read_file(scratch / "stays" / "file"), "text");
  EXPECT_FALSE(remove_whole(scratch / "gone")) << "what is not there is no error";
  EXPECT_FALSE(remove_whole(scratch / "stays" / "file"));
  EXPECT_FALSE(fs::exists(scratch / "stays" / "file"));
  EXPECT_EQ(remove_whole("/proc/self/status"), std::errc::operation_not_permitted);
}

}  // namespace
}  // namespace echelon
