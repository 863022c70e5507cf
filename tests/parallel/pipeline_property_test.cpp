// Schedules of random shapes, from the pure function to executed steps: no deadlock, and every
// micro-batch counts once.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "echelon/optim/master_update.h"
#include "echelon/parallel/pipeline/pipeline_table.h"
#include "echelon/parallel/pipeline/simulate.h"
#include "echelon/step/executor.h"
#include "tests/comm/in_process.h"
#include "tests/optim/plain_sgd.h"

namespace echelon {
namespace {

// y = w x; the loss is the mean of its input. With all w = 1, the gradient of each w is the mean of
// the batch. Every micro-batch contributes a different value, so a swapped micro-batch is noticed.
class Times : public Layer {
 public:
  explicit Times(int index) : name_(fmt::format("times{}", index)) {}
  void declare(Declaration& declaration) override {
    weight_ = declaration.parameter(name_, {1}, Init::ones(), /*decay=*/false);
  }
  at::Tensor forward(const at::Tensor& x, Pass& pass) override {
    pass.saved = {x};
    return x * weight_->value;
  }
  at::Tensor backward(const at::Tensor& grad, Pass& pass) override {
    pass.run_or_defer([weight = weight_, grad, x = pass.saved[0]] {
      weight->add_grad((grad * x).sum().reshape({1}));
    });
    return grad * weight_->value;
  }

 private:
  std::string name_;
  Parameter* weight_ = nullptr;
};

class Mean : public Layer {
 public:
  at::Tensor forward(const at::Tensor& x, Pass& pass) override {
    pass.saved = {x};
    return x.mean();
  }
  at::Tensor backward(const at::Tensor&, Pass& pass) override {
    const at::Tensor& x = pass.saved[0];
    return at::full(x.sizes(), pass.weight / double(x.numel()), x.options());
  }
};

Stack counter(int layers) {
  Stack stack;
  for (int l = 0; l + 1 < layers; ++l) stack.add(std::make_unique<Times>(l));
  stack.add(std::make_unique<Mean>());
  return stack;
}

TEST(PipelineProperty, RandomShapesRunWithoutDeadlock) {
  at::set_num_threads(1);
  std::mt19937 random(7);
  const auto up_to = [&](int most) { return std::uniform_int_distribution<>(1, most)(random); };
  for (int i = 0; i < 10000; ++i) {
    const auto& names = all_values<PipelineOrder>;
    const PipelineOrder name = names[std::size_t(up_to(int(names.size())) - 1)];
    PipelineShape shape{.ranks = up_to(4), .micro_batches = up_to(8)};
    if (name == PipelineOrder::interleaved) {
      shape.micro_batches = shape.ranks * up_to(2);
      shape.chunks = up_to(3);
    }
    SCOPED_TRACE(fmt::format("{} of {} ranks, {} micro-batches, {} chunks", name_of(name),
                             shape.ranks, shape.micro_batches, shape.chunks));
    const auto schedule = make_schedule(name, shape);
    validate(schedule, shape);
    const auto timeline = simulate(
        schedule, shape, std::vector<StageCosts>(std::size_t(shape.stages()), {1, 1, 1}), 0.1);
    ASSERT_GE(timeline.end(), 3.0 * shape.micro_batches * shape.chunks);
    const int layers = shape.stages() + up_to(3);
    const auto stages =
        balance(std::vector<LayerCost>(std::size_t(layers)), BalanceBy::count, name, shape);
    const auto owners = layer_owners(stages, shape);
    // Sizes differ by one, and values grow: a message of another micro-batch has other numbers.
    const int samples = shape.micro_batches + up_to(shape.micro_batches) - 1;
    const at::Tensor batch = at::arange(1, 2 * samples + 1, at::kDouble).view({samples, 2});
    const double mean = batch.mean().item<double>();
    const auto errors = run_in_process(shape.ranks, [&](std::shared_ptr<Communicator> ranks) {
      Stack stack = counter(layers);
      StepShape step{layers, shape.micro_batches, {}};
      for (const int owner : owners) step.own.push_back(owner == ranks->rank());
      if (shape.ranks == 1) step.own.clear();
      const Table table =
          with_reductions(pipeline_table(schedule, shape, ranks->rank(), stages, step), step);
      if (shape.ranks > 1) stack.keep(step.own);
      stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
      MasterUpdate update(stack, plain_sgd());
      update.load(random_values(1));
      Executor executor(stack, &update, table, step,
                        {.neighbours = shape.ranks > 1 ? Neighbours{ranks, owners} : Neighbours{}});
      // The first rate leaves w = 1, so that the second step, in which sizes are known and receives
      // are posted early, must give the same numbers. The second rate changes w.
      for (const double rate : {0.0, 1 / mean}) {
        update.rate().fill_(rate);
        const double loss = executor.run({batch, batch}).item<double>();
        if (std::abs(loss - mean) > 1e-12 * mean)
          throw Error(fmt::format("the loss is {} where {} is the mean", loss, mean));
      }
      for (const auto& p : stack.parameters())  // 1 - the gradient over the mean
        if (p.here && std::abs(p.value.item<double>()) > 1e-12)
          throw Error(fmt::format("{} is {}", p.name, p.value.item<double>()));
    });
    for (const auto& error : errors) ASSERT_EQ(error, "");
  }
}

}  // namespace
}  // namespace echelon
