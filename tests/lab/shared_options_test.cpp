#include "echelon/lab/shared_options.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Words = std::vector<std::string>;

std::string refused(const std::string& assignment) {
  return thrown<InvalidArgument>([&] { shared_options({assignment}); });
}

TEST(SharedOptions, AreSetInOrder) {
  const auto shared = shared_options({"train.threads=1", "optim.rate=0.5", "train.threads=2"});
  EXPECT_EQ(shared.options.train.threads, 2);
  EXPECT_EQ(shared.options.optim.rate, 0.5);
  EXPECT_EQ(shared.assignments, (Words{"train.threads=2", "optim.rate=0.5"}));
  EXPECT_EQ(shared_options({}).assignments, Words{});
}

TEST(SharedOptions, HaveAbsolutePaths) {
  EXPECT_EQ(
      shared_options({"zero.offload_path=some folder"}).assignments,
      (Words{"zero.offload_path=" + (std::filesystem::current_path() / "some folder").string()}));
}

TEST(SharedOptions, RefuseWhatDoesNotExist) {
  EXPECT_NE(refused("train.stepz=1").find("did you mean train.steps?"), std::string::npos);
  EXPECT_NE(refused("train.batch=0").find("train.batch"), std::string::npos);
}

TEST(SharedOptions, RefuseWhatTheLabSetsItself) {
  for (const std::string assignment :
       {"parallel.zero=3", "server.count=1", "train.validate_every=5", "train.save_last=false",
        "model.layers=2", "data.source=text", "comm.measure=auto", "task.name=mlm"}) {
    const std::string key = assignment.substr(0, assignment.find('='));
    EXPECT_EQ(refused(assignment).find("--set " + key + ": the lab sets " + key + " itself; "), 0u)
        << refused(assignment);
  }
  EXPECT_EQ(refused("train.steps=5"),
            "--set train.steps: the lab sets train.steps itself; give --steps or --pretraining");
}

}  // namespace
}  // namespace echelon
