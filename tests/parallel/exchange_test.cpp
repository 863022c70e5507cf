// Everything that a step sends passes through the Exchange it was given, and nothing bypasses it.
#include "echelon/step/exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "echelon/base/error.h"
#include "echelon/comm/communicator.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/optim/master_update.h"
#include "echelon/parallel/data/bucket.h"
#include "echelon/parallel/placement.h"
#include "echelon/parallel/zero/zero_step.h"
#include "echelon/parallel/zero/zero_table.h"
#include "echelon/parallel/zero/zero_update.h"
#include "echelon/step/executor.h"
#include "echelon/step/walk.h"
#include "tests/collective/ranks.h"
#include "tests/nn/user_module.h"
#include "tests/optim/plain_sgd.h"

namespace echelon {
namespace {

// Counts sent bytes by purpose and halves every gradient that ranks sum: an encoding with a visible
// effect.
class Halving final : public Exchange {
 public:
  std::map<std::string, std::int64_t> bytes;  // input bytes, by purpose

 protected:
  Work begin_sum(Communicator& ranks, const at::Tensor& slice, const Parcel& parcel) override {
    note(slice, parcel);
    if (parcel.purpose == Purpose::gradients) at::Tensor(slice).mul_(0.5);
    return ranks.all_reduce(slice, parcel.op, {.tag = to_string(parcel.purpose)});
  }
  Work begin_sum_to_owners(Communicator& ranks, const at::Tensor& own, const at::Tensor& all,
                           const Parcel& parcel) override {
    note(all, parcel);
    at::Tensor(all).mul_(0.5);
    return ranks.reduce_scatter(own, all, parcel.op, {.tag = to_string(parcel.purpose)});
  }
  Work begin_gather(Communicator& ranks, const at::Tensor& all, const at::Tensor& own,
                    const Parcel& parcel) override {
    note(own, parcel);
    return ranks.all_gather(all, own, {.tag = to_string(parcel.purpose)});
  }
  Work begin_send(Communicator&, const at::Tensor&, int, std::uint64_t, const Parcel&) override {
    throw Error("nobody sends here");
  }
  Work begin_receive(Communicator&, const at::Tensor&, int, std::uint64_t, const Parcel&) override {
    throw Error("nobody receives here");
  }
  void encode_push(const at::Tensor&, const Parcel&,
                   const std::function<void(const at::Tensor&)>&) override {
    throw Error("nobody pushes here");
  }

 private:
  void note(const at::Tensor& slice, const Parcel& parcel) {
    bytes[to_string(parcel.purpose)] += std::int64_t(slice.nbytes());
  }
};

Stack model() {
  Stack stack;
  const UserModule module("body", {part::Linear{3, 4}, part::Tanh{}, part::Linear{4, 2}});
  stack.add(module.layer()).add(loss_layer([](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).square().mean();
  }));
  return stack;
}

// The change by one step of plain SGD, on one of two ranks that have the same batch.
struct Step {
  at::Tensor change;
  RankCosts walked;  // with bytes as they enter the exchange
};
Step step(std::int64_t stage, const std::shared_ptr<Exchange>& exchange, Group& group) {
  const auto ranks = native_communicator(group.shared_from_this());
  const Placement placement = placement_of(stage, {}, ranks->size(), false, false);
  Stack stack = model();
  std::unique_ptr<ZeroShards> shards;
  std::unique_ptr<Update> update;
  StepShape shape = step_shape(stack, 1, {});
  Table table;
  StepCosts costs;
  if (placement.is_sharded()) {
    stack.allocate(at::kCPU, at::kDouble, Gradients::yes,
                   ZeroShards::allocation(placement, ranks, at::kCPU, 1));
    shards =
        std::make_unique<ZeroShards>(stack, Owners{ranks, nullptr}, placement, nullptr, exchange);
    update = std::make_unique<ZeroUpdate>(stack, *shards, plain_sgd());
    const auto bytes = describe_groups(shape, stack, placement, at::kDouble);
    table = with_shards(one_process(shape), shape, bytes, 1 << 20);
    for (const std::int64_t all : bytes)
      costs.groups.push_back({.gather = {.bytes = all / ranks->size()}, .scatter = {.bytes = all}});
  } else {
    stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
    update = std::make_unique<MasterUpdate>(stack, plain_sgd());
    shape.buckets = cut_buckets(stack.units(), {.first = 8, .others = 8});
    table = with_reductions(one_process(shape), shape);
    for (const Bucket& bucket : shape.buckets)
      costs.buckets.push_back({.bytes = bucket.numel() * std::int64_t(sizeof(double))});
  }
  update->load([](const Parameter&, at::Tensor out) { out.fill_(0.1); });
  const auto values = [&] {
    const StateIndex index(*update);
    std::vector<at::Tensor> all;
    for (const auto& p : stack.parameters())
      all.push_back(index.whole("master", p).flatten().clone());
    return at::cat(all);
  };
  const at::Tensor before = values();
  Executor executor(stack, update.get(), table, shape,
                    {.ranks = ranks, .shards = shards.get(), .exchange = exchange});
  update->rate().fill_(1);
  executor.run({at::ones({2, 3}, at::kDouble), at::ones({2, 2}, at::kDouble)}, 0.5);
  if (shards) shards->wait_for_values();
  return {values() - before, walk(table, costs)};
}

TEST(Exchange, SeesEveryGradientOfAStep) {
  for (std::int64_t stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(fmt::format("stage {}", stage));
    run_ranks_well({.world = 2}, [&](Group& group) {
      const auto halving = std::make_shared<Halving>();
      const at::Tensor plain = step(stage, plain_exchange(), group).change,
                       halved = step(stage, halving, group).change;
      EXPECT_GT(plain.abs().max().item<double>(), 1e-3);
      EXPECT_LT((plain * 0.5 - halved).abs().max().item<double>(), 1e-15);
      EXPECT_GT(halving->bytes["gradients"], 0);
      EXPECT_EQ(halving->bytes.contains("parameters"), stage > 0);
    });
  }
}

// ZeRO-1 and 2 publish parameters after the update, which is not an action of the table.
TEST(Exchange, IsGivenTheBytesThatTheWalkCounts) {
  for (std::int64_t stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(fmt::format("stage {}", stage));
    run_ranks_well({.world = 2}, [&](Group& group) {
      const auto halving = std::make_shared<Halving>();
      const RankCosts walked = step(stage, halving, group).walked;
      EXPECT_GT(walked.sent(Purpose::gradients), 0);
      EXPECT_EQ(walked.sent(Purpose::gradients), halving->bytes["gradients"]);
      EXPECT_EQ(walked.sent(Purpose::parameters), stage == 3 ? halving->bytes["parameters"] : 0);
    });
  }
}

}  // namespace
}  // namespace echelon
