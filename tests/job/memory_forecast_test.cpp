// The prediction before anything is allocated equals the memory that a trainer takes.
#include "echelon/plan/memory_forecast.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "echelon/base/error.h"
#include "echelon/job/server_job.h"
#include "echelon/models/family.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/train/trainer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

JobOptions job(int stage = 0, Precision precision = Precision::fp32) {
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
  std::string scatter_choice;
};

std::vector<Seen> measured_ranks(const JobOptions& options, int world) {
  at::set_num_threads(1);
  const RandomTokens data(options.model.vocab, options.model.context, 1);
  std::vector<Seen> seen{std::size_t(world)};
  const auto train = [&](std::shared_ptr<Communicator> ranks) {
    const Family& family = family_of(options.model);
    Stack stack = family.build(options.model);
    Trainer trainer(stack, data,
                    {.train = options.train,
                     .optim = options.optim,
                     .parallel = options.parallel,
                     .zero = options.zero,
                     .pipeline = options.pipeline,
                     .split = family.split(options.model)},
                    ranks);
    trainer.run();
    seen[std::size_t(ranks ? ranks->rank() : 0)] = {
        trainer.memory().now(), trainer.memory().at_peak(), trainer.scatter_choice()};
  };
  if (world == 1)
    train(nullptr);
  else
    run_ranks_well({.world = world},
                   [&](Group& group) { train(native_communicator(group.shared_from_this())); });
  return seen;
}

Seen measured(const JobOptions& options, int world) { return measured_ranks(options, world)[0]; }

// The memory of the rank that took the most, which is the one that is predicted.
MemoryUse most_measured(const JobOptions& options, int world) {
  const auto all = measured_ranks(options, world);
  return std::max_element(
             all.begin(), all.end(),
             [](const Seen& a, const Seen& b) { return a.peak.total() < b.peak.total(); })
      ->peak;
}

JobOptions pipeline_job(PipelineOrder schedule, const std::string& stages) {
  JobOptions options = job();
  options.parallel.pipeline = 2;
  options.pipeline.schedule = schedule;
  options.pipeline.stages = stages;
  options.pipeline.chunks = schedule == PipelineOrder::interleaved ? 2 : 1;
  options.train.batch = 32;
  options.train.micro_batches = 8;
  return options;
}

