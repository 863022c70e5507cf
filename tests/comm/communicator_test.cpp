#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include "echelon/comm/communicator.h"
#include "tests/collective/ranks.h"
#include "tests/comm/suite.h"

namespace echelon {
namespace {

void run_suite(Layout layout) {
  layout.comm.timeout = 20;  // for an operation: a hang is named before the test is killed
  at::set_num_threads(1);    // each rank is already a thread
  run_ranks_well(layout, [](Group& group) {
    const auto failures = CommSuite(native_communicator(group.shared_from_this()), at::kCPU).run();
    if (!failures.empty()) throw Error(fmt::format("{}", fmt::join(failures, "\n")));
  });
}

TEST(NativeCommunicator, PassesTheSuiteAlone) { run_suite({.world = 1}); }

TEST(NativeCommunicator, PassesTheSuiteInSharedMemory) {
  for (const int world : {2, 3, 4}) {
    SCOPED_TRACE(world);
    run_suite({.world = world});
  }
}

TEST(NativeCommunicator, PassesTheSuiteOverTcp) {
  for (const int world : {2, 3, 4}) {
    SCOPED_TRACE(world);
    run_suite({.world = world, .hosts = world, .shared_memory = false});
  }
}

TEST(NativeCommunicator, PassesTheSuiteOnTwoHostsOfTwo) { run_suite({.world = 4, .hosts = 2}); }

TEST(NativeCommunicator, GivesWorkThatOutlivesIt) {
  run_ranks_well({.world = 2}, [](Group& group) {
    const auto world = native_communicator(group.shared_from_this());
    const at::Tensor tensor = at::ones({1000});
    Work work = world->split(0, world->rank())->all_reduce(tensor, ReduceOp::sum);
    work.wait();
    EXPECT_TRUE(work.done());
    EXPECT_EQ(tensor.sum().item<float>(), 2000);
  });
}

}  // namespace
}  // namespace echelon
