#include "echelon/train/best_so_far.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

TEST(BestSoFar, TakesMoreOrLessForBetter) {
  const std::vector<double> scores = {0.5, 0.7, 0.7, 0.6, 0.9, 0.1};
  const auto improvements = [&](Better better) {
    BestSoFar best("a score", better, 0);
    std::vector<std::int64_t> steps;
    for (std::size_t i = 0; i < scores.size(); ++i)
      if (best.add(std::int64_t(i), scores[i])) steps.push_back(std::int64_t(i));
    EXPECT_EQ(best.best()->step, steps.back());
    EXPECT_EQ(best.best()->score, scores[std::size_t(steps.back())]);
    EXPECT_FALSE(best.is_exhausted()) << "a patience of 0 never ends";
    return steps;
  };
  EXPECT_EQ(improvements(Better::more), (std::vector<std::int64_t>{0, 1, 4}));
  EXPECT_EQ(improvements(Better::less), (std::vector<std::int64_t>{0, 5}));
}

TEST(BestSoFar, IsExhaustedAfterSomeValidationsInARowWithoutABetterOne) {
  BestSoFar best("loss", Better::less, 3);
  EXPECT_FALSE(best.is_exhausted());
  int step = 0;
  for (const double loss : {3.0, 4.0, 4.0, 2.0, 2.0, 2.0}) {
    best.add(++step, loss);
    EXPECT_FALSE(best.is_exhausted()) << step;
  }
  best.add(++step, 2.0);
  EXPECT_TRUE(best.is_exhausted()) << "2.0 of step 4 is equal, not better";
  EXPECT_EQ(best.since_best(), 3);
  EXPECT_EQ(best.best()->step, 4);
}

TEST(BestSoFar, TakesWhatIsNoNumberForWorseThanAny) {
  BestSoFar best("loss", Better::less, 2);
  EXPECT_FALSE(best.add(1, std::nan("")));
  EXPECT_FALSE(best.best());
  EXPECT_TRUE(best.add(2, INFINITY));
  EXPECT_TRUE(best.add(3, 5));
  EXPECT_FALSE(best.add(4, std::nan("")));
  EXPECT_FALSE(best.is_exhausted());
  EXPECT_FALSE(best.add(5, std::nan("")));
  EXPECT_TRUE(best.is_exhausted());
}

// From any point on, as if there had been no interruption.
TEST(BestSoFar, ContinuesFromItsText) {
  const std::vector<double> scores = {std::nan(""), INFINITY, 0.1 + 0.2, 1.0 / 3, 7, 0.3, 8, 9, 10};
  for (std::size_t cut = 0; cut <= scores.size(); ++cut) {
    BestSoFar one("loss", Better::less, 3), first("loss", Better::less, 3),
        second("loss", Better::less, 3);
    for (std::size_t i = 0; i < scores.size(); ++i) {
      one.add(std::int64_t(i), scores[i]);
      if (i < cut) first.add(std::int64_t(i), scores[i]);
    }
    second.restore(first.text());
    for (std::size_t i = cut; i < scores.size(); ++i) second.add(std::int64_t(i), scores[i]);
    EXPECT_EQ(second.text(), one.text()) << "cut at " << cut;
    EXPECT_EQ(second.is_exhausted(), one.is_exhausted());
    EXPECT_EQ(second.best()->score, one.best()->score);
  }
}

TEST(BestSoFar, BeginsAnewWithAnotherScore) {
  BestSoFar loss("loss", Better::less, 2), f1("f1", Better::more, 2);
  loss.add(10, 0.5);
  f1.restore(loss.text());
  EXPECT_FALSE(f1.best());
  f1.restore("");
  EXPECT_FALSE(f1.best()) << "a state of a job that compared nothing";
}

TEST(BestSoFar, TakesTheNextValidationForTheBestAfterItForgotIt) {
  BestSoFar best("loss", Better::less, 3);
  best.add(1, 2.0);
  best.add(2, 3.0);
  best.forget_best();
  EXPECT_FALSE(best.best());
  EXPECT_EQ(best.since_best(), 1);
  EXPECT_TRUE(best.add(3, 4.0));
  EXPECT_EQ(best.best()->step, 3);
}

TEST(BestSoFar, DescribesAValidationByAllOfItsDigits) {
  EXPECT_EQ(text_of("f1", {4, 0.1 + 0.2}),
            R"({"score":"f1","step":4,"value":0.30000000000000004})");
  EXPECT_EQ(text_of("loss", {8, INFINITY}), R"({"score":"loss","step":8,"value":"inf"})");
}

TEST(BestSoFar, RefusesATextThatIsNone) {
  for (const char* text :
       {"{", "[]", "{\"score\": \"loss\"}", "{\"score\": \"loss\", \"since\": \"x\"}"})
    EXPECT_NE(thrown<Corrupt>([&] { BestSoFar("loss", Better::less, 1).restore(text); }).find(text),
              std::string::npos)
        << text;
}

}  // namespace
}  // namespace echelon
