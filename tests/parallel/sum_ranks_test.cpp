// Units whose gradients are summed over different ranks, on meshes with experts: every rank has the
// same dense layers, ranks along `expert` have different experts, and all have different samples.
#include "echelon/comm/sum_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "echelon/comm/mesh.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/optim/master_update.h"
#include "echelon/parallel/data/bucket.h"
#include "echelon/parallel/zero/zero_step.h"
#include "echelon/parallel/zero/zero_table.h"
#include "echelon/parallel/zero/zero_update.h"
#include "echelon/step/executor.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/optim/plain_sgd.h"

namespace echelon {
namespace {

constexpr Dimensions of_experts = {Dimension::data, Dimension::context};
constexpr std::int64_t samples = 3;  // per rank
constexpr int steps = 3;
constexpr double rate = 0.1;

// y = x W.
class Product final : public Layer {
 public:
  Product(std::string name, std::int64_t in, std::int64_t out, Dimensions summed_over)
      : name_(std::move(name)), in_(in), out_(out), summed_over_(summed_over) {}
  void declare(Declaration& declaration) override {
    weight_ = declaration.parameter(name_, {in_, out_}, Init::zeros(), /*decay=*/true);
    weight_->summed_over = summed_over_;
  }
  at::Tensor forward(const at::Tensor& input, Pass& pass) override {
    if (pass.keeps()) pass.saved = {input};
    return at::matmul(input, weight_->value);
  }
  at::Tensor backward(const at::Tensor& grad, Pass& pass) override {
    weight_->add_grad(at::matmul(pass.saved[0].t(), grad));
    return at::matmul(grad, weight_->value.t());
  }

