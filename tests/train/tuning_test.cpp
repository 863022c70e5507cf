// Frozen parameters, parameter groups and layer-wise rates in every layout. Ranks are threads, in
// fp64.
#include "echelon/plan/tuning.h"

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <set>

#include "echelon/base/error.h"
#include "echelon/base/glob.h"
#include "echelon/base/safetensors.h"
#include "echelon/nn/loss_layer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/collective/ranks.h"
#include "tests/nn/user_module.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

constexpr double bound = 1e-12;
using Names = std::vector<std::string>;

// Lower layers, alternate parts of all layers, a tied table, and everything but the head.
const std::vector<Names>& frozen() {
  static const std::vector<Names> all = {
      {"transformer.wte.*", "transformer.wpe.*", "transformer.h.0.*", "transformer.h.1.*"},
      {"*.ln_1.weight", "*.mlp.c_fc.weight", "*.c_proj.bias", "transformer.h.2.*"},
      {"transformer.wte.weight"},
      {"transformer.w*", "transformer.h.*"},
      {"*.bias"},
  };
  return all;
}

PlanOptions job_of(const Names& freeze, bool tied = true) {
  PlanOptions job = tiny_options(OptimizerKind::adamw, /*clip=*/1, /*micro_batches=*/2);
  job.train.steps = 3;
  job.model = {.layers = 4, .width = 24, .heads = 6, .vocab = 32, .context = 8, .tied = tied};
  job.train.freeze = freeze;
  job.zero.group = 0;
  job.pipeline.balance = BalanceBy::count;
  return job;
}

// A layout of ranks, and what else changes how a step runs.
struct Layout {
  const char* name;
  int world;
  std::function<void(PlanOptions&)> set;
};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {"data", 3, [](PlanOptions&) {}},
      {"zero 1", 2, [](PlanOptions& job) { job.parallel.zero = 1; }},
      {"zero 2", 3, [](PlanOptions& job) { job.parallel.zero = 2; }},
      {"zero 3", 2, [](PlanOptions& job) { job.parallel.zero = 3; }},
      {"zero 3, large groups", 3,
       [](PlanOptions& job) {
         job.parallel.zero = 3;
         job.zero.group = 0.1;
       }},
      {"zero 3 in host memory", 2,
       [](PlanOptions& job) {
         job.parallel.zero = 3;
         job.zero.offload = Offload::host;
       }},
      {"1f1b", 3, [](PlanOptions& job) { job.parallel.pipeline = 3; }},
      {"gpipe, balanced by time", 2,
       [](PlanOptions& job) {
         job.parallel.pipeline = 2;
         job.pipeline.schedule = PipelineOrder::gpipe;
         job.pipeline.balance = BalanceBy::time;
       }},
      {"zero-bubble", 2,
       [](PlanOptions& job) {
         job.parallel.pipeline = 2;
         job.pipeline.schedule = PipelineOrder::zero_bubble;
       }},
      {"interleaved", 2,
       [](PlanOptions& job) {
         job.parallel.pipeline = 2;
         job.pipeline.schedule = PipelineOrder::interleaved;
         job.pipeline.chunks = 3;
       }},
      {"tensor", 2, [](PlanOptions& job) { job.parallel.tensor = 2; }},
      {"tensor without rows", 3,
       [](PlanOptions& job) {
         job.parallel.tensor = 3;
         job.parallel.sequence = false;
       }},
      {"pipeline x tensor", 4,
       [](PlanOptions& job) {
         job.parallel.pipeline = 2;
         job.parallel.tensor = 2;
       }},
      {"pipeline x zero 3", 4,
       [](PlanOptions& job) {
         job.parallel.pipeline = 2;
         job.parallel.zero = 3;
       }},
      {"pipeline x zero 1", 4,
       [](PlanOptions& job) {
         job.parallel.pipeline = 2;
         job.parallel.zero = 1;
       }},
      {"recompute", 2,
       [](PlanOptions& job) {
         job.parallel.zero = 3;
         job.model.recompute = Recompute::full;
       }},
  };
  return all;
}

