#include "echelon/data/labels.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Numbers = std::vector<std::int32_t>;

// A file with a label in each line.
class LabelFile {
 public:
  explicit LabelFile(const std::vector<std::string>& labels) {
    std::ofstream file(path());
    file << "sentence\tlabel\n";
    for (const auto& label : labels) file << "words\t" << label << "\n";
  }
  std::string path() const { return (folder_ / "a.tsv").string(); }
  Labels found() const { return Labels::found_in(Records(path()), 1); }
  Numbers read(const Labels& labels) const { return labels.read(Records(path()), 1); }
  // The sentence of the refusal, without the path of the folder.
  std::string refusal() const {
    std::string said = thrown<InvalidArgument>([this] { found(); });
    const std::string where = folder_.path().string() + "/";
    for (auto at = said.find(where); at != said.npos; at = said.find(where))
      said.erase(at, where.size());
    return said;
  }

 private:
  ScratchFolder folder_;
};

TEST(Labels, AreTheIntegersFromZeroOn) {
  const LabelFile file({"1", "0", "2", "1"});
  EXPECT_EQ(file.found().count(), 3);
  EXPECT_TRUE(file.found().names().empty());
  EXPECT_EQ(file.read(file.found()), (Numbers{1, 0, 2, 1}));
}

TEST(Labels, AreNamesInTheOrderOfTheirBytes) {
  const LabelFile file({"pos", "neg", "neutral", "Pos", "neg"});
  EXPECT_EQ(file.found().names(), (std::vector<std::string>{"Pos", "neg", "neutral", "pos"}));
  EXPECT_EQ(file.read(file.found()), (Numbers{3, 1, 2, 0, 1}));
}

TEST(Labels, OfWeightsAreReadByNameOrByNumber) {
  const Labels sst({2, {"NEGATIVE", "POSITIVE"}, "weights"});
  EXPECT_EQ(LabelFile({"POSITIVE", "0", "1"}).read(sst), (Numbers{1, 0, 1}));
}

TEST(Labels, ThatAreUnknownAreRefusedWithTheirLine) {
  const LabelFile file({"0", "2"});
  EXPECT_EQ(thrown<InvalidArgument>([&] { file.read(Labels(2, {}, "weights")); }),
            file.path() + ", line 3: label 2 is unknown: the labels of weights are 0 to 1");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              file.read(Labels(2, {"no", "yes"}, "train.tsv"));
            }),
            file.path() + ", line 3: label 2 is unknown: the labels of train.tsv are no, yes");
}

TEST(Labels, ThatAreNoneAreRefusedWithTheirLine) {
  EXPECT_EQ(LabelFile({"1", "1"}).refusal(),
            "a.tsv has the label 1 only: a classification needs 2 labels at least");
  EXPECT_EQ(LabelFile({"0", "1", "-1"}).refusal(),
            "a.tsv, line 4: label -1 is below 0: labels are the integers from 0 on, or names");
  EXPECT_EQ(
      LabelFile({"1", "2", "3"}).refusal(),
      "a.tsv, line 2: there is a label 1 and none is 0: labels are all integers from 0 on, or "
      "names; task.labels says their number if some have no record");
  EXPECT_EQ(LabelFile({"0", "2.5"}).refusal(),
            "a.tsv, line 3: label 2.5 is no integer: labels are the integers from 0 on, or names");
  EXPECT_EQ(LabelFile({"0", "01", "1"}).refusal(),
            "a.tsv, line 4: label 1 is the integer 1 in another spelling than in a.tsv, line 3: "
            "write it the same way");
  EXPECT_EQ(LabelFile({"0", ""}).refusal(),
            "a.tsv, line 3: the label is empty; give one, or remove the line");
}

}  // namespace
}  // namespace echelon
