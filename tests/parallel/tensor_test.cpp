// Layers whose matrix products are split over ranks, compared with one process.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "tests/collective/ranks.h"
#include "tests/parallel/split_training.h"

namespace echelon {
namespace {

using namespace split_training;

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
  for (const auto recompute : {Recompute::selective, Recompute::full})
    for (const bool sequence : {false, true})
      for (const int ranks : {2, 3}) {
        Case c{.sequence = sequence};
        c.model.dropout = 0.1;
        c.model.recompute = recompute;
        expect_one_process(c, ranks);
      }
}

TEST(TensorParallel, EqualsOneProcessWithDeferredWeightGradients) {
  for (const bool sequence : {false, true})
    for (const int ranks : {2, 4})
      for (const auto recompute : {Recompute::none, Recompute::selective}) {
        Case c{.sequence = sequence, .defer_weight_grads = true};
        c.model.recompute = recompute;
        expect_one_process(c, ranks);
      }
}

// The vocabulary of 36 is divisible by 2, 3 and 4. Of 5, the last of four ranks has none.
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

// Micro-batches of 4 and 5 samples: 24 and 30 rows. A rank's rows end within a sample.
TEST(TensorParallel, EqualsOneProcessWithUnevenMicroBatches) {
  for (const bool sequence : {false, true})
    for (const int ranks : {2, 3}) {
      Case c{.sequence = sequence, .samples = 9};
      c.model.dropout = 0.1;
      expect_one_process(c, ranks);
    }
}

// Four ranks: two stages of two tensor-parallel ranks. A tied table is cut in two and is on both
// stages.
TEST(TensorParallel, EqualsOneProcessInAPipeline) {
  at::set_num_threads(1);
  for (const auto schedule : {PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble})
    for (const bool sequence : {false, true})
      for (const bool tied : {true, false}) {
        Case c{.sequence = sequence};
        c.model.tied = tied;
        c.model.dropout = 0.1;
        SCOPED_TRACE(fmt::format("{}, {}", name_of(schedule), text(c, 2)));
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
  std::map<std::string, std::uint64_t> bytes;  // by tag, over all ranks
};

Sent sent(const Case& c, int ranks) {
  at::set_num_threads(1);
  const auto batches = batches_of(c.samples, c.model.vocab);
  Sent all;
  std::mutex mutex;
  run_ranks_well({.world = ranks, .comm = {.algorithm = Algorithm::shared}}, [&](Group& group) {
    trained(c, batches, native_communicator(group.shared_from_this()));
    const std::lock_guard lock(mutex);
    for (const auto& entry : group.ledger().entries()) all.bytes[entry.tag] += entry.bytes;
  });
  return all;
}

// Closed forms for all ranks together: an all-reduce of n bytes sends 2 (p-1) n, an all-gather or a
// reduce-scatter half of that.
constexpr std::uint64_t passes = steps * micro_batches, rows = 8 / micro_batches * tokens;
constexpr std::uint64_t activation = rows * width * sizeof(double);  // b s h

TEST(TensorParallel, SendsFourAllReducesPerBlock) {
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

// Per block: two all-gathers and two reduce-scatters in forward. Backward has the same, plus the
// all-gathers of two inputs that were kept split. The embedding has one of each; the head gathers
// its input twice.
TEST(TensorParallel, SendsTenHalvesPerBlockIfRowsAreSplit) {
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

// The recompute of a block stops before its last product, so it adds one all-reduce instead of two;
// with rows split, two all-gathers and one reduce-scatter.
TEST(TensorParallel, SendsLittleMoreToRecomputeABlock) {
  const std::uint64_t half = passes * activation;  // of two ranks
  for (const bool sequence : {false, true}) {
    Case c{.sequence = sequence};
    const Sent before = sent(c, 2);
    c.model.recompute = Recompute::full;
    EXPECT_EQ(sent(c, 2).bytes.at("tensor") - before.bytes.at("tensor"),
              half * blocks * (sequence ? 3 : 2));
    c.model.recompute = Recompute::selective;
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

// Computes one forward and backward by hand and returns the gradients of this rank's parts.
Values gradients(const ModelOptions& model, at::ScalarType type, const Batch& batch,
                 const std::shared_ptr<Communicator>& ranks, bool sequence,
                 std::map<std::string, Split>* splits = nullptr) {
  at::NoGradGuard no_grad;
  Stack stack = gpt(model);
  apply(gpt_plan(model), stack, ranks, sequence);
  stack.allocate(at::kCPU, type, Gradients::yes);
  stack.load(random_values(1));
  std::vector<Pass> passes_of(std::size_t(stack.size()),
                              stack.pass_for(0, std::make_shared<Batch>(Batch{batch.input, {}})));
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

// Compared with one process in fp64: the error is that of one process in the same type, or a few
// roundings.
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

}  // namespace
}  // namespace echelon
