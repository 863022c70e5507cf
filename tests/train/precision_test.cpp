// fp16 with its loss scale, and sums of gradients in fp32. Ranks are threads.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>

#include "echelon/base/random.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/nn/tensor_file.h"
#include "echelon/plan/compute_type.h"
#include "echelon/train/trainer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/nn/user_module.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

at::Tensor noise(at::IntArrayRef shape, std::uint64_t key) {
  at::Tensor out = at::empty(shape);
  fill_normal(key, 0, std::span(out.data_ptr<float>(), std::size_t(out.numel())), 0, 1);
  return out;
}

TensorDataset samples() {
  const at::Tensor x = noise({64, 6}, 1);
  return {x, x.select(1, 0).sin().unsqueeze(1)};
}

// Steps (1-based, by call) whose gradients overflow fp16, while the loss is unchanged.
LossFunction overflowing(std::vector<int> steps) {
  return [steps = std::move(steps), call = 0](const at::Tensor& a, const at::Tensor& b) mutable {
    ++call;
    const at::Tensor loss = at::mse_loss(a, b);
    if (std::find(steps.begin(), steps.end(), call) == steps.end()) return loss;
    return loss + 1e9 * (a - a.detach()).sum();
  };
}

// A small network of three layers with a trainer, always constructed the same way.
struct Job {
  Job(const TrainOptions& train, LossFunction loss, std::shared_ptr<Communicator> ranks = nullptr,
      int stage = 0) {
    const UserModule first("first", {part::Linear{6, 20}, part::Tanh{}}),
        second("second", {part::Linear{20, 20}, part::Tanh{}}),
        third("third", {part::Linear{20, 1}});
    std::uint64_t key = 10;
    for (const auto& net : {first, second, third})
      for (auto& parameter : net.parameters()) {
        const at::NoGradGuard no_grad;
        parameter.copy_(noise(parameter.sizes(), ++key).mul(0.3));
      }
    stack.add(first.layer())
        .add(second.layer())
        .add(third.layer())
        .add(loss_layer(std::move(loss)));
    OptimOptions optim;
    optim.warmup = 2;
    optim.rate = 0.01;
    trainer = std::make_unique<Trainer>(stack, data,
                                        TrainerOptions{.train = train,
                                                       .optim = optim,
                                                       .parallel = ParallelOptions{.zero = stage},
                                                       .zero = ZeroOptions{.group = 0}},
                                        std::move(ranks));
    trainer->on_step([this](const StepReport& report) { reports.push_back(report); });
  }
  TensorDataset data = samples();
  Stack stack;
  std::vector<StepReport> reports;
  std::unique_ptr<Trainer> trainer;
};

TrainOptions half(std::int64_t steps, double scale = 65536, std::int64_t growth = 2000) {
  TrainOptions train;
  train.steps = steps;
  train.batch = 16;
  train.precision = Precision::fp16;
  train.check_every = 1;
  train.loss_scale = scale;
  train.scale_growth = growth;
  return train;
}

at::Tensor masters(Job& job) {
  std::vector<at::Tensor> all;
  for (const auto& p : job.stack.parameters())
    all.push_back(job.trainer->master(p).reshape({-1}).clone());
  return at::cat(all);
}

// The tensors of a saved state: masters and moments.
std::map<std::string, at::Tensor> state_in(const std::filesystem::path& path) {
  const safetensors::Reader reader(path);
  std::map<std::string, at::Tensor> all;
  for (const auto& entry : reader.header().entries)
    all[entry.name] = tensor_of(reader, entry).clone();
  return all;
}

bool same_state(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto ours = state_in(a), theirs = state_in(b);
  if (ours.size() != theirs.size()) return false;
  for (const auto& [name, tensor] : ours)
    if (!at::equal(tensor, theirs.at(name))) return false;
  return true;
}

