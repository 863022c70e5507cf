// Layers whose products ranks split between them, against one process.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "echelon/nn/gelu.h"
#include "echelon/nn/gpt.h"
#include "echelon/nn/linear.h"
#include "echelon/nn/module_layer.h"
#include "echelon/nn/tensor_group.h"
#include "echelon/optim/master_update.h"
#include "echelon/parallel/pipeline/pipeline_table.h"
#include "echelon/parallel/tensor/split_plan.h"
#include "echelon/step/executor.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/nn/close.h"
#include "tests/optim/plain_sgd.h"

namespace echelon {
namespace {

constexpr int blocks = 2, layers = blocks + 2, micro_batches = 2, steps = 2;
constexpr std::int64_t width = 24, heads = 12, tokens = 6;

ModelOptions sizes() {
  return {.layers = blocks, .width = width, .heads = heads, .vocab = 37, .context = tokens + 1};
}

struct Case {
  ModelOptions model = sizes();
  bool sequence = false;
  bool weights_later = false;
  std::int64_t samples = 8;
};

std::string text(const Case& c, int ranks) {
  return fmt::format("{} ranks{}{}, {}, dropout {}, recompute {}, vocabulary {}, {} samples", ranks,
                     c.sequence ? ", sequence" : "", c.weights_later ? ", weights later" : "",
                     c.model.tied ? "tied" : "untied", c.model.dropout, c.model.recompute,
                     c.model.vocab, c.samples);
}

struct Batch {
  at::Tensor input, target;
};
std::vector<Batch> batches_of(std::int64_t samples, std::int64_t vocab) {
  at::manual_seed(1);
  const auto ids = [&] { return at::randint(vocab, {samples, tokens}, at::kLong); };
  std::vector<Batch> all;
  for (int i = 0; i < steps; ++i) all.push_back({ids(), ids()});
  return all;
}

// The gradients of inputs first, those of weights after all of them.
Table with_weights_later(const Table& table) {
  Table changed;
  std::vector<Action> later;
  for (Action action : table) {
    if (action.kind == Action::Kind::backward) {
      action.kind = Action::Kind::input;
      later.push_back({Action::Kind::weight, action.layer, action.micro_batch});
    } else if (action.kind == Action::Kind::update) {
      changed.insert(changed.end(), later.begin(), later.end());
    }
    changed.push_back(action);
  }
  return changed;
}

using Values = std::map<std::string, at::Tensor>;
struct Trained {
  std::vector<double> losses;
  Values values;  // this rank's parts
  std::map<std::string, Split> splits;
};

// Two stages of two layers each, and the ranks of other stages with the same parts.
struct Stages {
  std::shared_ptr<Communicator> ranks;
  std::string schedule;
};

// A few steps of one process, or of a rank that has parts, of all layers or those of its stage.
Trained trained(const Case& c, const std::vector<Batch>& batches,
                const std::shared_ptr<Communicator>& ranks = nullptr, const Stages& stages = {}) {
  Stack stack = gpt(c.model);
  StepShape shape{.layers = layers, .micro_batches = micro_batches};
  shape.recompute = stack.runs_again();
  Table table = one_process(shape);
  if (c.weights_later) table = with_weights_later(table);
  Neighbours neighbours;
  if (stages.ranks) {
    const PipelineShape pipeline{.ranks = 2, .micro_batches = micro_batches};
    const std::vector<StageLayers> cut = {{0, layers / 2}, {layers / 2, layers}};
    neighbours = {stages.ranks, layer_owners(cut, pipeline)};
    for (const int owner : neighbours.owner) shape.own.push_back(owner == stages.ranks->rank());
    stack.keep(shape.own);
    shape.tied = !stack.tied_across().empty();
    table = pipeline_table(make_schedule(stages.schedule, pipeline), pipeline, stages.ranks->rank(),
                           cut, shape);
    table.push_back({Action::Kind::settle});
    if (shape.tied) table.push_back({Action::Kind::tie});
    table.push_back({Action::Kind::update});
  }
  apply(gpt_plan(c.model), stack, ranks, c.sequence);
  stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
  MasterUpdate update(stack, plain_sgd());
  update.load(random_values(1));
  Executor executor(stack, &update, table, shape, nullptr, nullptr, neighbours);
  executor.seed(5);
  Trained result;
  for (const Batch& batch : batches) {
    update.rate().fill_(0.5);
    executor.step().add_(1);
    result.losses.push_back(
        executor.run(batch.input, batch.target, 1, /*first_sample=*/3).item<double>());
  }
  for (const auto& parameter : stack.parameters()) {
    if (!parameter.here) continue;
    result.values[parameter.name] = parameter.value.clone();
    result.splits[parameter.name] = parameter.split;
  }
  return result;
}

// All ranks' parts put together; what is whole must be the same on all of them, to the bit.
Values assembled(const std::vector<Trained>& ranks) {
  Values all;
  for (const auto& [name, split] : ranks.front().splits) {
    std::vector<at::Tensor> parts;
    for (const auto& rank : ranks) parts.push_back(rank.values.at(name));
    if (!split.is_part()) {
      for (const auto& part : parts) EXPECT_TRUE(at::equal(part, parts.front())) << name;
    }
    all[name] = assemble(parts, split);
  }
  return all;
}

void expect_one_process(const Case& c, int ranks) {
  SCOPED_TRACE(text(c, ranks));
  at::set_num_threads(1);
  const auto batches = batches_of(c.samples, c.model.vocab);
  const Trained expected = trained(c, batches);
  std::vector<Trained> seen(static_cast<std::size_t>(ranks));
  run_ranks_well({.world = ranks}, [&](Group& group) {
    seen[std::size_t(group.rank())] =
        trained(c, batches, native_communicator(group.shared_from_this()));
  });
  for (const auto& rank : seen) ASSERT_EQ(rank.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(seen[0].losses[i], expected.losses[i], 1e-12) << "step " << i;
    for (const auto& rank : seen) EXPECT_EQ(rank.losses[i], seen[0].losses[i]) << "step " << i;
  }
  const Values values = assembled(seen);
  for (const auto& [name, value] : expected.values)
    EXPECT_TRUE(close(values.at(name), value, 1e-12)) << name;
}

TEST(TensorParallel, EqualsOneProcess) {
  for (const bool sequence : {false, true})
    for (int ranks = 1; ranks <= 4; ++ranks)
      for (const bool tied : {true, false}) {
        Case c{.sequence = sequence};
        c.model.tied = tied;
        expect_one_process(c, ranks);
      }
}

TEST(TensorParallel, EqualsOneProcessWithDropout) {
  for (const bool sequence : {false, true})
    for (const int ranks : {2, 3, 4}) {
      Case c{.sequence = sequence};
      c.model.dropout = 0.1;
      expect_one_process(c, ranks);
    }
}

TEST(TensorParallel, EqualsOneProcessWithRecompute) {
  for (const char* recompute : {"selective", "full"})
    for (const bool sequence : {false, true})
      for (const int ranks : {2, 3}) {
        Case c{.sequence = sequence};
        c.model.dropout = 0.1;
        c.model.recompute = recompute;
        expect_one_process(c, ranks);
      }
}

TEST(TensorParallel, EqualsOneProcessWithWeightsLater) {
  for (const bool sequence : {false, true})
    for (const int ranks : {2, 4})
      for (const char* recompute : {"none", "selective"}) {
        Case c{.sequence = sequence, .weights_later = true};
        c.model.recompute = recompute;
        expect_one_process(c, ranks);
      }
}

// 36 divides over 2, 3 and 4; of 5 the last of four ranks has none.
TEST(TensorParallel, EqualsOneProcessWhateverTheVocabulary) {
  for (const bool sequence : {false, true})
    for (const std::int64_t vocab : {2, 5, 36})
      for (const int ranks : {2, 3, 4}) {
        Case c{.sequence = sequence};
        c.model.vocab = vocab;
        c.model.tied = vocab != 5;
        expect_one_process(c, ranks);
      }
}

// Micro-batches of 4 and 5 samples: 24 and 30 rows, of which a rank's end within a sample.
TEST(TensorParallel, EqualsOneProcessWithUnevenMicroBatches) {
  for (const bool sequence : {false, true})
    for (const int ranks : {2, 3}) {
      Case c{.sequence = sequence, .samples = 9};
      c.model.dropout = 0.1;
      expect_one_process(c, ranks);
    }
}

// Four ranks: two stages of two that split products. A tied table is cut in two and on both stages.
TEST(TensorParallel, EqualsOneProcessInAPipeline) {
  at::set_num_threads(1);
  for (const char* schedule : {"1f1b", "zero-bubble"})
    for (const bool sequence : {false, true})
      for (const bool tied : {true, false}) {
        Case c{.sequence = sequence};
        c.model.tied = tied;
        c.model.dropout = 0.1;
        SCOPED_TRACE(fmt::format("{}, {}", schedule, text(c, 2)));
        const auto batches = batches_of(c.samples, c.model.vocab);
        const Trained expected = trained(c, batches);
        std::vector<std::vector<Trained>> seen(2, std::vector<Trained>(2));  // by stage and part
        run_ranks_well({.world = 4}, [&](Group& group) {
          const auto all = native_communicator(group.shared_from_this());
          const int stage = all->rank() / 2, part = all->rank() % 2;
          const auto tensor = all->split(stage, part), pipeline = all->split(part, stage);
          seen[std::size_t(stage)][std::size_t(part)] =
              trained(c, batches, tensor, {pipeline, schedule});
        });
        std::size_t compared = 0;
        for (const auto& stage : seen) {
          for (const auto& rank : stage) {
            ASSERT_EQ(rank.losses.size(), expected.losses.size());
            for (std::size_t i = 0; i < rank.losses.size(); ++i)
              EXPECT_NEAR(rank.losses[i], expected.losses[i], 1e-12) << "step " << i;
          }
          for (const auto& [name, value] : assembled(stage)) {
            EXPECT_TRUE(close(value, expected.values.at(name), 1e-12)) << name;
            ++compared;
          }
        }
        EXPECT_EQ(compared, expected.values.size() + (tied ? 1 : 0)) << "every parameter was seen";
      }
}

struct Sent {
  std::map<std::string, std::uint64_t> bytes;  // by tag, of all ranks
};

Sent sent(const Case& c, int ranks) {
  at::set_num_threads(1);
  const auto batches = batches_of(c.samples, c.model.vocab);
  Sent all;
  std::mutex mutex;
  run_ranks_well({.world = ranks, .comm = {.algorithm = "shared"}}, [&](Group& group) {
    trained(c, batches, native_communicator(group.shared_from_this()));
    const std::lock_guard lock(mutex);
    for (const auto& entry : group.ledger().entries()) all.bytes[entry.tag] += entry.bytes;
  });
  return all;
}

// Closed forms, for all ranks together: an all-reduce of n bytes sends 2 (p-1) n, an all-gather or
// a reduce-scatter half of that.
constexpr std::uint64_t passes = steps * micro_batches, rows = 8 / micro_batches * tokens;
constexpr std::uint64_t activation = rows * width * sizeof(double);  // b s h

TEST(TensorParallel, SendsFourAllReducesABlock) {
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const std::uint64_t all_reduce = 2 * std::uint64_t(ranks - 1);
    const Sent seen = sent({}, ranks);
    EXPECT_EQ(seen.bytes.at("tensor"),
              passes * all_reduce * activation * (4 * blocks + 1 /*embedding*/ + 1 /*head*/));
    EXPECT_EQ(seen.bytes.at("vocabulary"), passes * all_reduce * 3 * rows * sizeof(double));
    EXPECT_FALSE(seen.bytes.contains("norms"));
  }
}

// In a block: two all-gathers and two reduce-scatters forward; backward as many, and the gathers of
// two inputs that were kept split. The embedding has one of each; the head gathers its input twice.
TEST(TensorParallel, SendsTenHalvesABlockWhereRowsAreSplit) {
  for (const int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    const auto half = std::uint64_t(ranks - 1), all_reduce = 2 * half;
    const Sent seen = sent({.sequence = true}, ranks);
    EXPECT_EQ(seen.bytes.at("tensor"), passes * half * activation * (10 * blocks + 2 + 3));
    EXPECT_EQ(seen.bytes.at("vocabulary"), passes * all_reduce * 3 * rows * sizeof(double));
    EXPECT_EQ(seen.bytes.at("norms"),
              passes * all_reduce * ((2 * blocks + 1) * 2 + tokens) * width * sizeof(double));
  }
}

// The second run of a block stops before its last product, so it adds one all-reduce and not two;
// with rows split, two all-gathers and a reduce-scatter.
TEST(TensorParallel, SendsLittleMoreToComputeABlockAgain) {
  const std::uint64_t half = passes * activation;  // of two ranks
  for (const bool sequence : {false, true}) {
    Case c{.sequence = sequence};
    const Sent before = sent(c, 2);
    c.model.recompute = "full";
    EXPECT_EQ(sent(c, 2).bytes.at("tensor") - before.bytes.at("tensor"),
              half * blocks * (sequence ? 3 : 2));
    c.model.recompute = "selective";
    EXPECT_EQ(sent(c, 2).bytes.at("tensor"), before.bytes.at("tensor"));
  }
}

TEST(TensorParallel, GivesWholeLogitsAndTheLossWithoutTraining) {
  at::set_num_threads(1);
  const Batch batch = batches_of(4, sizes().vocab).front();
  Stack one = gpt(sizes());
  one.allocate(at::kCPU, at::kDouble, Gradients::no);
  one.load(random_values(1));
  const at::Tensor logits = one.infer(batch.input), loss = one.infer(batch.input, batch.target);
  for (const bool sequence : {false, true})
    run_ranks_well({.world = 3}, [&](Group& group) {
      Stack stack = gpt(sizes());
      apply(gpt_plan(sizes()), stack, native_communicator(group.shared_from_this()), sequence);
      stack.allocate(at::kCPU, at::kDouble, Gradients::no);
      stack.load(random_values(1));
      EXPECT_TRUE(close(stack.infer(batch.input), logits, 1e-12));
      EXPECT_TRUE(close(stack.infer(batch.input, batch.target), loss, 1e-12));
    });
}

// One forward and backward by hand; the gradients of this rank's parts.
Values gradients(const ModelOptions& model, at::ScalarType type, const Batch& batch,
                 const std::shared_ptr<Communicator>& ranks, bool sequence,
                 std::map<std::string, Split>* splits = nullptr) {
  at::NoGradGuard no_grad;
  Stack stack = gpt(model);
  apply(gpt_plan(model), stack, ranks, sequence);
  stack.allocate(at::kCPU, type, Gradients::yes);
  stack.load(random_values(1));
  std::vector<Pass> passes_of(std::size_t(stack.size()), stack.pass_for(batch.input));
  passes_of.back().target = batch.target;
  if (type == at::kHalf) passes_of.back().scale = at::full({}, 256.0, at::kFloat);
  stack.begin_step();
  at::Tensor x = batch.input, grad;
  for (int l = 0; l < stack.size(); ++l) x = stack.layer(l).forward(x, passes_of[std::size_t(l)]);
  for (int l = stack.size(); l-- > 0;)
    grad = stack.layer(l).backward(grad, passes_of[std::size_t(l)]);
  Values all{{"loss", x}};
  if (splits) (*splits)["loss"] = {};
  for (const auto& parameter : stack.parameters()) {
    all[parameter.name] = parameter.grad.clone();
    if (splits) (*splits)[parameter.name] = parameter.split;
  }
  return all;
}

// Against one process in fp64, as far off as one process in the same type is, or a few roundings.
TEST(TensorParallel, HasTheGradientsOfOneProcessInNarrowTypes) {
  at::set_num_threads(1);
  const Batch batch = batches_of(4, sizes().vocab).front();
  const auto error = [](const at::Tensor& seen, const at::Tensor& exact) {
    return (seen.to(at::kDouble) - exact).norm().item<double>() /
           std::max(1e-6, exact.norm().item<double>());
  };
  const Values exact = gradients(sizes(), at::kDouble, batch, nullptr, false);
  struct Type {
    at::ScalarType type;
    double scale, rounding;
  };
  for (const auto& [type, scale, rounding] :
       {Type{at::kFloat, 1, 0x1p-24}, {at::kBFloat16, 1, 0x1p-9}, {at::kHalf, 256, 0x1p-11}})
    for (const bool sequence : {false, true}) {
      SCOPED_TRACE(fmt::format("{}{}", at::toString(type), sequence ? ", sequence" : ""));
      const Values one = gradients(sizes(), type, batch, nullptr, false);
      std::vector<Trained> seen(2);
      run_ranks_well({.world = 2}, [&](Group& group) {
        auto& mine = seen[std::size_t(group.rank())];
        mine.values = gradients(sizes(), type, batch, native_communicator(group.shared_from_this()),
                                sequence, &mine.splits);
      });
      for (const auto& [name, value] : assembled(seen)) {
        const at::Tensor wanted = exact.at(name) * (name == "loss" ? 1 : scale);
        EXPECT_LT(error(value, wanted), 2 * error(one.at(name), wanted) + 16 * rounding) << name;
      }
    }
}

// A user's layer, of pieces: it says nothing of rows.
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

TEST(SplitPlan, SplitsLayersOfAUser) {
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
    executor.run(input, target);
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
    // 37 rows of a table are padded to 40; norms, biases of row splits and positions are whole.
    const std::int64_t padding = 3 * width * (tied ? 1 : 2),
                       whole = width * (tokens + 1 + 2 + blocks * 6);
    EXPECT_EQ(counted, gpt(model).parameter_count() + padding);
    EXPECT_EQ(elements, counted + 3 * whole);
  }
}

