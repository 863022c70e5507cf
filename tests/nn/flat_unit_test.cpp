#include "echelon/nn/flat_unit.h"

#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/random.h"
#include "echelon/nn/parameter.h"
#include "echelon/nn/stack.h"
#include "tests/nn/holder.h"

namespace echelon {
namespace {

Parameter parameter(std::string name, std::vector<std::int64_t> shape, bool decay, bool trainable,
                    int layer) {
  Parameter p;
  p.name = std::move(name);
  p.shape = std::move(shape);
  p.update.decay = decay;
  p.trainable = trainable;
  p.layer = layer;
  return p;
}

std::vector<FlatUnit> lay_out_all(const std::vector<Parameter>& parameters) {
  std::vector<const Parameter*> pointers;
  for (const auto& p : parameters) pointers.push_back(&p);
  return lay_out(pointers);
}

TEST(LayOut, PlacesTheSegmentsOfALayerAsTheHeaderSays) {
  const auto units = lay_out_all({
      parameter("norm", {5}, /*decay=*/false, /*trainable=*/true, 0),
      parameter("matrix", {3, 11}, true, true, 0),
      parameter("fixed", {70}, true, false, 0),
      parameter("scalar", {}, true, true, 0),
      parameter("head", {32, 2}, true, true, 2),
  });
  ASSERT_EQ(units.size(), 3U);
  const auto& first = units[0];
  EXPECT_EQ(first.layer, 0);
  EXPECT_TRUE(first.trainable);
  EXPECT_EQ(first.begin, 0);
  EXPECT_EQ(first.numel, 64 + 32 + 32);
  ASSERT_EQ(first.segments.size(), 3U);
  const std::vector<std::pair<std::string, std::int64_t>> expected = {
      {"matrix", 0}, {"scalar", 64}, {"norm", 96}};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(first.segments[i].name, expected[i].first);
    EXPECT_EQ(first.segments[i].offset, expected[i].second) << expected[i].first;
  }
  EXPECT_EQ(first.segments[0].numel, 33);
  EXPECT_EQ(first.segments[1].numel, 1);
  EXPECT_EQ(first.segments[0].shape, (std::vector<std::int64_t>{3, 11}));

  EXPECT_FALSE(units[1].trainable);
  EXPECT_EQ(units[1].begin, 0) << "frozen parameters have a buffer of their own";
  EXPECT_EQ(units[1].numel, 96);
  EXPECT_EQ(units[2].layer, 2);
  EXPECT_EQ(units[2].begin, 128);
  EXPECT_EQ(units[2].numel, 64);
}

TEST(LayOut, IsEmptyWithoutParameters) { EXPECT_TRUE(lay_out({}).empty()); }

// Random models: any number of layers, sizes from 0 up, every mixture of decaying, trainable and
// frozen parameters and of update rules.
std::vector<Parameter> random_model(std::uint64_t key) {
  std::vector<Parameter> parameters;
  auto draw = [&, counter = std::uint64_t{0}](std::int64_t n) mutable {
    return static_cast<std::int64_t>(uniform_at(key, counter++) * static_cast<double>(n));
  };
  const auto layers = 1 + draw(4);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (auto left = draw(7); left > 0; --left) {
      std::vector<std::int64_t> shape;
      for (auto dims = draw(3); dims > 0; --dims) shape.push_back(draw(40));
      const bool decay = draw(2) == 0, trainable = draw(4) != 0;
      parameters.push_back(parameter("p" + std::to_string(parameters.size()), shape, decay,
                                     trainable, static_cast<int>(layer)));
      if (draw(3) == 0) parameters.back().update.rate = 0.5;
      if (draw(4) == 0) parameters.back().update.own_decay = 0.01;
    }
  }
  return parameters;
}

constexpr std::uint64_t models = 200;

