// What is predicted before anything is allocated is what a trainer then takes.
#include "echelon/train/memory_forecast.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/nn/gpt.h"
#include "echelon/train/trainer.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

JobOptions job(int stage = 0, const std::string& precision = "fp32") {
  JobOptions options;
  options.model = {.layers = 4, .width = 96, .heads = 4, .vocab = 300, .context = 64};
  options.train.batch = 24;
  options.train.steps = 2;
  options.train.precision = precision;
  options.parallel.zero = stage;
  options.zero.group = 0.05;
  return options;
}

struct Seen {
  MemoryUse now, peak;
};

Seen measured(const JobOptions& options, int world) {
  at::set_num_threads(1);
  const RandomTokens data(options.model.vocab, options.model.context, 1);
  Seen seen;
  const auto train = [&](std::shared_ptr<Communicator> ranks) {
    Stack stack = gpt(options.model);
    Trainer trainer(stack, data, options.train, options.optim, ranks, options.parallel,
                    options.zero);
    trainer.run();
    if (!ranks || ranks->rank() == 0) seen = {trainer.memory().now(), trainer.memory().at_peak()};
  };
  if (world == 1)
    train(nullptr);
  else
    run_ranks_well({.world = world},
                   [&](Group& group) { train(native_communicator(group.shared_from_this())); });
  return seen;
}

TEST(MemoryForecast, IsExactForWhatAModelKeeps) {
  for (const char* precision : {"fp32", "bf16", "fp16", "fp64"})
    for (const char* optimizer : {"adamw", "sgd"})
      for (int stage = 0; stage <= 3; ++stage)
        for (const int world : {2, 3}) {
          JobOptions options = job(stage, precision);
          options.optim.name = optimizer;
          const MemoryUse predicted = forecast_memory(options, world, world).tensors,
                          seen = measured(options, world).now;
          for (const auto kind :
               {MemoryKind::parameters, MemoryKind::gradients, MemoryKind::optimizer})
            EXPECT_EQ(predicted[kind], seen[kind])
                << memory_kind_names[std::size_t(kind)] << ", stage " << stage << ", " << precision
                << ", " << optimizer << ", world " << world;
        }
}

// Up to what is on its way when it happens to be done early.
TEST(MemoryForecast, BoundsWhatIsLentToGroups) {
  for (int stage = 2; stage <= 3; ++stage)
    for (const double prefetch : {0.0, 0.5, 64.0}) {
      JobOptions options = job(stage);
      options.zero.prefetch = prefetch;
      options.train.micro_batches = 2;
      const auto predicted = forecast_memory(options, 2, 2).tensors[MemoryKind::communication],
                 seen = measured(options, 2).now[MemoryKind::communication];
      EXPECT_LE(seen, predicted) << "stage " << stage << ", prefetch " << prefetch;
      EXPECT_GE(double(seen), 0.5 * double(predicted))
          << "stage " << stage << ", prefetch " << prefetch;
    }
}

TEST(MemoryForecast, IsWithinATenthForActivations) {
  for (const char* recompute : {"none", "selective", "full"})
    for (const int micro_batches : {1, 3})
      for (const auto& [vocab, precision] :
           {std::pair<std::int64_t, const char*>{300, "fp32"}, {5000, "fp32"}, {5000, "bf16"}}) {
        JobOptions options = job(0, precision);
        options.model.recompute = recompute;
        options.model.vocab = vocab;
        options.model.context = 128;
        options.train.micro_batches = micro_batches;
        const double predicted =
                         double(forecast_memory(options, 1, 1).tensors[MemoryKind::activations]),
                     seen = double(measured(options, 1).peak[MemoryKind::activations]);
        EXPECT_NEAR(predicted / seen, 1, 0.1)
            << recompute << ", " << micro_batches << " micro-batches, vocabulary " << vocab << ", "
            << precision << ": " << predicted << " bytes, seen " << seen;
      }
}

TEST(MemoryForecast, RefusesWhatDoesNotFitAndSaysWhatWould) {
  JobOptions options = job();
  options.model.layers = 8;
  const auto all = forecast_memory(options, 4, 4).tensors.total();
  options.train.memory_mib = double(all) * 0.75 / 1024 / 1024;
  const std::string refusal = thrown<InvalidArgument>([&] { require_memory(options, 4, 4); });
  EXPECT_NE(refusal.find("a rank needs"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("It would fit with "), std::string::npos) << refusal;
  options.train.memory_mib = 2 * double(all) / 1024 / 1024;
  require_memory(options, 4, 4);
}

TEST(MemoryForecast, NamesAGroupThatIsTooLarge) {
  JobOptions options = job(3);
  options.zero.group = 0;
  options.model.vocab = 60000;
  options.train.memory_mib = 20;
  const std::string refusal = thrown<InvalidArgument>([&] { require_memory(options, 2, 2); });
  EXPECT_NE(refusal.find("transformer.wte.weight"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("in one piece, and a rank may take 20.0 MiB"), std::string::npos)
      << refusal;
}

}  // namespace
}  // namespace echelon
