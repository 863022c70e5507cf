#include "echelon/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

// A dataset that is only described.
struct Described : Dataset {
  std::int64_t samples = 0;
  std::vector<std::int64_t> lengths = {};
  std::int64_t forms = 1;
  std::vector<Part> mixture = {};
  bool stream = false;

  std::int64_t size() const override { return samples; }
  Batch get(std::span<const std::int64_t>) const override { return {}; }
  std::int64_t length(std::int64_t index) const override {
    return lengths.empty() ? 0 : lengths[std::size_t(index % samples)];
  }
  std::int64_t variants() const override { return forms; }
  std::vector<Part> parts() const override { return mixture; }
  bool in_sequence() const override { return stream; }
};

Described of_size(std::int64_t samples) {
  Described data;
  data.samples = samples;
  return data;
}

// Lengths as sentences of a labelled corpus have them: about log-normal, between 2 and 128 tokens,
// with a mean of 25.
Described sentences(std::int64_t samples) {
  Described data = of_size(samples);
  for (std::int64_t i = 0; i < samples; ++i)
    data.lengths.push_back(std::clamp<std::int64_t>(
        std::llround(std::exp(3.0 + 0.7 * normal_at(derive_key(1, "lengths"), std::uint64_t(i)))),
        2, 128));
  return data;
}

// All samples of the first `steps` steps, in order.
std::vector<std::int64_t> drawn(const Sampler& sampler, std::int64_t steps, std::int64_t batch) {
  std::vector<std::int64_t> all;
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto some = sampler.indices(step, 0, batch);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

TEST(Sampler, DrawsEverySampleOnceAnEpoch) {
  for (const std::int64_t samples : {1, 2, 7, 64, 1000}) {
    for (const std::int64_t batch : {1, 3, 8, 50}) {
      constexpr std::int64_t epochs = 3;
      const auto all =
          drawn(Sampler(5, samples, batch), (epochs * samples + batch - 1) / batch, batch);
      for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
        const auto begin = all.begin() + epoch * samples;
        const std::set<std::int64_t> seen(begin, begin + samples);
        EXPECT_EQ(seen.size(), static_cast<std::size_t>(samples))
            << "epoch " << epoch << " of " << samples << " samples, batch " << batch;
        EXPECT_EQ(*seen.begin(), 0);
        EXPECT_EQ(*seen.rbegin(), samples - 1);
      }
    }
  }
}

TEST(Sampler, GivesEveryEpochAnOrderOfItsOwn) {
  const auto all = drawn(Sampler(5, 1000, 10), 200, 10);
  int same_place = 0, in_order = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    same_place += all[i] == all[i + 1000];
    in_order += all[i] == static_cast<std::int64_t>(i);
  }
  EXPECT_LE(same_place, 8);  // 1 on average
  EXPECT_LE(in_order, 8);
}

TEST(Sampler, IsAPureFunctionOfSeedStepAndPlace) {
  const Sampler one(9, 100, 8), other(9, 100, 8);
  const auto late = one.index(77, 3);
  for (std::int64_t step = 0; step < 30; ++step) one.indices(step, 0, 8);
  EXPECT_EQ(one.index(77, 3), late) << "what was drawn before must not matter";
  EXPECT_EQ(other.index(77, 3), late);
}

TEST(Sampler, GivesTheSameGlobalBatchToAnyNumberOfRanks) {
  constexpr std::int64_t batch = 24;
  const Sampler sampler(3, 100, batch);
  for (std::int64_t step = 0; step < 9; ++step) {
    const auto whole = sampler.indices(step, 0, batch);
    for (const std::int64_t ranks : {1, 2, 3, 5, 7, 24}) {
      std::vector<std::int64_t> together;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const auto part = sampler.indices(step, batch * rank / ranks, batch * (rank + 1) / ranks);
        together.insert(together.end(), part.begin(), part.end());
      }
      EXPECT_EQ(together, whole) << ranks << " ranks, step " << step;
    }
    for (std::int64_t place = 0; place < batch; ++place) {
      EXPECT_EQ(sampler.index(step, place), whole[static_cast<std::size_t>(place)]);
    }
  }
}

TEST(Sampler, DrawsAnotherOrderForAnotherSeed) {
  const auto one = drawn(Sampler(1, 1000, 10), 100, 10),
             other = drawn(Sampler(2, 1000, 10), 100, 10);
  int same = 0;
  for (std::size_t i = 0; i < 1000; ++i) same += one[i] == other[i];
  EXPECT_LE(same, 8);
}

TEST(Sampler, ContinuesIntoTheNextEpochWithinABatchLargerThanTheData) {
  auto one_step = Sampler(1, 3, 6).indices(0, 0, 6);
  std::sort(one_step.begin(), one_step.end());
  EXPECT_EQ(one_step, (std::vector<std::int64_t>{0, 0, 1, 1, 2, 2}));
}

