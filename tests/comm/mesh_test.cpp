#include "echelon/comm/mesh.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/comm/hosts.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

MeshShape mesh(int pipeline, int data, int tensor) {
  return {.pipeline = pipeline, .data = data, .tensor = tensor};
}

// Each dimension has one to three ranks.
std::vector<MeshShape> random_shapes(int count) {
  std::mt19937 random(7);
  std::vector<MeshShape> shapes;
  for (int i = 0; i < count; ++i) {
    MeshShape shape;
    for (const Dimension one : all_dimensions) shape[one] = 1 + int(random() % 3);
    shapes.push_back(shape);
  }
  return shapes;
}

std::vector<Dimensions> all_sets() {
  std::vector<Dimensions> sets;
  for (unsigned bits = 0; bits < 1U << all_dimensions.size(); ++bits) {
    Dimensions some;
    for (const Dimension one : all_dimensions)
      if (bits >> unsigned(one) & 1U) some.add(one);
    sets.push_back(some);
  }
  return sets;
}

TEST(Mesh, HasOnePlaceForEveryRank) {
  auto shapes = random_shapes(40);
  for (const MeshShape& shape : {mesh(2, 3, 4), mesh(1, 5, 1), mesh(4, 1, 2), mesh(1, 1, 1)})
    shapes.push_back(shape);
  for (const MeshShape& shape : shapes) {
    SCOPED_TRACE(to_string(shape));
    std::set<std::vector<int>> places;
    for (int position = 0; position < shape.ranks(); ++position) {
      const auto place = place_at(shape, position);
      std::vector<int> all;
      for (const Dimension one : all_dimensions) {
        EXPECT_GE(place[one], 0);
        EXPECT_LT(place[one], shape[one]);
        all.push_back(place[one]);
      }
      EXPECT_EQ(position_of(shape, place), position);
      places.insert(all);
    }
    EXPECT_EQ(int(places.size()), shape.ranks());
  }
  EXPECT_EQ(place_at(mesh(2, 2, 2), 3), (MeshPlace{.pipeline = 0, .data = 1, .tensor = 1}));
  EXPECT_EQ(place_at(mesh(2, 2, 2), 6), (MeshPlace{.pipeline = 1, .data = 1, .tensor = 0}));
  const MeshShape twos{.pipeline = 2, .data = 2, .context = 2, .expert = 2, .tensor = 2};
  EXPECT_EQ(place_at(twos, 1), MeshPlace{.tensor = 1});
  EXPECT_EQ(place_at(twos, 2), MeshPlace{.expert = 1});
  EXPECT_EQ(place_at(twos, 4), MeshPlace{.context = 1});
  EXPECT_EQ(place_at(twos, 8), MeshPlace{.data = 1});
  EXPECT_EQ(place_at(twos, 16), MeshPlace{.pipeline = 1});
}

TEST(Mesh, GroupsOverAnySetOfDimensionsPartitionTheRanks) {
  for (const MeshShape& shape : random_shapes(12))
    for (const Dimensions along : all_sets()) {
      SCOPED_TRACE(to_string(shape) + " over " + to_string(along));
      int size = 1;
      for (const Dimension one : all_dimensions) size *= along.contains(one) ? shape[one] : 1;
      std::set<std::vector<int>> groups;
      for (int position = 0; position < shape.ranks(); ++position) {
        const MeshPlace place = place_at(shape, position);
        const auto group = group_of(shape, place, along);
        groups.insert(group);
        ASSERT_EQ(int(group.size()), size);
        ASSERT_TRUE(std::is_sorted(group.begin(), group.end()));
        for (int other = 0; other < shape.ranks(); ++other) {
          const MeshPlace there = place_at(shape, other);
          bool differs_elsewhere = false;
          for (const Dimension one : all_dimensions)
            differs_elsewhere |= !along.contains(one) && there[one] != place[one];
          ASSERT_EQ(std::binary_search(group.begin(), group.end(), other), !differs_elsewhere);
        }
      }
      std::set<int> members;
      for (const auto& group : groups) members.insert(group.begin(), group.end());
      EXPECT_EQ(int(members.size()), shape.ranks());
      EXPECT_EQ(int(groups.size()) * size, shape.ranks()) << "no rank is in two of them";
    }
}

TEST(Mesh, NamesContextAndExpertsIfTheyHaveSeveralRanks) {
  EXPECT_EQ(to_string(mesh(2, 4, 1)), "pipeline 2 x data 4 x tensor 1");
  EXPECT_EQ(to_string(MeshShape{.data = 2, .expert = 4}),
            "pipeline 1 x data 2 x expert 4 x tensor 1");
  EXPECT_EQ(to_string(MeshShape{.data = 2, .context = 3, .expert = 4, .tensor = 2}),
            "pipeline 1 x data 2 x context 3 x expert 4 x tensor 2");
  EXPECT_EQ(to_string(batch_dimensions), "data x context x expert");
  EXPECT_EQ(to_string(Dimensions{}), "nothing");
}

