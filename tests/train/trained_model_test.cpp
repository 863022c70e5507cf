// What a user does with a trained model in every layout: infer, save_weights, gather, and what is
// rejected before gather. Ranks are threads, in fp64, compared with one process.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <new>
#include <optional>

#include "echelon/base/error.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/nn/tensor_file.h"
#include "echelon/train/trainer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/nn/user_module.h"
#include "tests/train/tiny.h"

// The largest allocation that succeeds: for a test that runs out of memory.
static thread_local std::size_t largest_new = std::numeric_limits<std::size_t>::max();

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* const memory = bytes <= largest_new ? std::malloc(bytes) : nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace echelon {
namespace {

constexpr double bound = 1e-12;

struct Case {
  std::string name;
  ParallelOptions parallel = {};
  ZeroOptions zero = {.group = 0};
  int world = 2;
  Precision precision = Precision::fp64;
};

std::vector<Case> module_cases(const ScratchFolder& folder) {
  return {{"data", {}},
          {"zero 1", {.zero = 1}},
          {"zero 2", {.zero = 2}},
          {"zero 3", {.zero = 3}},
          {"zero 3 over 3 ranks", {.zero = 3}, {.group = 0}, 3},
          {"zero 1, host", {.zero = 1}, {.group = 0, .offload = Offload::host}},
          {"zero 3, host", {.zero = 3}, {.group = 0, .offload = Offload::host}},
          {"zero 3, disk",
           {.zero = 3},
           {.group = 0, .offload = Offload::disk, .offload_path = folder.path().string()}},
          {"zero 3, alone", {.exchange_alone = true, .zero = 3}, {.group = 0}, 1},
          {"pipeline", {.pipeline = 2}},
          {"pipeline x data", {.pipeline = 2, .data = 2}, {.group = 0}, 4},
          {"pipeline x zero 3", {.zero = 3, .pipeline = 2, .data = 2}, {.group = 0}, 4}};
}

std::vector<Case> gpt_cases() {
  return {{"zero 3", {.zero = 3}},
          {"pipeline", {.pipeline = 2}},
          {"tensor", {.tensor = 2}},
          {"tensor without sequence", {.tensor = 2, .sequence = false}},
          {"tensor x zero 3", {.zero = 3, .data = 2, .tensor = 2}, {.group = 0}, 4},
          {"pipeline x tensor", {.pipeline = 2, .tensor = 2}, {.group = 0}, 4},
          {"pipeline x zero 3", {.zero = 3, .pipeline = 2, .data = 2}, {.group = 0}, 4}};
}

PlanOptions gpt_job(const Case& one) {
  PlanOptions job = tiny_options(OptimizerKind::adamw, 1, 2);
  job.model = {.layers = 3, .width = 24, .heads = 6, .vocab = 33, .context = 8};
  job.parallel = one.parallel;
  job.zero = one.zero;
  job.pipeline.balance = BalanceBy::count;
  return job;
}

std::map<std::string, at::Tensor> read_weights(const std::filesystem::path& path) {
  const safetensors::Reader reader(path);
  std::map<std::string, at::Tensor> all;
  for (const auto& entry : reader.header().entries)
    all[entry.name] = tensor_of(reader, entry).clone();
  return all;
}

void expect_close(const at::Tensor& seen, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(seen.sizes(), expected.sizes()) << what;
  EXPECT_LT((seen.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>(), bound)
      << what;
}

void expect_same_weights(const std::filesystem::path& seen, const std::filesystem::path& expected) {
  const auto there = read_weights(seen), wanted = read_weights(expected);
  ASSERT_EQ(there.size(), wanted.size());
  for (const auto& [name, value] : wanted) {
    ASSERT_TRUE(there.contains(name)) << name;
    EXPECT_EQ(there.at(name).scalar_type(), value.scalar_type()) << name;
    expect_close(there.at(name), value, name);
  }
}

// Two modules with a frozen parameter and buffers.
struct Model {
  UserModule first{"first", {part::Linear{6, 20}, part::BatchNorm{20}, part::Tanh{}}},
      second{"second", {part::Linear{20, 4}}};
  Stack stack;

  Model() {
    double fill = 0.1;
    for (const auto& net : {first, second})
      for (auto& parameter : net.parameters()) {
        const at::NoGradGuard no_grad;
        parameter.copy_(at::linspace(-fill, fill, parameter.numel()).view_as(parameter));
        fill *= 1.3;
      }
    first.parameters()[1].set_requires_grad(false);
    stack.add(first.layer())
        .add(second.layer())
        .add(loss_layer(
            [](const at::Tensor& a, const at::Tensor& b) { return at::mse_loss(a, b); }));
  }
  at::Tensor call(const at::Tensor& x) const {
    first.eval();
    second.eval();
    return second.forward(first.forward(x));
  }
};

const TensorDataset& numbers() {
  static const TensorDataset data = [] {
    at::manual_seed(4);
    return TensorDataset(at::randn({40, 6}, at::kDouble), at::randn({40, 4}, at::kDouble));
  }();
  return data;
}

std::unique_ptr<Trainer> trainer_of(const Case& one, Model& model,
                                    std::shared_ptr<Communicator> ranks) {
  PlanOptions job = tiny_options(OptimizerKind::adamw, 1, 2);
  job.train.precision = one.precision;
  const bool alone = !ranks;
  return std::make_unique<Trainer>(
      model.stack, numbers(),
      TrainerOptions{.train = job.train,
                     .optim = job.optim,
                     .parallel = alone ? ParallelOptions{} : one.parallel,
                     .zero = alone ? ZeroOptions{} : one.zero,
                     .pipeline = PipelineOptions{.balance = BalanceBy::count, .stages = {}}},
      std::move(ranks));
}

void on_ranks(const Case& one, const std::function<void(std::shared_ptr<Communicator>)>& body) {
  SCOPED_TRACE(one.name);
  run_ranks_well({.world = one.world},
                 [&](Group& group) { body(native_communicator(group.shared_from_this())); });
}

TEST(TrainedModel, OfModulesEqualsOneProcessInEveryLayout) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const at::Tensor x = numbers().get(std::vector<std::int64_t>{3, 1, 30}).input;
  Model one_process;
  const auto alone = trainer_of({}, one_process, nullptr);
  // A batch norm has the statistics of a rank's own samples: layouts that split a batch are
  // compared with the same split, further down.
  alone->run_until(3);
  const at::Tensor output = alone->infer(x);
  alone->save_weights(folder / "alone");
  alone->gather();
  expect_close(one_process.stack.infer(x), output, "one process, Stack::infer");
  expect_close(one_process.call(x), output, "one process, the modules");
  const Case splits_no_batch{"pipeline", {.pipeline = 2}};
  on_ranks(splits_no_batch, [&](std::shared_ptr<Communicator> ranks) {
    Model model;
    const auto trainer = trainer_of(splits_no_batch, model, ranks);
    trainer->run_until(3);
    expect_close(trainer->infer(x), output, "infer");
    trainer->save_weights(folder / "pipeline");
    trainer->gather();
    expect_close(model.call(x), output, "the modules");
    expect_close(model.first.buffer("1.running_mean"), one_process.first.buffer("1.running_mean"),
                 "running_mean");
  });
  expect_same_weights(folder / "pipeline", folder / "alone");
}

TEST(TrainedModel, CanBeUsedAndTrainedOnInEveryLayout) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const at::Tensor x = numbers().get(std::vector<std::int64_t>{3, 1, 30}).input;
  // By the number of ranks that split the batch: the first layout of each is the reference for
  // others.
  std::map<int, std::filesystem::path> expected;
  for (const Case& one : module_cases(folder)) {
    const int data = one.parallel.pipeline == 2 ? one.world / 2 : one.world;
    const auto weights = folder / (one.name + ".weights"), last = folder / (one.name + ".last");
    on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
      Model model, uninterrupted;
      auto trainer = trainer_of(one, model, ranks);
      trainer->run_until(3);
      const at::Tensor output = trainer->infer(x);
      EXPECT_EQ(output.size(0), 3);
      trainer->save_weights(weights);
      trainer->gather();
      expect_close(model.call(x), output, "the modules");
      expect_close(model.stack.infer(x), output, "Stack::infer");
      const double loss = trainer->evaluate(numbers(), 20);
      EXPECT_GT(loss, 0);
      expect_close(trainer->infer(x), output, "infer after gather");
      trainer->save_weights(folder / "again");
      expect_close(model.call(x), output, "the modules, after the trainer was used");

      // A module that was saved whole is the same in a program without ranks.
      const auto file = folder / fmt::format("{}.{}", one.name, ranks->rank());
      model.first.save(file);
      Model fresh;
      for (auto& parameter : fresh.first.parameters())
        parameter.set_data(parameter.to(at::kDouble));
      fresh.first.load(file);
      for (std::size_t i = 0; i < fresh.first.parameters().size(); ++i)
        EXPECT_TRUE(at::equal(fresh.first.parameters()[i], model.first.parameters()[i])) << i;
      EXPECT_EQ(model.first.children(), 3u);

      // Training continues as if nothing had been read.
      trainer->run();
      EXPECT_EQ(trainer->step(), 5);
      trainer->gather();
      expect_close(model.call(x), trainer->infer(x), "the modules, trained on");
      trainer->save_weights(last);
      const at::Tensor seen = all_parameters(model.stack, *trainer);
      trainer.reset();  // its files on disk belong to it
      trainer = trainer_of(one, uninterrupted, ranks);
      trainer->run();
      EXPECT_TRUE(at::equal(all_parameters(uninterrupted.stack, *trainer), seen));
    });
    const auto [first, is_first] = expected.try_emplace(data, last);
    if (!is_first) expect_same_weights(last, first->second);
    EXPECT_FALSE(at::equal(read_weights(weights).at("first.0.weight"),
                           read_weights(last).at("first.0.weight")));
  }
}

