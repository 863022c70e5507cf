// Parameter servers train as one process does, refuse bad requests, and continue without lost
// workers. Ranks are threads; servers and workers use real connections.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "echelon/job/server_job.h"
#include "echelon/models/gpt2/gpt2.h"
#include "tests/collective/ranks.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

constexpr double bound = 1e-12;

JobOptions tiny(bool tied = true) {
  JobOptions options;
  options.model = {.layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8, .tied = tied};
  options.train.steps = 5;
  options.train.batch = 24;
  options.train.precision = Precision::fp64;
  options.optim.warmup = 2;
  options.comm.timeout = 20;
  return options;
}

struct Result {
  at::Tensor parameters;
  std::vector<StepReport> reports;
};

Result alone(const JobOptions& options) {
  Stack stack = gpt(options.model);
  Trainer trainer(stack, tokens(), options);
  Result result;
  trainer.on_step([&](const StepReport& report) { result.reports.push_back(report); });
  trainer.run();
  result.parameters = all_parameters(stack, trainer);
  return result;
}

// What one rank does. `before` may change its behaviour.
Result with_servers(const JobOptions& options, Group& group, const Token& token,
                    const std::function<void(Trainer&)>& before = {}) {
  const auto ranks = native_communicator(group.shared_from_this());
  Result result;
  ServerJob job(options, *ranks, "127.0.0.1", token);
  if (job.works()) {
    Stack stack = gpt(options.model);
    Trainer trainer(stack, tokens(), options);
    job.attach(trainer, stack);
    trainer.on_step([&](const StepReport& report) { result.reports.push_back(report); });
    if (before) before(trainer);
    trainer.run();
    if (group.rank() == 0) result.parameters = all_parameters(stack, trainer);
    trainer.leave_servers();
  }
  job.wait();
  return result;
}

Result first_of(const JobOptions& options, int world) {
  const Token token = Token::random();
  Result result;
  run_ranks_well({.world = world}, [&](Group& group) {
    Result mine = with_servers(options, group, token);
    if (group.rank() == 0) result = std::move(mine);
  });
  return result;
}

TEST(ParameterServer, EqualsOneProcess) {
  at::set_num_threads(1);
  for (const auto place : {ServerPlace::colocated, ServerPlace::separate})
    for (int servers = 1; servers <= 3; ++servers)
      for (const auto mode : {ServerMode::sync, ServerMode::bounded}) {
        JobOptions options = tiny();
        options.server = {.count = servers, .place = place, .mode = mode, .staleness = 0};
        const int world = place == ServerPlace::separate ? 2 + servers : std::max(2, servers);
        SCOPED_TRACE(
            fmt::format("{} {} {}, world {}", name_of(mode), name_of(place), servers, world));
        const Result expected = alone(options), seen = first_of(options, world);
        ASSERT_TRUE(seen.parameters.defined());
        EXPECT_LT((seen.parameters - expected.parameters).abs().max().item<double>(), bound);
        ASSERT_EQ(seen.reports.size(), expected.reports.size());
        for (std::size_t i = 0; i < seen.reports.size(); ++i) {
          EXPECT_NEAR(seen.reports[i].loss, expected.reports[i].loss, bound);
          EXPECT_NEAR(seen.reports[i].grad_norm, expected.reports[i].grad_norm, bound);
          for (const auto age : seen.reports[i].ages) EXPECT_EQ(age, 0);
        }
      }
}

// A job may lose a worker later, but it does not begin without it.
TEST(ParameterServer, DoesNotBeginWithoutARankThatDied) {
  JobOptions options = tiny();
  options.server = {.count = 1, .mode = ServerMode::async};
  const Token token = Token::random();
  const auto outcomes = run_outcomes({.world = 3}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    ServerJob job(options, *ranks, "127.0.0.1", token);
    if (group.rank() == 2) throw Error("it cannot read its data");
    Stack stack = gpt(options.model);
    Trainer trainer(stack, tokens(), options);
    job.attach(trainer, stack);
    job.all_have_come();
  });
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcomes[std::size_t(rank)].kind, "PeerLost");
    EXPECT_NE(outcomes[std::size_t(rank)].message.find("rank 2"), std::string::npos)
        << outcomes[std::size_t(rank)].message;
  }
}

