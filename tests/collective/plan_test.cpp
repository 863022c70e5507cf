#include "echelon/collective/plan.h"

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

const Shape two_hosts{4, 2, 2};

TEST(Plan, ReadsBackWhatItWrites) {
  Plan plan = Plan::make({{2e-6, 3e-10}, {4e-5, 5e-9}, 6e-11, true}, two_hosts);
  plan.choices[0] = {{1000, Algorithm::direct}, {SIZE_MAX, Algorithm::ring}};
  const Plan read = Plan::parse(plan.json(), "a plan");
  EXPECT_EQ(read.json(), plan.json());
  EXPECT_EQ(read.shape, two_hosts);
  EXPECT_TRUE(read.figures.single_copy);
  EXPECT_EQ(read.choices[0][0].algorithm, Algorithm::direct);
  EXPECT_EQ(read.choices[0][1].bytes, SIZE_MAX);
}

TEST(Plan, RefusesWhatIsNone) {
  for (const char* text : {"", "{}", "[]", "{\"figures\": 3}", "no json"})
    EXPECT_NE(thrown<Corrupt>([&] { Plan::parse(text, "some.json"); }).find("some.json"),
              std::string::npos)
        << text;
}

TEST(Plan, RefusesAChoiceThatTheShapeCannotDo) {
  Plan plan = Plan::make({}, {2, 2, 1});
  plan.choices[0] = {{SIZE_MAX, Algorithm::hierarchical}};
  EXPECT_EQ(thrown<InvalidArgument>([&] { plan.check(); }),
            "the plan chooses hierarchical for all_reduce, which 2 ranks on 2 hosts cannot do");
  plan.choices[0] = {{SIZE_MAX, Algorithm::automatic}};
  EXPECT_NE(thrown<InvalidArgument>([&] { plan.check(); }), "(nothing was thrown)");
}

TEST(Plan, IsTakenBackByAJobOfTheSameShape) {
  const ScratchFolder folder;
  const auto file = folder.path() / "plan.json";
  Plan plan = Plan::make({}, two_hosts);
  plan.choices[0] = {{100, Algorithm::recursive_doubling}, {SIZE_MAX, Algorithm::rabenseifner}};
  write_file(file, plan.json());
  Layout layout{.world = 4, .hosts = 2};
  layout.comm.plan = file.string();
  run_ranks_well(layout, [&](Group& group) {
    EXPECT_EQ(group.plan().json(), plan.json());
    float value = 1;
    group.all_reduce(DataType::f32, ReduceOp::sum, &value, &value, 1, {.tag = "x"});
    EXPECT_EQ(value, 4);
    for (const auto& entry : group.ledger().entries())
      if (entry.tag == "x") {
        EXPECT_EQ(entry.algorithm, Algorithm::recursive_doubling);
      }
  });
}

TEST(Options, ThatDifferBetweenRanksAreRefusedOnEveryRank) {
  for (const bool shared : {true, false}) {
    Layout layout{.world = 3, .shared_memory = shared};
    layout.differ = [](int rank, NetOptions&, CommOptions& comm) {
      if (rank == 1) comm.wire = "fp32";
    };
    for (const auto& error : run_ranks(layout, [](Group&) {}))
      EXPECT_NE(error.find("ranks have different options"), std::string::npos) << error;
    layout.differ = [](int rank, NetOptions& net, CommOptions&) {
      net.connections = rank == 2 ? 3 : 2;
    };
    for (const auto& error : run_ranks(layout, [](Group&) {}))
      EXPECT_NE(error.find("net.connections=3"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace echelon