std::string refusal(const SplitPlan& plan, Stack stack, int parts, bool sequence = false) {
  return thrown<InvalidArgument>([&] { apply(plan, stack, parts, 0, sequence); });
}

TEST(SplitPlan, RefusesSizesThatDoNotDivide) {
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
  EXPECT_EQ(refusal(SplitPlan().column("mlp.up").row("mlp.down"), mlp(), 5),
            "the 12 columns of mlp.up.weight do not divide over parallel.tensor = 5: 10 or 15 "
            "would, or tensor 3 or 4");
  EXPECT_EQ(refusal(SplitPlan().heads("mlp.up", 5).row("mlp.down"), mlp(), 5),
            "mlp.up.weight has 12 columns, which are not queries, keys and values of 5 heads");
}

TEST(SplitPlan, RefusesNamesThatNothingHas) {
  EXPECT_EQ(refusal(SplitPlan().column("*.upp").row("mlp.down"), mlp(), 2),
            "no parameter of the model is named *.upp.weight or *.upp.bias, which the split plan "
            "has");
  EXPECT_EQ(refusal(SplitPlan().column("mlp.u").row("mlp.down"), mlp(), 2),
            "no parameter of the model is named mlp.u.weight or mlp.u.bias, which the split plan "
            "has");
  EXPECT_EQ(refusal(SplitPlan().column("*up").row("mlp.down").column("mlp.*"), mlp(), 2),
            "two rules of the split plan name mlp.up.weight");
}

