#include "echelon/data/packed_documents.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Row = std::vector<std::int64_t>;
using Documents = std::vector<std::vector<std::int32_t>>;

MarkedDocuments marked(const Documents& texts, DocumentMarks marks = {.begin = 0, .end = 0}) {
  auto documents = std::make_shared<DocumentsInMemory>();
  for (const auto& text : texts) documents->add(text);
  return MarkedDocuments(documents, marks);
}

Row row(const at::Tensor& table, std::int64_t i) {
  const auto* begin = table.const_data_ptr<std::int64_t>() + i * table.size(1);
  return {begin, begin + table.size(1)};
}

const Documents three = {{11, 12, 13, 14}, {21}, {31, 32, 33}};

TEST(PackedDocuments, FollowEachOtherWithAMarkBeforeEach) {
  // 0 11 12 13 14 0 21 0 31 32 33, and the end of the last: eleven inputs
  const PackedDocuments data(marked(three), 5);
  ASSERT_EQ(data.size(), 2);
  const Batch batch = data.get(Row{0, 1});
  EXPECT_EQ(row(batch.input, 0), (Row{0, 11, 12, 13, 14}));
  EXPECT_EQ(row(batch.target, 0), (Row{11, 12, 13, 14, 0}));
  EXPECT_EQ(row(batch.at("mask"), 0), (Row{1, 1, 1, 1, 1}));
  EXPECT_EQ(row(batch.at("positions"), 0), (Row{0, 1, 2, 3, 4}));
  EXPECT_EQ(row(batch.input, 1), (Row{0, 21, 0, 31, 32}));
  EXPECT_EQ(row(batch.target, 1), (Row{21, 0, 31, 32, 33}));
  EXPECT_EQ(row(batch.at("mask"), 1), (Row{1, 1, 2, 2, 2}));
  EXPECT_EQ(row(batch.at("positions"), 1), (Row{0, 1, 0, 1, 2}));
}

TEST(PackedDocuments, CountPositionsFromTheBeginningOfARow) {
  const Batch batch = PackedDocuments(marked(three), 3).get(Row{1});
  EXPECT_EQ(row(batch.input, 0), (Row{13, 14, 0}));
  EXPECT_EQ(row(batch.at("mask"), 0), (Row{1, 1, 2}));
  EXPECT_EQ(row(batch.at("positions"), 0), (Row{0, 1, 0}));
}

TEST(PackedDocuments, UseTheLastMarkAsATarget) {
  const PackedDocuments data(marked(three), 11);
  ASSERT_EQ(data.size(), 1);
  const Batch batch = data.get(Row{0});
  EXPECT_EQ(row(batch.target, 0), (Row{11, 12, 13, 14, 0, 21, 0, 31, 32, 33, 0}));
  EXPECT_EQ(PackedDocuments(marked(three), 12).size(), 0);
}