TEST(TrainedModel, OfAGptEqualsOneProcessInEveryLayout) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  // Neither five tokens nor three samples of them are divisible by two ranks that split rows.
  const at::Tensor x = at::randint(33, {3, 5});
  at::Tensor output;
  const auto use = [&](const Case& one, std::shared_ptr<Communicator> ranks) {
    const PlanOptions job = gpt_job(one);
    Stack stack = gpt(job.model);
    const auto trainer = tiny_trainer(job, stack, ranks);
    trainer->run();
    if (!ranks) output = trainer->infer(x);
    expect_close(trainer->infer(x), output, "infer");
    trainer->save_weights(folder / (ranks ? one.name : "alone"));
    trainer->gather();
    expect_close(stack.infer(x), output, "Stack::infer");
    expect_close(trainer->infer(x), output, "infer after gather");
  };
  use({}, nullptr);
  for (const Case& one : gpt_cases()) {
    on_ranks(one, [&](std::shared_ptr<Communicator> ranks) { use(one, ranks); });
    expect_same_weights(folder / one.name, folder / "alone");
  }
}

// The masters, not their rounded values.
TEST(TrainedModel, WeightsOfANarrowModelAreItsMasters) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  for (const int stage : {0, 3}) {
    const Case one{"bf16", {.zero = stage}, {.group = 0}, 2, Precision::bf16};
    std::map<std::string, at::Tensor> masters;
    on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
      Model model;
      const auto trainer = trainer_of(one, model, ranks);
      trainer->run();
      trainer->save_weights(folder / "weights");
      for (const auto& parameter : model.stack.parameters()) {
        const at::Tensor master = trainer->master(parameter).clone();
        if (ranks->rank() == 0) masters[parameter.name] = master;
      }
      trainer->gather();
      for (std::size_t i = 0; i < model.second.parameters().size(); ++i)
        EXPECT_EQ(model.second.parameters()[i].scalar_type(), at::kBFloat16);
      EXPECT_TRUE(
          at::equal(model.second.parameters()[0],
                    trainer->master(*model.stack.find("second.0.weight")).to(at::kBFloat16)));
    });
    const auto weights = read_weights(folder / "weights");
    EXPECT_EQ(weights.at("second.0.weight").scalar_type(), at::kFloat);
    for (const auto& [name, value] : masters)
      EXPECT_TRUE(at::equal(weights.at(name), value.to(at::kFloat))) << name;
  }
}

