#include "echelon/data/corpus/token_documents.h"

#include <gtest/gtest.h>

#include <numeric>

#include "echelon/base/error.h"
#include "echelon/data/corpus/document_split.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Tokens = std::vector<std::int64_t>;

// Documents of these lengths; their tokens are 0, 1, 2, … through all of them.
std::shared_ptr<DocumentsInMemory> counting(const std::vector<std::int64_t>& lengths) {
  auto documents = std::make_shared<DocumentsInMemory>();
  std::int32_t next = 0;
  for (const auto length : lengths) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
    std::iota(tokens.begin(), tokens.end(), next);
    next += static_cast<std::int32_t>(length);
    documents->add(tokens);
  }
  return documents;
}

std::vector<Tokens> all(const TokenDocuments& documents) {
  std::vector<Tokens> found;
  for (std::int64_t i = 0; i < documents.size(); ++i) {
    found.emplace_back(static_cast<std::size_t>(documents.length(i)));
    documents.read(i, 0, found.back());
  }
  return found;
}

TEST(DocumentsInMemory, GivesBackWhatWasAdded) {
  const auto documents = counting({2, 0, 3});
  EXPECT_EQ(all(*documents), (std::vector<Tokens>{{0, 1}, {}, {2, 3, 4}}));
  EXPECT_EQ(documents->tokens(), 5);
  Tokens some(2);
  documents->read(2, 1, some);
  EXPECT_EQ(some, (Tokens{3, 4}));
}

TEST(DocumentsInMemory, RefusesToReadPastADocument) {
  const auto documents = counting({2, 3});
  Tokens some(2);
  EXPECT_EQ(thrown<InvalidArgument>([&] { documents->read(0, 1, some); }),
            "tokens 1 to 3 were asked for of a document of 2");
  EXPECT_NE(thrown<InvalidArgument>([&] { documents->read(1, -1, some); }), "(nothing was thrown)");
}

TEST(DocumentSplit, HoldsOutAShareOfTheDocuments) {
  const auto documents = counting(std::vector<std::int64_t>(1000, 7));
  const auto split = split_documents(documents, 0.1, 100);
  EXPECT_EQ(split.training->size() + split.validation->size(), 1000);
  EXPECT_NEAR(double(split.validation->size()), 100, 35);
  auto both = all(*split.training);
  const auto held_out = all(*split.validation);
  both.insert(both.end(), held_out.begin(), held_out.end());
  std::sort(both.begin(), both.end());
  EXPECT_EQ(both, all(*documents)) << "every document is in one of them";
  EXPECT_EQ(all(*split_documents(documents, 0.1, 100).validation), held_out);
}

TEST(DocumentSplit, WithoutAShareIsAllForTraining) {
  const auto documents = counting({3, 4});
  const auto split = split_documents(documents, 0, 1);
  EXPECT_EQ(split.training, documents);
  EXPECT_EQ(split.validation, nullptr);
}

TEST(DocumentSplit, CutsASingleDocument) {
  const auto split = split_documents(counting({10}), 0.3, 1);
  EXPECT_EQ(all(*split.training), (std::vector<Tokens>{{0, 1, 2, 3, 4, 5, 6}}));
  EXPECT_EQ(all(*split.validation), (std::vector<Tokens>{{7, 8, 9}}));
}

TEST(DocumentSplit, TakesTheEndWhereAHashWouldGiveTooLittle) {
  const auto split = split_documents(counting({4, 0, 3, 2, 1}), 0.4, 100);
  EXPECT_EQ(all(*split.training), (std::vector<Tokens>{{0, 1, 2, 3}, {}, {4, 5}}));
  EXPECT_EQ(all(*split.validation), (std::vector<Tokens>{{6}, {7, 8}, {9}}));
  Tokens one(1);
  split.validation->read(0, 0, one);
  EXPECT_EQ(one, Tokens{6});
  EXPECT_NE(thrown<InvalidArgument>([&] { split.training->read(2, 2, one); }),
            "(nothing was thrown)");
}

TEST(DocumentSplit, MayCutBetweenDocuments) {
  const auto split = split_documents(counting({5, 5}), 0.5, 6);
  EXPECT_EQ(all(*split.training), (std::vector<Tokens>{{0, 1, 2, 3, 4}}));
  EXPECT_EQ(all(*split.validation), (std::vector<Tokens>{{5, 6, 7, 8, 9}}));
}

}  // namespace
}  // namespace echelon
