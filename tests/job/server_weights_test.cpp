// The first worker of parameter servers reads the model while the others continue: masters of one
// version on all servers, one parameter at a time.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

#include "echelon/base/safetensors.h"
#include "echelon/job/server_job.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/tensor_file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

JobOptions job_of(const ServerOptions& servers, Precision precision = Precision::fp64) {
  JobOptions options;
  options.model = {.layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8};
  options.train.steps = 6;
  options.train.batch = 24;
  options.train.precision = precision;
  options.optim.warmup = 2;
  options.comm.timeout = 30;
  options.server = servers;
  return options;
}

// Two servers with a slice each; SGD at rate 1 and gradients of 1 make masters that count updates.
struct TwoParts {
  Token token = Token::random();
  at::ScalarType type;
  ParameterServer first{setup(0), "127.0.0.1", {}, token}, second{setup(1), "127.0.0.1", {}, token};
  int reader = -1, works = -1;

  static ParameterServer::Setup setup(int index) {
    OptimOptions sgd;
    sgd.name = OptimizerKind::sgd;
    sgd.rate = 1;
    sgd.warmup = 0;
    sgd.momentum = sgd.decay = sgd.clip = 0;
    sgd.schedule = RateSchedule::constant;
    return {.server = {.count = 2, .mode = ServerMode::async},
            .optim = sgd,
            .index = index,
            .shares = 1,
            .steps = 100,
            .timeout = 20};
  }
  explicit TwoParts(at::ScalarType of) : type(of) {
    const std::vector<Address> all = {first.address(), second.address()};
    for (auto* server : {&first, &second}) {
      server->start(all);
      server->begin(
          {.type = type, .ranges = {{0, 64, true}}, .state = {at::zeros({64}, master_type(type))}},
          -1);
    }
    reader = first.join_here("reader");
    works = first.join("works", ParameterServer::Part::guest);
  }
  void update() {
    const auto next = first.next(works, 1000);
    ASSERT_TRUE(next.task);
    for (auto* server : {&first, &second}) {
      const int worker = server == &first ? works : -1;
      server->pull(worker, *next.task);
      server->push(worker, "x", *next.task, 1, at::zeros({64}, type).fill_(1));
    }
    first.done(works, *next.task, 0);
    const Task after = first.newest(works, next.version + 1);
    for (auto* server : {&first, &second}) server->pull(server == &first ? works : -1, after);
  }
};

double mean_of(const at::Tensor& values) { return values.mean().item<double>(); }

TEST(ServerWeights, AreOfOneVersionWhileUpdatesGoOn) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    TwoParts job(type);
    job.update();
    const Task pinned = job.first.newest(job.reader, 1, ClockTable::Reads::masters);
    EXPECT_EQ(pinned.version, 1);
    EXPECT_EQ(mean_of(job.first.masters(pinned, 0, 32)), -1);
    for (int i = 0; i < 3; ++i) job.update();
    for (auto* server : {&job.first, &job.second}) {
      const at::Tensor part = server->masters(pinned, 16, 64);
      EXPECT_EQ(part.scalar_type(), master_type(type));
      EXPECT_EQ(part.numel(), 48);
      EXPECT_EQ(mean_of(part), -1) << type;
    }
    const Task later = job.first.newest(job.reader, 0, ClockTable::Reads::masters);
    EXPECT_EQ(later.version, 4);
    job.update();  // from here on no worker needs the first version
    EXPECT_EQ(mean_of(job.second.masters(later, 0, 64)), -4);
    for (auto* server : {&job.first, &job.second})
      EXPECT_NE(thrown<Error>([&] {
                  server->masters(pinned, 0, 1);
                }).find("has not kept the masters after 1 updates"),
                std::string::npos);
    EXPECT_NE(thrown<InvalidArgument>([&] {
                job.second.masters(later, 0, 65);
              }).find("has 64 masters, and was asked for those from 0 to 65"),
              std::string::npos);
  }
}