// The waiting ranks learn why it is missing.
TEST(ParameterServer, DoesNotBeginWithoutARankThatCannotReachTheServers) {
  JobOptions options = tiny();
  options.server = {.count = 1, .mode = ServerMode::async};
  const Token token = Token::random(), other = Token::random();
  const auto outcomes = run_outcomes({.world = 3}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    ServerJob job(options, *ranks, "127.0.0.1", group.rank() == 2 ? other : token);
    Stack stack = gpt(options.model);
    Trainer trainer(stack, tokens(), options);
    job.attach(trainer, stack);
    job.all_have_come();
  });
  EXPECT_EQ(outcomes[2].kind, "Refused") << outcomes[2].message;
  for (const int rank : {0, 1}) {
    EXPECT_EQ(outcomes[std::size_t(rank)].kind, "PeerLost");
    EXPECT_NE(outcomes[std::size_t(rank)].message.find("rank 2 could not reach"), std::string::npos)
        << outcomes[std::size_t(rank)].message;
  }
}

TEST(ParameterServer, TakesFirstValuesBeforeItIsAttachedOnly) {
  JobOptions options = tiny();
  options.server = {.count = 1};
  const Token token = Token::random();
  run_ranks_well({.world = 2}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    ServerJob job(options, *ranks, "127.0.0.1", token);
    Stack stack = gpt(options.model);
    Trainer trainer(stack, tokens(), options);
    job.attach(trainer, stack);
    if (group.rank() == 1) {
      const auto seen = outcome([&] { trainer.load(random_values(1)); });
      EXPECT_EQ(seen.kind, "InvalidArgument");
      EXPECT_NE(seen.message.find("load and restore before use_servers()"), std::string::npos);
    }
    trainer.run();
    trainer.leave_servers();
    job.wait();
  });
}

TEST(ParameterServer, IsLeftBeforeAModelIsLaidOutAgain) {
  JobOptions options = tiny();
  options.server = {.count = 1};
  const Token token = Token::random();
  run_ranks_well({.world = 2}, [&](Group& group) {
    const auto ranks = native_communicator(group.shared_from_this());
    ServerJob job(options, *ranks, "127.0.0.1", token);
    Stack stack = gpt(options.model);
    Trainer trainer(stack, tokens(), options);
    job.attach(trainer, stack);
    const auto seen = outcome([&] { trainer.lay_out(nullptr); });
    EXPECT_EQ(seen.kind, "InvalidArgument");
    EXPECT_NE(seen.message.find("call leave_servers() before lay_out()"), std::string::npos);
    trainer.run();
    trainer.leave_servers();
    job.wait();
    trainer.lay_out(nullptr);
    trainer.run_until(2);
    EXPECT_EQ(trainer.step(), 2) << "from the beginning, without servers";
  });
}

TEST(ParameterServer, GivesTheSameBitsEveryTimeWhenSynchronous) {
  at::set_num_threads(1);
  JobOptions options = tiny();
  options.server = {.count = 2};
  const Result first = first_of(options, 3), again = first_of(options, 3);
  EXPECT_TRUE(at::equal(first.parameters, again.parameters));
}

TEST(ParameterServer, SendsOnlyTheRowsThatWereTouched) {
  const at::Tensor grad = at::zeros({40}, at::kDouble);
  grad.narrow(0, 8, 4).fill_(1);   // row 2 of a 6 x 4 matrix
  grad.narrow(0, 26, 1).fill_(1);  // beside it
  const std::vector<wire::Matrix> matrices = {{0, 6, 4}};
  EXPECT_EQ(wire::runs_of(grad, matrices), (std::vector<wire::Run>{{8, 4}, {24, 16}}));
  EXPECT_EQ(wire::runs_of(at::full_like(grad, 1), matrices), (std::vector<wire::Run>{{0, 40}}));

  // An untied embedding: a batch touches few of its rows, and fewer bytes are pushed.
  at::set_num_threads(1);
  JobOptions options = tiny(false);
  options.model.vocab = 4096;
  options.server = {.count = 1, .place = ServerPlace::separate};
  const Token token = Token::random();
  std::uint64_t pushed = 0;
  std::uint64_t whole = 0;
  Result seen;
  run_ranks_well({.world = 2}, [&](Group& group) {
    group.ledger().clear();
    Result mine = with_servers(options, group, token);
    if (group.rank() != 0) return;
    for (const auto& entry : group.ledger().entries())
      if (entry.tag == "push") pushed += entry.bytes;
    Stack stack = gpt(options.model);
    stack.allocate(at::kCPU, at::kDouble, Gradients::yes);
    whole = 5 * stack.grads().nbytes();
    seen = std::move(mine);
  });
  const std::uint64_t embedding = 5 * 4096 * 16 * 8;
  EXPECT_LT(pushed, whole - embedding * 9 / 10);
  EXPECT_GT(pushed, whole - embedding);
  EXPECT_LT((seen.parameters - alone(options).parameters).abs().max().item<double>(), bound);
}