TEST(Mesh, GivesDataTheRanksThatOtherDimensionsLeave) {
  EXPECT_EQ(mesh_shape(8, mesh(2, 0, 2)), mesh(2, 2, 2));
  EXPECT_EQ(mesh_shape(8, mesh(1, 0, 1)), mesh(1, 8, 1));
  EXPECT_EQ(mesh_shape(6, mesh(3, 2, 1)), mesh(3, 2, 1));
  EXPECT_EQ(mesh_shape(24, {.data = 0, .context = 2, .expert = 3}),
            (MeshShape{.data = 4, .context = 2, .expert = 3}));
}

TEST(Mesh, RefusalNamesTheNearestNumbersThatDivide) {
  const auto refused = [](int ranks, int pipeline, int data, int tensor) {
    return thrown<InvalidArgument>([&] { mesh_shape(ranks, mesh(pipeline, data, tensor)); });
  };
  EXPECT_EQ(refused(8, 3, 0, 2),
            "pipeline 3 x tensor 2 takes 6 ranks or a multiple, and there are 8: start 6 or 12");
  EXPECT_EQ(refused(2, 2, 0, 2),
            "pipeline 2 x tensor 2 takes 4 ranks or a multiple, and there are 2: start 4");
  EXPECT_EQ(refused(8, 2, 3, 1),
            "pipeline 2 x data 3 x tensor 1 takes 6 ranks, and there are 8: start 6, or let data "
            "be what is left");
  EXPECT_EQ(
      refused(8, 0, 1, 1),
      "a mesh of 8 ranks, pipeline 0 x data 1 x tensor 1, cannot be: each is 1 or more, and a "
      "million at most");
  EXPECT_EQ(
      thrown<InvalidArgument>([] { mesh_shape(8, {.data = 0, .expert = 3}); }),
      "pipeline 1 x expert 3 x tensor 1 takes 3 ranks or a multiple, and there are 8: start 6 "
      "or 9");
}

TEST(Hosts, AreNumberedInTheOrderInWhichRanksNameThem) {
  const Hosts hosts = number_hosts({"b", "a", "b", "c", "a"});
  EXPECT_EQ(hosts.names, (std::vector<std::string>{"b", "a", "c"}));
  EXPECT_EQ(hosts.ranks, (std::vector<std::vector<int>>{{0, 2}, {1, 4}, {3}}));
  EXPECT_EQ(hosts.of, (std::vector{0, 1, 0, 2, 1}));
  EXPECT_EQ(hosts.local, (std::vector{0, 0, 1, 0, 1}));
}

