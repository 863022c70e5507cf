// What a model computes of packed documents is what it computes of each document alone.
#include "echelon/data/packed_documents.h"

#include <gtest/gtest.h>

#include <vector>

#include "echelon/base/random.h"
#include "echelon/models/family.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

constexpr std::int64_t vocab = 40, context = 24;

// Documents that fill rows of 24 tokens, marks included, so that none is cut.
std::shared_ptr<DocumentsInMemory> documents() {
  auto all = std::make_shared<DocumentsInMemory>();
  std::uint64_t number = 0;
  for (int row = 0; row < 6; ++row)
    for (const int tokens : {7, 0, 3, 10}) {  // and four marks
      std::vector<std::int32_t> text;
      for (int i = 0; i < tokens; ++i)
        text.push_back(std::int32_t(1 + philox(5, number++)[0] % (vocab - 1)));
      all->add(text);
    }
  return all;
}

double loss(const std::string& family, const Dataset& data) {
  ModelOptions options{.family = family, .layers = 2, .width = 16, .heads = 2};
  options.vocab = vocab;
  options.context = context;
  Stack stack = family_of(options).build(options);
  Trainer trainer(stack, data, {.train = {.steps = 1, .batch = 3, .precision = Precision::fp64}});
  return trainer.evaluate(data, data.size());
}

TEST(PackedDocuments, GiveAModelTheLossOfEachDocumentAlone) {
  const DocumentMarks mark{.begin = 0, .end = 0};
  const PackedDocuments packed(MarkedDocuments(documents(), mark), context);
  const TruncatedDocuments alone(MarkedDocuments(documents(), mark), context);
  ASSERT_EQ(packed.size(), 6);
  ASSERT_EQ(alone.size(), 24);
  for (const char* family : {"gpt2", "llama"})
    EXPECT_NEAR(loss(family, packed), loss(family, alone), 1e-12) << family;
}

}  // namespace
}  // namespace echelon
