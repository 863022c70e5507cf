// The versions that a parameter server keeps for readers.
#include "echelon/parallel/server/snapshots.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

namespace echelon {
namespace {

at::Tensor values(double of) { return at::full({8}, of, at::kDouble); }
double value(const at::Tensor& of) { return of.mean().item<double>(); }

Task task(std::int64_t number, std::int64_t version) { return {0, 0, number, version}; }

TEST(Snapshots, KeepAPromisedVersionUntilItIsRead) {
  Snapshots snapshots;
  snapshots.begin(values(5), 5);
  const Task early = task(1, 5), late = task(2, 5);
  EXPECT_EQ(value(snapshots.read(early)), 5);
  snapshots.publish(values(6), {early, late});
  snapshots.publish(values(7), {early, late});
  EXPECT_EQ(snapshots.version(), 7);
  EXPECT_EQ(snapshots.kept(), 1u) << "the early one has read it";
  EXPECT_EQ(value(snapshots.read(late)), 5);
  EXPECT_EQ(snapshots.kept(), 0u);
  EXPECT_FALSE(snapshots.read(task(3, 5)).defined()) << "nobody was known to want it";
  EXPECT_EQ(value(snapshots.read(task(4, 7))), 7);
}

TEST(Snapshots, DropVersionsThatNoWorkerHolds) {
  Snapshots snapshots;
  snapshots.begin(values(0), 0);
  snapshots.publish(values(1), {task(1, 0), task(2, 0)});
  EXPECT_EQ(snapshots.kept(), 2u);
  snapshots.publish(values(2), {task(2, 0)});
  EXPECT_EQ(snapshots.kept(), 1u);
  EXPECT_EQ(value(snapshots.read(task(2, 0))), 0);
}

TEST(Snapshots, ReuseTheirMemoryIfNobodyReadsIt) {
  Snapshots snapshots;
  snapshots.begin(values(0), 0);
  EXPECT_FALSE(snapshots.reuse({task(1, 0)}).defined()) << "it is yet to be read";
  {
    const at::Tensor reading = snapshots.read(task(1, 0));
    EXPECT_FALSE(snapshots.reuse({task(1, 0)}).defined()) << "it is being read";
  }
  at::Tensor memory = snapshots.reuse({task(1, 0)});
  ASSERT_TRUE(memory.defined());
  memory.fill_(1);
  snapshots.publish(std::move(memory), {task(1, 0)});
  EXPECT_EQ(value(snapshots.read(task(2, 1))), 1);
}

}  // namespace
}  // namespace echelon
