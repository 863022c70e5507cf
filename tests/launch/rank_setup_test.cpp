#include "echelon/launch/rank_setup.h"

#include <gtest/gtest.h>

namespace echelon {
namespace {

std::vector<CpuList> places(int nproc, const std::vector<CpuList>& numa, bool bind = true) {
  LaunchOptions options;
  options.nproc = nproc;
  options.bind = bind;
  JobSetup job;
  job.numa = numa;
  std::vector<CpuList> all;
  for (int i = 0; i < nproc; ++i) all.push_back(rank_setup(options, job, i).cpus);
  return all;
}

using Lists = std::vector<CpuList>;
const Lists two{{0, 1}, {2, 3}};

TEST(RankSetup, BindsRanksToNumaNodesInTurn) {
  EXPECT_EQ(places(4, two), (Lists{{0, 1}, {2, 3}, {0, 1}, {2, 3}}));
}

TEST(RankSetup, BindsNoRankWhereOneWouldLoseCores) {
  EXPECT_EQ(places(1, two), (Lists{{}})) << "half of the machine would be idle";
  EXPECT_EQ(places(3, two), (Lists{{}, {}, {}})) << "two would share what one has";
  EXPECT_EQ(places(2, {{0, 1}, {2}}), (Lists{{}, {}})) << "nodes differ";
  EXPECT_EQ(places(2, {{0, 1}}), (Lists{{}, {}})) << "one node";
  EXPECT_EQ(places(2, two, false), (Lists{{}, {}})) << "not wanted";
}

}  // namespace
}  // namespace echelon
