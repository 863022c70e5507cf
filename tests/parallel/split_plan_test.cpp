// Which parameters a plan splits, including those of a user's layers, and what it rejects.
#include "echelon/nn/split_plan.h"

#include <ATen/Parallel.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/nn/gelu.h"
#include "echelon/nn/linear.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/nn/tensor_group.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/nn/user_module.h"
#include "tests/parallel/split_training.h"

namespace echelon {
namespace {

using namespace split_training;

// A user's layer made of building blocks; it does not say how it treats rows.
class Mlp : public Layer {
 public:
  void declare(Declaration& declaration) override {
    up_.declare(declaration, "mlp.up", 5, 12, 0.5);
    down_.declare(declaration, "mlp.down", 12, 3, 0.5);
  }
  at::Tensor forward(const at::Tensor& x, Pass& pass) override {
    const at::Tensor hidden = up_.forward(x), active = tanh_gelu(hidden);
    if (pass.keeps()) pass.saved = {x, hidden, active};
    return down_.forward(active);
  }
  at::Tensor backward(const at::Tensor& grad, Pass& pass) override {
    at::Tensor grad_hidden = down_.backward(grad, pass.saved[2], pass);
    tanh_gelu_backward_(grad_hidden, pass.saved[1]);
    return up_.backward(grad_hidden, pass.saved[0], pass);
  }

