#include "echelon/data/mixture.h"

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <memory>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/data/packed_documents.h"
#include "echelon/data/sampler.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Indices = std::vector<std::int64_t>;

// Sample i of form v has i + 1 tokens, each of which is 1000 * source + 100 * v + i.
class Ragged : public Dataset {
 public:
  Ragged(std::int64_t source, std::int64_t size, std::int64_t forms)
      : source_(source), size_(size), forms_(forms) {}
  std::int64_t size() const override { return size_; }
  std::int64_t variants() const override { return forms_; }
  std::int64_t length(std::int64_t index) const override { return index % size_ + 1; }
  std::int64_t targets(std::int64_t index) const override { return index % size_ + 1; }
  std::int64_t token(std::int64_t index) const {
    return 1000 * source_ + 100 * (index / size_) + index % size_;
  }
  Batch get(std::span<const std::int64_t> indices) const override {
    return get_padded(indices, size_);
  }
  Batch get_padded(std::span<const std::int64_t> indices, std::int64_t length) const override {
    Batch batch{at::full({std::int64_t(indices.size()), length}, -1, at::kLong),
                {},
                {{"source", at::full({std::int64_t(indices.size())}, source_, at::kLong)}}};
    for (std::size_t i = 0; i < indices.size(); ++i)
      batch.input[std::int64_t(i)].narrow(0, 0, this->length(indices[i])).fill_(token(indices[i]));
    return batch;
  }

 private:
  std::int64_t source_, size_, forms_;
};

TEST(Mixture, HasTheSamplesOfItsSourcesOneAfterAnother) {
  const auto a = std::make_shared<Ragged>(1, 3, 1), b = std::make_shared<Ragged>(2, 4, 5);
  const Mixture mixture({{a, 3}, {b, 2}});
  ASSERT_EQ(mixture.size(), 7);
  EXPECT_EQ(mixture.variants(), 5);
  const auto parts = mixture.parts();
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[1].first, 3);
  EXPECT_EQ(parts[1].samples, 4);
  EXPECT_EQ(parts[1].weight, 2);
  const auto expected = [&](std::int64_t index) {
    const auto sample = index % 7, form = index / 7;
    return sample < 3 ? a->token(sample) : b->token(sample - 3 + form % 5 * 4);
  };
  Indices all;
  for (std::int64_t index = 0; index < 7 * 5; ++index) all.insert(all.begin(), index);
  const Batch batch = mixture.get_padded(all, 6);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto row = std::int64_t(i);
    EXPECT_EQ(batch.input[row][0].item<std::int64_t>(), expected(all[i])) << all[i];
    EXPECT_EQ(batch.at("source")[row].item<std::int64_t>(), all[i] % 7 < 3 ? 1 : 2);
    EXPECT_EQ(batch.input[row].ge(0).sum().item<std::int64_t>(), mixture.length(all[i]));
    EXPECT_EQ(mixture.targets(all[i]), mixture.length(all[i]));
  }
  EXPECT_EQ(mixture.get(Indices{2, 3}).input.sizes(), (Indices{2, 3})) << "as long as the longest";
}

TEST(Mixture, OfSamplesThatAreAlikeHasNoLengths) {
  const auto tensors = [](std::int64_t first) {
    return std::make_shared<TensorDataset>(at::arange(first, first + 3, at::kLong).view({3, 1}),
                                           at::arange(first, first + 3, at::kLong));
  };
  const Mixture mixture({{tensors(10), 1}, {tensors(20), 1}});
  EXPECT_EQ(mixture.length(4), 0);
  EXPECT_TRUE(mixture.concurrent());
  const Batch batch = mixture.get(Indices{5, 0, 3});
  EXPECT_EQ(batch.target[0].item<std::int64_t>(), 22);
  EXPECT_EQ(batch.target[1].item<std::int64_t>(), 10);
  EXPECT_EQ(batch.target[2].item<std::int64_t>(), 20);
  EXPECT_EQ(batch.input.sizes(), (Indices{3, 1}));
}

TEST(Mixture, RefusesSourcesThatDoNotGoTogether) {
  const auto ragged = std::make_shared<Ragged>(1, 3, 1);
  const auto plain = std::make_shared<RandomTokens>(8, 4, 1);
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              Mixture({{ragged, 1}, {plain, 1}});
            }),
            "the datasets of a mixture must all have lengths and targets of samples, or none");
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              Mixture({{plain, 1}, {std::make_shared<RandomTokens>(8, 5, 1), 1}});
            }),
            "the datasets of a mixture must have the same tensors: sample 0 of the first has input "
            "Long [1, 4], target Long [1, 4], and that of number 2 has input Long [1, 5], target "
            "Long [1, 5]");
  EXPECT_EQ(
      thrown<InvalidArgument>([&] {
        Mixture({{std::make_shared<Mixture>(std::vector<Mixture::Source>{{ragged, 1}}), 1}});
      }),
      "a mixture is made of datasets with samples of their own: not of empty ones, streams or "
      "mixtures");
}

// Packed documents have a mask and positions, windows of a text have none.
TEST(Mixture, RefusesToDropTensorsOfASource) {
  const auto documents = std::make_shared<DocumentsInMemory>();
  documents->add(std::vector<std::int32_t>(20, 3));
  const auto packed =
      std::make_shared<PackedDocuments>(MarkedDocuments(documents, {.begin = 1, .end = 1}), 4);
  const auto plain = std::make_shared<RandomTokens>(8, 4, 1);
  for (const auto& sources : {std::vector<Mixture::Source>{{plain, 1}, {packed, 1}},
                              std::vector<Mixture::Source>{{packed, 1}, {plain, 1}}})
    EXPECT_NE(thrown<InvalidArgument>([&] { Mixture{sources}; }).find("must have the same tensors"),
              std::string::npos);
  const Mixture both({{packed, 1}, {packed, 2}});
  EXPECT_NE(both.get(Indices{0, 4}).find("mask"), nullptr);
}

}  // namespace
}  // namespace echelon