// ---- What a server refuses, asked directly

struct OneServer {
  Token token = Token::random();
  ParameterServer server;

  explicit OneServer(const ServerOptions& options, int shares = 2)
      : server({.server = options,
                .optim = {},
                .index = 0,
                .shares = shares,
                .steps = 100,
                .timeout = 5},
               "127.0.0.1", {}, token) {
    server.start({server.address()});
    const at::Tensor values = at::zeros({64}, at::kDouble), nothing = at::zeros({64}, at::kDouble);
    server.begin(
        {.type = at::kDouble, .ranges = {{0, 64, true}}, .state = {values, nothing, nothing}}, -1);
  }
  at::Tensor gradient(double value = 1) { return at::zeros({64}, at::kDouble).fill_(value); }
};

TEST(ParameterServer, RefusesAGradientBeyondTheBound) {
  OneServer one({.mode = ServerMode::bounded, .staleness = 2});
  const int a = one.server.join("rank 0"), b = one.server.join("rank 1");
  for (int step = 0; step < 4; ++step) {
    for (const int worker : {a, b}) {
      const auto next = one.server.next(worker, 0);
      ASSERT_TRUE(next.task);
      one.server.pull(worker, *next.task);
      one.server.push(worker, "rank 0", *next.task, 0.5, one.gradient());
      one.server.done(worker, *next.task, 1);
    }
    one.server.newest(a, step + 1);  // until it is applied
  }
  const auto next = one.server.next(a, 0);
  ASSERT_TRUE(next.task);
  Task old = *next.task;
  old.version = 1;
  const auto refused =
      outcome([&] { one.server.push(a, "rank 0 (pid 7)", old, 0.5, one.gradient()); });
  EXPECT_EQ(refused.kind, "Refused");
  EXPECT_EQ(
      refused.message,
      "the gradient that rank 0 (pid 7) sent for step 5 is of the parameters after 1 updates, "
      "and there were 4: too old for staleness 2; it was refused");
  EXPECT_EQ(one.server.newest(a, 0).version, 4) << "nothing was applied";
}

TEST(ParameterServer, RefusesAGradientThatIsNotFinite) {
  OneServer one({.mode = ServerMode::async});
  const int worker = one.server.join("rank 0");
  const auto next = one.server.next(worker, 0);
  at::Tensor bad = one.gradient();
  bad.narrow(0, 17, 1).fill_(std::numeric_limits<double>::quiet_NaN());
  const auto refused =
      outcome([&] { one.server.push(worker, "rank 3 (pid 7)", *next.task, 0.5, bad); });
  EXPECT_EQ(refused.kind, "Refused");
  EXPECT_EQ(refused.message,
            "the gradient that rank 3 (pid 7) sent for step 1 is not finite; it was refused. "
            "A lower optim.rate or optim.clip may help");
  EXPECT_TRUE(at::equal(one.server.pull(worker, *next.task), one.gradient(0)));
}

TEST(ParameterServer, DropsAWorkerThatIsSilentAndTellsItWhenItComesBack) {
  OneServer one({.mode = ServerMode::bounded, .staleness = 0, .patience = 0.3});
  const int silent = one.server.join("rank 1 (pid 7)"), other = one.server.join("rank 2");
  const auto given = one.server.next(silent, 0);
  ASSERT_TRUE(given.task);
  ParameterServer::Next next;
  for (int share = 0; share < 2;) {  // its own, then the returned one
    next = one.server.next(other, 0);
    if (!next.task) continue;
    one.server.push(other, "rank 2", *next.task, 0.5, one.gradient());
    one.server.done(other, *next.task, 1);
    ++share;
  }
  EXPECT_EQ(one.server.newest(other, 1).version, 1);
  EXPECT_EQ(next.lost, std::vector<std::string>{
                           "rank 1 (pid 7) has been silent for 0.3 s with share 0 of step 1"});
  const auto told = fmt::format(
      "a parameter server dropped rank 1 (pid 7), which was silent for 0.3 s with share 0 of step "
      "1: another computes it. Raise server.patience above that, or come back with --join {}",
      one.server.address().text());
  for (const auto& seen : {outcome([&] { one.server.next(silent, 0); }),
                           outcome([&] { one.server.pull(silent, *given.task); }), outcome([&] {
                             one.server.push(silent, "x", *given.task, 0.5, one.gradient(7));
                           }),
                           outcome([&] { one.server.done(silent, *given.task, 1); })}) {
    EXPECT_EQ(seen.kind, "PeerLost");
    EXPECT_EQ(seen.message, told);
  }
}