 private:
  std::string name_;
  std::int64_t in_, out_;
  Dimensions summed_over_;
  Parameter* weight_ = nullptr;
};

at::Tensor squared_error(const at::Tensor& output, const at::Tensor& target) {
  return at::mse_loss(output, target);
}

const std::array names = {"first", "expert", "other expert", "last"};
bool is_expert(const std::string& name) { return name.find("expert") != std::string::npos; }

Stack model() {
  Stack stack;
  stack.add(std::make_unique<Product>("first", 5, 8, batch_dimensions))
      .add(std::make_unique<Product>("expert", 8, 8, of_experts))
      .add(std::make_unique<Product>("other expert", 8, 6, of_experts))
      .add(std::make_unique<Product>("last", 6, 3, batch_dimensions))
      .add(loss_layer(squared_error));
  return stack;
}

// Initial values by name, on the expert ranks at this place.
std::map<std::string, at::Tensor> first_values(int expert) {
  static const auto all = [] {
    at::manual_seed(5);
    std::map<std::string, at::Tensor> values;
    const auto add = [&](const std::string& name, std::int64_t in, std::int64_t out) {
      values[name] = at::randn({in, out}, at::kDouble) * 0.4;
    };
    add("first", 5, 8);
    add("last", 6, 3);
    for (int e = 0; e < 2; ++e) {
      add(fmt::format("expert {}", e), 8, 8);
      add(fmt::format("other expert {}", e), 8, 6);
    }
    return values;
  }();
  std::map<std::string, at::Tensor> mine;
  for (const std::string name : names)
    mine[name] = all.at(is_expert(name) ? fmt::format("{} {}", name, expert) : name).clone();
  return mine;
}

struct Samples {
  at::Tensor input, target;
};
const Samples& samples_of(int rank, int step) {
  static const auto all = [] {
    std::vector<Samples> some;
    at::manual_seed(6);
    for (int i = 0; i < 8 * steps; ++i)
      some.push_back({at::randn({samples, 5}, at::kDouble), at::randn({samples, 3}, at::kDouble)});
    return some;
  }();
  return all[std::size_t(rank * steps + step)];
}

struct Trained {
  std::map<std::string, at::Tensor> parameters;
  std::vector<double> losses, norms;
};

// Computes with plain torch in one thread what the rank at each position must have in the end.
std::vector<Trained> by_hand(const MeshShape& shape) {
  const int ranks = shape.ranks();
  std::vector<Trained> all;
  for (int r = 0; r < ranks; ++r) all.push_back({first_values(place_at(shape, r).expert), {}, {}});
  for (int step = 0; step < steps; ++step) {
    std::vector<std::map<std::string, at::Tensor>> grads;
    double loss = 0;
    for (int r = 0; r < ranks; ++r) {
      const at::AutoGradMode on(true);
      std::vector<at::Tensor> weights;
      at::Tensor x = samples_of(r, step).input;
      for (const std::string name : names) {
        weights.push_back(all[std::size_t(r)].parameters[name].detach().requires_grad_(true));
        x = at::matmul(x, weights.back());
      }
      const at::Tensor error = at::mse_loss(x, samples_of(r, step).target) / ranks;
      const auto found = torch::autograd::grad({error}, weights);
      grads.emplace_back();
      for (std::size_t i = 0; i < names.size(); ++i) grads.back()[names[i]] = found[i];
      loss += error.item<double>();
    }
    double square = 0;  // of the whole model's gradient: dense layers once, and all experts
    for (const std::string name : names) {
      std::map<int, at::Tensor> sums;  // by expert, if they are separate
      for (int r = 0; r < ranks; ++r) {
        const int expert = is_expert(name) ? place_at(shape, r).expert : 0;
        const at::Tensor& mine = grads[std::size_t(r)][name];
        sums[expert] = sums[expert].defined() ? sums[expert] + mine : mine;
      }
      for (const auto& [expert, sum] : sums) square += sum.square().sum().item<double>();
      for (int r = 0; r < ranks; ++r)
        all[std::size_t(r)].parameters[name] -=
            rate * sums[is_expert(name) ? place_at(shape, r).expert : 0];
    }
    for (auto& one : all) {
      one.losses.push_back(loss);
      one.norms.push_back(std::sqrt(square));
    }
  }
  return all;
}

Trained trained(std::int64_t stage, const MeshShape& mesh_of, Group& group,
                const OptimOptions& optim, int micro_batches = 1) {
  Mesh mesh = make_mesh(native_communicator(group.shared_from_this()), mesh_of);
  const SumRanks sums(mesh.over(batch_dimensions), {{batch_dimensions, mesh.over(batch_dimensions)},
                                                    {of_experts, mesh.over(of_experts)}});
  const Placement placement = placement_of(stage, {}, sums.batch()->size(), false, false);
  Stack stack = model();
  std::unique_ptr<ZeroShards> shards;
  std::unique_ptr<Update> update;
  StepShape shape = step_shape(stack, micro_batches, {});
  Table table;
  if (placement.is_sharded()) {
    stack.allocate(at::kCPU, at::kDouble, Gradients::yes,
                   ZeroShards::allocation(placement, sums, at::kCPU, /*smallest_group=*/1));
    shards = std::make_unique<ZeroShards>(stack, Owners{sums, nullptr}, placement);
    update = std::make_unique<ZeroUpdate>(stack, *shards, optim);
    const auto bytes = describe_groups(shape, stack, placement, at::kDouble);
    table = with_shards(one_process(shape), shape, bytes, 1 << 20);
  } else {
    stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
    update = std::make_unique<MasterUpdate>(stack, optim);
    shape.buckets = cut_buckets(stack.units(), {.first = 8, .others = 1 << 20});
    table = with_reductions(one_process(shape), shape);
  }
  const auto values = first_values(mesh.place.expert);
  update->load([&](const Parameter& p, at::Tensor out) { out.copy_(values.at(p.name)); });
  Executor executor(stack, update.get(), table, shape, {.ranks = sums, .shards = shards.get()});
  Trained result;
  group.ledger().clear();
  for (int step = 0; step < steps; ++step) {
    update->rate().fill_(rate);
    const auto& [input, target] = samples_of(position_of(mesh_of, mesh.place), step);
    result.losses.push_back(executor.run({input, target}, 1.0 / mesh_of.ranks()).item<double>());
    result.norms.push_back(update->norm().item<double>());
    if (shards) shards->wait_for_values();
  }
  const StateIndex index(*update);
  for (const auto& p : stack.parameters())
    result.parameters[p.name] = index.whole("master", p).clone();
  return result;
}

void expect_same(const Trained& seen, const Trained& expected) {
  for (const std::string name : names) {
    const at::Tensor &is = seen.parameters.at(name), &should = expected.parameters.at(name);
    EXPECT_LT((is - should).abs().max().item<double>(), 1e-13) << name;
  }
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(seen.losses[i], expected.losses[i], 1e-13) << "step " << i;
}

void expect_by_hand(const MeshShape& shape, std::int64_t stage, int micro_batches = 1) {
  SCOPED_TRACE(
      fmt::format("{}, stage {}, {} micro-batches", to_string(shape), stage, micro_batches));
  const auto expected = by_hand(shape);
  run_ranks_well({.world = shape.ranks()}, [&](Group& group) {
    const Trained seen = trained(stage, shape, group, plain_sgd(), micro_batches);
    expect_same(seen, expected[std::size_t(group.rank())]);
    // Owners of slices account for the other ranks' experts.
    for (std::size_t i = 0; i < seen.norms.size() && stage > 0; ++i)
      EXPECT_NEAR(seen.norms[i], expected[0].norms[i], 1e-13) << "step " << i;
  });
}

TEST(SumRanks, ExpertsAreSummedOverFewerRanksThanDenseLayersInDataParallel) {
  expect_by_hand({.data = 2, .expert = 2}, 0);
}

TEST(SumRanks, ExpertsAreOwnedByFewerRanksThanDenseLayersInEveryStage) {
  for (const std::int64_t stage : {1, 2, 3})
    for (const int micro_batches : {1, 3})
      expect_by_hand({.data = 2, .expert = 2}, stage, micro_batches);
}

TEST(SumRanks, AnExpertOnASingleRankIsNotExchanged) {
  for (const std::int64_t stage : {0, 1, 2, 3}) {
    for (const int micro_batches : {1, 3}) expect_by_hand({.expert = 2}, stage, micro_batches);
    // Only the gradients of the two dense layers: 40 and 18 elements, padded to 64 and 32, or to 64
    // each if there are two owners.
    run_ranks_well({.world = 2}, [&](Group& group) {
      trained(stage, {.expert = 2}, group, plain_sgd());
      std::uint64_t sent = 0;
      for (const auto& entry : group.ledger().entries())
        if (entry.tag == "gradients") sent += entry.bytes;
      const std::uint64_t elements = stage == 0 ? 64 + 32 : (64 + 64) / 2;
      EXPECT_EQ(sent, steps * elements * 8) << "stage " << stage;
    });
  }
}

// LAMB needs the norm of every parameter, of which each owner has a slice.
TEST(SumRanks, NormsOfParametersAreSummedOverTheirOwners) {
  OptimOptions lamb;
  lamb.name = OptimizerKind::lamb;
  lamb.clip = 0;
  run_ranks_well({.world = 4}, [&](Group& group) {
    const MeshShape shape{.data = 2, .expert = 2};
    const Trained whole = trained(0, shape, group, lamb);
    for (const std::int64_t stage : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("stage {}", stage));
      expect_same(trained(stage, shape, group, lamb), whole);
    }
  });
}

TEST(SumRanks, BucketsAndGroupsHoldUnitsSummedOverTheSameRanks) {
  Stack stack = model();
  Stack::Allocation allocation;
  allocation.shards = 4;
  allocation.smallest = 1 << 20;
  stack.lay_out(allocation);
  ASSERT_EQ(stack.units().size(), 4U);
  std::vector<Dimensions> sets;
  for (const auto& group : stack.groups()) sets.push_back(group.summed_over);
  EXPECT_EQ(sets, (std::vector{batch_dimensions, of_experts, batch_dimensions}));
  const auto buckets = cut_buckets(stack.units(), {.first = 1 << 20, .others = 1 << 20});
  ASSERT_EQ(buckets.size(), 3U);
  for (const auto& bucket : buckets)
    for (const auto& unit : stack.units())
      if (unit.begin >= bucket.begin && unit.begin < bucket.end) {
        EXPECT_EQ(unit.summed_over, bucket.summed_over) << "layer " << unit.layer;
      }
  EXPECT_EQ(buckets.front().end, stack.groups().back().begin + stack.groups().back().numel);
  EXPECT_EQ(buckets.back().begin, 0);
}

TEST(SumRanks, AUnitHasParametersSummedOverTheSameRanks) {
  class Both final : public Layer {
   public:
    void declare(Declaration& declaration) override {
      for (const std::string name : {"a", "b", "c"})
        declaration.parameter(name, {4}, Init::zeros(), /*decay=*/false)->summed_over =
            name == "b" ? of_experts : batch_dimensions;
    }
    at::Tensor forward(const at::Tensor& input, Pass&) override { return input; }
    at::Tensor backward(const at::Tensor& grad, Pass&) override { return grad; }
  };
  Stack stack;
  stack.add(std::make_unique<Both>());
  stack.lay_out({});
  ASSERT_EQ(stack.units().size(), 2U);
  EXPECT_EQ(stack.units()[0].segments.size(), 2U);
  EXPECT_EQ(stack.units()[0].summed_over, batch_dimensions);
  EXPECT_EQ(stack.units()[1].segments.front().name, "b");
  EXPECT_EQ(stack.units()[1].summed_over, of_experts);
}

TEST(SumRanks, RejectsShardsPerHostOfUnitsSummedOverOtherRanks) {
  run_ranks_well({.world = 4}, [&](Group& group) {
    Mesh mesh = make_mesh(native_communicator(group.shared_from_this()), {.data = 2, .expert = 2});
    const SumRanks sums(mesh.over(batch_dimensions),
                        {{batch_dimensions, mesh.over(batch_dimensions)}, {of_experts, mesh.data}});
    EXPECT_EQ(thrown<InvalidArgument>([&] { owners_of(sums, /*per_host=*/true); }),
              "zero.shard=host needs gradients that are all summed over the same ranks, and some "
              "layers sum theirs over fewer: use zero.shard=all");
    EXPECT_THROW(sums.of({Dimension::tensor}), Error);
  });
}

}  // namespace
}  // namespace echelon
