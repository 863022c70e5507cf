#include "echelon/launch/report_pipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

#include "echelon/net/launcher_report.h"

namespace echelon {
namespace {

using Kind = ReportPipe::Report::Kind;

class Reports : public testing::Test {
 protected:
  void SetUp() override {
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("ECHELON_LAUNCHER_FD", pipe.variable().c_str(), 1);
  }
  void TearDown() override {
    for (const char* name : {"RANK", "WORLD_SIZE", "ECHELON_LAUNCHER_FD"}) unsetenv(name);
  }
  ReportPipe pipe;
};

TEST_F(Reports, ComeAsTheyWereSent) {
  const LauncherReport rank(3, 4);
  rank.expendable();
  rank.blames(2, "rank 2 on node7 (pid 4711)");
  const auto reports = pipe.read_ready();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].kind, Kind::expendable);
  EXPECT_EQ(reports[0].rank, 3);
  EXPECT_EQ(reports[1].kind, Kind::blames);
  EXPECT_EQ(reports[1].rank, 3);
  EXPECT_EQ(reports[1].other, 2);
  EXPECT_EQ(reports[1].name, "rank 2 on node7 (pid 4711)");
  EXPECT_TRUE(pipe.read_ready().empty());
}

TEST_F(Reports, AreNotSentByAGroupOfTheProgramsOwn) {
  LauncherReport(0, 4).expendable();
  LauncherReport(3, 2).expendable();
  EXPECT_TRUE(pipe.read_ready().empty());
}

TEST_F(Reports, AreNotWrittenToAFileThatHasTheNumberOfTheLostPipe) {
  ReportPipe another;  // a pipe as well, but not the launcher's
  const auto own = pipe.variable();
  const auto inode = own.substr(own.find(':'));
  setenv("ECHELON_LAUNCHER_FD", (std::to_string(another.rank_fd()) + inode).c_str(), 1);
  LauncherReport(3, 4).expendable();
  EXPECT_TRUE(another.read_ready().empty());
  for (const char* wrong : {"", "x", "99999:1", "1:2", "-1:0"}) {
    setenv("ECHELON_LAUNCHER_FD", wrong, 1);
    LauncherReport(3, 4).expendable();
  }
  EXPECT_TRUE(pipe.read_ready().empty());
}

TEST_F(Reports, AreDroppedWhenTheyAreNone) {
  for (const char* wrong : {"", "expendable", "expendable x", "expendable 1 2", "expendable -1",
                            "blames 1", "blames 1 x y", "something 1"})
    EXPECT_FALSE(ReportPipe::parse(wrong)) << wrong;
  const std::string cut = "expendable 1\nexpen", rest = "dable 2\n";
  ASSERT_EQ(write(pipe.rank_fd(), cut.data(), cut.size()), ssize_t(cut.size()));
  EXPECT_EQ(pipe.read_ready().size(), 1u);
  ASSERT_EQ(write(pipe.rank_fd(), rest.data(), rest.size()), ssize_t(rest.size()));
  ASSERT_EQ(pipe.read_ready().size(), 1u);
}

}  // namespace
}  // namespace echelon
