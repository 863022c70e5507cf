#include "echelon/data/stream.h"

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <vector>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Indices = std::vector<std::int64_t>;

// 0, 1, 2, … and how often they were read and skipped.
struct Counter : StreamDataset {
  std::int64_t at = 0, read = 0, skipped = 0;
  Batch next() override {
    ++read;
    const at::Tensor one = at::full({1}, at++, at::kLong);
    return {one, one * 10, {{"twice", one * 2}}};
  }
  void skip(std::int64_t samples) override {
    skipped += samples;
    at += samples;
  }
};

Indices of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(),
          tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

TEST(StreamDataset, GivesSamplesInTheirOrder) {
  const Counter stream;
  const Batch batch = stream.get(Indices{0, 1, 2});
  EXPECT_EQ(of(batch.input), (Indices{0, 1, 2}));
  EXPECT_EQ(of(batch.target), (Indices{0, 10, 20}));
  EXPECT_EQ(of(batch.at("twice")), (Indices{0, 2, 4}));
  EXPECT_EQ(of(stream.get(Indices{3, 4}).input), (Indices{3, 4}));
}

TEST(StreamDataset, LetsATrainerLookAtItsFirstSamplesBeforeItBegins) {
  const Counter stream;
  for (const Indices& look : {Indices{0}, Indices{0, 1, 2, 3}, Indices{0}})
    EXPECT_EQ(of(stream.get(look).input), look);
  EXPECT_EQ(of(stream.get(Indices{0, 1}).input), (Indices{0, 1}));
  EXPECT_EQ(of(stream.get(Indices{4, 5}).input), (Indices{4, 5}));
  EXPECT_EQ(of(stream.get(Indices{0}).input), (Indices{0})) << "also in the middle";
  EXPECT_EQ(stream.read, 6);
}

TEST(StreamDataset, SkipsWhatOtherRanksUse) {
  const Counter stream;  // of the second of two ranks, with a batch of four
  stream.get(Indices{0});
  for (std::int64_t step = 0; step < 100; ++step)
    EXPECT_EQ(of(stream.get(Indices{4 * step + 2, 4 * step + 3}).input),
              (Indices{4 * step + 2, 4 * step + 3}));
  EXPECT_EQ(stream.read, 201);
  EXPECT_EQ(stream.skipped, 199);
}

TEST(StreamDataset, SaysWhatItCannotGiveAgain) {
  const Counter stream;
  stream.get(Indices{0, 1});
  stream.get(Indices{8, 9});
  EXPECT_EQ(
      thrown<InvalidArgument>([&] { stream.get(Indices{4}); }),
      "sample 4 of a stream has been passed over: the stream is at sample 10, and its samples "
      "are used in order and once");
  struct Pairs : Counter {
    Batch next() override { return {at::full({2}, 0, at::kLong), {}}; }
  };
  const Pairs pairs;
  for (const std::int64_t index : {0, 1})
    EXPECT_EQ(thrown<InvalidArgument>([&] { pairs.get(Indices{index}); }),
              "StreamDataset::next() returned 2 samples where it must return one");
}

}  // namespace
}  // namespace echelon
