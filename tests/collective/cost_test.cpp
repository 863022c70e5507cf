// What crosses a network card, by the cost model and as the ledger counts it when ranks exchange.
#include "echelon/collective/cost.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/collective/ranks.h"

namespace echelon {
namespace {

// Figures under which an operation costs as many seconds as bytes cross one host's card.
Figures card_alone() {
  Figures figures;
  figures.shared = {0, 0};
  figures.tcp = {0, 1};
  figures.gamma = 0;
  return figures;
}

// And as many as go from one rank to others of its host.
Figures inside_alone() {
  Figures figures = card_alone();
  std::swap(figures.shared, figures.tcp);
  return figures;
}

constexpr std::size_t count = 960;  // divides by every world here
constexpr double bytes = count * sizeof(float);

std::string tag_of(Operation operation, Algorithm algorithm) {
  return fmt::format("{} by {}", name(operation), name(algorithm));
}

void exchange(Group& group, Operation operation, Algorithm algorithm) {
  std::vector<float> in(count, 1), out(count * 8);
  const std::vector<std::size_t> even(std::size_t(group.size()), count / std::size_t(group.size()));
  const std::string tag = tag_of(operation, algorithm);
  const CallOptions call{.tag = tag, .algorithm = algorithm};
  switch (operation) {
    case Operation::all_reduce:
      return group.all_reduce(DataType::f32, ReduceOp::sum, in.data(), in.data(), count, call);
    case Operation::reduce_scatter:
      return group.reduce_scatter(DataType::f32, ReduceOp::sum, in.data(), out.data(), even, call);
    case Operation::all_gather:
      return group.all_gather(DataType::f32, in.data(), out.data(), even, call);
    default:
      return group.all_to_all(DataType::f32, in.data(), out.data(), even, even, call);
  }
}

TEST(Cost, ChargesWhatCrossesAHostsCardWhereEveryRankSendsToEveryOther) {
  struct Case {
    Operation operation;
    Algorithm algorithm;
  };
  const Case cases[] = {{Operation::all_reduce, Algorithm::direct},
                        {Operation::all_reduce, Algorithm::server},
                        {Operation::reduce_scatter, Algorithm::direct},
                        {Operation::all_gather, Algorithm::direct},
                        {Operation::all_to_all, Algorithm::direct}};
  for (const auto& [hosts, ranks] : {std::pair{2, 2}, {2, 3}, {3, 1}}) {
    const int local = ranks, world = hosts * local;
    std::mutex mutex;
    std::map<std::string, double> crossed, stayed;  // out of the first host; of its first rank
    run_ranks_well({.world = world, .hosts = hosts}, [&](Group& group) {
      for (const auto& [operation, algorithm] : cases) exchange(group, operation, algorithm);
      const std::lock_guard lock(mutex);
      for (const auto& entry : group.ledger().entries()) {
        if (entry.link == LinkKind::tcp && group.rank() < local)
          crossed[entry.tag] += double(entry.bytes);
        if (entry.link == LinkKind::shared && group.rank() == 0)
          stayed[entry.tag] += double(entry.bytes);
      }
    });
    const Shape shape{world, hosts, local};
    for (const auto& [operation, algorithm] : cases) {
      const std::string tag = tag_of(operation, algorithm);
      const auto charged = [&](const Figures& figures) {
        return cost(operation, algorithm, std::size_t(bytes), shape, figures);
      };
      EXPECT_NEAR(charged(card_alone()), crossed[tag], 1e-6) << tag << " on " << shape.text();
      EXPECT_NEAR(charged(inside_alone()), stayed[tag], 1e-6) << tag << " on " << shape.text();
    }
  }
}

// The closed form: g(p-g) n across and (g-1) n inside.
TEST(Cost, OfDirectIsItsClosedForm) {
  const Figures f{{2e-6, 3e-10}, {4e-5, 5e-9}, 6e-11};
  const double p = 6, g = 3, n = 1 << 20;
  EXPECT_DOUBLE_EQ(cost(Operation::all_reduce, Algorithm::direct, 1 << 20, {6, 2, 3}, f),
                   (p - 1) * (f.tcp.alpha + n * f.gamma) +
                       (g * (p - g) * n * f.tcp.beta + (g - 1) * n * f.shared.beta));
  EXPECT_DOUBLE_EQ(cost(Operation::all_reduce, Algorithm::direct, 1 << 20, {4, 1, 4}, f),
                   3 * (f.shared.alpha + n * f.gamma) + 3 * n * f.shared.beta);
}

TEST(Cost, OfSharedMemoryLeavesOutStagingOfRegisteredBuffers) {
  const Figures f{{2e-6, 3e-10}, {4e-5, 5e-9}, 6e-11};
  const double n = 1 << 20, share = 0.75;
  const double registered = 2 * f.shared.alpha + share * n * (f.shared.beta + f.gamma);
  const auto charged = [&](BufferKind buffers) {
    return cost(Operation::all_reduce, Algorithm::shared, 1 << 20, {4, 1, 4}, f, buffers);
  };
  EXPECT_DOUBLE_EQ(charged(BufferKind::registered), registered);
  EXPECT_DOUBLE_EQ(charged(BufferKind::any), registered + 2 * n * f.shared.beta);
}

}  // namespace
}  // namespace echelon