TEST(LayOut, HoldsEveryParameterOnceAlignedAndApart) {
  for (std::uint64_t model = 0; model < models; ++model) {
    const auto parameters = random_model(model);
    std::map<std::string, const Parameter*> missing;
    for (const auto& p : parameters) missing[p.name] = &p;

    std::map<bool, std::int64_t> end;  // of the trainable and the frozen buffer
    for (const auto& unit : lay_out_all(parameters)) {
      EXPECT_EQ(unit.begin, end[unit.trainable]) << "model " << model;
      EXPECT_EQ(unit.numel % segment_alignment, 0);
      end[unit.trainable] += unit.numel;
      std::int64_t used = 0;
      std::vector<UpdateRule> rules;  // in the order of the segments
      for (const auto& segment : unit.segments) {
        ASSERT_EQ(missing.count(segment.name), 1U) << segment.name << " of model " << model;
        const Parameter& p = *missing[segment.name];
        missing.erase(segment.name);
        EXPECT_EQ(p.layer, unit.layer);
        EXPECT_EQ(p.trainable, unit.trainable);
        EXPECT_EQ(p.update, segment.update);
        EXPECT_EQ(p.shape, segment.shape);
        EXPECT_EQ(p.numel(), segment.numel);
        EXPECT_EQ(segment.offset % segment_alignment, 0);
        EXPECT_GE(segment.offset, used) << segment.name << " overlaps in model " << model;
        EXPECT_LT(segment.offset - used, segment_alignment) << "more padding than needed";
        used = segment.offset + segment.numel;
        if (!rules.empty() && rules.back() == segment.update) continue;
        EXPECT_EQ(std::ranges::count(rules, segment.update), 0)
            << segment.name << " is apart from its group in model " << model;
        EXPECT_TRUE(rules.empty() || rules.back().decay || !segment.update.decay)
            << "a segment that decays after one that does not";
        rules.push_back(segment.update);
      }
      EXPECT_LE(used, unit.numel);
      EXPECT_LT(unit.numel - used, segment_alignment);
    }
    EXPECT_TRUE(missing.empty()) << missing.size() << " parameters of model " << model
                                 << " have no place";
  }
}

TEST(UpdateRanges, CoverTheTrainableBufferExactlyForAnyLimit) {
  for (std::uint64_t model = 0; model < models; ++model) {
    const auto units = lay_out_all(random_model(model));
    std::int64_t total = 0;
    for (const auto& unit : units) total += unit.trainable ? unit.numel : 0;
    for (const std::int64_t longest :
         {std::int64_t{1}, std::int64_t{31}, std::int64_t{32}, std::int64_t{100}, total,
          std::numeric_limits<std::int64_t>::max() / 2, std::numeric_limits<std::int64_t>::max()}) {
      if (longest == 0) continue;
      std::vector<UpdateRule> rules;  // by element
      for (const auto& range : update_ranges(units, Grain::group, longest)) {
        EXPECT_EQ(range.begin, static_cast<std::int64_t>(rules.size()))
            << "model " << model << ", longest " << longest;
        EXPECT_GT(range.numel, 0);
        EXPECT_LE(range.numel, longest);
        rules.insert(rules.end(), static_cast<std::size_t>(range.numel), range.update);
      }
      ASSERT_EQ(static_cast<std::int64_t>(rules.size()), total)
          << "model " << model << ", longest " << longest;
      for (const auto& unit : units) {
        if (!unit.trainable) continue;
        for (const auto& segment : unit.segments) {
          for (std::int64_t i = 0; i < segment.numel; ++i) {
            ASSERT_EQ(rules[static_cast<std::size_t>(unit.begin + segment.offset + i)],
                      segment.update)
                << "element " << i << " of " << segment.name << " in model " << model;
          }
        }
      }
    }
  }
}

TEST(ShardGroups, GivesACopyItsOwnGroupAndTheSameSlicesEverywhere) {
  const auto table = [](int layer) {
    auto p = parameter("table", {100, 8}, true, true, layer);
    p.copied = true;
    return p;
  };
  // Like an embedding with its first block, and like the last block with a head.
  auto first = lay_out_all({table(0), parameter("positions", {30}, true, true, 0),
                            parameter("block", {300}, true, true, 1)});
  auto last = lay_out_all({parameter("block", {300}, true, true, 4), table(5),
                           parameter("norm", {30}, false, true, 5)});
  const auto first_groups = make_shard_groups(first, /*shards=*/3, /*smallest=*/200);
  const auto last_groups = make_shard_groups(last, 3, 200);
  ASSERT_EQ(first_groups.size(), 2U);
  ASSERT_EQ(last_groups.size(), 2U);
  EXPECT_EQ(first.front().segments.front().name, "table");
  EXPECT_EQ(last.back().segments.front().name, "table");
  EXPECT_EQ(first_groups.front().numel, 864) << "800, padded to three times 32";
  EXPECT_EQ(last_groups.back().numel, 864);
  EXPECT_EQ(last_groups.front().numel, 384) << "the norm joins the block before it";
  EXPECT_EQ(first_groups.back().numel, 384) << "positions join the block behind them";
}

