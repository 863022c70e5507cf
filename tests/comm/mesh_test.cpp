#include "echelon/comm/mesh.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <set>

#include "echelon/base/error.h"
#include "echelon/comm/hosts.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

TEST(Mesh, HasOnePlaceForEveryRank) {
  for (const MeshShape shape : {MeshShape{2, 3, 4}, {1, 5, 1}, {4, 1, 2}, {1, 1, 1}}) {
    std::set<std::vector<int>> places;
    for (int position = 0; position < shape.ranks(); ++position) {
      const auto place = place_at(shape, position);
      EXPECT_LT(place.pipeline, shape.pipeline);
      EXPECT_LT(place.data, shape.data);
      EXPECT_LT(place.tensor, shape.tensor);
      EXPECT_EQ(position_of(shape, place), position) << to_string(shape);
      places.insert({place.pipeline, place.data, place.tensor});
    }
    EXPECT_EQ(int(places.size()), shape.ranks()) << to_string(shape);
  }
  EXPECT_EQ(place_at({2, 2, 2}, 3), (MeshPlace{.pipeline = 0, .data = 1, .tensor = 1}));
  EXPECT_EQ(place_at({2, 2, 2}, 6), (MeshPlace{.pipeline = 1, .data = 1, .tensor = 0}));
}

TEST(Mesh, TakesWhatTheOtherDimensionsLeaveForData) {
  EXPECT_EQ(mesh_shape(8, 2, 0, 2), (MeshShape{2, 2, 2}));
  EXPECT_EQ(mesh_shape(8, 1, 0, 1), (MeshShape{1, 8, 1}));
  EXPECT_EQ(mesh_shape(6, 3, 2, 1), (MeshShape{3, 2, 1}));
}

TEST(Mesh, IsRefusedWithTheNearestThatDivides) {
  const auto refused = [](int ranks, int pipeline, int data, int tensor) {
    return thrown<InvalidArgument>([&] { mesh_shape(ranks, pipeline, data, tensor); });
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
}

TEST(Hosts, AreNumberedAsRanksNameThem) {
  const Hosts hosts = number_hosts({"b", "a", "b", "c", "a"});
  EXPECT_EQ(hosts.names, (std::vector<std::string>{"b", "a", "c"}));
  EXPECT_EQ(hosts.ranks, (std::vector<std::vector<int>>{{0, 2}, {1, 4}, {3}}));
  EXPECT_EQ(hosts.of, (std::vector{0, 1, 0, 2, 1}));
  EXPECT_EQ(hosts.local, (std::vector{0, 0, 1, 0, 1}));
}

TEST(Mesh, KeepsTensorGroupsWithinHostsWhateverTheNumbersOfRanks) {
  const std::vector<std::string> dealt = {"a", "b", "a", "b", "a", "b", "a", "b"};
  EXPECT_EQ(mesh_order(dealt), (std::vector{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_TRUE(tensor_within_hosts({2, 2, 2}, dealt));
  EXPECT_TRUE(tensor_within_hosts({1, 2, 4}, dealt));
  EXPECT_FALSE(tensor_within_hosts({1, 1, 8}, dealt));
  EXPECT_FALSE(tensor_within_hosts({1, 2, 2}, {"a", "a", "a", "b"}));
}

TEST(Mesh, IsDrawnByStageAndGroup) {
  EXPECT_EQ(draw_mesh({2, 2, 2}, std::vector<std::string>(8, "a")),
            "8 ranks on 1 host: pipeline 2 x data 2 x tensor 2\n"
            "\n"
            "           data 0   data 1\n"
            "stage 0    [ 0 1 ]  [ 2 3 ]\n"
            "stage 1    [ 4 5 ]  [ 6 7 ]\n");
  EXPECT_EQ(draw_mesh({1, 2, 2}, {"a", "b", "a", "b"}),
            "4 ranks on 2 hosts: pipeline 1 x data 2 x tensor 2, tensor groups within a host\n"
            "\n"
            "           data 0      data 1\n"
            "stage 0    [h0: 0 2 ]  [h1: 1 3 ]\n"
            "\n"
            "h0 is a\n"
            "h1 is b\n");
}

TEST(Mesh, GoesOnBelowWhereItIsTooWide) {
  EXPECT_EQ(draw_mesh({2, 3, 1}, std::vector<std::string>(6, "a"), 30),
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

TEST(Mesh, KnowsWhetherStagesLieOverHostsAlike) {
  const auto alike = [](const MeshShape& shape, const std::vector<std::string>& hosts) {
    Mesh mesh;
    mesh.shape = shape;
    mesh.order = mesh_order(hosts);
    mesh.hosts = hosts;
    return mesh.lie_alike(0, 1);
  };
  EXPECT_TRUE(alike({2, 3, 1}, {"a", "a", "a", "a", "a", "a"}));
  EXPECT_TRUE(alike({2, 3, 1}, {"a", "a", "a", "b", "b", "b"}));
  EXPECT_TRUE(alike({2, 2, 1}, {"a", "b", "c", "d"}));
  EXPECT_FALSE(alike({2, 3, 1}, {"a", "a", "a", "a", "b", "b"})) << "a stage within a, one on both";
  EXPECT_FALSE(alike({2, 2, 1}, {"a", "a", "b", "c"}));
}

// Each rank tells its number to those along each dimension.
TEST(Mesh, ConnectsThoseThatDifferAlongOneDimension) {
  const MeshShape shape{2, 2, 2};
  run_ranks_well({.world = 8, .hosts = 2}, [&](Group& group) {
    const Mesh mesh = make_mesh(native_communicator(group.shared_from_this()), shape);
    const auto check = [&](Communicator& ranks, int MeshPlace::*along) {
      at::Tensor mine = at::full({1}, group.rank(), at::kLong),
                 all = at::empty({ranks.size()}, at::kLong);
      ranks.all_gather(all, mine).wait();
      EXPECT_EQ(ranks.rank(), mesh.place.*along);
      for (int i = 0; i < ranks.size(); ++i) {
        MeshPlace other = mesh.place;
        other.*along = i;
        EXPECT_EQ(all[i].item<std::int64_t>(), mesh.order[std::size_t(position_of(shape, other))]);
      }
    };
    check(*mesh.tensor, &MeshPlace::tensor);
    check(*mesh.data, &MeshPlace::data);
    EXPECT_EQ(mesh.rank_at(mesh.place), group.rank());
    check(*mesh.pipeline, &MeshPlace::pipeline);
    EXPECT_EQ(mesh.all->size(), 8);
  });
  run_ranks_well({.world = 3}, [&](Group& group) {
    const Mesh mesh = make_mesh(native_communicator(group.shared_from_this()), {1, 3, 1});
    EXPECT_TRUE(mesh.data && !mesh.tensor && !mesh.pipeline);
    EXPECT_EQ(thrown<InvalidArgument>([&] {
                make_mesh(mesh.all, {2, 2, 1});
              }),
              "a mesh of pipeline 2 x data 2 x tensor 1 takes 4 ranks, and there are 3");
  });
}

}  // namespace
}  // namespace echelon
