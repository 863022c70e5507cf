// A trainer leaves nothing behind in its thread between calls: several trainers can be used in turn
// on one thread, and concurrently on several.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>
#include <thread>
#include <vector>

#include "echelon/models/gpt2/gpt2.h"
#include "echelon/train/trainer.h"
#include "tests/train/tiny.h"

namespace echelon {
namespace {

PlanOptions job_of(std::int64_t width) {
  PlanOptions job = tiny_options();
  job.train.steps = 6;
  job.model = {.layers = 2, .width = width, .heads = 2, .vocab = 32, .context = 8};
  return job;
}

struct Trained {
  at::Tensor parameters, output;
  MemoryUse now, at_peak;
};

// A trainer with its model, run for a few steps at a time.
class Course {
 public:
  explicit Course(std::int64_t width)
      : job_(job_of(width)),
        stack_(gpt(job_.model)),
        trainer_(tiny_trainer(job_, stack_, nullptr)) {}

  void go_on() {
    trainer_->run_until(trainer_->step() + 2);
    trainer_->evaluate(tokens(), 20);
    output_ = trainer_->infer(tokens().get(std::vector<std::int64_t>{0, 1}).input);
  }
  Trained end() {
    return {all_parameters(stack_, *trainer_), output_, trainer_->memory().now(),
            trainer_->memory().at_peak()};
  }
  const Trainer& trainer() const { return *trainer_; }

 private:
  PlanOptions job_;
  Stack stack_;
  std::unique_ptr<Trainer> trainer_;
  at::Tensor output_;
};

Trained alone(std::int64_t width) {
  Course course(width);
  for (int i = 0; i < 3; ++i) course.go_on();
  return course.end();
}

void expect_same(const Trained& seen, const Trained& expected) {
  EXPECT_TRUE(at::equal(seen.parameters, expected.parameters));
  EXPECT_TRUE(at::equal(seen.output, expected.output));
  for (std::size_t kind = 0; kind < memory_kind_names.size(); ++kind) {
    EXPECT_EQ(seen.now.bytes[kind], expected.now.bytes[kind]) << memory_kind_names[kind];
    EXPECT_EQ(seen.at_peak.bytes[kind], expected.at_peak.bytes[kind]) << memory_kind_names[kind];
  }
}

TEST(TwoTrainers, InTurnOnOneThreadTrainLikeEachAlone) {
  at::set_num_threads(1);
  const Trained narrow = alone(16), wide = alone(48);
  EXPECT_GT(wide.at_peak.total(), 2 * narrow.at_peak.total());
  auto one = std::make_unique<Course>(16);
  Course other(48);
  for (int i = 0; i < 3; ++i) {
    one->go_on();
    other.go_on();
  }
  expect_same(one->end(), narrow);
  one.reset();  // before the one that was made after it
  expect_same(other.end(), wide);
}

TEST(TwoTrainers, ConcurrentlyOnTwoThreadsTrainLikeEachAlone) {
  at::set_num_threads(1);
  const Trained narrow = alone(16), wide = alone(48);
  Trained one, other;
  const auto train = [](std::int64_t width, Trained& end) {
    at::set_num_threads(1);
    end = alone(width);
  };
  {
    std::jthread first([&] { train(16, one); }), second([&] { train(48, other); });
  }
  expect_same(one, narrow);
  expect_same(other, wide);
}

TEST(TwoTrainers, OneMayBeMadeOnOneThreadAndUsedOnOthers) {
  at::set_num_threads(1);
  const Trained expected = alone(16);
  Course course(16);
  for (int i = 0; i < 3; ++i)
    std::thread([&] {
      at::set_num_threads(1);
      course.go_on();
    }).join();
  expect_same(course.end(), expected);
}

TEST(TwoTrainers, DoNotCountWhatAUserAllocatesBetweenTheirCalls) {
  at::set_num_threads(1);
  const Trained expected = alone(16);
  Course course(16);
  const auto made = course.trainer().memory().now().total();
  std::vector<at::Tensor> own;
  const auto allocate = [&] { own.push_back(at::zeros({1 << 22}, at::kDouble)); };
  allocate();
  EXPECT_EQ(course.trainer().memory().now().total(), made);
  for (int i = 0; i < 3; ++i) {
    course.go_on();
    allocate();
  }
  own.clear();
  expect_same(course.end(), expected);
}

TEST(TwoTrainers, LeaveTorchAsTheyFoundIt) {
  const auto listener = [] {
    return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
  };
  ASSERT_EQ(listener(), nullptr);
  Course course(16);
  EXPECT_EQ(listener(), nullptr);
  course.go_on();
  EXPECT_EQ(listener(), nullptr);
}

}  // namespace
}  // namespace echelon