// One sentence that says what to call; no zeros in a file, no crash.
TEST(TrainedModel, RejectsTheUseOfShardedModules) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const at::Tensor x = numbers().get(std::vector<std::int64_t>{3, 1, 30}).input;
  const std::string what =
      "not in this process, since the ranks share the model out: call trainer.gather() on every rank "
      "before the module is used, or trainer.infer() and trainer.save_weights() in its place";
  const auto expect_refusal = [&](Model& model, const UserModule& net, const std::string& name,
                                  const std::string& parameter) {
    const std::string one = fmt::format("{}.{} is {}", name, parameter, what);
    const at::Tensor in = name == "first" ? x : at::zeros({3, 20}, at::kDouble);
    EXPECT_EQ(thrown<InvalidArgument>([&] { net.forward(in); }), one);
    EXPECT_EQ(thrown<InvalidArgument>([&] {
                const at::NoGradGuard no_grad;
                net.parameters()[0].sum();
              }),
              one);
    EXPECT_EQ(thrown<InvalidArgument>([&] { net.save(folder / "net.pt"); }),
              fmt::format("the parameters of {} are {}", name, what));
    EXPECT_EQ(net.parameters()[0].sizes().vec(),
              model.stack.find(name + ".0.weight")->whole_shape());
    EXPECT_FALSE(net.parameters()[0].grad().defined());
  };
  for (const Case& one :
       {Case{"zero 3", {.zero = 3}}, Case{"pipeline", {.pipeline = 2}},
        Case{"pipeline x zero 3", {.zero = 3, .pipeline = 2, .data = 2}, {}, 4}}) {
    on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
      Model model;
      const auto trainer = trainer_of(one, model, ranks);
      for (const bool trained : {false, true}) {
        if (trained) trainer->run_until(2);
        const auto owned = [&](const std::string& name) {
          return one.parallel.zero == 0 && model.stack.find(name + ".0.weight")->here;
        };
        if (!owned("first")) expect_refusal(model, model.first, "first", "0.weight");
        if (!owned("second")) expect_refusal(model, model.second, "second", "0.weight");
        EXPECT_EQ(thrown<InvalidArgument>([&] { model.stack.infer(x); }),
                  "this process has only a part of the model's parameters: call trainer.infer() on "
                  "every rank, or trainer.gather() on every rank and then Stack::infer");
      }
      trainer->gather();
      EXPECT_EQ(model.call(x).size(1), 4);
      trainer->run();  // drops the gathered copies
      if (one.parallel.zero == 3) expect_refusal(model, model.second, "second", "0.weight");
    });
  }
}

