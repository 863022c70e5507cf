#include "echelon/collective/plan.h"

#include <fmt/format.h>

#include <algorithm>

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

TEST(Plan, NamesThePlaceInAFileThatIsWrong) {
  const std::string good = Plan::make({{2e-6, 3e-10}, {4e-5, 5e-9}, 6e-11, true}, two_hosts).json();
  const auto with = [&](const std::string& before, const std::string& after) {
    std::string text = good;
    const auto at = text.find(before);
    EXPECT_NE(at, std::string::npos) << before;
    return thrown<Corrupt>(
        [&] { Plan::parse(text.replace(at, before.size(), after), "plan.json"); });
  };
  EXPECT_EQ(with("\"up_to_bytes\": ", "\"up_to_bytes\": -1, \"was\": "),
            "plan.json: choices.all_reduce[0].up_to_bytes is -1, not an integer of at least 0");
  EXPECT_EQ(with("\"up_to_bytes\": ", "\"up_to_bytes\": \"8\", \"was\": "),
            "plan.json: choices.all_reduce[0].up_to_bytes is \"8\", not an integer of at least 0");
  EXPECT_EQ(with("\"ranks\": 4", "\"ranks\": 0"),
            "plan.json: shape.ranks is 0, not an integer from 1 to 1048576");
  EXPECT_EQ(with("\"gamma\"", "\"gama\""), "plan.json: figures.gamma is missing");
  EXPECT_EQ(with("\"gamma\": ", "\"gamma\": -1, \"was\": "),
            "plan.json: figures.gamma is -1, not a number from 0 to 1000000");
  const auto shape = good.begin() + std::ptrdiff_t(good.find("\"shape\""));
  EXPECT_EQ(with("\"shape\": {", "\"shape\": ["),
            fmt::format("plan.json is not JSON: it cannot be read on from line {}, column 12",
                        std::count(good.begin(), shape, '\n') + 2));
}

TEST(Plan, RefusesChoicesThatDoNotGoUp) {
  Plan plan = Plan::make({}, two_hosts);
  plan.choices[0] = {{1000, Algorithm::direct}, {1000, Algorithm::ring}};
  EXPECT_EQ(thrown<Corrupt>([&] { Plan::parse(plan.json(), "plan.json"); }),
            "plan.json: the choices for all_reduce do not go up in up_to_bytes");
}

TEST(Plan, RefusesAFileThatIsNotThere) {
  EXPECT_EQ(thrown<InvalidArgument>([] { Plan::read("/no/plan.json"); }),
            "there is no file /no/plan.json to read a plan from: give a run's plan.json");
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
      if (rank == 1) comm.wire = Wire::fp32;
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