// By name, in one process.
std::map<std::string, at::Tensor> masters_after(const JobOptions& options, std::int64_t steps) {
  Stack stack = gpt(options.model);
  Trainer trainer(stack, tokens(), options);
  trainer.run_until(steps);
  std::map<std::string, at::Tensor> all;
  for (const auto& parameter : stack.parameters())
    all[parameter.name] = trainer.master(parameter).clone();
  return all;
}

void expect_weights(const std::filesystem::path& path,
                    const std::map<std::string, at::Tensor>& expected) {
  const safetensors::Reader reader(path);
  EXPECT_EQ(reader.header().entries.size(), expected.size());
  for (const auto& entry : reader.header().entries) {
    ASSERT_TRUE(expected.contains(entry.name)) << entry.name;
    EXPECT_TRUE(at::allclose(tensor_of(reader, entry), expected.at(entry.name), 0, 1e-12))
        << entry.name;
  }
}

TEST(ServerWeights, AreThoseOfTheLastStepWhateverWasReadBefore) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const Token token = Token::random();
  for (const auto place : {ServerPlace::colocated, ServerPlace::separate}) {
    const JobOptions options = job_of({.count = 2, .place = place});
    const int world = place == ServerPlace::separate ? 4 : 2;
    run_ranks_well({.world = world}, [&](Group& group) {
      const auto ranks = native_communicator(group.shared_from_this());
      ServerJob job(options, *ranks, "127.0.0.1", token);
      if (job.works()) {
        Stack stack = gpt(options.model);
        Trainer trainer(stack, tokens(), options);
        job.attach(trainer, stack);
        job.all_have_come();
        if (group.rank() == 0) {
          trainer.run_until(3);
          trainer.master(stack.parameters().front());
          trainer.save_weights(folder / "early");
        }
        trainer.run();
        if (group.rank() == 1) {  // any worker may read them
          const Parameter& first = stack.parameters().front();
          EXPECT_TRUE(at::allclose(trainer.master(first), masters_after(options, 6).at(first.name),
                                   0, 1e-12));
        }
        trainer.save_weights(folder / "late");
        trainer.leave_servers();
        const auto left = thrown<InvalidArgument>([&] { trainer.master(stack.parameters()[0]); });
        EXPECT_NE(left.find("save before leave_servers()"), std::string::npos) << left;
      } else {
        job.all_have_come();
      }
      job.wait();
    });
    expect_weights(folder / "early", masters_after(options, 3));
    expect_weights(folder / "late", masters_after(options, 6));
  }
}

TEST(ServerWeights, TakeAParameterOfMemoryWhileOthersGoOn) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const Token token = Token::random();
  for (const auto precision : {Precision::fp32, Precision::bf16})
    for (const auto mode : {ServerMode::bounded, ServerMode::async}) {
      JobOptions options = job_of({.count = 2, .mode = mode}, precision);
      options.train.steps = 200;
      options.server.fresh_wait = 0;
      run_ranks_well({.world = 3}, [&](Group& group) {
        const auto ranks = native_communicator(group.shared_from_this());
        ServerJob job(options, *ranks, "127.0.0.1", token);
        Stack stack = gpt(options.model);
        Trainer trainer(stack, tokens(), options);
        job.attach(trainer, stack);
        job.all_have_come();
        if (group.rank() == 0)
          for (std::int64_t step = 20; step < 200; step += 20) {
            trainer.run_until(step);
            MemoryAccount account(MemoryExtent::with_inner);
            const MemoryCounting counting(account);
            trainer.save_weights(folder / "weights");
            std::int64_t largest = 0;
            for (const auto& parameter : stack.parameters())
              largest = std::max(largest, parameter.numel());
            EXPECT_EQ(account.at_peak()[MemoryKind::optimizer], 0u);
            // The values that the server in this process serves, and the file's buffer.
            EXPECT_LE(account.at_peak().total(), std::uint64_t(2 * largest * 4 + 1024));
          }
        trainer.run();
        trainer.leave_servers();
        job.wait();
      });
    }
}

}  // namespace
}  // namespace echelon