TEST(MemoryForecast, IsExactForWhatAModelKeeps) {
  for (const auto precision : {Precision::fp32, Precision::bf16, Precision::fp16, Precision::fp64})
    for (const auto optimizer : {OptimizerKind::adamw, OptimizerKind::sgd})
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

// An upper bound, since an exchange may finish early.
TEST(MemoryForecast, BoundsPooledMemoryOfGroups) {
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

// A group that waits for several micro-batches keeps its fp32 sums: with zero-bubble on the second
// rank, and if gradients are reduced once per step.
TEST(MemoryForecast, BoundsTheSumsInFp32ThatGroupsKeep) {
  for (int stage = 2; stage <= 3; ++stage)
    for (const auto& [schedule, scatter] :
         {std::pair{PipelineOrder::zero_bubble, ScatterOption::micro_batch},
          {PipelineOrder::one_f_one_b, ScatterOption::micro_batch},
          {PipelineOrder::one_f_one_b, ScatterOption::step}}) {
      JobOptions options = pipeline_job(schedule, "");
      options.pipeline.balance = BalanceBy::count;
      options.parallel.zero = stage;
      options.parallel.data = 2;
      options.zero.scatter = scatter;
      options.train.precision = Precision::bf16;
      options.train.reduce = ReduceType::fp32;
      const auto predicted = forecast_memory(options, 4, 4).tensors[MemoryKind::communication];
      std::uint64_t seen = 0;
      for (const Seen& rank : measured_ranks(options, 4))
        seen = std::max(seen, rank.now[MemoryKind::communication]);
      EXPECT_LE(seen, predicted) << "stage " << stage << ", " << schedule << ", " << scatter;
      EXPECT_GE(double(seen), 0.5 * double(predicted))
          << "stage " << stage << ", " << schedule << ", " << scatter;
    }
}

TEST(MemoryForecast, IsWithinATenthForActivations) {
  for (const auto recompute : {Recompute::none, Recompute::selective, Recompute::full})
    for (const int micro_batches : {1, 3})
      for (const auto& [vocab, precision] :
           {std::pair<std::int64_t, Precision>{300, Precision::fp32},
            {5000, Precision::fp32},
            {5000, Precision::bf16}}) {
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

TEST(MemoryForecast, HoldsForEveryFamily) {
  for (const Family* family : families())
    for (const auto recompute : {Recompute::none, Recompute::selective, Recompute::full})
      for (const int tensor : {1, 2})
        for (const auto precision : {Precision::fp32, Precision::bf16}) {
          JobOptions options = job(0, precision);
          options.model.family = family->name;
          options.model.recompute = recompute;
          options.model.context = 128;
          options.parallel.tensor = tensor;
          const MemoryUse predicted = forecast_memory(options, tensor, tensor).tensors;
          const Seen seen = measured(options, tensor);
          const std::string where = fmt::format("{}, recompute {}, {} ranks, {}", family->name,
                                                name_of(recompute), tensor, name_of(precision));
          for (const auto kind :
               {MemoryKind::parameters, MemoryKind::gradients, MemoryKind::optimizer})
            EXPECT_EQ(predicted[kind], seen.now[kind])
                << memory_kind_names[std::size_t(kind)] << ", " << where;
          const double expected = double(predicted[MemoryKind::activations]),
                       activations = double(seen.peak[MemoryKind::activations]);
          // With tensor parallelism, the additional memory of a backward is only bounded.
          EXPECT_GE(expected / activations, tensor == 1 ? 0.9 : 1)
              << where << ": " << expected << " bytes, seen " << activations;
          EXPECT_LE(expected / activations, tensor == 1 ? 1.1 : 1.3)
              << where << ": " << expected << " bytes, seen " << activations;
        }
}

// Frozen parameters are whole everywhere, and layers below the lowest that trains keep nothing.
TEST(MemoryForecast, HoldsForFrozenParameters) {
  const std::vector<std::string> lower = {"transformer.w*", "transformer.h.0.*",
                                          "transformer.h.1.*"},
                                 blocks = {"transformer.w*", "transformer.h.*"},
                                 some = {"*.bias", "*.mlp.c_fc.weight"};
  for (const auto& freeze : {lower, blocks, some})
    for (const auto recompute : {Recompute::none, Recompute::full})
      for (const auto& [stage, world] : {std::pair{0, 1}, {1, 2}, {2, 3}, {3, 2}})
        for (const auto precision : {Precision::fp32, Precision::bf16}) {
          JobOptions options = job(stage, precision);
          options.model.tied = false;
          options.model.recompute = recompute;
          options.model.context = 128;
          options.train.freeze = freeze;
          const MemoryUse predicted = forecast_memory(options, world, world).tensors;
          const Seen seen = measured(options, world);
          const std::string where =
              fmt::format("without {} and others, recompute {}, stage {}, {}", freeze.back(),
                          name_of(recompute), stage, name_of(precision));
          for (const auto kind :
               {MemoryKind::parameters, MemoryKind::gradients, MemoryKind::optimizer})
            EXPECT_EQ(predicted[kind], seen.now[kind])
                << memory_kind_names[std::size_t(kind)] << ", " << where;
          const double expected = double(predicted[MemoryKind::activations]),
                       activations = double(seen.peak[MemoryKind::activations]);
          EXPECT_GE(expected / activations, 0.9) << where << ": " << expected;
          EXPECT_LE(expected / activations, 1.1) << where << ": " << expected;
        }
}

// A stage may have nothing to train, and then only its parameters and what passes through it.
TEST(MemoryForecast, BoundsAPipelineWithFrozenStages) {
  for (const auto schedule :
       {PipelineOrder::gpipe, PipelineOrder::one_f_one_b, PipelineOrder::zero_bubble}) {
    JobOptions options = pipeline_job(schedule, "4,2");
    options.model.tied = false;
    options.train.freeze = {"transformer.w*", "transformer.h.0.*", "transformer.h.1.*",
                            "transformer.h.2.*"};
    const auto predicted = forecast_memory(options, 2, 2).tensors, seen = most_measured(options, 2);
    EXPECT_EQ(predicted[MemoryKind::gradients], seen[MemoryKind::gradients]) << schedule;
    EXPECT_LE(seen.total(), 1.02 * double(predicted.total())) << schedule;
    EXPECT_GE(seen.total(), 0.8 * double(predicted.total())) << schedule;
  }
}

// Samples that are padded to lengths which do not divide keep their rows whole, as in the trainer.
TEST(MemoryForecast, CountsRowsAsWholeIfPaddedSamplesDoNotDivide) {
  JobOptions options = job();
  options.parallel.tensor = 2;
  const auto activations = [&](std::int64_t sample_tokens, bool sequence) {
    options.sample_tokens = sample_tokens;
    options.parallel.sequence = sequence;
    return forecast_memory(options, 2, 2).tensors[MemoryKind::activations];
  };
  EXPECT_LT(activations(0, true), activations(0, false));
  EXPECT_EQ(activations(8, true), activations(0, true));
  EXPECT_EQ(activations(1, true), activations(0, false));
}

// Peak memory by rank, of the trainer and the server in the same process.
std::vector<MemoryUse> measured_with_servers(const JobOptions& options, int world, int slow_rank) {
  at::set_num_threads(1);
  const RandomTokens data(options.model.vocab, options.model.context, 1);
  const Token token = Token::random();
  const ScratchFolder folder;
  std::vector<MemoryUse> seen{std::size_t(world)};
  run_ranks_well({.world = world}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    MemoryAccount account(MemoryExtent::with_inner);
    const MemoryCounting counting(account);
    ServerJob job(options, *ranks, "127.0.0.1", token);
    if (job.works()) {
      Stack stack = gpt(options.model);
      Trainer trainer(stack, data, options);
      job.attach(trainer, stack);
      if (group.rank() == slow_rank) trainer.slow_down(20);
      trainer.run();
      if (group.rank() == 0) trainer.save(folder / "state");  // the state comes back
      trainer.leave_servers();
    }
    job.wait();
    seen[std::size_t(group.rank())] = account.at_peak();
  });
  return seen;
}

std::uint64_t most_of(const std::vector<MemoryUse>& all) {
  std::uint64_t most = 0;
  for (const auto& one : all) most = std::max(most, one.total());
  return most;
}

TEST(MemoryForecast, IsWithinATenthForSynchronousServers) {
  for (const auto place : {ServerPlace::colocated, ServerPlace::separate})
    for (const int servers : {1, 2})
      for (const auto precision : {Precision::fp32, Precision::bf16}) {
        JobOptions options = job(0, precision);
        options.model.context = 16;  // so that parameters dominate
        options.model.width = 192;
        options.server = {.count = servers, .place = place};
        const int world = 3 + (place == ServerPlace::separate ? servers : 0);
        const double predicted = double(forecast_memory(options, world, world).tensors.total()),
                     seen = double(most_of(measured_with_servers(options, world, -1)));
        EXPECT_LE(seen, 1.02 * predicted) << place << ", " << servers << ", " << precision;
        EXPECT_GE(seen, 0.75 * predicted) << place << ", " << servers << ", " << precision;
      }
}

// Holds however slow a worker is, and however many gradients wait for it.
TEST(MemoryForecast, BoundsServersWithOldGradients) {
  for (const auto& [mode, precision, compensate] :
       {std::tuple<ServerMode, Precision, double>{ServerMode::bounded, Precision::fp32, 0},
        {ServerMode::bounded, Precision::bf16, 0},
        {ServerMode::async, Precision::fp32, 0},
        {ServerMode::bounded, Precision::fp32, 0.1}})
    for (const int servers : {1, 2}) {
      JobOptions options = job(0, precision);
      options.model.context = 16;
      options.model.width = 192;
      options.train.steps = 12;
      options.server = {.count = servers, .mode = mode, .staleness = 2};
      options.server.compensate = compensate;
      const double predicted = double(forecast_memory(options, 3, 3).tensors.total()),
                   seen = double(most_of(measured_with_servers(options, 3, 2)));
      EXPECT_LE(seen, 1.02 * predicted) << mode << ", " << servers << ", " << precision;
      EXPECT_GE(seen, 0.3 * predicted) << mode << ", " << servers << ", " << precision;
    }
}

TEST(MemoryForecast, CountsVersionsThatAreReadAndGradientsThatCanWait) {
  const auto served = [](ServerMode mode, std::int64_t staleness, int workers, MemoryKind kind) {
    JobOptions options = job();
    options.model.context = 2;
    options.train.batch = 2 * workers;
    options.server = {
        .count = 1, .place = ServerPlace::separate, .mode = mode, .staleness = staleness};
    const int ranks = workers + 1;
    const auto forecast = [&] { return forecast_memory(options, ranks, ranks).tensors; };
    const auto seen = forecast();
    options.server.mode = ServerMode::sync;
    // One version, of fp32 values as long as a state: of AdamW's two, and the masters.
    const double one = double(forecast()[MemoryKind::optimizer]) / 3;
    return double(seen[kind]) / one;
  };
  EXPECT_DOUBLE_EQ(served(ServerMode::bounded, 3, 8, MemoryKind::parameters), 5);
  EXPECT_DOUBLE_EQ(served(ServerMode::bounded, 30, 8, MemoryKind::parameters), 9);
  EXPECT_DOUBLE_EQ(served(ServerMode::async, 3, 8, MemoryKind::parameters), 9);
  EXPECT_DOUBLE_EQ(served(ServerMode::bounded, 3, 8, MemoryKind::gradients), 32);
  EXPECT_DOUBLE_EQ(served(ServerMode::async, 3, 4, MemoryKind::gradients), 16);
  EXPECT_DOUBLE_EQ(served(ServerMode::async, 3, 32, MemoryKind::gradients), 8 * 32);
}

TEST(MemoryForecast, RefusesServersThatDoNotFit) {
  JobOptions options = job();
  options.model.width = 192;
  options.server = {.count = 1};
  const auto needs = forecast_memory(options, 4, 4).tensors.total();
  options.train.memory_mib = double(needs) * 1.01 / (1 << 20);
  EXPECT_NO_THROW(require_memory(options, 4, 4));
  options.train.memory_mib = double(needs) * 0.99 / (1 << 20);
  try {
    require_memory(options, 4, 4);
    FAIL() << "it is refused";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("It would fit with"), std::string::npos)
        << error.what();
  }
  // A worker that joins is no server, and computes a share of the batch, however small.
  EXPECT_NO_THROW(require_memory(options, 4, 1, Role::guest));
  EXPECT_NO_THROW(require_memory(options, 0, 1, Role::guest));
  EXPECT_NE(thrown<InvalidArgument>([&] {
              require_memory(options, 1, 1, Role::guest);
            }).find("it cannot join the job here"),
            std::string::npos)
      << "of a job with one worker a share is the whole batch";
}

// A rank validates no more samples at a time than it trains on, however many ranks split a batch.
TEST(MemoryForecast, HoldsForValidation) {
  at::set_num_threads(1);
  JobOptions options = job();
  options.model.layers = 1;
  options.model.vocab = 3000;
  options.train.batch = 32;
  const RandomTokens data(options.model.vocab, options.model.context, 1);
  const auto predicted = forecast_memory(options, 8, 8).tensors;
  run_ranks_well({.world = 8}, [&](Group& group) {
    Stack stack = gpt(options.model);
    Trainer trainer(stack, data, options, native_communicator(group.shared_from_this()));
    trainer.run();
    if (group.rank() == 0) trainer.evaluate(data, 40);
    EXPECT_LE(double(trainer.memory().at_peak()[MemoryKind::activations]),
              1.1 * double(predicted[MemoryKind::activations]));
  });
}

// The last rank has nearly all layers and the head, of every micro-batch that it holds.
TEST(MemoryForecast, IsWithinATenthForTheLastRankOfAPipeline) {
  for (const auto& [schedule, recompute] :
       {std::pair<PipelineOrder, Recompute>{PipelineOrder::gpipe, Recompute::none},
        {PipelineOrder::gpipe, Recompute::selective},
        {PipelineOrder::gpipe, Recompute::full},
        {PipelineOrder::one_f_one_b, Recompute::none},
        {PipelineOrder::one_f_one_b, Recompute::selective},
        {PipelineOrder::zero_bubble, Recompute::none},
        {PipelineOrder::zero_bubble, Recompute::selective},
        {PipelineOrder::zero_bubble, Recompute::full}})
    for (const std::int64_t vocab : {300, 5000}) {
      JobOptions options = pipeline_job(schedule, "1,5");
      options.model.recompute = recompute;
      options.model.vocab = vocab;
      const double predicted =
                       double(forecast_memory(options, 2, 2).tensors[MemoryKind::activations]),
                   seen = double(most_measured(options, 2)[MemoryKind::activations]);
      EXPECT_NEAR(predicted / seen, 1, 0.1)
          << schedule << ", recompute " << recompute << ", vocabulary " << vocab << ": "
          << predicted << " bytes, seen " << seen;
    }
}

// The number of messages in flight depends on which rank is slow; the prediction is an upper bound.
TEST(MemoryForecast, BoundsWhatARankOfAPipelineSends) {
  for (const auto& [schedule, stages] :
       {std::pair<PipelineOrder, const char*>{PipelineOrder::gpipe, "5,1"},
        {PipelineOrder::one_f_one_b, "1,5"},
        {PipelineOrder::one_f_one_b, "5,1"},
        {PipelineOrder::interleaved, "1,2,1,2"},
        {PipelineOrder::interleaved, "2,1,2,1"}})
    for (const auto recompute : {Recompute::none, Recompute::full}) {
      JobOptions options = pipeline_job(schedule, stages);
      options.model.recompute = recompute;
      const double predicted =
                       double(forecast_memory(options, 2, 2).tensors[MemoryKind::activations]),
                   seen = double(most_measured(options, 2)[MemoryKind::activations]);
      EXPECT_LE(seen, 1.1 * predicted)
          << schedule << ", stages " << stages << ", recompute " << recompute;
      EXPECT_GE(seen, 0.5 * predicted)
          << schedule << ", stages " << stages << ", recompute " << recompute;
    }
}

JobOptions scattering_job(ScatterOption scatter) {
  JobOptions options = pipeline_job(PipelineOrder::one_f_one_b, "9,9");
  options.model.layers = 16;
  options.model.width = 128;
  options.parallel.zero = 2;
  options.zero.scatter = scatter;
  return options;
}

double needed_mib(const JobOptions& options, int ranks) {
  return double(forecast_memory(options, ranks, ranks).tensors.total()) / 1024 / 1024;
}

TEST(MemoryForecast, ScattersWithAutoAsTheTrainerDoes) {
  JobOptions options = scattering_job(ScatterOption::automatic),
             often = scattering_job(ScatterOption::micro_batch),
             once = scattering_job(ScatterOption::step);
  for (JobOptions* one : {&options, &often, &once}) {
    one->model.recompute = Recompute::full;
    one->train.micro_batches = 16;
  }
  ASSERT_GT(needed_mib(once, 4), 1.1 * needed_mib(often, 4));
  for (const auto& [like, factor, choice] :
       {std::tuple<const JobOptions&, double, const char*>{often, 1.02, "after each micro-batch"},
        {once, 4, "once a step"}}) {
    options.train.memory_mib = factor * needed_mib(like, 4);
    EXPECT_EQ(needed_mib(options, 4), needed_mib(like, 4)) << choice;
    require_memory(options, 4, 4);
    for (const auto& rank : measured_ranks(options, 4))
      EXPECT_EQ(rank.scatter_choice.find(choice), 0u) << rank.scatter_choice;
  }
}

TEST(MemoryForecast, SaysWhereScatteringMoreOftenWouldFit) {
  for (const auto scatter : {ScatterOption::automatic, ScatterOption::step}) {
    JobOptions options = scattering_job(scatter);
    options.train.memory_mib = 1.02 * needed_mib(scattering_job(ScatterOption::micro_batch), 4);
    const std::string refusal = thrown<InvalidArgument>([&] { require_memory(options, 4, 4); });
    EXPECT_NE(refusal.find("It would fit with zero.scatter=micro_batch"), std::string::npos)
        << scatter << ": " << refusal;
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
