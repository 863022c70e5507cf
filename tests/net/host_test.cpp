#include "echelon/net/host.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

void put(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text << "\n";
}

// What `call` prints in a process of its own, for calls that change a process.
template <class Call>
std::string in_child(Call call) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = call();
    [[maybe_unused]] const auto done = ::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text(4096, '\0');
  const auto size = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return text;
}

class Host : public testing::Test {
 protected:
  void SetUp() override { ::unsetenv("ECHELON_HOST_ID"); }
  void TearDown() override { ::unsetenv("ECHELON_HOST_ID"); }
};

TEST_F(Host, HasTheSameIdInEveryProcess) {
  EXPECT_EQ(host_id().size(), 16u);
  EXPECT_EQ(in_child(host_id), host_id());
}

TEST_F(Host, HasAnotherIdInAnotherNetwork) {
  const auto other = in_child([] { return ::unshare(CLONE_NEWNET) == 0 ? host_id() : ""; });
  if (other.empty()) GTEST_SKIP() << "this user may not make a network namespace";
  EXPECT_NE(other, host_id());
}

TEST_F(Host, TakesAnIdFromTheEnvironment) {
  ::setenv("ECHELON_HOST_ID", "second", 1);
  EXPECT_EQ(host_id(), "second");
}

TEST_F(Host, HasAName) { EXPECT_FALSE(full_host_name().empty()); }

TEST_F(Host, HasTheCoresThatTheSchedulerAllows) {
  const CpuList all = allowed_cpus();
  ASSERT_FALSE(all.empty());
  const ScratchFolder nothing;
  EXPECT_EQ(cores(nothing.path(), nothing / "cgroup"), static_cast<int>(all.size()));
  const auto bound = in_child([&] {
    bind_to_cpus({all.back()});
    return std::to_string(cores()) + " " + std::to_string(allowed_cpus().at(0));
  });
  EXPECT_EQ(bound, "1 " + std::to_string(all.back()));
}

TEST_F(Host, HasNoMoreCoresThanAQuotaOfItsGroupOrOneAbove) {
  const int all = static_cast<int>(allowed_cpus().size());
  const ScratchFolder folder;
  put(folder / "own", "5:cpu:/old\n0::/job/step");
  const auto seen = [&] { return cores(folder / "fs", folder / "own"); };
  put(folder / "fs/job/step/cpu.max", "max 100000");
  EXPECT_EQ(seen(), all);
  put(folder / "fs/job/cpu.max", "190000 100000");
  EXPECT_EQ(seen(), 1) << "a part of a core does not count";
  put(folder / "fs/job/cpu.max", "max 100000");
  put(folder / "fs/cpu.max", "50000 100000");
  EXPECT_EQ(seen(), 1) << "at least one";
  put(folder / "fs/cpu.max", "10000000 100");
  EXPECT_EQ(seen(), all);
  put(folder / "fs/cpu.max", "rubbish");
  EXPECT_EQ(seen(), all);
}

TEST_F(Host, ReadsAGroupOutsideItsNamespaceWithoutEnd) {
  const ScratchFolder folder;
  put(folder / "own", "0::/../../elsewhere");
  EXPECT_EQ(cores(folder / "fs", folder / "own"), static_cast<int>(allowed_cpus().size()));
}

TEST_F(Host, ListsAllowedCpusByNumaNode) {
  const ScratchFolder folder;
  put(folder / "node0/cpulist", "0-1,8");
  put(folder / "node10/cpulist", "4-5");
  put(folder / "node2/cpulist", "2-3,9-9");
  put(folder / "node3/cpulist", "");  // memory only
  put(folder / "nodes/cpulist", "1");
  using Lists = std::vector<CpuList>;
  EXPECT_EQ(numa_nodes({0, 1, 2, 3, 4, 5, 8, 9}, folder.path()),
            (Lists{{0, 1, 8}, {2, 3, 9}, {4, 5}}));
  EXPECT_EQ(numa_nodes({1, 4}, folder.path()), (Lists{{1}, {4}}));
  EXPECT_EQ(numa_nodes({1, 4}, folder / "none"), (Lists{{1, 4}}));
}

TEST_F(Host, CoversTheAllowedCpusWithItsNumaNodes) {
  std::size_t count = 0;
  for (const auto& cpus : numa_nodes()) count += cpus.size();
  EXPECT_EQ(count, allowed_cpus().size());
}

TEST_F(Host, RefusesCpusThatAreNotThere) {
  EXPECT_TRUE(
      thrown<InvalidArgument>([] { bind_to_cpus({}); }).starts_with("cannot run on the CPUs []"));
  EXPECT_TRUE(thrown<InvalidArgument>([] {
                bind_to_cpus({-1});
              }).starts_with("cannot run on the CPUs [-1]"));
  EXPECT_TRUE(thrown<InvalidArgument>([] {
                bind_to_cpus({100000});
              }).starts_with("cannot run on the CPUs [100000]"));
}

}  // namespace
}  // namespace echelon