TEST(Sampler, OrdersSamplesThatAreAlikeAsItAlwaysDid) {
  // Drawn by the sampler of the first release.
  EXPECT_EQ(Sampler(1, 10, 4).indices(0, 0, 4), (std::vector<std::int64_t>{3, 5, 4, 6}));
  EXPECT_EQ(Sampler(7, 1000, 3).indices(1000, 0, 3), (std::vector<std::int64_t>{594, 429, 271}));
  const Described plain = of_size(97);
  EXPECT_EQ(drawn(Sampler(5, plain, 8, 32), 60, 8), drawn(Sampler(5, 97, 8), 60, 8));
}

TEST(Sampler, TakesTheFormsOfASampleInTurn) {
  Described data = of_size(10);
  data.forms = 3;
  const auto all = drawn(Sampler(2, data, 5), 8, 5), plain = drawn(Sampler(2, 10, 5), 8, 5);
  for (std::size_t i = 0; i < all.size(); ++i)
    EXPECT_EQ(all[i], plain[i] + std::int64_t(i / 10 % 3) * 10) << i;
}

TEST(Sampler, DrawsFromAStreamInItsOrder) {
  Described data = of_size(std::int64_t{1} << 62);
  data.stream = true;
  EXPECT_EQ(Sampler(1, data, 4).indices(1000, 1, 4), (std::vector<std::int64_t>{4001, 4002, 4003}));
}

TEST(Sampler, DrawsFromThePartsOfAMixtureExactlyByWeight) {
  for (const auto& weights :
       std::vector<std::vector<std::int64_t>>{{7, 2, 1}, {1, 1}, {1, 1000}, {5}}) {
    Described data;
    for (std::size_t part = 0; part < weights.size(); ++part) {
      const std::int64_t samples = 3 + 10 * std::int64_t(part);
      data.mixture.push_back({data.samples, samples, weights[part]});
      data.samples += samples;
    }
    const auto cycle = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
    const Sampler sampler(3, data, 1);
    std::vector<std::map<std::int64_t, std::int64_t>> times(weights.size());
    constexpr std::int64_t cycles = 40;
    for (std::int64_t i = 0; i < cycle * cycles; ++i) {
      const auto index = sampler.index(i, 0);
      std::size_t part = weights.size() - 1;
      while (data.mixture[part].first > index) --part;
      ++times[part][index];
      if ((i + 1) % cycle != 0) continue;
      for (std::size_t p = 0; p < weights.size(); ++p) {
        std::int64_t of_part = 0, least = cycles * cycle, most = 0;
        for (const auto& [sample, count] : times[p]) {
          of_part += count;
          least = std::min(least, count);
          most = std::max(most, count);
        }
        ASSERT_EQ(of_part, weights[p] * ((i + 1) / cycle)) << "part " << p << " after " << i + 1;
        // Every sample of the part once per epoch of the part.
        const auto samples = data.mixture[p].samples;
        ASSERT_EQ(most, (of_part + samples - 1) / samples);
        if (std::int64_t(times[p].size()) == samples) {
          ASSERT_EQ(least, of_part / samples);
        }
      }
    }
  }
}

TEST(Sampler, SortsByLengthWithoutLosingASample) {
  const Described data = sentences(2000);
  for (const std::int64_t batch : {1, 7, 32}) {
    for (const std::int64_t together : {2, 5, 50}) {
      // In a whole number of groups, the draws are those without sorting.
      const std::int64_t steps = together * 4;
      auto sorted = drawn(Sampler(5, data, batch, together), steps, batch),
           plain = drawn(Sampler(5, 2000, batch), steps, batch);
      EXPECT_NE(sorted, plain);
      for (std::int64_t group = 0; group < 4; ++group) {
        const auto size = together * batch;
        std::sort(sorted.begin() + group * size, sorted.begin() + (group + 1) * size);
        std::sort(plain.begin() + group * size, plain.begin() + (group + 1) * size);
      }
      EXPECT_EQ(sorted, plain) << "batch " << batch << ", " << together << " together";
    }
  }
}

// Of all tokens of padded batches, the share that is padding.
double padding(const Sampler& sampler, const Described& data, std::int64_t steps,
               std::int64_t batch) {
  double real = 0, all = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    std::int64_t longest = 0;
    for (const auto index : sampler.indices(step, 0, batch)) {
      real += double(data.length(index));
      longest = std::max(longest, data.length(index));
    }
    EXPECT_EQ(sampler.longest(step), longest);
    all += double(longest * batch);
  }
  return 1 - real / all;
}

