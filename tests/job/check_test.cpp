// Refusals of options that do not fit together, before there are ranks: following the advice is
// enough.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <regex>
#include <sstream>

#include "echelon/base/error.h"
#include "echelon/base/options.h"
#include "echelon/job/job.h"
#include "echelon/net/host.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

struct Sizes {
  std::int64_t heads, width, tensor;
  std::int64_t pipeline = 1, data = 0;
  int ranks;
};

JobRequest request_of(const Sizes& sizes) {
  JobRequest request;
  JobOptions& options = request.options;
  options.model.layers = 2;
  options.model.width = sizes.width;
  options.model.heads = sizes.heads;
  options.train.batch = 6;
  options.train.micro_batches = 2;
  options.parallel.tensor = sizes.tensor;
  options.parallel.pipeline = sizes.pipeline;
  options.parallel.data = sizes.data;
  return request;
}

std::string refusal(const JobRequest& request, int ranks) {
  return thrown<InvalidArgument>([&] { check_job(request, ranks); });
}
const std::string accepted = "(nothing was thrown)";

TEST(CheckJob, RefusesFarMoreThreadsThanThereAreCores) {
  JobRequest request = request_of({.heads = 2, .width = 8, .tensor = 1, .ranks = 1});
  request.options.train.threads = cores();
  EXPECT_EQ(refusal(request, 1), accepted);
  request.options.train.threads = 4 * cores() + 1;
  const std::string why = refusal(request, 1);
  EXPECT_EQ(why.find(fmt::format("train.threads = {} is too many for the {} core", 4 * cores() + 1,
                                 cores())),
            0u)
      << why;
}

// "…: set a=1 b=2, or c=3 on 4 ranks"
std::vector<std::string> ways_in(const std::string& advice) {
  std::vector<std::string> ways;
  std::string rest = advice.substr(advice.find(": set ") + 6);
  for (std::size_t end; (end = rest.find(", or ")) != std::string::npos;
       rest = rest.substr(end + 5))
    ways.push_back(rest.substr(0, end));
  ways.push_back(rest);
  return ways;
}

std::string followed(JobRequest request, int ranks, std::string way) {
  std::smatch other;
  if (std::regex_match(way, other, std::regex("(.*) on ([0-9]+) ranks?"))) {
    ranks = std::stoi(other[2]);
    way = other[1];
  }
  std::istringstream words(way);
  for (std::string word; words >> word;) set_option(fields_of(request.options), word);
  return refusal(request, ranks);
}

TEST(JobCheck, AdvisesHeadsWithWhichTheJobStarts) {
  int refused = 0;
  for (const std::int64_t width : {6, 16, 24, 30, 96})
    for (std::int64_t heads = 1; heads <= 16; ++heads)
      for (std::int64_t tensor = 2; tensor <= 6; ++tensor)
        for (const std::int64_t pipeline : {1, 2})
          for (const int replicas : {1, 2, 3})
            for (const bool data : {false, true}) {
              const Sizes sizes{.heads = heads,
                                .width = width,
                                .tensor = tensor,
                                .pipeline = pipeline,
                                .data = data ? replicas : 0,
                                .ranks = int(pipeline * tensor) * replicas};
              const JobRequest request = request_of(sizes);
              const std::string advice = refusal(request, sizes.ranks);
              const bool fits = heads % tensor == 0 && width % heads == 0;
              EXPECT_EQ(advice == accepted, fits) << advice;
              if (fits) continue;
              ++refused;
              ASSERT_NE(advice.find(": set "), std::string::npos) << advice;
              for (const auto& way : ways_in(advice))
                EXPECT_EQ(followed(request, sizes.ranks, way), accepted)
                    << advice << "; width " << width << ", tensor " << tensor << ", " << sizes.ranks
                    << " ranks";
            }
  EXPECT_GT(refused, 1000);
}

TEST(JobCheck, NamesTheOptionToSet) {
  const auto said = [](const Sizes& sizes) { return refusal(request_of(sizes), sizes.ranks); };
  EXPECT_EQ(said({.heads = 6, .width = 96, .tensor = 4, .ranks = 4}),
            "model.heads = 6 cannot be split over parallel.tensor = 4: set model.heads=4, or "
            "parallel.tensor=2");
  EXPECT_EQ(said({.heads = 5, .width = 16, .tensor = 2, .ranks = 2}),
            "model.heads = 5 does not divide model.width = 16: set model.heads=4");
  EXPECT_EQ(said({.heads = 5, .width = 20, .tensor = 3, .ranks = 3}),
            "model.heads = 5 cannot be split over parallel.tensor = 3: set model.heads=6 "
            "model.width=18, or parallel.tensor=1");
  EXPECT_EQ(said({.heads = 6, .width = 96, .tensor = 4, .data = 2, .ranks = 8}),
            "model.heads = 6 cannot be split over parallel.tensor = 4: set model.heads=4, or "
            "parallel.tensor=3 on 6 ranks");
  EXPECT_EQ(said({.heads = 5, .width = 16, .tensor = 1, .ranks = 1}),
            "model.heads = 5 does not divide model.width = 16: set model.heads=4");
}

}  // namespace
}  // namespace echelon
