// Deliberate faults: each is caught by the check that it names, and without it the same job holds.
// Ranks as threads, in fp64.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/split_plan.h"
#include "echelon/parallel/pipeline/simulate.h"
#include "echelon/verify/faults.h"
#include "tests/base/scratch_folder.h"
#include "tests/collective/ranks.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

constexpr double bound = 1e-9;

using Sent = std::map<std::string, std::uint64_t>;  // bytes by tag
Sent sent_by(Ledger& ledger) {
  Sent sent;
  for (const auto& entry : ledger.entries()) sent[entry.tag] += entry.bytes;
  return sent;
}

// Jobs: every fault affects at least one of them.
struct Job {
  std::string name;
  JobOptions options;
  int world = 2;
};

std::vector<Job> jobs(const std::string& folder) {
  JobOptions tiny;
  tiny.model = {.layers = 2, .width = 16, .heads = 2, .vocab = 32, .context = 8};
  tiny.train.steps = 3;
  tiny.train.batch = 16;
  tiny.train.precision = Precision::fp64;
  tiny.train.check_every = 0;
  tiny.optim.warmup = 1;
  tiny.zero.group = 0;
  tiny.pipeline.balance = BalanceBy::count;
  std::vector<Job> all;
  const auto add = [&](const char* name, int world, void (*set)(JobOptions&)) {
    all.push_back({name, tiny, world});
    set(all.back().options);
  };
  add("data 3, sgd", 3, [](JobOptions& o) { o.optim.name = OptimizerKind::sgd; });
  add("data 2, ZeRO 1, clipped", 2, [](JobOptions& o) {
    o.parallel.zero = 1;
    o.optim.clip = 0.01;
  });
  add("data 2, ZeRO 3, lamb", 2, [](JobOptions& o) {
    o.parallel.zero = 3;
    o.optim.name = OptimizerKind::lamb;
  });
  add("data 2, ZeRO 3 on disk", 2, [](JobOptions& o) {
    o.parallel.zero = 3;
    o.zero.offload = Offload::disk;
  });
  all.back().options.zero.offload_path = folder;
  add("tensor 2, rows split", 2, [](JobOptions& o) { o.parallel.tensor = 2; });
  add("tensor 2, clipped", 2, [](JobOptions& o) {
    o.parallel.tensor = 2;
    o.parallel.sequence = false;
    o.optim.clip = 0.01;
  });
  add("tensor 2, LoRA", 2, [](JobOptions& o) {
    o.parallel.tensor = 2;
    o.model.lora = {.rank = 2, .matrices = {"all"}};
  });
  add("pipeline 2, 1f1b, clipped", 2, [](JobOptions& o) {
    o.parallel.pipeline = 2;
    o.train.micro_batches = 4;
    o.optim.clip = 0.01;
  });
  add("pipeline 3, gpipe, untied", 3, [](JobOptions& o) {
    o.parallel.pipeline = 3;
    o.pipeline.schedule = PipelineOrder::gpipe;
    o.train.micro_batches = 4;
    o.model.tied = false;
  });
  add("pipeline 2, interleaved", 2, [](JobOptions& o) {
    o.parallel.pipeline = 2;
    o.pipeline.schedule = PipelineOrder::interleaved;
    o.pipeline.chunks = 2;
    o.train.micro_batches = 2;
  });
  add("pipeline 2 x data 2, zero-bubble, ZeRO 2", 4, [](JobOptions& o) {
    o.parallel.pipeline = 2;
    o.parallel.zero = 2;
    o.pipeline.schedule = PipelineOrder::zero_bubble;
    o.train.micro_batches = 4;
  });
  return all;
}

// The results of all ranks that are checked.
struct Seen {
  at::Tensor parameters;
  Sent sent;
  std::vector<std::array<std::uint64_t, 3>> held;  // parameters, gradients, optimiser
  double bubble = 0;
};