 private:
  Linear up_, down_;
};

Stack mlp() {
  Stack stack;
  stack.add(std::make_unique<Mlp>());
  stack.add(loss_layer(
      [](const at::Tensor& y, const at::Tensor& target) { return at::mse_loss(y, target); }));
  return stack;
}

TEST(SplitPlan, SplitsAUsersLayers) {
  at::set_num_threads(1);
  at::manual_seed(1);
  const at::Tensor input = at::randn({7, 5}, at::kDouble), target = at::randn({7, 3}, at::kDouble);
  const auto run = [&](const std::shared_ptr<Communicator>& ranks) {
    Stack stack = mlp();
    apply(SplitPlan().column("mlp.up").row("mlp.down"), stack, ranks, /*sequence=*/true);
    EXPECT_EQ(stack.tensor_group() != nullptr, ranks != nullptr);
    if (ranks) {
      EXPECT_FALSE(stack.tensor_group()->rows_are_split()) << "not every layer takes rows";
    }
    stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
    MasterUpdate update(stack, plain_sgd());
    update.load(random_values(1));
    Executor executor(stack, &update, one_process(2, 1), {2, 1, {}});
    Trained result;
    update.rate().fill_(0.5);
    executor.run({input, target});
    for (const auto& parameter : stack.parameters()) {
      result.values[parameter.name] = parameter.value.clone();
      result.splits[parameter.name] = parameter.split;
    }
    return result;
  };
  const Trained expected = run(nullptr);
  std::vector<Trained> seen(3);
  run_ranks_well({.world = 3}, [&](Group& group) {
    seen[std::size_t(group.rank())] = run(native_communicator(group.shared_from_this()));
  });
  for (const auto& [name, value] : assembled(seen))
    EXPECT_TRUE(close(value, expected.values.at(name), 1e-12)) << name;
}

TEST(SplitPlan, LaysOutWithoutRanks) {
  for (const bool tied : {true, false}) {
    ModelOptions model = sizes();
    model.tied = tied;
    std::int64_t elements = 0, counted = 0;
    for (int index = 0; index < 4; ++index) {
      Stack stack = gpt(model);
      apply(gpt_plan(model), stack, 4, index, /*sequence=*/true);
      stack.lay_out({});
      EXPECT_TRUE(stack.tensor_group()->rows_are_split());
      EXPECT_EQ(stack.parameter_count(), gpt(model).parameter_count());
      for (const auto& unit : stack.units())
        for (const auto& segment : unit.segments) {
          elements += segment.numel;
          if (segment.counted) counted += segment.numel;
        }
    }
    // A table of 37 rows is padded to 40; norms, biases of row splits and positions are whole.
    const std::int64_t padding = 3 * width * (tied ? 1 : 2),
                       whole = width * (tokens + 1 + 2 + blocks * 6);
    EXPECT_EQ(counted, gpt(model).parameter_count() + padding);
    EXPECT_EQ(elements, counted + 3 * whole);
  }
}

std::string refusal(const SplitPlan& plan, Stack stack, int parts, bool sequence = false) {
  return thrown<InvalidArgument>([&] { apply(plan, stack, parts, 0, sequence); });
}

TEST(SplitPlan, RejectsSizesThatDoNotDivide) {
  const auto of_heads = [](std::int64_t count, int parts) {
    ModelOptions model = sizes();
    model.heads = count;
    return refusal(gpt_plan(model), gpt(model), parts);
  };
  EXPECT_EQ(of_heads(6, 4),
            "the 6 heads of transformer.h.0.attn.c_attn.weight cannot be shared out over "
            "parallel.tensor = 4: 4 or 8 heads could, or over tensor 2 or 3");
  EXPECT_EQ(of_heads(1, 2),
            "the 1 head of transformer.h.0.attn.c_attn.weight cannot be shared out over "
            "parallel.tensor = 2: 2 heads could, or over tensor 1");
  // A query of 24 columns has 4, 6, 8 or 12 heads. 10 and 15 are divisible by 5, but are not among
  // them.
  EXPECT_EQ(of_heads(12, 5),
            "the 12 heads of transformer.h.0.attn.c_attn.weight cannot be shared out over "
            "parallel.tensor = 5: they could over tensor 3 or 4");
  EXPECT_EQ(of_heads(12, 8),
            "the 12 heads of transformer.h.0.attn.c_attn.weight cannot be shared out over "
            "parallel.tensor = 8: 8 or 24 heads could, or over tensor 4 or 6");
  EXPECT_EQ(refusal(SplitPlan().column("mlp.up").row("mlp.down"), mlp(), 5),
            "the 12 columns of mlp.up.weight do not divide over parallel.tensor = 5: 10 or 15 "
            "would, or tensor 3 or 4");
  EXPECT_EQ(refusal(SplitPlan().heads("mlp.up", 5).row("mlp.down"), mlp(), 5),
            "mlp.up.weight has 12 columns, which are not queries, keys and values of 5 heads");
}

TEST(SplitPlan, RejectsUnknownNames) {
  EXPECT_EQ(refusal(SplitPlan().column("*.upp").row("mlp.down"), mlp(), 2),
            "no parameter of the model is named *.upp.weight or *.upp.bias, which the split plan "
            "has");
  EXPECT_EQ(refusal(SplitPlan().column("mlp.u").row("mlp.down"), mlp(), 2),
            "no parameter of the model is named mlp.u.weight or mlp.u.bias, which the split plan "
            "has");
  EXPECT_EQ(refusal(SplitPlan().column("*up").row("mlp.down").column("mlp.*"), mlp(), 2),
            "two rules of the split plan name mlp.up.weight");
}

TEST(SplitPlan, RejectsSplitsThatALayerDoesNotSupport) {
  Stack wrapped;
  wrapped.add(UserModule("body", {part::Linear{4, 4}}).layer());
  EXPECT_EQ(refusal(SplitPlan().column("body.0"), std::move(wrapped), 2),
            "parameter body.0.weight belongs to a layer that cannot be split");
  EXPECT_EQ(refusal(SplitPlan().vocabulary("mlp.up"), mlp(), 2),
            "parameter mlp.up.weight cannot be split by vocabulary: it is of a product, which is "
            "split by columns, heads or rows");
  EXPECT_EQ(refusal(SplitPlan().column("transformer.wte"), gpt(sizes()), 2),
            "parameter transformer.wte.weight cannot be split by columns: it is a table, which is "
            "split by vocabulary");
  EXPECT_EQ(refusal(SplitPlan().vocabulary("transformer.wpe"), gpt(sizes()), 2),
            "parameter transformer.wpe.weight belongs to a layer that cannot be split");
}

// Ties itself to a table and does not support parts.
class Borrower : public Layer {
 public:
  void declare(Declaration& declaration) override { declaration.tied("transformer.wte.weight"); }
  at::Tensor forward(const at::Tensor& x, Pass&) override { return x; }
  at::Tensor backward(const at::Tensor& grad, Pass&) override { return grad; }
};

TEST(SplitPlan, RejectsATableThatAnotherLayerNeedsWhole) {
  Stack stack = gpt(sizes());
  stack.add(std::make_unique<Borrower>());
  EXPECT_EQ(refusal(gpt_plan(sizes()), std::move(stack), 2),
            "parameter transformer.wte.weight belongs to a layer that cannot be split");
}

TEST(SplitPlan, RejectsColumnPartsThatNothingConsumes) {
  EXPECT_EQ(
      refusal(SplitPlan().column("mlp.up"), mlp(), 3),
      "mlp.down.weight is whole, and comes after mlp.up.weight, which is split by columns and "
      "gives a part");
  EXPECT_EQ(refusal(SplitPlan().column("mlp.down"), mlp(), 3),
            "mlp.down.weight is split by columns, and no product after it in its layer is split by "
            "rows and takes the parts");
  EXPECT_EQ(refusal(SplitPlan().row("mlp.down"), mlp(), 3),
            "mlp.down.weight is split by rows, and no product before it in its layer is split by "
            "columns and gives it its part");
}

TEST(SplitPlan, RejectsSplitRowsUnderAWholeProduct) {
  SplitPlan plan;
  plan.vocabulary("transformer.wte").column("*.mlp.c_fc").row("*.mlp.c_proj");
  EXPECT_EQ(refusal(plan, gpt(sizes()), 2, /*sequence=*/true),
            "with sequence parallelism all products and tables are split, and the plan does not "
            "name transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(refusal(plan, gpt(sizes()), 2), "(nothing was thrown)");
}

TEST(SplitPlan, LeavesARejectedStackUnchanged) {
  Stack stack = mlp();
  EXPECT_THROW(apply(SplitPlan().column("mlp.up"), stack, 3, 0), InvalidArgument);
  for (const auto& parameter : stack.parameters()) {
    EXPECT_EQ(parameter.shape, mlp().find(parameter.name)->shape);
    EXPECT_EQ(parameter.group, nullptr);
  }
}

}  // namespace
}  // namespace echelon
