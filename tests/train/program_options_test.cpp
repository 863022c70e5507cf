// Options that a program sets are checked like a user's, and are named by the keys of a job.
#include <gtest/gtest.h>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>

#include "echelon/base/error.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/train/trainer.h"
#include "tests/base/thrown.h"
#include "tests/nn/user_module.h"

namespace echelon {
namespace {

TEST(ProgramOptions, AreCheckedAndNamedByTheirKeys) {
  const TensorDataset numbers(at::randn({40, 6}), at::randn({40, 4}));
  Stack stack;
  stack.add(UserModule("body", {part::Linear{6, 4}}).layer())
      .add(loss_layer([](const at::Tensor& a, const at::Tensor& b) { return at::mse_loss(a, b); }));
  const auto error = [&](const TrainOptions& train, const ParallelOptions& parallel = {},
                         const ZeroOptions& zero = {}, const PipelineOptions& pipeline = {},
                         const OptimOptions& optim = {}) {
    return thrown<InvalidArgument>([&] {
      Trainer(stack, numbers,
              {.train = train,
               .optim = optim,
               .parallel = parallel,
               .zero = zero,
               .pipeline = pipeline});
    });
  };
  const auto names = [](const std::string& text, const std::string& key) {
    return text.starts_with(key + " ") && text.find("set in code") != std::string::npos;
  };
  const auto expect_named = [&](const std::string& text, const std::string& key) {
    EXPECT_TRUE(names(text, key)) << text;
  };
  expect_named(error({.batch = -1}), "train.batch");
  expect_named(error({}, {.zero = 4}), "parallel.zero");
  expect_named(error({}, {.shares = BatchSplit(7)}), "parallel.shares");
  expect_named(error({}, {}, {.offload = Offload(3)}), "zero.offload");
  expect_named(error({}, {}, {}, {.schedule = PipelineOrder(4), .stages = {}}),
               "pipeline.schedule");
  expect_named(error({}, {}, {}, {}, {.rate = -1}), "optim.rate");
  // Incompatible options are rejected with the same message as in a job.
  EXPECT_EQ(
      error({}, {}, {.offload = Offload::host}),
      "zero.offload keeps what parallel.zero shares out: set parallel.zero too, to 1, 2 or 3, "
      "or set zero.offload=none");
  EXPECT_EQ(error({}, {.tensor = 2}),
            "pipeline 1 x tensor 2 takes 2 ranks or a multiple, and there is 1: start 2; "
            "parallel.pipeline, parallel.data and parallel.tensor make the mesh (parallel.data=0: "
            "what the others leave)");
}

}  // namespace
}  // namespace echelon