TEST(TrainedModel, ShowsObserversTheModulesAsBetweenCalls) {
  at::set_num_threads(1);
  const at::Tensor x = numbers().get(std::vector<std::int64_t>{3, 1, 30}).input;
  const Case one{"zero 3", {.zero = 3}};
  on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
    Model model, unobserved;
    const auto trainer = trainer_of(one, model, ranks), other = trainer_of(one, unobserved, ranks);
    int steps = 0;
    trainer->on_step([&](const StepReport&) {
      EXPECT_NE(thrown<InvalidArgument>([&] { model.call(x); }).find("trainer.gather()"),
                std::string::npos);
      EXPECT_EQ(trainer->infer(x).size(0), 3);
      ++steps;
    });
    trainer->run();
    other->run();
    EXPECT_EQ(steps, 5);
    EXPECT_TRUE(
        at::equal(all_parameters(model.stack, *trainer), all_parameters(unobserved.stack, *other)));
  });
}

TEST(TrainedModel, IsTheSameIfAnObserverGathersItInEveryStep) {
  at::set_num_threads(1);
  const at::Tensor x = at::randint(33, {4, 8});
  for (const Case& one : gpt_cases())
    on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
      const PlanOptions job = gpt_job(one);
      Stack stack = gpt(job.model), unobserved = gpt(job.model);
      const auto trainer = tiny_trainer(job, stack, ranks),
                 other = tiny_trainer(job, unobserved, ranks);
      std::vector<double> losses, expected;
      trainer->on_step([&](const StepReport& report) {
        losses.push_back(report.loss);
        trainer->gather();
        EXPECT_EQ(stack.infer(x).size(0), 4);
      });
      other->on_step([&](const StepReport& report) { expected.push_back(report.loss); });
      trainer->run();
      other->run();
      EXPECT_EQ(losses, expected);
      EXPECT_FALSE(stack.uses_whole()) << "what an observer gathered is dropped";
      EXPECT_TRUE(at::equal(all_parameters(stack, *trainer), all_parameters(unobserved, *other)));
      EXPECT_TRUE(at::equal(trainer->infer(x), other->infer(x)));
    });
}

// Including those that every rank has whole (tensor: norms; zero 3: frozen ones).
TEST(TrainedModel, IsGatheredIntoCopiesThatAUserMayChange) {
  at::set_num_threads(1);
  const auto change_all = [](const Stack& stack) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : stack.parameters()) at::Tensor(parameter.value).fill_(7);
  };
  for (const Case& one : gpt_cases())
    on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
      const PlanOptions job = gpt_job(one);
      Stack stack = gpt(job.model), untouched = gpt(job.model);
      const auto trainer = tiny_trainer(job, stack, ranks),
                 other = tiny_trainer(job, untouched, ranks);
      trainer->run_until(2);
      trainer->gather();
      change_all(stack);
      trainer->run();
      other->run();
      EXPECT_TRUE(at::equal(all_parameters(stack, *trainer), all_parameters(untouched, *other)));
      const at::Tensor x = at::zeros({4, 8}, at::kLong);
      EXPECT_TRUE(at::equal(trainer->infer(x), other->infer(x)));
    });
  for (const Case& one : {Case{"zero 3", {.zero = 3}}, Case{"pipeline", {.pipeline = 2}}})
    on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
      Model model, untouched;
      const auto trainer = trainer_of(one, model, ranks), other = trainer_of(one, untouched, ranks);
      trainer->gather();
      change_all(model.stack);
      trainer->run();
      other->run();
      EXPECT_TRUE(at::equal(all_parameters(model.stack, *trainer),
                            all_parameters(untouched.stack, *other)));
    });
}

