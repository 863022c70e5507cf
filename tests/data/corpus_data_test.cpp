#include "echelon/data/corpus_data.h"

#include <gtest/gtest.h>

#include <numeric>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

class CorpusDataTest : public testing::Test {
 protected:
  // A corpus of documents with as many tokens each; no marks: the tokeniser has none.
  std::filesystem::path write(const std::vector<std::int32_t>& lengths,
                              DocumentMarks marks = {0, 0}) {
    CorpusDescription description;
    description.vocab = 1000;
    description.marks = marks;
    description.tokenizer = "0123";
    description.text_bytes = 30;
    write_file(shard_path(folder_.path(), 0), [&](FileWriter& file) {
      TokenShardWriter writer(file, description.token_bytes());
      for (const auto length : lengths) {
        std::vector<std::int32_t> tokens(std::size_t(length), length);
        writer.add(tokens);
        writer.end_document();
      }
      description.shards.push_back(writer.finish());
    });
    write_file(folder_ / "corpus.json", description.to_json());
    return folder_.path();
  }

  const ScratchFolder folder_;
};

TEST_F(CorpusDataTest, HasPackedOrTruncatedSamples) {
  write({4, 2, 9});
  const auto packed = open_corpus(folder_.path(), {.context = 6});
  EXPECT_EQ(packed.training->size(), 3);
  EXPECT_EQ(packed.validation, nullptr);
  EXPECT_NE(packed.training->get(std::vector<std::int64_t>{0}).find("mask"), nullptr);
  EXPECT_EQ(packed.description, folder_.path().string() + ": 3 documents, 15 tokens");
  EXPECT_EQ(packed.bytes_per_token(), 2);
  const auto truncated = open_corpus(folder_.path(), {.context = 6, .pack = false});
  EXPECT_EQ(truncated.training->size(), 3);
  EXPECT_EQ(truncated.training->length(2), 6);
}

TEST_F(CorpusDataTest, HoldsDocumentsOut) {
  write(std::vector<std::int32_t>(100, 9));
  const auto data = open_corpus(folder_.path(), {.context = 10, .validation = 0.2});
  EXPECT_EQ(data.training->size() + data.validation->size(), 100);
  EXPECT_NEAR(double(data.validation->size()), 20, 12);
}

TEST_F(CorpusDataTest, SaysWhatIsMissing) {
  const std::string folder = folder_.path().string();
  EXPECT_EQ(thrown<InvalidArgument>([&] { open_corpus(folder_.path(), {}); }),
            "there is no corpus in " + folder +
                ": it has no corpus.json; make one with echelon tokenize corpus");
  write({4, 2});
  EXPECT_EQ(thrown<InvalidArgument>([&] { open_corpus(folder_.path(), {.context = 100}); }),
            "the training documents of " + folder +
                " have 6 tokens, and one sample needs 100; give more text or a smaller "
                "model.context");
  EXPECT_EQ(thrown<InvalidArgument>(
                [&] { open_corpus(folder_.path(), {.context = 5, .validation = 0.1}); }),
            "the validation documents of " + folder +
                " have 0 tokens, and one sample needs 5; give more text or a smaller "
                "model.context");
  write({4, 2}, {});
  EXPECT_NE(thrown<InvalidArgument>([&] {
              open_corpus(folder_.path(), {.context = 2});
            }).find("has no token that begins or ends a text"),
            std::string::npos);
}

}  // namespace
}  // namespace echelon
