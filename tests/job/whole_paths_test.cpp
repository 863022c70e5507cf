#include "echelon/job/whole_paths.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace echelon {
namespace {

std::string here(const char* path) { return (std::filesystem::current_path() / path).string(); }

TEST(WholePaths, AreThoseOfEveryOptionThatNamesAFile) {
  JobOptions options;
  options.data.source = "text";
  options.data.validation_source = "./more/../dev";
  options.data.tokenizer = "tokenizer";
  options.data.mix = {"stdlib=0.5", "book=0.5"};
  options.model.init = "weights";
  options.model.lora.init = "adapter";
  options.zero.offload_path = "/disk";
  options.comm.plan = "plan.json";
  const JobOptions whole = with_whole_paths(options);
  EXPECT_EQ(whole.data.source, here("text"));
  EXPECT_EQ(whole.data.validation_source, here("dev"));
  EXPECT_EQ(whole.data.tokenizer, here("tokenizer"));
  EXPECT_EQ(whole.data.mix, (std::vector<std::string>{"stdlib=0.5", here("book=0.5")}));
  EXPECT_EQ(whole.model.init, here("weights"));
  EXPECT_EQ(whole.model.lora.init, here("adapter"));
  EXPECT_EQ(whole.zero.offload_path, "/disk");
  EXPECT_EQ(whole.comm.plan, here("plan.json"));
}

TEST(WholePaths, LeaveNamesAndEmptyPathsAlone) {
  JobOptions options;
  for (const char* source : {"stdlib", "random"}) {
    options.data.source = source;
    EXPECT_EQ(with_whole_paths(options).data.source, source);
  }
  EXPECT_EQ(with_whole_paths(options).model.init, "");
}

}  // namespace
}  // namespace echelon