// In stages 2 and 3, gradients have memory only while backward runs: afterwards none can be read.
TEST(TrainedModel, FreedGradientsAreUndefined) {
  at::set_num_threads(1);
  const Case one{"zero 2", {.zero = 2}};
  on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
    Model model;
    const auto trainer = trainer_of(one, model, ranks);
    trainer->run_until(2);
    EXPECT_FALSE(model.second.parameters()[0].grad().defined());
    const at::Tensor x = numbers().get(std::vector<std::int64_t>{3, 1, 30}).input;
    expect_close(model.call(x), trainer->infer(x), "the modules are here in stage 2");
  });
}

// Every rank learns that nothing was written, and can continue.
TEST(TrainedModel, AFileThatCannotBeWrittenFailsOnEveryRank) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  for (const Case& one :
       {Case{"data"}, Case{"zero 3", {.zero = 3}}, Case{"pipeline", {.pipeline = 2}}})
    on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
      Model model;
      const auto trainer = trainer_of(one, model, ranks);
      trainer->run_until(1);
      const auto error =
          thrown<Error>([&] { trainer->save_weights(folder / "no folder" / "weights"); });
      EXPECT_NE(error.find("no folder"), std::string::npos) << one.name << ": " << error;
      EXPECT_EQ(error.find("rank 0 has not saved it") == 0, ranks->rank() != 0) << error;
      trainer->run_until(2);
      EXPECT_EQ(trainer->step(), 2);
    });
  EXPECT_TRUE(folder.names().empty());
}

// Whatever the error is: here, the allocation of the file's header fails.
TEST(TrainedModel, AnyErrorWhileAStateIsWrittenLeavesNoRankWaiting) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const Case one{"zero 3", {.zero = 3}};
  on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
    Model model;
    const auto trainer = trainer_of(one, model, ranks);
    trainer->run_until(1);
    trainer->note("text", std::string(3 << 20, 'x'));
    if (ranks->rank() == 0) {
      largest_new = (3 << 20) + 1000;
      EXPECT_THROW(trainer->save(folder / "state"), std::bad_alloc);
      largest_new = std::numeric_limits<std::size_t>::max();
    } else {
      EXPECT_EQ(thrown<Error>([&] { trainer->save({}); }),
                "rank 0 has not saved it: std::bad_alloc");
    }
    trainer->run_until(2);
    EXPECT_EQ(trainer->step(), 2);
  });
  EXPECT_TRUE(folder.names().empty());
}

TEST(TrainedModel, RejectsASecondTrainerThatWouldRestartIt) {
  at::set_num_threads(1);
  for (const Case& one : {Case{"data"}, Case{"zero 3", {.zero = 3}}})
    on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
      Model model;
      {
        const auto trainer = trainer_of(one, model, ranks);
        trainer->run_until(1);
      }
      const auto error = thrown<InvalidArgument>([&] { trainer_of(one, model, ranks); });
      EXPECT_NE(error.find("make a new Stack"), std::string::npos) << error;
    });
}

// The following stages still wait for what it did not send.
TEST(TrainedModel, AFailedPipelineRankSendsNothingMore) {
  at::set_num_threads(1);
  const Case one{"pipeline", {.pipeline = 2}};
  on_ranks(one, [&](std::shared_ptr<Communicator> ranks) {
    Model model;
    const auto trainer = trainer_of(one, model, ranks);
    trainer->run_until(1);
    if (ranks->rank() != 0) return;
    const auto bad = thrown<Error>([&] { trainer->infer(at::randn({2, 77})); });
    EXPECT_NE(bad.find("layer 0"), std::string::npos) << bad;
    const auto next = thrown<Error>([&] { trainer->run_until(2); });
    EXPECT_NE(next.find("no longer in step"), std::string::npos) << next;
    EXPECT_NE(next.find("layer 0"), std::string::npos) << next;
  });
}

}  // namespace
}  // namespace echelon
