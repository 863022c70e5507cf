#include "echelon/parallel/data/bucket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Kind = Action::Kind;

std::vector<FlatUnit> units_of(const std::vector<std::int64_t>& sizes) {
  std::vector<FlatUnit> units;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    units.push_back({.layer = int(i), .begin = begin, .numel = sizes[i], .segments = {}});
    begin += sizes[i];
  }
  return units;
}

TEST(Buckets, CoverTheBufferFromItsEndWithoutGap) {
  const Key key = derive_key(1, "buckets");
  std::uint64_t draw = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int64_t> sizes;
    const int layers = 1 + int(uniform_at(key, draw++) * 12);
    for (int l = 0; l < layers; ++l)  // some layers have no parameters
      sizes.push_back(32 * std::int64_t(uniform_at(key, draw++) * 10));
    const auto units = units_of(sizes);
    const std::int64_t all = units.back().begin + units.back().numel;
    const BucketSizes wanted{std::int64_t(uniform_at(key, draw++) * 200),
                             std::int64_t(uniform_at(key, draw++) * 400)};
    const auto buckets = cut_buckets(units, wanted);
    std::int64_t end = all;
    int layer = layers;
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      EXPECT_EQ(buckets[b].end, end);
      EXPECT_GT(buckets[b].numel(), 0);
      EXPECT_LT(buckets[b].layer, layer) << "backward goes down";
      const bool last = b + 1 == buckets.size();
      if (!last) {
        EXPECT_GE(buckets[b].numel(), b == 0 ? wanted.first : wanted.others);
      }
      end = buckets[b].begin;
      layer = buckets[b].layer;
    }
    EXPECT_EQ(end, 0);
  }
}

TEST(Buckets, BeginWithASmallOne) {
  const auto buckets = cut_buckets(units_of({100, 100, 100, 100, 100, 100}), {50, 200});
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].numel(), 100);
  EXPECT_EQ(buckets[0].layer, 5);
  EXPECT_EQ(buckets[1].numel(), 200);
  EXPECT_EQ(buckets[1].layer, 3);
  EXPECT_EQ(buckets[3].layer, 0);
}

TEST(Buckets, LeaveOutFrozenLayers) {
  auto units = units_of({64, 64, 64});
  units[1].trainable = false;
  units[2].begin = 64;
  const auto buckets = cut_buckets(units, {1, 1});
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].layer, 2);
  EXPECT_EQ(buckets[1].layer, 0);
}

TEST(Buckets, GrowWithLatencyAndBandwidth) {
  constexpr std::int64_t mib = (1 << 20) / 4;
  // 20 (alpha + 30 us) / beta
  EXPECT_EQ(bucket_sizes({70e-6, 1e-9}, 4, 0).others, 2000000 / 4);
  EXPECT_EQ(bucket_sizes({1e-6, 1e-6}, 4, 0).others, mib) << "never below 1 MiB";
  EXPECT_EQ(bucket_sizes({1e-3, 1e-12}, 4, 0).others, 25 * mib) << "never above 25 MiB";
  EXPECT_EQ(bucket_sizes({}, 4, 0).others, 4 * mib) << "nothing was measured";
  EXPECT_EQ(bucket_sizes({70e-6, 1e-9}, 4, 8).others, 8 * mib) << "the user's word";
  EXPECT_EQ(bucket_sizes({70e-6, 1e-9}, 4, 8).first, mib);
}

StepShape shape_of(int layers, int micro_batches, std::int64_t bucket) {
  return {
      layers, micro_batches,
      cut_buckets(units_of(std::vector<std::int64_t>(std::size_t(layers), 32)), {bucket, bucket})};
}

TEST(DataParallel, BeginsEachReductionRightAfterTheBackwardThatCompletesIt) {
  for (int layers = 1; layers <= 5; ++layers)
    for (int micro_batches = 1; micro_batches <= 3; ++micro_batches)
      for (const std::int64_t bucket : {1, 64, 96, 1000}) {
        const StepShape shape = shape_of(layers, micro_batches, bucket);
        const Table table = data_parallel(shape);
        EXPECT_NO_THROW(validate(table, shape));
        std::size_t reductions = 0;
        for (std::size_t i = 0; i < table.size(); ++i) {
          if (table[i].kind != Kind::reduce) continue;
          ++reductions;
          EXPECT_EQ(table[i - 1].kind, Kind::backward);
          EXPECT_EQ(table[i - 1].layer, shape.buckets[std::size_t(table[i].bucket)].layer);
          EXPECT_EQ(table[i - 1].micro_batch, micro_batches - 1);
        }
        EXPECT_EQ(reductions, shape.buckets.size());
        EXPECT_EQ(table[table.size() - 2].kind, Kind::synchronize);
      }
}

TEST(Validate, RejectsReductionsThatAreTooEarlyMissingOrDuplicate) {
  const StepShape shape = shape_of(3, 2, 1);
  const Table good = data_parallel(shape);
  const auto refusal = [&](const Table& table) {
    return thrown<InvalidArgument>([&] { validate(table, shape); });
  };
  for (std::size_t i = 0; i < good.size(); ++i) {
    if (good[i].kind != Kind::reduce && good[i].kind != Kind::synchronize) continue;
    Table without = good;
    without.erase(without.begin() + std::ptrdiff_t(i));
    EXPECT_NE(refusal(without), "(nothing was thrown)") << "without " << to_string(good[i]);
    Table twice = good;
    twice.insert(twice.begin() + std::ptrdiff_t(i), good[i]);
    EXPECT_NE(refusal(twice).find("it ran before"), std::string::npos) << to_string(good[i]);
    Table early = good;
    std::swap(early[i], early[i - 1]);
    EXPECT_NE(refusal(early), "(nothing was thrown)") << to_string(good[i]) << " early";
  }
  Table unknown = good;
  std::find_if(unknown.begin(), unknown.end(), [](const Action& action) {
    return action.kind == Kind::reduce;
  })->bucket = 7;
  EXPECT_NE(refusal(unknown).find("there are 3 buckets"), std::string::npos);
}

}  // namespace
}  // namespace echelon