TEST(Mesh, KeepsTensorGroupsWithinHostsWhateverTheRankNumbers) {
  const std::vector<std::string> dealt = {"a", "b", "a", "b", "a", "b", "a", "b"};
  EXPECT_EQ(mesh_order(dealt), (std::vector{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_TRUE(tensor_within_hosts(mesh(2, 2, 2), dealt));
  EXPECT_TRUE(tensor_within_hosts(mesh(1, 2, 4), dealt));
  EXPECT_FALSE(tensor_within_hosts(mesh(1, 1, 8), dealt));
  EXPECT_FALSE(tensor_within_hosts(mesh(1, 2, 2), {"a", "a", "a", "b"}));
}

TEST(Mesh, IsDrawnByStageAndGroup) {
  EXPECT_EQ(draw_mesh(mesh(2, 2, 2), std::vector<std::string>(8, "a")),
            "8 ranks on 1 host: pipeline 2 x data 2 x tensor 2\n"
            "\n"
            "           data 0   data 1\n"
            "stage 0    [ 0 1 ]  [ 2 3 ]\n"
            "stage 1    [ 4 5 ]  [ 6 7 ]\n");
  EXPECT_EQ(draw_mesh(mesh(1, 2, 2), {"a", "b", "a", "b"}),
            "4 ranks on 2 hosts: pipeline 1 x data 2 x tensor 2, tensor groups within a host\n"
            "\n"
            "           data 0      data 1\n"
            "stage 0    [h0: 0 2 ]  [h1: 1 3 ]\n"
            "\n"
            "h0 is a\n"
            "h1 is b\n");
  EXPECT_EQ(draw_mesh({.pipeline = 2, .data = 2, .expert = 2}, std::vector<std::string>(8, "a")),
            "8 ranks on 1 host: pipeline 2 x data 2 x expert 2 x tensor 1\n"
            "\n"
            "           data 0 expert 0  data 0 expert 1  data 1 expert 0  data 1 expert 1\n"
            "stage 0    [ 0 ]            [ 1 ]            [ 2 ]            [ 3 ]\n"
            "stage 1    [ 4 ]            [ 5 ]            [ 6 ]            [ 7 ]\n");
}

TEST(Mesh, ContinuesBelowIfItIsTooWide) {
  EXPECT_EQ(draw_mesh(mesh(2, 3, 1), std::vector<std::string>(6, "a"), 30),
            "6 ranks on 1 host: pipeline 2 x data 3 x tensor 1\n"
            "\n"
            "           data 0  data 1\n"
            "stage 0    [ 0 ]   [ 1 ]\n"
            "stage 1    [ 3 ]   [ 4 ]\n"
            "\n"
            "           data 2\n"
            "stage 0    [ 2 ]\n"
            "stage 1    [ 5 ]\n");
}

TEST(Mesh, TellsWhetherStagesSpreadOverHostsAlike) {
  const auto alike = [](const MeshShape& shape, const std::vector<std::string>& hosts) {
    Mesh two_stages;
    two_stages.shape = shape;
    two_stages.order = mesh_order(hosts);
    two_stages.hosts = hosts;
    return two_stages.lie_alike(0, 1);
  };
  EXPECT_TRUE(alike(mesh(2, 3, 1), {"a", "a", "a", "a", "a", "a"}));
  EXPECT_TRUE(alike(mesh(2, 3, 1), {"a", "a", "a", "b", "b", "b"}));
  EXPECT_TRUE(alike(mesh(2, 2, 1), {"a", "b", "c", "d"}));
  EXPECT_FALSE(alike(mesh(2, 3, 1), {"a", "a", "a", "a", "b", "b"}))
      << "a stage within a, one on both";
  EXPECT_FALSE(alike(mesh(2, 2, 1), {"a", "a", "b", "c"}));
}

// Each rank of a group contributes its number.
void expect_members(Communicator* ranks, const Mesh& mesh, Dimensions along) {
  SCOPED_TRACE(to_string(mesh.shape) + " over " + to_string(along));
  std::vector<int> expected;
  for (const int position : group_of(mesh.shape, mesh.place, along))
    expected.push_back(mesh.order[std::size_t(position)]);
  ASSERT_EQ(ranks != nullptr, expected.size() > 1);
  if (!ranks) return;
  ASSERT_EQ(ranks->size(), int(expected.size()));
  const at::Tensor mine = at::full({1}, mesh.all->rank(), at::kLong),
                   all = at::empty({ranks->size()}, at::kLong);
  ranks->all_gather(all, mine).wait();
  for (int i = 0; i < ranks->size(); ++i)
    EXPECT_EQ(all[i].item<std::int64_t>(), expected[std::size_t(i)]);
  EXPECT_EQ(expected[std::size_t(ranks->rank())], mesh.all->rank());
}

TEST(Mesh, ConnectsRanksThatDifferAlongOneDimension) {
  for (const MeshShape& shape : {mesh(2, 2, 2), MeshShape{.data = 2, .context = 2, .expert = 2},
                                 MeshShape{.pipeline = 2, .expert = 2, .tensor = 2}})
    run_ranks_well({.world = 8, .hosts = 2}, [&](Group& group) {
      const Mesh made = make_mesh(native_communicator(group.shared_from_this()), shape);
      for (const Dimension one : all_dimensions) {
        expect_members(made.along(one).get(), made, {one});
        if (made.along(one)) {
          EXPECT_EQ(made.along(one)->rank(), made.place[one]) << name_of(one);
        }
      }
      EXPECT_EQ(made.rank_at(made.place), group.rank());
      EXPECT_EQ(made.all->size(), 8);
    });
  run_ranks_well({.world = 3}, [&](Group& group) {
    const Mesh made = make_mesh(native_communicator(group.shared_from_this()), mesh(1, 3, 1));
    EXPECT_TRUE(made.data && !made.tensor && !made.pipeline && !made.context && !made.expert);
    EXPECT_EQ(thrown<InvalidArgument>([&] { make_mesh(made.all, mesh(2, 2, 1)); }),
              "a mesh of pipeline 2 x data 2 x tensor 1 takes 4 ranks, and there are 3");
  });
}

TEST(Mesh, ConnectsRanksThatDifferAlongASetOfDimensionsOnce) {
  for (const MeshShape& shape : {mesh(2, 2, 2), MeshShape{.data = 2, .expert = 2, .tensor = 2},
                                 MeshShape{.pipeline = 2, .data = 2, .context = 2}})
    run_ranks_well({.world = 8, .hosts = 2}, [&](Group& group) {
      Mesh made = make_mesh(native_communicator(group.shared_from_this()), shape);
      for (const Dimensions along : all_sets()) {
        const auto ranks = made.over(along);
        expect_members(ranks.get(), made, along);
        EXPECT_EQ(made.over(along), ranks) << to_string(along);
      }
      // Three pairs of dimensions have their own communicator; the set of all three uses the one of
      // all ranks.
      EXPECT_EQ(made.made.size(), 4U);
      EXPECT_EQ(made.over(all_sets().back()), made.all);
    });
}

// If ranks are dealt out to hosts in turn, places differ from rank numbers.
TEST(Mesh, OrdersASetByPlaceWhateverTheRankNumbers) {
  const auto deal = [](int rank, NetOptions& net, CommOptions&) {
    net.host = rank % 2 == 0 ? "even" : "odd";
  };
  run_ranks_well({.world = 4, .differ = deal}, [&](Group& group) {
    Mesh made =
        make_mesh(native_communicator(group.shared_from_this()), MeshShape{.data = 2, .expert = 2});
    EXPECT_EQ(made.order, (std::vector{0, 2, 1, 3}));
    expect_members(made.over({Dimension::data, Dimension::expert}).get(), made,
                   {Dimension::data, Dimension::expert});
  });
}

}  // namespace
}  // namespace echelon