// The connection must not be closed before the worker has received the reason.
TEST(ParameterServer, AnswersADroppedWorkerOverItsConnection) {
  OneServer one({.mode = ServerMode::async, .patience = 0.3});
  const at::Tensor values = one.gradient(0), grads = one.gradient(1);
  Ledger ledger;
  const auto connect = [&](const std::string& name) {
    return std::make_unique<ServerWorker>(
        ServerWorker::Setup{
            .servers = {one.server.address()}, .ranges = {{0, 64}}, .name = name, .timeout = 20},
        NetOptions{}, one.token, std::vector<FlatUnit>{}, values, grads, ledger);
  };
  const auto silent = connect("rank 1 (pid 7)"), other = connect("rank 2 (pid 8)");
  const auto given = silent->next();
  ASSERT_TRUE(given.task);
  silent->pull(*given.task);
  for (int share = 0; share < 2;) {
    const auto next = other->next();
    if (!next.task) continue;
    other->pull(*next.task);
    other->push(*next.task, 0.5);
    other->done(*next.task, 1);
    share += next.task->clock == 0;
  }
  const auto seen = outcome([&] { silent->push(*given.task, 0.5); });
  EXPECT_EQ(seen.kind, "PeerLost");
  EXPECT_NE(seen.message.find("dropped rank 1 (pid 7), which was silent"), std::string::npos)
      << seen.message;
}

// A worker that ends with an exception says goodbye too, but counts as lost.
TEST(ParameterServer, CountsAWorkerThatFailedAsLost) {
  OneServer one({.mode = ServerMode::async}, 4);
  const at::Tensor values = one.gradient(0), grads = one.gradient(1);
  Ledger ledger;
  const auto come = [&](const std::string& name, ParameterServer* local) {
    return std::make_unique<ServerWorker>(ServerWorker::Setup{.servers = {one.server.address()},
                                                              .ranges = {{0, 64}},
                                                              .name = name,
                                                              .local = local,
                                                              .local_index = local ? 0 : -1,
                                                              .timeout = 20},
                                          NetOptions{}, one.token, std::vector<FlatUnit>{}, values,
                                          grads, ledger);
  };
  const int stays = one.server.join("rank 0");
  come("rank 1", nullptr).reset();  // leaves in order
  for (auto* local : {static_cast<ParameterServer*>(nullptr), &one.server})
    EXPECT_EQ(outcome([&] {
                const auto worker = come(local ? "rank 3" : "rank 2", local);
                throw Error("the disk is full");
              }).message,
              "the disk is full");
  std::vector<std::string> lost;
  for (const auto deadline = Deadline::in_seconds(20); lost.size() < 2 && !deadline.expired();)
    lost = one.server.next(stays, 0, 0).lost;
  std::sort(lost.begin(), lost.end());
  EXPECT_EQ(lost, (std::vector<std::string>{"rank 2 is gone (it failed, and says why itself)",
                                            "rank 3 is gone (it failed, and says why itself)"}));
}

TEST(ParameterServer, TellsAWorkerThatItMayNotJoinASynchronousJob) {
  OneServer one({.mode = ServerMode::sync});
  one.server.join("rank 0");
  one.server.join("rank 1");
  const at::Tensor flat = one.gradient();
  Ledger ledger;
  const auto seen = outcome([&] {
    ServerWorker(
        {.servers = {one.server.address()}, .ranges = {{0, 64}}, .name = "late", .timeout = 5}, {},
        one.token, {}, flat, flat, ledger);
  });
  EXPECT_EQ(seen.kind, "InvalidArgument");
  EXPECT_EQ(seen.message,
            "a synchronous job takes no further workers; they may join a bounded one");
}

TEST(ParameterServer, EndsASynchronousJobWhenAWorkerLeaves) {
  OneServer one({.mode = ServerMode::sync});
  const int gone = one.server.join_here("rank 1 (pid 5)"), other = one.server.join("rank 2");
  ASSERT_TRUE(one.server.next(gone, 0).task);
  one.server.leave(gone);
  const auto seen = outcome([&] { one.server.next(other, 0); });
  EXPECT_EQ(seen.kind, "PeerLost");
  EXPECT_EQ(seen.message, "rank 1 (pid 5) is gone (it left), and the job is synchronous");
}