TEST(PackedDocuments, MayHaveAMarkForEachEnd) {
  // 1 11 12 13 14 2 1 21 2 1 31 32 33 2
  const PackedDocuments data(marked(three, {.begin = 1, .end = 2}), 6);
  ASSERT_EQ(data.size(), 2);
  const Batch batch = data.get(Row{0, 1});
  EXPECT_EQ(row(batch.input, 0), (Row{1, 11, 12, 13, 14, 2}));
  EXPECT_EQ(row(batch.target, 0), (Row{11, 12, 13, 14, 2, 1}));
  EXPECT_EQ(row(batch.at("mask"), 0), (Row{1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(row(batch.input, 1), (Row{1, 21, 2, 1, 31, 32}));
  EXPECT_EQ(row(batch.target, 1), (Row{21, 2, 1, 31, 32, 33}));
  EXPECT_EQ(row(batch.at("mask"), 1), (Row{1, 1, 1, 2, 2, 2}));
  EXPECT_EQ(PackedDocuments(marked(three, {.begin = 1, .end = 2}), 13).size(), 1);
  EXPECT_EQ(PackedDocuments(marked(three, {.begin = 1, .end = 2}), 14).size(), 0);
}

TEST(PackedDocuments, KeepEmptyDocuments) {
  const PackedDocuments data(marked({{}, {}, {5}, {}}), 5);
  ASSERT_EQ(data.size(), 1);
  const Batch batch = data.get(Row{0});
  EXPECT_EQ(row(batch.input, 0), (Row{0, 0, 0, 5, 0}));
  EXPECT_EQ(row(batch.at("mask"), 0), (Row{1, 2, 3, 3, 4}));
}

// Every window of random documents, against the sequence written out token by token.
TEST(PackedDocuments, AreWindowsOfTheWholeSequence) {
  for (const bool shared : {true, false}) {
    Documents texts;
    Row sequence, document;
    for (std::int32_t i = 0; i < 200; ++i) {
      auto& text = texts.emplace_back(std::size_t(philox(3, std::uint64_t(i))[0] % 23));
      sequence.push_back(1);
      for (auto& token : text) sequence.push_back(token = 3 + i);
      if (!shared) sequence.push_back(2);
      document.resize(sequence.size(), i);
    }
    if (shared) sequence.push_back(1);
    const std::int32_t end = shared ? 1 : 2;
    for (const std::int64_t context : {1, 7, 64}) {
      const PackedDocuments data(marked(texts, {.begin = 1, .end = end}), context);
      ASSERT_EQ(data.size(), (std::ssize(sequence) - 1) / context);
      for (std::int64_t i = 0; i < data.size(); ++i) {
        const Batch batch = data.get(Row{i});
        const auto from = sequence.begin() + i * context;
        ASSERT_EQ(row(batch.input, 0), Row(from, from + context)) << i << " of " << context;
        ASSERT_EQ(row(batch.target, 0), Row(from + 1, from + context + 1));
        Row mask, positions;
        for (auto at = i * context; at < (i + 1) * context; ++at) {
          const bool same =
              !mask.empty() && document[std::size_t(at)] == document[std::size_t(at - 1)];
          positions.push_back(same ? positions.back() + 1 : 0);
          mask.push_back(mask.empty() ? 1 : mask.back() + !same);
        }
        ASSERT_EQ(row(batch.at("mask"), 0), mask) << i << " of " << context;
        ASSERT_EQ(row(batch.at("positions"), 0), positions);
      }
    }
  }
}

TEST(PackedDocuments, NeedAMark) {
  EXPECT_EQ(thrown<InvalidArgument>([] { marked(three, {}); }),
            "the tokeniser has no token that begins or ends a text, which a causal model needs "
            "between documents: add one, such as <|endoftext|>, to its tokenizer.json and make the "
            "corpus again");
  EXPECT_EQ(row(PackedDocuments(marked(three, {.begin = {}, .end = 9}), 2).get(Row{0}).input, 0),
            (Row{9, 11}))
      << "one mark serves as both";
}

TEST(TruncatedDocuments, AreCutAndPadded) {
  const TruncatedDocuments data(marked({{11, 12, 13, 14}, {}, {31, 32}}, {.begin = 1, .end = 2}),
                                4);
  ASSERT_EQ(data.size(), 3);
  const Batch batch = data.get(Row{0, 1, 2});
  EXPECT_EQ(row(batch.input, 0), (Row{1, 11, 12, 13}));
  EXPECT_EQ(row(batch.target, 0), (Row{11, 12, 13, 14}));
  EXPECT_EQ(row(batch.input, 1), (Row{1, 2, 2, 2}));
  EXPECT_EQ(row(batch.target, 1), (Row{2, -100, -100, -100}));
  EXPECT_EQ(row(batch.target, 2), (Row{31, 32, 2, -100}));
  for (const std::int64_t i : {0, 1, 2}) {
    EXPECT_EQ(data.length(i), (Row{4, 1, 3})[std::size_t(i)]);
    EXPECT_EQ(data.targets(i), data.length(i));
  }
  EXPECT_EQ(data.max_length(), 4);
}

TEST(TruncatedDocuments, ArePaddedToTheLongestOfTheirBatch) {
  const TruncatedDocuments data(marked({{11, 12, 13, 14}, {21}}), 100);
  EXPECT_EQ(data.get(Row{1}).input.size(1), 2);
  EXPECT_EQ(data.get(Row{0, 1}).input.size(1), 5);
  const Batch batch = data.get_padded(Row{1}, 3);
  EXPECT_EQ(row(batch.input, 0), (Row{0, 21, 0}));
  EXPECT_EQ(row(batch.target, 0), (Row{21, 0, -100}));
}

}  // namespace
}  // namespace echelon
