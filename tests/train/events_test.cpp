// The events of a run, in order, as observers see them.
#include "echelon/train/events.h"

#include <gtest/gtest.h>

#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <limits>

#include "echelon/nn/loss_layer.h"
#include "echelon/train/trainer.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"
#include "tests/nn/user_module.h"

namespace echelon {
namespace {

struct InWords {
  std::string operator()(const StepReport& e) const { return fmt::format("step {}", e.step); }
  std::string operator()(const ExchangeReport& e) const {
    return fmt::format("exchanges of step {}", e.step);
  }
  std::string operator()(const ValidationReport& e) const {
    return fmt::format("validation after {} on {}", e.step, e.samples);
  }
  std::string operator()(const DecisionReport& e) const { return "decision: " + e.text; }
  std::string operator()(const SaveReport& e) const {
    return fmt::format("saved {} after {}", e.path.filename().string(), e.step);
  }
  std::string operator()(const MemoryReport& e) const {
    return fmt::format("memory after {}{}", e.step, e.peak.total() > 0 ? "" : ": none");
  }
  std::string operator()(const FaultReport& e) const {
    return fmt::format("fault after {}: {}", e.step, e.text.substr(0, e.text.find(';')));
  }
};

struct Listened {
  explicit Listened(bool spoiled = false) {
    at::Tensor x = at::randn({8, 6});
    if (spoiled) x.mul_(std::numeric_limits<double>::infinity());
    data = std::make_unique<TensorDataset>(x, at::randn({8, 4}));
    stack.add(UserModule("body", {part::Linear{6, 4}}).layer())
        .add(loss_layer(
            [](const at::Tensor& a, const at::Tensor& b) { return at::mse_loss(a, b); }));
    trainer =
        std::make_unique<Trainer>(stack, *data, TrainerOptions{.train = {.steps = 3, .batch = 4}});
    trainer->on_event(
        [this](const Event& event) { heard.push_back(std::visit(InWords(), event)); });
    trainer->on_step([this](const StepReport& report) { steps.push_back(report.step); });
  }
  Stack stack;
  std::unique_ptr<TensorDataset> data;
  std::unique_ptr<Trainer> trainer;
  std::vector<std::string> heard;
  std::vector<std::int64_t> steps;
};

TEST(Events, ComeInTheOrderOfTheRun) {
  const ScratchFolder folder;
  Listened run;
  run.trainer->run_until(2);
  run.trainer->evaluate(*run.data, 5);
  run.trainer->save(folder.path() / "state.safetensors");
  run.trainer->tell(DecisionReport{2, "go on"});
  run.trainer->trace(true);
  run.trainer->run();
  EXPECT_EQ(run.heard, (std::vector<std::string>{
                           "step 1", "step 2", "memory after 2", "validation after 2 on 5",
                           "saved state.safetensors after 2", "decision: go on", "step 3",
                           "exchanges of step 3", "memory after 3"}));
  EXPECT_EQ(run.steps, (std::vector<std::int64_t>{1, 2, 3})) << "on_step hears the steps alone";
}

TEST(Events, ReportAFaultBeforeItIsThrown) {
  Listened run(/*spoiled=*/true);
  EXPECT_THROW(run.trainer->run(), NotFinite);
  ASSERT_EQ(run.heard.size(), 1u);
  EXPECT_TRUE(run.heard[0].starts_with("fault after 0: the loss became ")) << run.heard[0];
}

TEST(Events, LetAnObserverUseTheModel) {
  Listened run;
  std::vector<double> losses;
  run.trainer->on_event([&](const Event& event) {
    if (std::holds_alternative<StepReport>(event))
      losses.push_back(run.trainer->evaluate(*run.data, run.data->size()));
  });
  run.trainer->run();
  ASSERT_EQ(losses.size(), 3u);
  EXPECT_NE(losses[0], losses[2]);
}

}  // namespace
}  // namespace echelon