OptimOptions plain_sgd() {
  OptimOptions sgd;
  sgd.name = OptimizerKind::sgd;
  sgd.rate = 1;
  sgd.warmup = 0;
  sgd.momentum = 0;
  sgd.decay = 0;
  sgd.clip = 0;
  sgd.schedule = RateSchedule::constant;
  return sgd;
}

// SGD at rate 1 over 64 zeros shows what was applied.
class Shown {
 public:
  explicit Shown(const ServerOptions& options)
      : server_({.server = options,
                 .optim = plain_sgd(),
                 .index = 0,
                 .shares = 2,
                 .steps = 100,
                 .timeout = 5},
                "127.0.0.1", {}, token_) {
    server_.start({server_.address()});
    server_.begin(
        {.type = at::kDouble, .ranges = {{0, 64, true}}, .state = {at::zeros({64}, at::kDouble)}},
        -1);
    a_ = server_.join("a");
    b_ = server_.join("b");
    c_ = server_.join("c", ParameterServer::Part::guest);
  }
  int a() const { return a_; }
  int b() const { return b_; }
  // The next task of a worker, on the current parameters.
  Task take(int worker) {
    std::size_t seen = 0;
    auto next = server_.next(worker, seen);
    for (; !next.task; next = server_.next(worker, seen)) seen += next.applied.size();
    server_.pull(worker, *next.task);
    return *next.task;
  }
  void finish(int worker, const Task& task) {  // with gradient 1 for its half of the batch
    server_.push(worker, "x", task, 0.5, at::zeros({64}, at::kDouble).fill_(0.5));
    server_.done(worker, task, 0);
  }
  // Read by a third client, which computes nothing.
  double value(std::int64_t after) {
    return server_.pull(c_, server_.newest(c_, after)).sum().item<double>() / 64;
  }
  ParameterServer& server() { return server_; }

 private:
  Token token_ = Token::random();
  ParameterServer server_;
  int a_ = 0, b_ = 0, c_ = 0;
};

TEST(ParameterServer, CompensatesForTheDriftOfTheParameters) {
  const auto after_two = [](const ServerOptions& options) {
    Shown job(options);
    const Task first = job.take(job.a()), second = job.take(job.b());
    job.finish(job.a(), first);
    const Task late = job.take(job.a());  // of step 2, before step 1 is applied
    job.finish(job.b(), second);
    job.value(1);
    const Task fresh = job.take(job.b());
    job.finish(job.b(), fresh);
    job.finish(job.a(), late);
    return job.value(2);
  };
  EXPECT_DOUBLE_EQ(after_two({.mode = ServerMode::bounded, .staleness = 1}), -2);
  // The late half of the gradient, 1, gets 0.1 (1)^2 (-1 - 0) more.
  EXPECT_DOUBLE_EQ(after_two({.mode = ServerMode::bounded, .staleness = 1, .compensate = 0.1}),
                   -2 + 0.05);
}

TEST(ParameterServer, CountsOldGradientsLess) {
  const auto after_three = [](bool aware) {
    Shown job({.mode = ServerMode::async, .aware_rate = aware});
    const Task late = job.take(job.a());
    for (int i = 0; i < 5; ++i) {  // the other half of step 1, then steps 2 and 3
      job.finish(job.b(), job.take(job.b()));
      if (i > 0) job.value(i / 2);
    }
    job.finish(job.a(), late);
    return job.value(3);
  };
  EXPECT_DOUBLE_EQ(after_three(false), -3);
  // Both halves of step 1 are applied last, two updates old: they count a half.
  EXPECT_DOUBLE_EQ(after_three(true), -2.5);
}

// Two servers with a slice each, which a worker may read slowly.
struct TwoServers {
  Token token = Token::random();
  ParameterServer first{setup(0), "127.0.0.1", {}, token}, second{setup(1), "127.0.0.1", {}, token};
  int slow = -1, quick = -1;