void expect_one_process(const PlanOptions& job, const Layout& layout) {
  SCOPED_TRACE(fmt::format("{}, without [{}]", layout.name, fmt::join(job.train.freeze, ", ")));
  at::set_num_threads(1);
  const TinyRun expected = tiny_run(job, nullptr);
  PlanOptions over = job;
  layout.set(over);
  run_ranks_well({.world = layout.world}, [&](Group& group) {
    expect_same_run(tiny_run(over, native_communicator(group.shared_from_this())), expected, bound);
  });
}

TEST(Freeze, GivesTheSameInEveryLayout) {
  for (const auto& layout : layouts())
    for (std::size_t i = 0; i < frozen().size(); ++i)
      expect_one_process(job_of(frozen()[i], /*tied=*/i % 2 == 0), layout);
}

std::map<std::string, at::Tensor> trained(const PlanOptions& job) {
  Stack stack = gpt(job.model);
  const auto trainer = tiny_trainer(job, stack, nullptr);
  trainer->run();
  std::map<std::string, at::Tensor> values;
  for (const auto& p : stack.parameters()) values[p.name] = trainer->master(p).clone();
  return values;
}

// The first step of plain SGD changes a parameter by its gradient, which does not depend on what
// else is frozen.
TEST(Freeze, LeavesTheOtherGradientsAsTheyAre) {
  at::set_num_threads(1);
  PlanOptions job = job_of({});
  job.train.steps = 1;
  job.optim = {.name = OptimizerKind::sgd, .warmup = 0, .decay = 0, .clip = 0, .momentum = 0};
  Stack initial = gpt(job.model);
  initial.allocate(at::kCPU, at::kDouble, Gradients::no);
  initial.load(random_values(std::uint64_t(job.train.seed)));
  for (const bool tied : {true, false}) {
    job.model.tied = tied;
    job.train.freeze = {};
    const auto all = trained(job);
    for (const auto& freeze : frozen()) {
      job.train.freeze = freeze;
      for (const auto& [name, value] : trained(job)) {
        const bool is_frozen = std::ranges::any_of(
            freeze, [&, of = name](const auto& pattern) { return glob_matches(pattern, of); });
        const at::Tensor expected =
            is_frozen && initial.find(name) ? initial.find(name)->value : all.at(name);
        EXPECT_LT((value - expected).abs().max().item<double>(), 1e-14)
            << name << (is_frozen ? ", frozen" : "");
        if (!is_frozen && initial.find(name)) {
          EXPECT_FALSE(at::equal(value, initial.find(name)->value)) << name << " did not train";
        }
      }
    }
  }
}

// The actions of a step on this rank, as the executor ran them.
std::vector<Action> actions_of(const PlanOptions& job, std::shared_ptr<Communicator> ranks) {
  Stack stack = gpt(job.model);
  const auto trainer = tiny_trainer(job, stack, std::move(ranks));
  trainer->trace(true);
  std::vector<Action> all;
  trainer->on_event([&](const Event& event) {
    if (const auto* report = std::get_if<ExchangeReport>(&event)) {
      all.clear();
      for (const auto& one : report->actions) all.push_back(one.action);
    }
  });
  trainer->run_until(1);
  return all;
}