// The slots that a rank ran.
Order order_of(const Trainer& trainer) {
  const MeshLayout& layout = trainer.layout();
  Order order;
  for (const auto& one : trainer.executor().traced()) {
    const Action& action = one.action;
    if (!computes(action)) continue;
    const auto kind = action.kind == Action::Kind::forward  ? Slot::Kind::forward
                      : action.kind == Action::Kind::input  ? Slot::Kind::input
                      : action.kind == Action::Kind::weight ? Slot::Kind::weight
                                                            : Slot::Kind::backward;
    int stage = 0;
    while (action.layer >= layout.stages[std::size_t(stage)].end) ++stage;
    const Slot slot{kind, layout.pipeline.chunk_of(stage), action.micro_batch};
    if (order.empty() || order.back() != slot) order.push_back(slot);
  }
  return order;
}

// Idle over ideal time of the order that ran, with slots of equal cost; 0 without a pipeline.
double bubble_of(const PipelineSchedule& orders) {
  PipelineShape shape{.ranks = int(orders.size())};
  for (const Slot& slot : orders.front()) {
    shape.micro_batches = std::max(shape.micro_batches, slot.micro_batch + 1);
    shape.chunks = std::max(shape.chunks, slot.chunk + 1);
  }
  const StageCosts one{.forward = 1, .input = 1, .weight = 1};
  const Timeline replayed =
      simulate(orders, shape, std::vector<StageCosts>(std::size_t(shape.stages()), one));
  return (replayed.end() - replayed.busy(0)) / replayed.busy(0);  // exact, of integers
}

at::Tensor trained(const JobOptions& o, std::shared_ptr<Communicator> ranks,
                   const std::function<void(Trainer&)>& look) {
  Stack stack = gpt(o.model);
  const auto trainer = tiny_trainer(o, stack, std::move(ranks));
  trainer->trace(true);
  trainer->run();
  look(*trainer);
  return all_parameters(stack, *trainer);
}

at::Tensor trained_alone(const JobOptions& options) {
  return trained(options, nullptr, [](Trainer&) {});
}

Seen seen_on_ranks(const Job& job, const Fault* fault) {
  const auto world = std::size_t(job.world);
  std::vector<Seen> each(world);
  PipelineSchedule orders(world);
  run_ranks_well({.world = job.world, .comm = {.timeout = 20}}, [&](Group& group) {
    auto ranks = native_communicator(group.shared_from_this());
    ranks->ledger().clear();
    auto& mine = each[std::size_t(group.rank())];
    mine.parameters =
        trained(fault ? fault->changed(job.options) : job.options,
                fault ? fault->alter(ranks) : ranks, [&](Trainer& trainer) {
                  const MemoryUse use = trainer.memory().now();
                  mine.held = {{use[MemoryKind::parameters], use[MemoryKind::gradients],
                                use[MemoryKind::optimizer]}};
                  orders[std::size_t(group.rank())] = order_of(trainer);
                  mine.sent = sent_by(ranks->ledger());
                });
  });
  for (const auto& one : each)
    if (!one.parameters.defined()) return {};  // it threw, which was reported
  Seen all = each.front();
  for (std::size_t r = 1; r < world; ++r) {
    all.held.push_back(each[r].held.front());
    for (const auto& [tag, bytes] : each[r].sent) all.sent[tag] += bytes;
  }
  // The ranks of one pipeline are data x tensor ranks apart.
  const auto stages = std::size_t(job.options.parallel.pipeline);
  PipelineSchedule first;
  for (std::size_t s = 0; s < stages; ++s) first.push_back(orders[s * world / stages]);
  if (stages > 1) all.bubble = bubble_of(first);
  return all;
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b).abs().max().item<double>();
}