  static ParameterServer::Setup setup(int index) {
    return {.server = {.count = 2, .mode = ServerMode::async},
            .optim = plain_sgd(),
            .index = index,
            .shares = 1,
            .steps = 100,
            .timeout = 20};
  }
  TwoServers() {
    const std::vector<Address> all = {first.address(), second.address()};
    for (auto* server : {&first, &second}) {
      server->start(all);
      server->begin(
          {.type = at::kDouble, .ranges = {{0, 64, true}}, .state = {at::zeros({64}, at::kDouble)}},
          -1);
    }
    slow = first.join_here("slow");
    quick = first.join("quick", ParameterServer::Part::guest);
  }
  // A step of the quick worker, until both servers have applied it.
  void update() {
    const auto next = first.next(quick, 1000);
    ASSERT_TRUE(next.task);
    finish(quick, *next.task);
    const Task after = first.newest(quick, next.version + 1);
    first.pull(quick, after);
    second.pull(-1, after);
  }
  void finish(int worker, const Task& task) {
    const at::Tensor ones = at::zeros({64}, at::kDouble).fill_(1);
    first.push(worker, "x", task, 1, ones.clone());
    second.push(-1, "x", task, 1, ones.clone());
    first.done(worker, task, 0);
  }
};

double mean_of(const at::Tensor& values) { return values.mean().item<double>(); }

TEST(ParameterServer, GivesAShareOneVersionOfAllParts) {
  TwoServers job;
  const auto next = job.first.next(job.slow, 0);
  ASSERT_TRUE(next.task);
  EXPECT_EQ(mean_of(job.first.pull(job.slow, *next.task)), 0);
  for (int i = 0; i < 3; ++i) job.update();  // while the slow worker has one part
  EXPECT_EQ(mean_of(job.second.pull(-1, *next.task)), 0) << "as old as the first part";
  job.finish(job.slow, *next.task);
  const Task after = job.first.newest(job.slow, 4);
  EXPECT_EQ(mean_of(job.first.pull(job.slow, after)), -4);
  EXPECT_EQ(mean_of(job.second.pull(-1, after)), -4);
  const auto told = job.first.next(job.quick, 0);
  ASSERT_EQ(told.applied.size(), 4u);
  for (const auto& applied : told.applied)
    EXPECT_EQ(applied.ages, std::vector<std::int64_t>{applied.clock == 0 ? 3 : 0});
}

TEST(ParameterServer, NamesTheRankOfTheFirstServerWhenThatIsGone) {
  const Token token = Token::random();
  auto setup = TwoServers::setup(0);
  setup.name = "parameter server 0 (rank 4)";  // it may still answer that it is ending
  auto first = std::make_unique<ParameterServer>(setup, "127.0.0.1", NetOptions{}, token);
  setup = TwoServers::setup(1);
  setup.name = "parameter server 1 (rank 5)";
  setup.first = "parameter server 0 (rank 4)";
  ParameterServer second(setup, "127.0.0.1", {}, token);
  const std::vector<Address> all = {first->address(), second.address()};
  first->start(all);
  second.start(all);
  second.begin(
      {.type = at::kDouble, .ranges = {{0, 64, true}}, .state = {at::zeros({64}, at::kDouble)}},
      -1);
  first.reset();
  const auto seen = outcome([&] { second.wait(); });
  EXPECT_EQ(seen.kind, "PeerLost");
  EXPECT_NE(seen.message.find("parameter server 0 (rank 4)"), std::string::npos) << seen.message;
}

TEST(ParameterServer, KeepsNothingForAWorkerThatIsGone) {
  TwoServers job;
  const auto next = job.first.next(job.slow, 0);
  ASSERT_TRUE(next.task);
  job.update();
  job.first.leave(job.slow);
  job.update();
  const auto seen = outcome([&] { job.second.pull(-1, *next.task); });
  EXPECT_EQ(seen.kind, "another error");
  EXPECT_NE(seen.message.find("has not kept the parameters after 0 updates"), std::string::npos)
      << seen.message;
}

// A state that is requested while updates continue is either exactly that version, or the answer is
// that it is gone.
TEST(ParameterServer, GivesAStateOfOneVersion) {
  Shown job({.mode = ServerMode::async});
  std::thread updates([&] {
    for (int i = 0; i < 100; ++i) {
      job.finish(job.a(), job.take(job.a()));
      job.finish(job.b(), job.take(job.b()));
    }
  });
  int seen = 0;
  for (std::int64_t version = 0; version < 100; ++version) {
    try {
      job.server().show_state(version, [&](const ParameterServer::Beginning& state) {
        EXPECT_EQ(state.version, version);
        EXPECT_DOUBLE_EQ(mean_of(state.state.at(0)), double(-version));
        ++seen;
      });
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("is gone"), std::string::npos) << error.what();
    }
  }
  updates.join();
  EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace echelon