TEST(Freeze, RunsNoBackwardBelowTheLowestLayerThatTrains) {
  at::set_num_threads(1);
  using Kind = Action::Kind;
  // Layers: embedding, four blocks, head.
  const std::pair<Names, int> cases[] = {
      {{"transformer.w*", "transformer.h.0.*", "transformer.h.1.*"}, 3},
      {{"transformer.w*", "transformer.h.*"}, 5},
      {{"transformer.h.0.*"}, 0},
      {{"*.weight"}, 1},  // biases train, and the embedding has none
  };
  for (const auto& [freeze, lowest] : cases) {
    std::set<int> forwards, backwards;
    for (const Action& action : actions_of(job_of(freeze, /*tied=*/false), nullptr)) {
      if (action.kind == Kind::forward) forwards.insert(action.layer);
      if (action.kind == Kind::backward) backwards.insert(action.layer);
    }
    EXPECT_EQ(forwards, (std::set<int>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(backwards.size(), std::size_t(6 - lowest)) << freeze.front();
    EXPECT_EQ(*backwards.begin(), lowest) << freeze.front();
  }
  // A stage of a pipeline with nothing to train gets no gradients either.
  run_ranks_well({.world = 3}, [&](Group& group) {
    PlanOptions job = job_of({"transformer.w*", "transformer.h.0.*", "transformer.h.1.*"}, false);
    job.parallel.pipeline = 3;
    job.pipeline.stages = "2,2,2";
    const auto ranks = native_communicator(group.shared_from_this());
    std::set<Kind> kinds;
    for (const Action& action : actions_of(job, ranks)) kinds.insert(action.kind);
    EXPECT_EQ(kinds.contains(Kind::backward), ranks->rank() > 0);
    EXPECT_EQ(kinds.contains(Kind::receive_grad), ranks->rank() == 1);
    EXPECT_EQ(kinds.contains(Kind::send_grad), ranks->rank() == 2);
  });
}

// A state that any layout wrote goes on in any other, and says what is frozen.
TEST(Freeze, GoesOnFromASavedStateInAnotherLayout) {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const auto path = folder / "state";
  const PlanOptions job = job_of(frozen()[0]);
  const TinyRun whole = tiny_run(job, nullptr);
  const std::vector<std::size_t> chosen = {3, 6, 10, 13};  // of layouts()
  for (const std::size_t first : chosen)
    for (const std::size_t second : chosen) {
      const Layout &one = layouts()[first], &other = layouts()[second];
      SCOPED_TRACE(fmt::format("{}, then {}", one.name, other.name));
      const auto with = [&](const Layout& layout, const auto& fn) {
        PlanOptions over = job;
        layout.set(over);
        run_ranks_well({.world = layout.world}, [&](Group& group) {
          Stack stack = gpt(over.model);
          const auto trainer =
              tiny_trainer(over, stack, native_communicator(group.shared_from_this()));
          fn(stack, *trainer);
        });
      };
      with(one, [&](Stack&, Trainer& trainer) {
        trainer.run_until(2);
        trainer.save(path);
      });
      with(other, [&](Stack& stack, Trainer& trainer) {
        trainer.restore(path);
        trainer.run();
        const at::Tensor seen = all_parameters(stack, trainer);
        EXPECT_LT((seen - whole.parameters).abs().max().item<double>(), bound);
      });
    }
  const safetensors::Reader state(path);
  EXPECT_NE(state.find("fixed/transformer.h.0.ln_1.weight"), nullptr);
  EXPECT_EQ(state.find("exp_avg/transformer.h.0.ln_1.weight"), nullptr);
  EXPECT_NE(state.find("exp_avg/transformer.h.2.ln_1.weight"), nullptr);
  Stack other = gpt(job.model);
  const auto trainer = tiny_trainer(job_of({"transformer.wte.*"}), other, nullptr);
  EXPECT_NE(thrown<InvalidArgument>([&] { trainer->restore(path); }).find("train.freeze"),
            std::string::npos);
}

// A user's module, against the same module in plain torch.
TEST(Freeze, StopsAutogradForModules) {
  at::set_num_threads(1);
  at::manual_seed(4);
  const at::Tensor x = at::randn({32, 5}, at::kDouble), y = at::randn({32, 1}, at::kDouble);
  const TensorDataset data(x, y);
  const auto run = [&](const Names& freeze, const UserModule& body, const UserModule& head) {
    Stack stack;
    stack.add(body.layer()).add(head.layer()).add(loss_layer([](const auto& out, const auto& goal) {
      return at::mse_loss(out, goal);
    }));
    TrainerOptions options{.train = {.steps = 4, .batch = 32, .precision = Precision::fp64},
                           .optim = {.name = OptimizerKind::sgd,
                                     .rate = 0.1,
                                     .schedule = RateSchedule::constant,
                                     .warmup = 0,
                                     .decay = 0,
                                     .clip = 0,
                                     .momentum = 0}};
    options.train.freeze = freeze;
    Trainer trainer(stack, data, options);
    trainer.run();
  };
  const auto modules = [] {
    at::manual_seed(8);
    return std::pair{UserModule("body", {part::Linear{5, 7}, part::BatchNorm{7}, part::Tanh{}}),
                     UserModule("head", {part::Linear{7, 6}, part::Tanh{}, part::Linear{6, 1}})};
  };
  const auto [body, head] = modules();
  const auto [other_body, other_head] = modules();
  std::vector<at::Tensor> before;
  for (const auto& p : body.parameters()) before.push_back(p.detach().clone().to(at::kDouble));
  run({"body.*", "head.0.weight"}, body, head);
  const auto after = body.parameters();
  for (std::size_t i = 0; i < after.size(); ++i) {
    EXPECT_TRUE(at::equal(after[i], before[i])) << "parameter " << i << " of the body moved";
    EXPECT_TRUE(after[i].requires_grad()) << "the user did not freeze it";
  }
  // Plain gradient descent in torch, on the same batch: all samples are in every batch.
  const auto ours = head.parameters();
  auto theirs = other_head.parameters();
  {
    const at::NoGradGuard no_grad;
    for (auto& p : theirs) p.set_data(p.to(at::kDouble));
    for (auto p : other_body.parameters()) p.set_data(p.to(at::kDouble));
    for (const char* name : {"1.running_mean", "1.running_var"}) {
      at::Tensor buffer = other_body.buffer(name);
      buffer.set_data(buffer.to(at::kDouble));
    }
  }
  for (int step = 0; step < 4; ++step) {
    at::AutoGradMode with_grad(true);
    for (auto& p : theirs) p.mutable_grad().reset();
    at::mse_loss(other_head.forward(other_body.forward(x)), y).backward();
    const at::NoGradGuard no_grad;
    for (std::size_t i = 1; i < theirs.size(); ++i) theirs[i].sub_(theirs[i].grad(), 0.1);
  }
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_LT((ours[i] - theirs[i]).abs().max().item<double>(), bound) << "parameter " << i;
  EXPECT_LT((body.buffer("1.running_mean") - other_body.buffer("1.running_mean"))
                .abs()
                .max()
                .item<double>(),
            bound)
      << "running statistics are no parameters: they follow the data";
  run({}, body, head);
  EXPECT_FALSE(at::equal(body.parameters()[0], before[0]))
      << "the next trainer of the same modules freezes nothing";
}

std::string refusal(const std::function<void(PlanOptions&)>& set) {
  PlanOptions job = job_of({});
  set(job);
  Stack stack = gpt(job.model);
  const std::string said = thrown<InvalidArgument>([&] { tune(stack, job.train, job.optim); });
  for (const auto& p : stack.parameters()) EXPECT_TRUE(p.trainable) << "nothing was changed";
  return said;
}

TEST(Tuning, RefusesWhatMatchesNothing) {
  EXPECT_EQ(refusal([](auto& job) {
              job.train.freeze = {"transformer.h.0.*", "transformer.h.9.*"};
            }),
            "train.freeze: no parameter is named transformer.h.9.*; near names are "
            "transformer.h.0.ln_1.weight, transformer.h.0.ln_1.bias, "
            "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(refusal([](auto& job) { job.optim.groups = {"zzz: rate=2"}; }),
            "optim.groups: no parameter is named zzz; there are transformer.wte.weight, "
            "transformer.ln_f.bias and others");
  EXPECT_EQ(refusal([](auto& job) {
              job.train.freeze = {"*.bias", "*"};
            }),
            "train.freeze = [\"*.bias\", \"*\"] freezes every parameter, and nothing would train: "
            "leave out those that should, such as the head's (transformer.ln_f.bias)");
  EXPECT_EQ(refusal([](auto& job) {
              job.optim.groups = {"*.bias: decay=0", "*.c_fc.bias: rate=2"};
            }),
            "optim.groups: the rule for *.c_fc.bias applies to no parameter, since earlier rules "
            "match all of its parameters and the first one counts: put it before them");
  EXPECT_EQ(
      refusal([](auto& job) {
        job.train.freeze = {"transformer.h.0.*"};
        job.optim.groups = {"transformer.h.0.*: rate=2"};
      }),
      "optim.groups: the rule for transformer.h.0.* applies to no parameter, since all of its "
      "parameters are frozen: leave it out");
}

TEST(Tuning, GivesEachParameterTheFirstRuleThatMatchesAndTheRateOfItsLayer) {
  for (const bool tied : {true, false}) {
    PlanOptions job = job_of({}, tied);
    job.optim.groups = {"*.h.3.mlp.*: rate=2", "*.bias: decay=0.5", "*.h.3.*: rate=100 decay=0"};
    job.optim.layer_decay = 0.5;
    Stack stack = gpt(job.model);
    tune(stack, job.train, job.optim);
    const auto expect = [&](const std::string& name, double rate, double decay) {
      const UpdateRule& update = stack.find(name)->update;
      EXPECT_DOUBLE_EQ(update.rate, rate) << name;
      EXPECT_DOUBLE_EQ(update.decay_of(0.1), decay) << name;
    };
    expect("transformer.wte.weight", 1.0 / 32, 0.1);
    expect("transformer.h.0.ln_1.weight", 1.0 / 16, 0);
    expect("transformer.h.0.ln_1.bias", 1.0 / 16, 0.5);
    expect("transformer.h.3.mlp.c_fc.bias", 2.0 / 2, 0);
    expect("transformer.h.3.mlp.c_fc.weight", 2.0 / 2, 0.1);
    expect("transformer.h.3.ln_1.weight", 100.0 / 2, 0);
    expect("transformer.h.3.ln_1.bias", 1.0 / 2, 0.5);
    expect("transformer.ln_f.weight", 1, 0);
    if (!tied) expect("lm_head.weight", 1, 0.1);
  }
}

// A user's stack ends with a loss that has no parameters.
TEST(Tuning, GivesTheHighestLayerWithParametersTheWholeRate) {
  const UserModule low("low", {part::Linear{6, 4}}), high("high", {part::Linear{4, 1}});
  Stack stack;
  stack.add(low.layer()).add(high.layer()).add(loss_layer([](const auto& a, const auto&) {
    return a.sum();
  }));
  OptimOptions optim;
  optim.layer_decay = 0.5;
  tune(stack, {}, optim);
  EXPECT_DOUBLE_EQ(stack.find("high.0.weight")->update.rate, 1);
  EXPECT_DOUBLE_EQ(stack.find("low.0.weight")->update.rate, 0.5);
}

// Slices of ZeRO cut through groups; ranks of a mesh have some of them.
TEST(Tuning, GivesTheSameRatesInEveryLayout) {
  for (const auto optimizer : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::lamb})
    for (const auto& layout : layouts()) {
      PlanOptions job = job_of({"*.h.1.*", "transformer.wpe.*"});
      job.optim.name = optimizer;
      job.optim.layer_decay = 0.7;
      job.optim.groups = {"*.attn.*: rate=3 decay=0.2", "*.bias: decay=0.3"};
      expect_one_process(job, layout);
    }
}

// With SGD, one step changes a parameter in proportion to its rate.
TEST(Tuning, ScalesTheStepOfAParameter) {
  at::set_num_threads(1);
  PlanOptions job = job_of({});
  job.train.steps = 1;
  job.optim = {.name = OptimizerKind::sgd, .warmup = 0, .decay = 0, .clip = 0, .momentum = 0};
  Stack initial = gpt(job.model);
  initial.allocate(at::kCPU, at::kDouble, Gradients::no);
  initial.load(random_values(std::uint64_t(job.train.seed)));
  const auto plain = trained(job);
  job.optim.groups = {"*.c_fc.*: rate=5"};
  job.optim.layer_decay = 0.5;
  for (const auto& [name, value] : trained(job)) {
    const Parameter& p = *initial.find(name);
    const double factor =
        std::pow(0.5, 5 - p.layer) * (name.find(".c_fc.") != std::string::npos ? 5 : 1);
    const at::Tensor expected = p.value + factor * (plain.at(name) - p.value);
    EXPECT_LT((value - expected).abs().max().item<double>(), 1e-14) << name;
  }
}

}  // namespace
}  // namespace echelon