TEST(SplitPlan, RefusesWhatAPieceCannotDo) {
  Stack wrapped;
  wrapped.add(module_layer("body", torch::nn::Linear(4, 4)));
  EXPECT_EQ(refusal(SplitPlan().column("body"), std::move(wrapped), 2),
            "parameter body.weight belongs to a layer that cannot be split");
  EXPECT_EQ(refusal(SplitPlan().vocabulary("mlp.up"), mlp(), 2),
            "parameter mlp.up.weight cannot be split by vocabulary: it is of a product, which is "
            "split by columns, heads or rows");
  EXPECT_EQ(refusal(SplitPlan().column("transformer.wte"), gpt(sizes()), 2),
            "parameter transformer.wte.weight cannot be split by columns: it is a table, which is "
            "split by vocabulary");
  EXPECT_EQ(refusal(SplitPlan().vocabulary("transformer.wpe"), gpt(sizes()), 2),
            "parameter transformer.wpe.weight belongs to a layer that cannot be split");
}

// Ties itself to a table, and knows nothing of parts.
class Borrower : public Layer {
 public:
  void declare(Declaration& declaration) override { declaration.tied("transformer.wte.weight"); }
  at::Tensor forward(const at::Tensor& x, Pass&) override { return x; }
  at::Tensor backward(const at::Tensor& grad, Pass&) override { return grad; }
};

