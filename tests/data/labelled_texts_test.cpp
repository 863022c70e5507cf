#include "echelon/data/labelled_texts.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <vector>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Ids = std::vector<std::int32_t>;
using Rows = std::vector<std::vector<std::int64_t>>;

Rows rows_of(const at::Tensor& table) {
  Rows rows;
  for (std::int64_t i = 0; i < table.size(0); ++i) {
    const at::Tensor row = table[i].contiguous();
    rows.emplace_back(row.data_ptr<std::int64_t>(), row.data_ptr<std::int64_t>() + row.numel());
  }
  return rows;
}

TokenTexts some_texts() {
  TokenTexts texts;
  texts.add(Ids{101, 7, 102});
  texts.add(Ids{101, 7, 102, 8, 9, 102}, 3);  // a pair
  texts.add(Ids{101, 102});
  return texts;
}

TEST(LabelledTexts, ArePaddedBehindTheirEndsWithMaskAndTypes) {
  const LabelledTexts data(some_texts(), {1, 0, 2}, {.context = 8, .padding = 5, .types = true});
  EXPECT_EQ(data.size(), 3);
  EXPECT_EQ(data.length(1), 6);
  EXPECT_EQ(data.max_length(), 8);
  const Batch batch = data.get_padded(std::vector<std::int64_t>{2, 1}, 7);
  EXPECT_EQ(rows_of(batch.input), (Rows{{101, 102, 5, 5, 5, 5, 5}, {101, 7, 102, 8, 9, 102, 5}}));
  EXPECT_EQ(rows_of(batch.at("mask")), (Rows{{1, 1, 0, 0, 0, 0, 0}, {1, 1, 1, 1, 1, 1, 0}}));
  EXPECT_EQ(rows_of(batch.at("token_types")), (Rows{{0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 1, 1, 1, 0}}));
  EXPECT_EQ(rows_of(batch.target.view({2, 1})), (Rows{{2}, {0}}));
  EXPECT_EQ(data.get(std::vector<std::int64_t>{0, 2}).input.size(1), 3) << "the longest of the two";
}

TEST(LabelledTexts, RefuseTextsBeyondTheContextAndTextsWithoutLabel) {
  EXPECT_EQ(thrown<InvalidArgument>([] {
              LabelledTexts(some_texts(), {0, 1, 0}, {.context = 5});
            }),
            "a text has 6 tokens and the context 5: truncate texts");
  EXPECT_EQ(thrown<InvalidArgument>([] {
              LabelledTexts(some_texts(), {0, 1}, {.context = 8});
            }),
            "3 texts have 2 labels; each needs one");
}

TEST(LabelledTexts, MayBeSorted) {
  EXPECT_TRUE(LabelledTexts(some_texts(), {0, 0, 1}, {.context = 8}).may_be_sorted());
}

}  // namespace
}  // namespace echelon
