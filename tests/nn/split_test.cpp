#include "echelon/nn/split.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/models/weights_folder.h"
#include "echelon/nn/dropout.h"
#include "echelon/nn/tensor_group.h"
#include "echelon/nn/token_table.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/nn/close.h"
#include "tests/nn/holder.h"

namespace echelon {
namespace {

at::Tensor counting(at::IntArrayRef shape) {
  std::int64_t n = 1;
  for (const auto size : shape) n *= size;
  return at::arange(1, n + 1, at::kDouble).view(shape);
}

std::vector<Split> all_parts(Split split) {
  std::vector<Split> all;
  for (split.index = 0; split.index < split.parts; ++split.index) all.push_back(split);
  return all;
}

TEST(Split, CutsPartsThatReassembleToTheWhole) {
  const at::Tensor whole = counting({12, 24, 5});
  for (int dimension = 0; dimension < 3; ++dimension)
    for (const int blocks : {1, 3})
      for (int parts = 1; parts <= 5; ++parts) {
        const auto size = whole.size(dimension);
        if (size % blocks != 0) continue;
        std::vector<at::Tensor> tensors;
        double sum = 0;
        for (const Split& split : all_parts({.kind = Split::Kind::column,
                                  .dimension = dimension,
                                  .parts = parts,
                                  .blocks = blocks,
                                  .whole = size})) {
          tensors.push_back(part_of(whole, split));
          EXPECT_EQ(tensors.back().sizes(), part_shape(whole.sizes().vec(), split));
          EXPECT_TRUE(tensors.back().is_contiguous());
          sum += tensors.back().sum().item<double>();
        }
        EXPECT_EQ(sum, whole.sum().item<double>()) << "every element once, zeros beside them";
        const Split split{.kind = Split::Kind::column,
                          .dimension = dimension,
                          .parts = parts,
                          .blocks = blocks,
                          .whole = size};
        EXPECT_TRUE(close(assemble(tensors, split), whole, 0))
            << "dimension " << dimension << ", " << blocks << " blocks, " << parts << " parts";
      }
}

TEST(Split, PadsTheEndOfAVocabularyWithZeros) {
  const at::Tensor table = counting({5, 2});
  const auto parts = all_parts({.kind = Split::Kind::vocabulary, .parts = 4, .whole = 5});
  EXPECT_TRUE(close(part_of(table, parts[1]), table.narrow(0, 2, 2), 0));
  EXPECT_TRUE(
      close(part_of(table, parts[2]), at::cat({table.narrow(0, 4, 1), at::zeros({1, 2})}), 0));
  EXPECT_TRUE(close(part_of(table, parts[3]), at::zeros({2, 2}), 0));
  EXPECT_EQ(parts[2].filled(), 1);
  EXPECT_EQ(parts[3].filled(), 0);
}

// Two heads of width 2: columns are q0 q0 q1 q1 | k0 k0 k1 k1 | v0 v0 v1 v1.
TEST(Split, GivesAPartTheQueriesKeysAndValuesOfTheSameHeads) {
  const at::Tensor whole = counting({1, 12});
  const auto parts =
      all_parts({.kind = Split::Kind::heads, .dimension = 1, .parts = 2, .blocks = 3, .whole = 12});
  EXPECT_TRUE(close(part_of(whole, parts[1]).view({-1}),
                    at::cat({at::arange(3, 5), at::arange(7, 9), at::arange(11, 13)}), 0));
}

TEST(Split, LeavesUnsplitTensorsAlone) {
  const at::Tensor whole = counting({3, 2});
  EXPECT_TRUE(part_of(whole, {}).is_same(whole));
  EXPECT_TRUE(assemble({whole, whole}, {}).is_same(whole));
  EXPECT_EQ(part_shape({3, 2}, {}), (std::vector<std::int64_t>{3, 2}));
}

TEST(OwnTokens, AreTheTokensOfThePart) {
  const at::Tensor tokens = at::arange(5);
  const auto parts = all_parts({.kind = Split::Kind::vocabulary, .parts = 3, .whole = 5});
  const OwnTokens own = own_tokens(tokens, parts[1]);
  EXPECT_EQ(own.foreign.sum().item<std::int64_t>(), 3);
  EXPECT_TRUE(at::equal(own.row.narrow(0, 2, 2), at::arange(2)));
  EXPECT_EQ(own_tokens(tokens, parts[2]).foreign.sum().item<std::int64_t>(), 4);
  EXPECT_EQ(thrown<InvalidArgument>([&] { own_tokens(at::arange(6), parts[0]); }),
            "a token is 5; the vocabulary has 5");
  EXPECT_EQ(thrown<InvalidArgument>([&] { own_tokens(at::arange(-1, 3), parts[0]); }),
            "a token is -1; the vocabulary has 5");
}

Split columns(int parts, int index, std::int64_t whole) {
  return {
      .kind = Split::Kind::column, .dimension = 1, .parts = parts, .index = index, .whole = whole};
}

TEST(Stack, LaysOutPartsAndCountsWholeParametersOnOneRank) {
  for (const int index : {0, 1}) {
    Stack stack = stack_of({{{"w", {3, 8}}, {"b", {5}}}});
    stack.split({{"w", columns(2, index, 8)}}, std::make_shared<TensorGroup>(2, index, false));
    stack.lay_out({});
    const Parameter &w = *stack.find("w"), &b = *stack.find("b");
    EXPECT_EQ(w.shape, (std::vector<std::int64_t>{3, 4}));
    EXPECT_EQ(w.whole_shape(), (std::vector<std::int64_t>{3, 8}));
    EXPECT_EQ(b.shape, (std::vector<std::int64_t>{5}));
    EXPECT_EQ(stack.parameter_count(), 29) << "of the model";
    ASSERT_EQ(stack.units().size(), 1U);
    for (const auto& segment : stack.units()[0].segments) {
      EXPECT_EQ(segment.shape, stack.find(segment.name)->shape);
      EXPECT_EQ(segment.counted, segment.name == "w" || index == 0) << segment.name;
    }
  }
}

// Counts neither a copy of another stage's parameter nor parameters that the first rank of a group
// counts.
TEST(Stack, CountsTheSameInEitherOrderOfKeepAndSplit) {
  const ModelOptions options{.layers = 1, .width = 8, .heads = 2, .vocab = 10, .context = 4};
  const std::string table = "transformer.wte.weight";
  const Split half{.kind = Split::Kind::vocabulary, .parts = 2, .whole = 10};
  for (const bool first_stage : {true, false})
    for (const int rank : {0, 1})
      for (const bool keep_first : {true, false}) {
        Stack stack = gpt(options);
        const std::vector<bool> own = {first_stage, first_stage, !first_stage};
        Split split = half;
        split.index = rank;
        if (keep_first) stack.keep(own);
        stack.split({{table, split}}, std::make_shared<TensorGroup>(2, rank, false));
        if (!keep_first) stack.keep(own);
        EXPECT_EQ(stack.find(table)->counted, first_stage);
        EXPECT_EQ(stack.find("transformer.ln_f.weight")->counted, rank == 0);
        EXPECT_EQ(stack.find("transformer.wpe.weight")->counted, rank == 0);
      }
}

TEST(Stack, TellsAPassWhichRowsItHas) {
  const auto pass_of = [](int ranks, int rank, bool rows, std::int64_t samples) {
    Stack stack = stack_of({{{"w", {3, 8}}}});
    stack.split({}, std::make_shared<TensorGroup>(ranks, rank, rows));
    return stack.pass_for(0,
                          std::make_shared<Batch>(Batch{at::zeros({samples, 6}, at::kLong), {}}));
  };
  const Pass split = pass_of(4, 3, true, 2);
  EXPECT_TRUE(split.rows_are_split);
  EXPECT_EQ(split.samples, 2);
  EXPECT_EQ(split.tokens, 6);
  EXPECT_EQ(split.first_row, 9);
  EXPECT_FALSE(pass_of(4, 3, false, 2).rows_are_split);
  EXPECT_EQ(thrown<InvalidArgument>([&] { pass_of(4, 0, true, 3); }),
            "the 18 rows of a micro-batch (3 samples of 6 tokens) do not divide over 4 ranks: 2 or "
            "4 samples would");
  EXPECT_EQ(thrown<InvalidArgument>([&] { pass_of(4, 0, true, 1); }),
            "the 6 rows of a micro-batch (1 samples of 6 tokens) do not divide over 4 ranks: 2 "
            "samples would");
}

TEST(TensorGroup, SaysThatItHasNoRanksToRunWith) {
  TensorGroup group(4, 2, true);
  EXPECT_EQ(thrown<Error>([&] {
              group.sum(at::ones({4, 2}));
            }),
            "the model was split as for rank 2 of 4, and without ranks it cannot run");
}

// All ranks' parts of a parameter, as a source fills them, reassembled.
at::Tensor gathered(const std::function<Stack()>& make, const std::string& name, Split split,
                    at::ScalarType type, const std::function<ValueSource(const Stack&)>& source) {
  std::vector<at::Tensor> parts;
  for (split.index = 0; split.index < split.parts; ++split.index) {
    Stack stack = make();
    stack.split({{name, split}}, std::make_shared<TensorGroup>(split.parts, split.index, false));
    stack.allocate(at::kCPU, type, Gradients::no);
    stack.load(source(stack));
    EXPECT_EQ(stack.find(name)->value.sizes(), stack.find(name)->shape);
    parts.push_back(stack.find(name)->value);
  }
  return assemble(parts, split);
}

TEST(RandomValues, OfPartsMatchTheWhole) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const auto& init : {Init::normal(0.5), Init::ones(), Init::from(counting({7, 9}))}) {
      const auto make = [&] { return stack_of({{{"w", {7, 9}, init}}}); };
      const auto source = [](const Stack&) { return random_values(3); };
      Stack whole = make();
      whole.allocate(at::kCPU, type, Gradients::no);
      whole.load(random_values(3));
      EXPECT_TRUE(
          at::equal(gathered(make, "w", columns(3, 0, 9), type, source), whole.find("w")->value));
      const Split rows{.kind = Split::Kind::vocabulary, .parts = 3, .whole = 7};
      EXPECT_TRUE(at::equal(gathered(make, "w", rows, type, source), whole.find("w")->value));
    }
}