TEST(SplitPlan, RefusesATableThatAnotherLayerNeedsWhole) {
  Stack stack = gpt(sizes());
  stack.add(std::make_unique<Borrower>());
  EXPECT_EQ(refusal(gpt_plan(sizes()), std::move(stack), 2),
            "parameter transformer.wte.weight belongs to a layer that cannot be split");
}

TEST(SplitPlan, RefusesPartsOfColumnsThatNothingTakes) {
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

TEST(SplitPlan, RefusesToSplitRowsUnderAProductThatIsWhole) {
  SplitPlan plan;
  plan.vocabulary("transformer.wte").column("*.mlp.c_fc").row("*.mlp.c_proj");
  EXPECT_EQ(refusal(plan, gpt(sizes()), 2, /*sequence=*/true),
            "with sequence parallelism all products and tables are split, and the plan does not "
            "name transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(refusal(plan, gpt(sizes()), 2), "(nothing was thrown)");
}

TEST(SplitPlan, LeavesAStackAloneThatItRefuses) {
  Stack stack = mlp();
  EXPECT_THROW(apply(SplitPlan().column("mlp.up"), stack, 3, 0), InvalidArgument);
  for (const auto& parameter : stack.parameters()) {
    EXPECT_EQ(parameter.shape, mlp().find(parameter.name)->shape);
    EXPECT_EQ(parameter.group, nullptr);
  }
}

}  // namespace
}  // namespace echelon
