#include "echelon/job/evaluate.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "echelon/base/error.h"

namespace echelon {
namespace {

using Matrix = std::vector<std::vector<std::int64_t>>;

TEST(ConfusionText, IsATableWithTheNamesOfLabels) {
  EXPECT_EQ(confusion_text({{27, 3}, {2, 1029}}, {"négatif", "positif"}),
            "confusion   rows: labels of the data; columns: answers of the model\n"
            "                     négatif  positif\n"
            "            négatif       27        3\n"
            "            positif        2     1029\n");
}

TEST(ConfusionText, ListsTheLargestConfusionsIfATableWouldBeTooWide) {
  constexpr std::size_t labels = 20;
  Matrix confusion(labels, std::vector<std::int64_t>(labels, 0));
  std::vector<std::string> names;
  for (std::size_t i = 0; i < labels; ++i) {
    names.push_back("label " + std::to_string(i));
    confusion[i][i] = 100;
  }
  EXPECT_EQ(confusion_text(confusion, names), "confusion   none among 20 labels\n");
  confusion[3][4] = 7;
  confusion[5][1] = 12;
  EXPECT_EQ(confusion_text(confusion, names),
            "confusion   20 labels; all confusions\n"
            "            12  label 5 taken for label 1\n"
            "             7  label 3 taken for label 4\n");
  for (std::size_t i = 0; i < labels; ++i) confusion[i][(i + 7) % labels] = 1;
  EXPECT_NE(confusion_text(confusion, names).find("the largest 12 of 22 confusions"),
            std::string::npos);
}

TEST(ConfusionText, ShowsNoControlCharactersAndCutsLongNames) {
  const std::string text = confusion_text({{1, 0}, {0, 1}}, {"a\x1b[31mb\n", std::string(40, 'x')});
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("a?[31mb?"), std::string::npos) << text;
  EXPECT_NE(text.find("xxxxxxxxxxxxxxx…"), std::string::npos) << text;
  EXPECT_EQ(text.find(std::string(16, 'x')), std::string::npos) << text;
}

TEST(EvaluationKeys, RefuseOptionsOfTraining) {
  for (const std::string set : {"optim.rate=1", "train.steps=2", "data.mix=[]", "model.width=3"}) {
    try {
      resolve_evaluation({.model = "nowhere", .set = {set}});
      FAIL() << set << " was taken";
    } catch (const InvalidArgument& error) {
      EXPECT_NE(std::string(error.what()).find("is an option of training"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace echelon
