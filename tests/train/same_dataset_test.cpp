#include "echelon/train/same_dataset.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>

#include "echelon/base/error.h"
#include "echelon/data/dataset.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/train/trainer.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/nn/user_module.h"

namespace echelon {
namespace {

TensorDataset numbers(std::int64_t samples, double first = 0) {
  at::Tensor rows = at::arange(samples * 3, at::kDouble).view({samples, 3});
  rows[0] += first;
  return {rows, rows.narrow(1, 0, 1)};
}

std::vector<std::string> said(int world, const std::function<TensorDataset(int)>& data) {
  std::vector<std::string> all(static_cast<std::size_t>(world));
  run_ranks_well({.world = world}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    all[std::size_t(group.rank())] =
        thrown<InvalidArgument>([&] { require_same_dataset(data(group.rank()), *ranks, false); });
  });
  return all;
}

constexpr const char* advice =
    "; give every rank the whole dataset, of which the trainer gives it its part of each batch, or "
    "set TrainOptions::allow_other_data if that is meant";

TEST(SameDataset, AcceptsTheSameDatasetOnAllRanks) {
  for (const auto& words : said(3, [](int) { return numbers(10); }))
    EXPECT_EQ(words, "(nothing was thrown)");
}

// What users do who are used to a sampler that splits the data over the ranks.
TEST(SameDataset, RejectsRanksThatEachHaveAPart) {
  for (const auto& words : said(2, [](int rank) { return numbers(rank == 0 ? 10 : 9); }))
    EXPECT_EQ(words,
              std::string("ranks have different datasets: rank 1 has 9 samples and rank 0 has "
                          "10") +
                  advice);
}

TEST(SameDataset, RejectsDifferentSamplesInDatasetsOfEqualSize) {
  for (const auto& words : said(3, [](int rank) { return numbers(10, rank == 2 ? 0.5 : 0); }))
    EXPECT_EQ(words, std::string("ranks have different datasets: sample 0 of rank 2 is not that of "
                                 "rank 0") +
                         advice);
}

TEST(SameDataset, RejectsMixturesOfOtherWeights) {
  struct Mixed : TensorDataset {
    using TensorDataset::TensorDataset;
    std::int64_t weight = 1;
    std::vector<Part> parts() const override { return {{0, 4, weight}, {4, 6, 1}}; }
  };
  run_ranks_well({.world = 2}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    const at::Tensor rows = at::arange(10, at::kDouble).view({10, 1});
    Mixed data(rows, rows);
    data.weight = 1 + group.rank();
    EXPECT_EQ(thrown<InvalidArgument>([&] { require_same_dataset(data, *ranks, false); }),
              std::string("ranks have different datasets: rank 1 draws its samples in another way "
                          "than rank 0 (their variants, parts or weights)") +
                  advice);
  });
}

// Like random crops.
class Drawn : public Dataset {
 public:
  explicit Drawn(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Batch get(std::span<const std::int64_t> indices) const override {
    const auto n = static_cast<std::int64_t>(indices.size());
    return {at::full({n, 2}, double(++drawn)), at::full({n, 1}, double(drawn))};
  }

 private:
  inline static std::atomic<int> drawn = 0;
  std::int64_t size_;
};

TEST(SameDataset, ComparesRandomSamplesOnlyByTheirNumber) {
  run_ranks_well({.world = 2}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    require_same_dataset(Drawn(10), *ranks, false);
    EXPECT_THROW(require_same_dataset(Drawn(10 + group.rank()), *ranks, false), InvalidArgument);
  });
}

TEST(SameDataset, IsRequiredByATrainerOfSeveralRanks) {
  // Set on no rank, on all, and on one: ranks with different settings still make the same calls.
  for (const auto& allowed :
       {std::array{false, false}, {true, true}, {true, false}, {false, true}}) {
    std::atomic<int> refused = 0;
    run_ranks_well({.world = 2}, [&](Group& group) {
      const TensorDataset data = numbers(10 - group.rank());
      const UserModule net("net", {part::Linear{3, 1}});
      Stack stack;
      stack.add(net.layer()).add(loss_layer([](const at::Tensor& a, const at::Tensor& b) {
        return at::mse_loss(a, b);
      }));
      TrainOptions train = {.steps = 1, .batch = 4};
      train.precision = Precision::fp64;
      train.allow_other_data = allowed[std::size_t(group.rank())];
      try {
        Trainer trainer(stack, data, {.train = train, .optim = {.warmup = 0}},
                        native_communicator(group.shared_from_this()));
        trainer.run();
      } catch (const InvalidArgument&) {
        ++refused;
      }
    });
    EXPECT_EQ(refused, allowed[0] || allowed[1] ? 0 : 2) << allowed[0] << allowed[1];
  }
}

}  // namespace
}  // namespace echelon