TEST(Fp16, EveryRankSkipsTheStepThatOverflowsOnOne) {
  at::set_num_threads(1);
  for (int stage = 0; stage <= 3; ++stage)
    for (const auto reduce : {ReduceType::automatic, ReduceType::fp32}) {
      SCOPED_TRACE(fmt::format("stage {}, reduce {}", stage, name_of(reduce)));
      const ScratchFolder folder;
      std::vector<at::Tensor> after(2);
      run_ranks_well({.world = 2}, [&](Group& group) {
        TrainOptions train = half(6, 1024);
        train.reduce = reduce;
        Job job(train, overflowing(group.rank() == 1 ? std::vector{3} : std::vector<int>{}),
                native_communicator(group.shared_from_this()), stage);
        const auto file = [&](int step) {  // without ZeRO every rank writes
          return folder / fmt::format("{}-{}", step, stage == 0 ? group.rank() : 0);
        };
        for (const int step : {2, 3, 4}) {
          job.trainer->run_until(step);
          job.trainer->save(file(step));
        }
        job.trainer->run();
        ASSERT_EQ(job.reports.size(), 6U);
        for (const auto& report : job.reports) {
          EXPECT_EQ(report.skipped, report.step == 3) << "step " << report.step;
          EXPECT_EQ(report.loss_scale, report.step <= 3 ? 1024 : 512) << report.step;
          EXPECT_EQ(std::isfinite(report.grad_norm), !report.skipped);
          EXPECT_TRUE(std::isfinite(report.loss));
        }
        after[std::size_t(group.rank())] = masters(job);
      });
      EXPECT_TRUE(same_state(folder / "2-0", folder / "3-0"))
          << "a skipped step leaves masters and moments as they were";
      EXPECT_FALSE(same_state(folder / "3-0", folder / "4-0"));
      EXPECT_TRUE(at::equal(after[0], after[1]));
      EXPECT_TRUE(after[0].isfinite().all().item<bool>());
    }
}

// The scale is halved by overflows and doubled by good steps, before and after the save.
TEST(Fp16, ContinuesBitForBitInTheMiddleOfItsHistory) {
  at::set_num_threads(1);
  const std::vector<int> bad = {1, 2, 9};
  for (int world = 1; world <= 2; ++world)
    for (int stage = 0; stage <= (world == 1 ? 0 : 3); ++stage) {
      SCOPED_TRACE(fmt::format("world {}, stage {}", world, stage));
      const ScratchFolder folder;
      const auto part = [&](std::shared_ptr<Communicator> ranks) {
        const auto rank = ranks ? ranks->rank() : 0;
        const auto file = folder / fmt::format("state-{}", stage == 0 ? rank : 0);
        Job whole(half(14, 4096, 3), overflowing(bad), ranks, stage);
        whole.trainer->run();
        Job first(half(14, 4096, 3), overflowing(bad), ranks, stage);
        first.trainer->run_until(7);
        first.trainer->save(file);
        if (ranks) ranks->barrier().wait();
        Job second(half(14, 4096, 3), overflowing({2}), ranks, stage);
        second.trainer->restore(file);
        second.trainer->run();
        EXPECT_TRUE(at::equal(masters(second), masters(whole)));
        std::string seen, expected;
        for (const auto& report : first.reports) seen += fmt::format("{} ", report.loss_scale);
        for (const auto& report : second.reports) seen += fmt::format("{} ", report.loss_scale);
        for (const auto& report : whole.reports) expected += fmt::format("{} ", report.loss_scale);
        EXPECT_EQ(seen, expected);
        EXPECT_EQ(expected,
                  "4096 2048 1024 1024 1024 2048 2048 2048 4096 2048 2048 2048 4096 4096 ");
      };
      if (world == 1)
        part(nullptr);
      else
        run_ranks_well({.world = world},
                       [&](Group& group) { part(native_communicator(group.shared_from_this())); });
    }
}

TEST(Fp16, ResetsItsScaleForAStateOfAnotherPrecision) {
  const ScratchFolder folder;
  TrainOptions wide = half(4);
  wide.precision = Precision::bf16;
  Job before(wide, overflowing({}));
  before.trainer->run_until(2);
  before.trainer->save(folder / "state");
  Job after(half(4, 1024), overflowing({}));
  after.trainer->restore(folder / "state");
  EXPECT_TRUE(at::equal(masters(after), masters(before)));
  after.trainer->run();
  ASSERT_EQ(after.reports.size(), 2U);
  EXPECT_EQ(after.reports[0].loss_scale, 1024);
}

TEST(Fp16, EndsAnOverflowStormWithTheHistoryOfItsScale) {
  const std::vector<int> storm = {2, 5, 6, 7, 8, 9, 10};
  Job bad(half(20, 16, 2), overflowing(storm)), good(half(20, 16, 2), overflowing({2}));
  EXPECT_EQ(thrown<NotFinite>([&] { bad.trainer->run(); }),
            "the gradient became NaN at step 9, with a loss scale that would fall below 1; the "
            "weights are those after step 8. The loss scale was, from step 1: 16, step 3: 8, "
            "step 5: 16, step 6: 8, step 7: 4, step 8: 2, step 9: 1. fp16 has no numbers beyond "
            "65504: train.precision=bf16, or a lower optim.rate or optim.clip may help");
  EXPECT_EQ(bad.trainer->step(), 8);
  good.trainer->run_until(4);
  EXPECT_TRUE(at::equal(masters(bad), masters(good))) << "those of the last good step";
}