TEST(Split, CutsBlocksOfDifferentSizesAlike) {
  const at::Tensor whole = counting({2, 12});
  const Split split{
      .kind = Split::Kind::heads, .dimension = 1, .parts = 2, .uneven = {8, 2, 2}, .whole = 12};
  std::vector<at::Tensor> parts;
  for (int i = 0; i < 2; ++i) {
    Split mine = split;
    mine.index = i;
    parts.push_back(part_of(whole, mine));
    EXPECT_EQ(parts.back().sizes().vec(), part_shape({2, 12}, mine));
  }
  const std::vector<double> second = {5, 6, 7, 8, 10, 12};
  for (std::size_t i = 0; i < second.size(); ++i)
    EXPECT_EQ(parts[1][0][std::int64_t(i)].item<double>(), second[i]) << i;
  EXPECT_TRUE(at::equal(assemble(parts, split), whole));
}

TEST(Gpt2Values, GiveARankItsPart) {
  const ModelOptions options{.layers = 1, .width = 8, .heads = 2, .vocab = 11, .context = 4};
  Stack whole = gpt(options);
  whole.allocate(at::kCPU, at::kFloat, Gradients::no);
  whole.load(random_values(3));
  const ScratchFolder folder;
  write_weights(folder.path(), options, whole, whole.type(),
                [](const Parameter& p) { return p.value; });
  const std::string name = "transformer.wte.weight";
  const Split split{.kind = Split::Kind::vocabulary, .parts = 2, .whole = 11};
  EXPECT_TRUE(at::equal(
      gathered([&] { return gpt(options); }, name, split, at::kFloat,
               [&](const Stack& stack) { return read_weights(folder.path(), options, stack); }),
      whole.find(name)->value));
}

