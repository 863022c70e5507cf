#include "echelon/parallel/zero/zero_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Kind = Action::Kind;

StepShape shared(int micro_batches, int stage, std::vector<std::vector<int>> uses, int groups) {
  StepShape shape;
  shape.layers = int(uses.size());
  shape.micro_batches = micro_batches;
  shape.uses = std::move(uses);
  shape.groups = groups;
  shape.sliced_values = stage == 3;
  shape.sliced_gradients = stage >= 2;
  return shape;
}

std::ptrdiff_t count(const Table& table, Kind kind, int group) {
  return std::count_if(table.begin(), table.end(), [&](const Action& action) {
    return action.kind == kind && action.group == group;
  });
}

// The most bytes of groups that are unsharded or being gathered at once.
std::int64_t peak_bytes(const Table& table, const std::vector<std::int64_t>& bytes) {
  std::int64_t now = 0, peak = 0;
  for (const auto& action : table) {
    if (action.kind == Kind::gather) peak = std::max(peak, now += bytes[std::size_t(action.group)]);
    if (action.kind == Kind::reshard) now -= bytes[std::size_t(action.group)];
  }
  return peak;
}

TEST(ZeroTable, GathersEveryGroupAsOftenAsNeeded) {
  // Four layers with one group each, and a loss without parameters.
  const std::vector<std::vector<int>> uses = {{0}, {1}, {2}, {3}, {}};
  for (int micro_batches = 1; micro_batches <= 3; ++micro_batches)
    for (int stage = 1; stage <= 3; ++stage) {
      const auto shape = shared(micro_batches, stage, uses, 4);
      const auto table = zero(shape, {10, 10, 10, 10}, 25);
      validate(table, shape);
      for (int g = 0; g < 4; ++g) {
        EXPECT_EQ(count(table, Kind::scatter, g), stage >= 2 ? micro_batches : 1);
        // Gathered in forward and backward. The last group is kept in between, the first from one
        // micro-batch to the next.
        const int gathers = g == 3 ? micro_batches : g == 0 ? micro_batches + 1 : 2 * micro_batches;
        EXPECT_EQ(count(table, Kind::gather, g), stage == 3 ? gathers : 0) << "group " << g;
      }
      EXPECT_LE(peak_bytes(table, {10, 10, 10, 10}), 25);
    }
}

TEST(ZeroTable, KeepsATiedGroupForTheLayersThatUseIt) {
  const auto shape = shared(1, 3, {{0}, {1}, {2}, {0, 2}}, 3);
  const auto table = zero(shape, {10, 10, 10}, 1000);
  validate(table, shape);
  EXPECT_EQ(count(table, Kind::gather, 0), 3) << "embedding, head, embedding's backward";
  EXPECT_EQ(count(table, Kind::alloc_grads, 0), 1)
      << "its gradients live from the head to the embedding";
  EXPECT_EQ(count(table, Kind::scatter, 0), 1);
  EXPECT_EQ(count(table, Kind::gather, 2), 1);
}

TEST(ZeroTable, GathersNothingMoreForARecompute) {
  auto shape = shared(2, 3, {{0}, {1}, {2}, {3}, {0, 3}}, 4);
  const std::vector<std::int64_t> bytes = {10, 10, 10, 10};
  const auto plain = zero(shape, bytes, 25);
  shape.recompute = {false, true, true, true, false};
  const auto table = zero(shape, bytes, 25);
  validate(table, shape);
  for (int g = 0; g < 4; ++g)
    EXPECT_EQ(count(table, Kind::gather, g), count(plain, Kind::gather, g)) << "group " << g;
  EXPECT_EQ(peak_bytes(table, bytes), peak_bytes(plain, bytes));
  // A recomputed layer needs its parameters.
  Table early = table;
  const auto again = std::find_if(early.begin(), early.end(),
                                  [](const Action& a) { return a.kind == Kind::recompute; });
  const auto use = std::find_if(
      std::make_reverse_iterator(again), early.rend(),
      [&](const Action& a) { return a.kind == Kind::wait_unshard && a.group == again->layer; });
  std::rotate(use.base() - 1, again, again + 1);
  EXPECT_NE(thrown<InvalidArgument>([&] { validate(early, shape); }).find("is not there"),
            std::string::npos);
}

TEST(ZeroTable, IsValidForEveryModel) {
  const Key key = derive_key(11, "zero tables");
  std::uint64_t drawn = 0;
  const auto draw = [&](int below) { return int(uniform_at(key, drawn++) * below); };
  for (int round = 0; round < 2000; ++round) {
    const int groups = 1 + draw(6), layers = groups + draw(5), micro_batches = 1 + draw(3),
              stage = 1 + draw(3);
    std::vector<std::vector<int>> uses;
    for (int l = 0; l < layers; ++l) {
      std::set<int> mine;
      if (l < groups) mine.insert(l);  // every group has a user
      for (int extra = draw(3); extra > 0; --extra) mine.insert(draw(std::min(groups, l + 1)));
      uses.emplace_back(mine.begin(), mine.end());
    }
    std::vector<std::int64_t> bytes;
    for (int g = 0; g < groups; ++g) bytes.push_back(1 + draw(100));
    auto shape = shared(micro_batches, stage, uses, groups);
    for (int l = 0; l < layers; ++l) shape.recompute.push_back(draw(2) == 0);
    const auto table = zero(shape, bytes, draw(300));
    ASSERT_NO_THROW(validate(table, shape)) << "round " << round;
    // Without any one of its exchanges it is invalid.
    const auto at = std::size_t(draw(int(table.size())));
    if (table[at].kind != Kind::recompute &&
        (table[at].kind < Kind::gather || table[at].kind > Kind::scatter))
      continue;
    Table broken = table;
    broken.erase(broken.begin() + std::ptrdiff_t(at));
    EXPECT_THROW(validate(broken, shape), InvalidArgument)
        << to_string(table[at]) << " is missing, round " << round;
  }
}

}  // namespace
}  // namespace echelon