TEST(ShardGroups, CutsEachCopySeparately) {
  const auto copy = [](const char* name, int size, int layer) {
    auto p = parameter(name, {size}, true, true, layer);
    p.copied = true;
    return p;
  };
  auto both = lay_out_all({copy("a", 100, 0), copy("b", 50, 0)});
  auto one = lay_out_all({copy("b", 50, 4), parameter("w", {9}, true, true, 4)});
  const auto together = make_shard_groups(both, 3, 1000), alone = make_shard_groups(one, 3, 1000);
  ASSERT_EQ(together.size(), 2U);
  ASSERT_EQ(alone.size(), 2U);
  EXPECT_EQ(both[1].segments.front().name, "b");
  EXPECT_EQ(together[1].numel, alone[0].numel);
}

TEST(UpdateRanges, AreTwoPerUnitWithoutALimit) {
  const auto units =
      lay_out_all({parameter("w", {40}, true, true, 0), parameter("v", {40}, true, true, 0),
                   parameter("b", {40}, false, true, 0), parameter("c", {40}, false, true, 0)});
  const auto ranges = update_ranges(units, Grain::group, std::numeric_limits<std::int64_t>::max());
  ASSERT_EQ(ranges.size(), 2U);
  EXPECT_EQ(ranges[0].numel, 128);
  EXPECT_EQ(ranges[1].begin, 128);
  EXPECT_TRUE(ranges[0].update.decay);
  EXPECT_FALSE(ranges[1].update.decay);
}

TEST(UpdateRanges, AreOnePerGroupWhereverItsParametersWereDeclared) {
  std::vector<Parameter> parameters;
  for (int i = 0; i < 9; ++i) {
    parameters.push_back(parameter("p" + std::to_string(i), {33}, i < 6, true, 0));
    parameters.back().update.rate = i % 3 == 1 ? 10 : 1;
    if (i % 3 == 2) parameters.back().update.own_decay = 0.5;
  }
  const auto ranges = update_ranges(lay_out_all(parameters), Grain::group,
                                    std::numeric_limits<std::int64_t>::max());
  const std::int64_t a_parameter = 64;  // with padding
  ASSERT_EQ(ranges.size(), 6U) << "three that decay, of two parameters each, and three of one";
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(ranges[i].numel, i < 3 ? 2 * a_parameter : a_parameter) << i;
    EXPECT_EQ(ranges[i].update.rate, i % 3 == 1 ? 10 : 1) << i;
    EXPECT_EQ(ranges[i].update.decay_of(0.1), i % 3 == 2 ? 0.5 : i < 3 ? 0.1 : 0) << i;
  }
}

TEST(UpdateRanges, AreOnePerParameterWithoutPadding) {
  Stack stack = stack_of({{{"a.weight", {13, 7}, Init::zeros()},
                           {"a.bias", {7}, Init::zeros(), /*decay=*/false},
                           {"a.fixed", {5}, Init::zeros(), true, /*trainable=*/false}},
                          {{"b.weight", {3, 41}, Init::zeros()}}});
  stack.allocate(at::kCPU, at::kFloat, Gradients::no);
  const auto ranges = update_ranges(stack.units(), Grain::parameter, 100);
  ASSERT_EQ(ranges.size(), 4u) << "a.weight, a.bias, b.weight in two";
  const std::int64_t numel[] = {91, 7, 100, 23};
  const int parameter[] = {0, 1, 2, 2};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(ranges[i].numel, numel[i]);
    EXPECT_EQ(ranges[i].parameter, parameter[i]);
    EXPECT_EQ(ranges[i].update.decay, i != 1);
  }
}

}  // namespace
}  // namespace echelon
