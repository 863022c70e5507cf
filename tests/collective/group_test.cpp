#include "echelon/collective/group.h"

#include <cstring>
#include <random>

#include "tests/collective/ranks.h"

namespace echelon {
namespace {

// Small whole numbers, so that sums are exact in every type and order.
template <class T>
std::vector<T> numbers(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = T(double((i * 7 + std::size_t(rank) * 3) % 11) - 3);
  return values;
}

template <class T>
std::vector<T> summed(int world, std::size_t count) {
  std::vector<T> values(count);
  for (int r = 0; r < world; ++r) {
    const auto one = numbers<T>(r, count);
    for (std::size_t i = 0; i < count; ++i) values[i] = T(values[i] + one[i]);
  }
  return values;
}

const std::vector<std::size_t> lengths = {0, 1, 3, 17, 1000, 4099, 70001, 300007};

void expect_sums(Group& group, Algorithm algorithm, bool registered) {
  for (const std::size_t count : lengths) {
    auto mine = numbers<float>(group.rank(), count);
    const auto memory = group.allocate(count * sizeof(float) + 1);
    float* data = registered ? reinterpret_cast<float*>(memory.get()) : mine.data();
    if (count) std::memcpy(data, mine.data(), count * sizeof(float));
    group.all_reduce(DataType::f32, ReduceOp::sum, data, data, count,
                     {.tag = "test", .algorithm = algorithm});
    const std::vector<float> got(data, data + count), expected = summed<float>(group.size(), count);
    ASSERT_EQ(got, expected) << "count " << count << " world " << group.size() << " by "
                             << name(algorithm);
  }
}

TEST(Group, SumsOnOneHostOnEveryWorldSize) {
  for (int world = 1; world <= 8; ++world) {
    run_ranks_well({.world = world}, [](Group& group) {
      for (const auto algorithm : {Algorithm::shared, Algorithm::shared_direct}) {
        expect_sums(group, algorithm, false);
        expect_sums(group, algorithm, true);
      }
    });
    Layout staged{.world = world};
    staged.comm.single_copy = Switch::off;
    run_ranks_well(staged, [](Group& group) { expect_sums(group, Algorithm::shared, false); });
  }
}

TEST(Group, SumsOverMessagesOnEveryWorldSize) {
  for (const bool shared : {true, false})
    for (int world = 1; world <= 8; ++world)
      run_ranks_well({.world = world, .shared_memory = shared}, [](Group& group) {
        for (const auto algorithm : message_algorithms(Operation::all_reduce))
          expect_sums(group, algorithm, false);
      });
}

TEST(Group, SumsOverSeveralHosts) {
  for (const auto& [world, hosts] : {std::pair{4, 2}, {6, 3}, {5, 2}, {8, 2}, {7, 3}})
    run_ranks_well({.world = world, .hosts = hosts}, [](Group& group) {
      for (const auto algorithm :
           {Algorithm::hierarchical, Algorithm::ring, Algorithm::automatic}) {
        expect_sums(group, algorithm, false);
        expect_sums(group, algorithm, true);
      }
    });
}

TEST(Group, GivesTheMemoryOfLeftGroupsBack) {
  run_ranks_well({.world = 3}, [](Group& group) {
    const auto round = [&] {
      const auto half = group.split(group.rank() == 2 ? 1 : 0, 0), all = group.split(0, 0);
      float value = 1;
      all->all_reduce(DataType::f32, ReduceOp::sum, &value, &value, 1);
      EXPECT_EQ(value, 3);
    };
    for (int i = 0; i < 3; ++i) round();
    group.barrier();
    const std::size_t before = group.endpoint().heap().allocated();
    for (int i = 0; i < 20; ++i) round();
    group.barrier();
    // One round's blocks may still be in somebody's hands.
    const std::size_t blocks = SharedBlock::bytes(3) + SharedBlock::bytes(2);
    EXPECT_LE(group.endpoint().heap().allocated(), before + 2 * blocks);
  });
}

}  // namespace
}  // namespace echelon