TEST(Sampler, LeavesLittlePaddingInSentences) {
  const Described data = sentences(67'349);  // as many as SST-2 has
  constexpr std::int64_t batch = 32, steps = 2105;
  const double unsorted = padding(Sampler(1, data, batch, 1), data, steps, batch),
               sorted = padding(Sampler(1, data, batch, 64), data, steps, batch);
  RecordProperty("padding without sorting", std::to_string(unsorted));
  RecordProperty("padding", std::to_string(sorted));
  EXPECT_GT(unsorted, 0.6);
  EXPECT_LT(sorted, 0.05);
}

TEST(Sampler, SortsAtMostAnEpochTogether) {
  const Described data = sentences(50);
  EXPECT_EQ(drawn(Sampler(5, data, 8, 1000), 24, 8), drawn(Sampler(5, data, 8, 6), 24, 8));
  EXPECT_EQ(drawn(Sampler(5, data, 80, 1000), 4, 80), drawn(Sampler(5, data, 80), 4, 80));
}

TEST(Sampler, MixesBatchesAndPlacesOfSortedSamples) {
  const Described data = sentences(10'000);
  const Sampler sampler(1, data, 16, 50);
  std::vector<double> first, last, longest;
  for (std::int64_t step = 0; step < 400; ++step) {
    first.push_back(double(data.length(sampler.index(step, 0))));
    last.push_back(double(data.length(sampler.index(step, 15))));
    longest.push_back(double(sampler.longest(step)));
  }
  const auto mean = [](const std::vector<double>& all) {
    return std::accumulate(all.begin(), all.end(), 0.0) / double(all.size());
  };
  EXPECT_NEAR(mean(first), mean(last), 0.5) << "no rank gets the short ones";
  // Neighbouring batches are as different as any two: their correlation is near 0.
  double with_next = 0, with_itself = 0;
  for (std::size_t i = 0; i + 1 < longest.size(); ++i) {
    with_next += (longest[i] - mean(longest)) * (longest[i + 1] - mean(longest));
    with_itself += (longest[i] - mean(longest)) * (longest[i] - mean(longest));
  }
  EXPECT_LT(std::abs(with_next / with_itself), 0.15);
}

TEST(Sampler, GivesRanksAndResumedRunsTheSameSortedMixture) {
  Described data = sentences(500);
  data.forms = 4;
  data.mixture = {{0, 300, 3}, {300, 200, 2}};
  constexpr std::int64_t batch = 24;
  const Sampler whole(3, data, batch, 10);
  std::vector<std::vector<std::int64_t>> steps;
  for (std::int64_t step = 0; step < 60; ++step) steps.push_back(whole.indices(step, 0, batch));
  for (const std::int64_t ranks : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const std::int64_t begin : {0, 1, 9, 10, 37}) {  // also within a group
      std::vector<std::unique_ptr<Sampler>> samplers;
      for (std::int64_t rank = 0; rank < ranks; ++rank)
        samplers.push_back(std::make_unique<Sampler>(3, data, batch, 10));
      for (auto step = begin; step < 60; ++step) {
        std::vector<std::int64_t> together;
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
          const auto part = samplers[std::size_t(rank)]->indices(step, batch * rank / ranks,
                                                                 batch * (rank + 1) / ranks);
          together.insert(together.end(), part.begin(), part.end());
        }
        ASSERT_EQ(together, steps[std::size_t(step)]) << ranks << " ranks, step " << step;
      }
    }
  }
}

TEST(Sampler, RefusesDescriptionsThatContradictThemselves) {
  const auto said = [](const std::vector<Dataset::Part>& parts) {
    Described data = of_size(10);
    data.mixture = parts;
    return thrown<InvalidArgument>([&] { Sampler(1, data, 2); });
  };
  EXPECT_EQ(
      said({{0, 4, 1}, {5, 5, 1}}),
      "the parts of a mixture must follow each other and cover all 10 samples: one is 5 samples "
      "from 5 on, where 4 is the next");
  EXPECT_EQ(
      said({{0, 4, 1}, {4, 7, 1}}),
      "the parts of a mixture must follow each other and cover all 10 samples: one is 7 samples "
      "from 4 on, where 4 is the next");
  EXPECT_EQ(said({{0, 4, 1}, {4, 5, 1}}), "the parts of a mixture cover 9 of its 10 samples");
  EXPECT_EQ(
      said({{0, 4, 1}, {4, 6, 0}}),
      "the weights of a mixture must be at least 1 and add up to at most 1000000000: one is 0");
  Described data = of_size(std::int64_t{1} << 40);
  data.forms = std::int64_t{1} << 30;
  EXPECT_EQ(thrown<InvalidArgument>([&] { Sampler(1, data, 2); }),
            "a dataset of 1099511627776 samples cannot have 1073741824 variants of each");
}

}  // namespace
}  // namespace echelon
