#include "echelon/job/best_validation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/collective/ranks.h"

namespace echelon {
namespace {

// Whether each rank takes its validation for the best, if the one before it scored `before`.
std::vector<bool> decided(double before, const std::vector<double>& scores) {
  std::vector<int> better(scores.size());
  run_ranks_well({.world = int(scores.size())}, [&](Group& group) {
    const auto rank = std::size_t(group.rank());
    const auto ranks = native_communicator(group.shared_from_this());
    BestSoFar best("loss", Better::less, 1);
    best.add(1, before);
    better[rank] = best.add(2, score_of_first(scores[rank], *ranks));
  });
  return {better.begin(), better.end()};
}

TEST(BestValidation, IsDecidedByRankZerosScoreOnEveryRank) {
  constexpr double loss = 0.7;
  const double less = std::nextafter(loss, 0.0), more = std::nextafter(loss, 1.0);
  EXPECT_EQ(decided(loss, {less, loss, more}), (std::vector<bool>{true, true, true}));
  EXPECT_EQ(decided(loss, {loss, less, more}), (std::vector<bool>{false, false, false}));
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(decided(loss, {nan, less}), (std::vector<bool>{false, false}));
}

TEST(BestValidation, SendsRankZerosScoreToTheBit) {
  const double score = 1.0 / 3;
  run_ranks_well({.world = 3}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    EXPECT_EQ(score_of_first(group.rank() == 0 ? score : 5.0, *ranks), score);
  });
}

}  // namespace
}  // namespace echelon