TEST(Fp16, EndsAtALossThatIsNotFiniteWhateverTheScale) {
  const auto poisoned = [call = 0](const at::Tensor& a, const at::Tensor& b) mutable {
    const at::Tensor loss = at::mse_loss(a, b);
    return ++call == 4 ? loss * std::nan("") : loss;
  };
  Job bad(half(20, 1024), poisoned), good(half(20, 1024), overflowing({}));
  const auto message = thrown<NotFinite>([&] { bad.trainer->run(); });
  EXPECT_EQ(message.find("the loss became NaN at step 4; the weights are those after step 3. The "
                         "loss scale was, from step 1: 1024."),
            0U)
      << message;
  good.trainer->run_until(3);
  EXPECT_TRUE(at::equal(masters(bad), masters(good)));
}

// A user's loss is computed in fp32: squares of 300 and their sum exceed fp16.
TEST(Fp16, ComputesLossFunctionsInFp32) {
  TrainOptions train = half(3);
  Job job(train, [](const at::Tensor& a, const at::Tensor& b) {
    EXPECT_EQ(a.scalar_type(), at::kFloat);
    EXPECT_EQ(b.scalar_type(), at::kFloat);
    return (a - b + 300).square().mean();
  });
  job.trainer->run();
  EXPECT_GT(job.reports[0].loss, 65504.0);
  EXPECT_EQ(job.stack.type(), at::kHalf);
}

TEST(Fp16, IsRejectedWithParameterServers) {
  Job job(half(3), overflowing({}));
  Ledger ledger;
  EXPECT_EQ(
      thrown<InvalidArgument>(
          [&] { job.trainer->use_servers({}, {}, Token::random(), ServerPart::first, ledger); }),
      "train.precision=fp16 needs a loss scale that all ranks agree on, and parameter servers "
      "have none; use bf16 with server.count and sync.allow_staleness");
}

// --- Sums in fp32.

const ModelOptions tiny = {.layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8};
constexpr std::int64_t batch = 16;

TrainOptions narrow(Precision type, ReduceType reduce, int micro_batches) {
  TrainOptions train;
  train.steps = 1;
  train.batch = batch;
  train.precision = type;
  train.reduce = reduce;
  train.micro_batches = micro_batches;
  train.loss_scale = 1024;
  return train;
}

OptimOptions plain_sgd() {
  OptimOptions optim;
  optim.name = OptimizerKind::sgd;
  optim.momentum = 0;
  optim.warmup = 0;
  optim.schedule = RateSchedule::constant;
  optim.rate = 0.5;
  optim.clip = 0;
  return optim;
}

// The gradients of a backward over one piece of the first batch, in the model's type.
at::Tensor piece_gradient(const TrainOptions& train, int piece, int pieces) {
  Stack stack = gpt(tiny);
  stack.allocate(at::kCPU, compute_type(train), Gradients::yes);
  MasterUpdate update(stack, plain_sgd(),
                      compute_type(train) == at::kHalf
                          ? std::optional<LossScale::Setup>({1024, 2000})
                          : std::nullopt);
  update.load(random_values(std::uint64_t(train.seed)));
  Table table = one_process(stack.size(), 1);
  Executor executor(stack, &update, table, {stack.size(), 1, {}});
  update.rate().fill_(0);
  const Sampler sampler(std::uint64_t(train.seed), tokens().size(), batch);
  const auto share = batch / pieces;
  const Batch data = tokens().get(sampler.indices(0, piece * share, (piece + 1) * share));
  executor.run(data, 1.0 / pieces);
  return stack.grads().clone();
}

// The masters after one step with given sums.
at::Tensor masters_from(const TrainOptions& train, const at::Tensor& sums) {
  Stack stack = gpt(tiny);
  stack.allocate(at::kCPU, compute_type(train), Gradients::fp32_sums);
  MasterUpdate update(stack, plain_sgd(),
                      compute_type(train) == at::kHalf
                          ? std::optional<LossScale::Setup>({1024, 2000})
                          : std::nullopt);
  update.load(random_values(std::uint64_t(train.seed)));
  at::Tensor(stack.sums()).copy_(sums);
  update.rate().fill_(0.5);
  update.apply(at::zeros({}, at::kDouble));
  std::vector<at::Tensor> all;
  for (const auto& p : stack.parameters())
    all.push_back(update.state().front().flat.narrow(0, p.begin, p.numel()).clone());
  return at::cat(all);
}