// Rows [first_row, …) have the same mask as within the whole micro-batch.
TEST(Dropout, DropsTheSameElementsOfSplitRowsAsOfTheWholeMicroBatch) {
  constexpr std::int64_t samples = 3, tokens = 4, width = 5, first_sample = 7;
  const Dropout dropout(0.5, "here");
  Pass pass;
  pass.draw = {1, at::zeros({}, at::kLong), first_sample};
  const at::Tensor whole =
      dropout.forward(at::ones({samples, tokens, width}), pass).view({-1, width});
  EXPECT_GT(whole.eq(0).sum().item<std::int64_t>(), 0);
  pass.rows_are_split = true;
  pass.samples = samples;
  pass.tokens = tokens;
  for (const int ranks : {2, 3, 4})
    for (int rank = 0; rank < ranks; ++rank) {
      const auto n = samples * tokens / ranks;
      pass.first_row = rank * n;
      EXPECT_TRUE(
          close(dropout.forward(at::ones({n, width}), pass), whole.narrow(0, rank * n, n), 0))
          << "rank " << rank << " of " << ranks;
      EXPECT_TRUE(
          close(dropout.backward(at::ones({n, width}), pass), whole.narrow(0, rank * n, n), 0));
    }
}

}  // namespace
}  // namespace echelon
