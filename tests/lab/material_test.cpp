#include "echelon/lab/material.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/lab/sentences.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

constexpr const char *head = "sentence\tlabel\n", *good = "sentence\tlabel\nfine\t1\nbad\t0\n";

// A folder with these two files.
class MaterialFolder {
 public:
  MaterialFolder(const std::string& train, const std::string& dev) {
    write_file(folder_ / "train.tsv", train);
    write_file(folder_ / "dev.tsv", dev);
  }
  const std::filesystem::path& path() const { return folder_.path(); }
  Material read() const { return read_material(path()); }

  // What read_material() says, with its files named from within the folder.
  template <class Expected>
  std::string refusal() const {
    std::string said = thrown<Expected>([&] { read(); });
    const std::string prefix = path().string() + "/";
    for (auto at = said.find(prefix); at != said.npos; at = said.find(prefix))
      said.erase(at, prefix.size());
    return said;
  }

 private:
  ScratchFolder folder_;
};

TEST(Material, IsReadAsItWasWritten) {
  const Material made = made_material(3, 50, 20);
  const ScratchFolder folder;
  write_material(folder / "new/data", made);
  const Material read = read_material(folder / "new/data");
  EXPECT_EQ(read.texts, made.texts);
  EXPECT_EQ(read.labels, made.labels);
  EXPECT_EQ(read.training, made.training);
  write_material(folder / "again", read);
  for (const char* name : {"train.tsv", "dev.tsv"})
    EXPECT_EQ(read_file(folder / "again" / name), read_file(folder / "new/data" / name)) << name;
}

TEST(Material, IsMadeOfTheSentencesOfItsSeed) {
  const SentenceSet set = sentence_set(3, 50, 20);
  const Material made = made_material(3, 50, 20);
  ASSERT_EQ(made.texts.size(), 70u);
  ASSERT_EQ(made.training, 50u);
  for (std::size_t i = 0; i < 70; ++i) {
    const Sentence& one = i < 50 ? set.training[i] : set.validation[i - 50];
    EXPECT_EQ(made.texts[i], one.text) << i;
    EXPECT_EQ(made.labels[i], one.label) << i;
  }
}

TEST(Material, HasTextsToTrainOnAndThenTextsToValidate) {
  const MaterialFolder files(std::string(good) + "fair\t1\n", std::string(head) + "so so\t0\n");
  const Material material = files.read();
  EXPECT_EQ(material.texts, (std::vector<std::string>{"fine", "bad", "fair", "so so"}));
  EXPECT_EQ(material.labels, (std::vector<int>{1, 0, 1, 0}));
  ASSERT_EQ(material.to_train_on().size(), 3u);
  EXPECT_EQ(material.to_train_on()[2].text, "fair");
  EXPECT_EQ(material.to_train_on()[2].label, 1);
  ASSERT_EQ(material.to_validate().size(), 1u);
  EXPECT_EQ(material.to_validate()[0].text, "so so");
  EXPECT_EQ(material.to_validate()[0].label, 0);
  EXPECT_EQ(material.training_text(), "fine\nbad\nfair\n");
}

TEST(Material, FindsItsColumnsByTheirNamesInEachFile) {
  const MaterialFolder files("id\tlabel\tsentence\n7\t1\tfine\n8\t0\tbad\n",
                             std::string(head) + "fair\t1\n");
  EXPECT_EQ(files.read().texts, (std::vector<std::string>{"fine", "bad", "fair"}));
  EXPECT_EQ(files.read().labels, (std::vector<int>{1, 0, 1}));
}

TEST(Material, NumbersNamesOfLabelsAsTrainingDoes) {
  const MaterialFolder files("sentence\tlabel\nfine\tpos\nbad\tneg\n",
                             "sentence\tlabel\nbad\tneg\n");
  EXPECT_EQ(files.read().labels, (std::vector<int>{1, 0, 0}));
  EXPECT_EQ(files.read().label_names, (std::vector<std::string>{"neg", "pos"}));
}

TEST(Material, KnowsItsLabelsByName) {
  EXPECT_EQ(made_material(1, 10, 10).label_names,
            (std::vector<std::string>{"negative", "positive"}));
  EXPECT_EQ(MaterialFolder(good, good).read().label_names, (std::vector<std::string>{"0", "1"}));
}

TEST(Material, RefusesRaggedFilesWithFileAndLine) {
  EXPECT_EQ(MaterialFolder(std::string(good) + "more\t1\tthan two\n", good).refusal<Corrupt>(),
            "train.tsv, line 4: the line has 3 columns and the first has 2");
  EXPECT_EQ(MaterialFolder(good, std::string(head) + "fair\t1\nno label\n").refusal<Corrupt>(),
            "dev.tsv, line 3: the line has 1 column and the first has 2");
  EXPECT_EQ(MaterialFolder(good, head).refusal<Corrupt>(), "dev.tsv has a header and no record");
}

TEST(Material, RefusesLabelsThatMakeNoSenseWithFileAndLine) {
  EXPECT_EQ(
      MaterialFolder(good, std::string(head) + "fair\t1\nodd\t2\n").refusal<InvalidArgument>(),
      "dev.tsv, line 3: label 2 is unknown: the labels of train.tsv are 0 to 1");
  EXPECT_EQ(MaterialFolder("sentence\tlabel\na\t1\nb\t\n", good).refusal<InvalidArgument>(),
            "train.tsv, line 3: the label is empty; give one, or remove the line");
  EXPECT_EQ(MaterialFolder("sentence\tlabel\na\t1\nb\t1\n", good).refusal<InvalidArgument>(),
            "train.tsv has the label 1 only: a classification needs 2 labels at least");
}

TEST(Material, RefusesFilesThatLackAColumn) {
  EXPECT_EQ(MaterialFolder("text\tlabel\na\t1\nb\t0\n", good).refusal<InvalidArgument>(),
            "train.tsv has no column sentence; its columns are: text, label");
  EXPECT_EQ(MaterialFolder(good, "sentence\na\n").refusal<InvalidArgument>(),
            "dev.tsv has no column label; its only column is: sentence");
}

TEST(Material, RefusesAFolderWithoutItsFiles) {
  const ScratchFolder folder;
  EXPECT_NE(thrown<InvalidArgument>([&] { read_material(folder.path()); }).find("train.tsv"),
            std::string::npos);
  write_file(folder / "train.tsv", good);
  EXPECT_NE(thrown<InvalidArgument>([&] { read_material(folder.path()); }).find("dev.tsv"),
            std::string::npos);
}

}  // namespace
}  // namespace echelon