at::Tensor masters_of(const TrainOptions& train, int world, int stage,
                      const Executor::Probe& probe = {}) {
  at::Tensor result;
  const auto one = [&](std::shared_ptr<Communicator> ranks) {
    Stack stack = gpt(tiny);
    Trainer trainer(
        stack, tokens(),
        {.train = train, .optim = plain_sgd(), .parallel = {.zero = stage}, .zero = {.group = 0}},
        ranks);
    if (probe.before_update && (!ranks || ranks->rank() == 0)) trainer.probe(probe);
    trainer.run();
    std::vector<at::Tensor> all;
    for (const auto& p : stack.parameters()) all.push_back(trainer.master(p).reshape({-1}).clone());
    if (!ranks || ranks->rank() == 0) result = at::cat(all);
  };
  if (world == 1)
    one(nullptr);
  else
    run_ranks_well({.world = world},
                   [&](Group& group) { one(native_communicator(group.shared_from_this())); });
  return result;
}

// Two ranks with two micro-batches. Sums of two numbers do not depend on their order, so the sums
// are known to the bit: first over a rank's micro-batches, then over ranks. In stages 2 and 3 every
// micro-batch is reduced to its owner, so first over ranks.
TEST(Fp32Sums, AreExactlyTheSumsOfEachBackwardsGradients) {
  at::set_num_threads(1);
  tokens();
  for (const auto type : {Precision::bf16, Precision::fp16}) {
    const TrainOptions train = narrow(type, ReduceType::fp32, 2);
    std::vector<at::Tensor> g;
    for (int piece = 0; piece < 4; ++piece)
      g.push_back(piece_gradient(train, piece, 4).to(at::kFloat));
    const at::Tensor by_rank = (g[0] + g[1]) + (g[2] + g[3]),
                     by_piece = (g[0] + g[2]) + (g[1] + g[3]);
    at::Tensor seen;
    masters_of(train, 2, 0, {.before_reduce = {}, .before_update = [&](const at::Tensor& sums) {
                               seen = sums.clone();
                             }});
    ASSERT_EQ(seen.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(seen, by_rank)) << type;
    EXPECT_FALSE(at::equal(by_rank, by_rank.to(compute_type(train)).to(at::kFloat)))
        << "no sum of this test needs fp32";
    for (int stage = 0; stage <= 3; ++stage)
      EXPECT_TRUE(at::equal(masters_of(train, 2, stage),
                            masters_from(train, stage >= 2 ? by_piece : by_rank)))
          << type << ", stage " << stage;
    TrainOptions four = train;
    four.micro_batches = 4;
    EXPECT_TRUE(
        at::equal(masters_of(four, 1, 0), masters_from(four, ((g[0] + g[1]) + g[2]) + g[3])))
        << "micro-batches of one process, " << type;
  }
}

TEST(Fp32Sums, AreCloserToTheTrueSum) {
  at::set_num_threads(1);
  tokens();
  const TrainOptions train = narrow(Precision::bf16, ReduceType::automatic, 2);
  at::Tensor exact;
  for (int piece = 0; piece < 8; ++piece) {
    const at::Tensor one = piece_gradient(train, piece, 8).to(at::kDouble);
    exact = exact.defined() ? exact + one : one;
  }
  const auto error = [&](ReduceType reduce) {
    at::Tensor seen;
    masters_of(narrow(Precision::bf16, reduce, 2), 4, 0,
               {.before_reduce = {},
                .before_update = [&](const at::Tensor& sums) { seen = sums.to(at::kDouble); }});
    return ((seen - exact).norm() / exact.norm()).item<double>();
  };
  const double own = error(ReduceType::automatic), wide = error(ReduceType::fp32);
  RecordProperty("bf16_sums_relative_error", fmt::format("{:.3g}", own));
  RecordProperty("fp32_sums_relative_error", fmt::format("{:.3g}", wide));
  EXPECT_GT(own, 5e-4) << "sums in bf16 lose nothing here: the test shows nothing";
  EXPECT_LT(wide, 1e-6);
  EXPECT_LT(wide, own / 1000) << "in bf16 " << own << ", in fp32 " << wide;
}

}  // namespace
}  // namespace echelon