class VerifyFault : public testing::Test {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_F(VerifyFault, EachIsCaughtAndTheJobHoldsWithoutIt) {
  const ScratchFolder folder;
  std::set<std::string> shown;
  for (const Job& job : jobs(folder.path().string())) {
    SCOPED_TRACE(job.name);
    const at::Tensor alone = trained_alone(job.options);
    const Seen good = seen_on_ranks(job, nullptr);
    ASSERT_TRUE(good.parameters.defined());
    ASSERT_LT(difference(good.parameters, alone), bound / 1000);
    const JobOptions& o = job.options;
    if (o.parallel.pipeline > 1) {
      ASSERT_EQ(good.bubble,
                ideal_bubble(o.pipeline.schedule, {.ranks = int(o.parallel.pipeline),
                                                   .micro_batches = int(o.train.micro_batches),
                                                   .chunks = int(o.pipeline.chunks)}));
    }
    for (const Fault& fault : all_faults()) {
      if (!fault.concerns(job.options, job.world)) continue;
      SCOPED_TRACE(fault.name);
      shown.insert(fault.name);
      const Seen bad = seen_on_ranks(job, &fault);
      if (!bad.parameters.defined()) continue;
      const double off = difference(bad.parameters, alone);
      switch (fault.caught_by) {
        case Check::parameters:
          EXPECT_GT(off, bound);
          break;
        case Check::bytes:
          EXPECT_NE(bad.sent, good.sent);
          EXPECT_LT(off, bound) << "it should send more, not compute something else";
          break;
        case Check::memory:
          EXPECT_NE(bad.held, good.held);
          EXPECT_LT(off, bound) << "it should hold more, not compute something else";
          break;
        case Check::bubble:
          EXPECT_GT(bad.bubble, good.bubble);
          EXPECT_LT(off, bound) << "it should run in another order, not compute something else";
          break;
      }
    }
  }
  for (const Fault& fault : all_faults())
    EXPECT_TRUE(shown.contains(fault.name)) << "no job here shows " << fault.name;
}

TEST_F(VerifyFault, OneThatDoesNothingIsNotCaught) {
  Fault nothing = *find_fault("lost-gradient");
  nothing.alteration = [] { return [](Transfer&) { return Change{}; }; };
  const ScratchFolder folder;
  const auto all = jobs(folder.path().string());
  for (std::size_t i = 0; i < all.size(); i += 3) {  // data, disk, pipeline and both
    const Job& job = all[i];
    SCOPED_TRACE(job.name);
    const Seen good = seen_on_ranks(job, nullptr), passed = seen_on_ranks(job, &nothing);
    ASSERT_TRUE(good.parameters.defined() && passed.parameters.defined());
    EXPECT_TRUE(at::equal(passed.parameters, good.parameters));
    EXPECT_EQ(passed.sent, good.sent);
    EXPECT_EQ(passed.held, good.held);
    EXPECT_EQ(passed.bubble, good.bubble);
  }
}

TEST_F(VerifyFault, IsFoundByItsNameAlone) {
  std::set<std::string> names;
  for (const Fault& fault : all_faults()) {
    EXPECT_EQ(find_fault(fault.name), &fault);
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name << " is there twice";
    EXPECT_FALSE(fault.what.empty()) << fault.name;
    // A line of 100 columns has the name, the check and this.
    EXPECT_LE(fault.name.size(), 20u) << fault.name;
    EXPECT_LE(fault.what.size(), 66u) << fault.name;
  }
  EXPECT_GE(names.size(), 12u);
  EXPECT_EQ(find_fault("no-such-fault"), nullptr);
}

TEST_F(VerifyFault, AffectsNoJobInWhichItHasNoEffect) {
  JobOptions options;
  options.train.precision = Precision::fp64;
  for (const Fault& fault : all_faults()) {
    EXPECT_FALSE(fault.concerns(options, 1)) << fault.name << " on one rank";
    JobOptions other = options;
    other.parallel.data = 3;
    EXPECT_FALSE(fault.concerns(other, 4)) << fault.name << " on ranks that make no mesh";
    other = options;
    other.server.count = 1;
    EXPECT_FALSE(fault.concerns(other, 2)) << fault.name << " with servers";
  }
  EXPECT_TRUE(find_fault("lost-gradient")->concerns(options, 2));
  options.train.precision = Precision::bf16;
  EXPECT_FALSE(find_fault("lost-gradient")->concerns(options, 2));
  EXPECT_FALSE(find_fault("missing-tied-sum")->concerns(options, 2));
}

}  // namespace
}  // namespace echelon
