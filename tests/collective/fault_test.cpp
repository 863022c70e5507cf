// Ranks that die, stop or are disturbed, as real processes.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>

#include "tests/collective/processes.h"

namespace echelon {
namespace {

using Clock = std::chrono::steady_clock;

// For operations that shall reach their deadline: a loaded machine does a small one in less.
constexpr auto short_time = std::chrono::seconds(1);

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// All-reduces for ever, and says when the first are done; `timeout` is for those that follow.
void sum_for_ever(const std::shared_ptr<Group>& group, std::size_t count,
                  Deadline::Clock::duration timeout = {}) {
  std::vector<float> data(count, 1);
  for (int i = 0;; ++i) {
    std::fill(data.begin(), data.end(), 1.f);
    group->all_reduce(DataType::f32, ReduceOp::sum, data.data(), data.data(), count,
                      {.timeout = i > 10 ? timeout : Deadline::Clock::duration()});
    for (const float one : data)
      if (one != float(group->size())) throw Error("a sum is wrong");
    if (i == 10) Processes::say("running");
  }
}

void expect_running(Processes& job, int world) {
  for (int rank = 0; rank < world; ++rank)
    ASSERT_EQ(job.line(rank), "running") << "rank " << rank << ": " << job.line(rank);
}

TEST(Fault, AKilledRankIsPeerLostOnAllOthersAtOnce) {
  for (const bool shared : {true, false})
    for (const std::size_t count : {10, 200000}) {
      constexpr int world = 3, victim = 1;
      Processes job({.world = world, .shared_memory = shared},
                    [&](auto group) { sum_for_ever(group, count); });
      expect_running(job, world);
      const auto start = Clock::now();
      kill(job.process(victim), SIGKILL);
      for (const int rank : {0, 2}) {
        const std::string said = job.line(rank);
        EXPECT_EQ(said.substr(0, 9), "PeerLost:") << "rank " << rank << ": " << said;
        EXPECT_NE(said.find("rank 1 on"), std::string::npos) << "rank " << rank << ": " << said;
        EXPECT_NE(said.find("pid " + std::to_string(job.process(victim))), std::string::npos)
            << said;
        std::printf("  rank %d knew after %.0f ms (%s, %zu elements)\n", rank,
                    1000 * seconds_since(start), shared ? "shared memory" : "TCP", count);
      }
    }
}

// Of 11 ranks each is connected to six others; the rest hear of a death from rank to rank.
TEST(Fault, AKilledRankIsPeerLostOnAllOthersWhereFewAreConnected) {
  constexpr int world = 11;
  for (const int victim : {0, 4}) {
    Processes job({.world = world, .shared_memory = false, .control_mesh = 2},
                  [&](auto group) { sum_for_ever(group, 1000); });
    expect_running(job, world);
    kill(job.process(victim), SIGKILL);
    for (int rank = 0; rank < world; ++rank) {
      if (rank == victim) continue;
      const std::string said = job.line(rank);
      EXPECT_EQ(said.substr(0, 9), "PeerLost:") << "rank " << rank << ": " << said;
      EXPECT_NE(said.find("pid " + std::to_string(job.process(victim))), std::string::npos)
          << "rank " << rank << ": " << said;
    }
  }
}

TEST(Fault, AStoppedRankIsNamedWhereFewAreConnected) {
  constexpr int world = 7, victim = 3;
  Processes job({.world = world, .shared_memory = false, .control_mesh = 2},
                [&](auto group) { sum_for_ever(group, 1000, short_time); });
  expect_running(job, world);
  kill(job.process(victim), SIGSTOP);
  for (int rank = 0; rank < world; ++rank) {
    if (rank == victim) continue;
    const std::string said = job.line(rank);
    EXPECT_EQ(said.substr(0, 8), "Timeout:") << "rank " << rank << ": " << said;
    EXPECT_NE(said.find("for rank 3 on"), std::string::npos) << "rank " << rank << ": " << said;
  }
  kill(job.process(victim), SIGCONT);
}

TEST(Fault, ARankThatMissesItsNeighbourNamesTheOneThatDiedFirst) {
  // A row, as of a pipeline's stages: rank 0 talks to rank 1 alone, and that to rank 2.
  for (const bool shared : {true, false}) {
    Processes job({.world = 3, .shared_memory = shared}, [](auto group) {
      const int rank = group->rank();
      const auto left = group->split(rank < 2 ? 0 : -1, rank);
      const auto right = group->split(rank > 0 ? 0 : -1, rank);
      float value = 1;
      for (int i = 0;; ++i) {
        for (const auto& pair : {right, left})
          if (pair) pair->all_reduce(DataType::f32, ReduceOp::sum, &value, &value, 1);
        if (i == 10) Processes::say("running");
      }
    });
    expect_running(job, 3);
    kill(job.process(2), SIGKILL);
    for (const int rank : {0, 1}) {
      const std::string said = job.line(rank);
      EXPECT_EQ(said.substr(0, 20), "PeerLost: rank 2 on ") << "rank " << rank << ": " << said;
    }
  }
}

TEST(Fault, ARankThatFailsByItselfIsNamedByThoseThatMissIt) {
  Processes job({.world = 3}, [](auto group) {
    float value = 1;
    group->all_reduce(DataType::f32, ReduceOp::sum, &value, &value, 1);
    if (group->rank() == 2) throw Error("the disk is full");
    group->all_reduce(DataType::f32, ReduceOp::sum, &value, &value, 1);
  });
  EXPECT_EQ(job.line(2), "another error: the disk is full");
  for (const int rank : {0, 1}) {
    const std::string said = job.line(rank);
    EXPECT_EQ(said.substr(0, 20), "PeerLost: rank 2 on ") << "rank " << rank << ": " << said;
    EXPECT_NE(said.find("failed; its own output says why"), std::string::npos) << said;
  }
}

TEST(Fault, AStoppedRankIsATimeoutThatNamesIt) {
  constexpr int world = 2, victim = 1;
  const auto sum = [](auto group) { sum_for_ever(group, 1000, short_time); };
  Processes in_memory({.world = world, .shared_memory = true}, sum),
      over_tcp({.world = world, .shared_memory = false}, sum);
  for (Processes* job : {&in_memory, &over_tcp}) expect_running(*job, world);
  const auto start = Clock::now();
  for (const Processes* job : {&in_memory, &over_tcp}) kill(job->process(victim), SIGSTOP);
  for (Processes* job : {&in_memory, &over_tcp}) {
    const std::string said = job->line(0);
    EXPECT_EQ(said.substr(0, 8), "Timeout:") << said;
    EXPECT_NE(said.find("rank 1 on"), std::string::npos) << said;
    EXPECT_GT(seconds_since(start), 0.5) << said;
    kill(job->process(victim), SIGCONT);
  }
}

TEST(Fault, AStoppedRankOfThreeIsATimeoutOnAllOthers) {
  constexpr int world = 3, victim = 2;
  const auto sum = [](auto group) { sum_for_ever(group, 1000, short_time); };
  Processes in_memory({.world = world, .shared_memory = true}, sum),
      over_tcp({.world = world, .shared_memory = false}, sum);
  for (Processes* job : {&in_memory, &over_tcp}) expect_running(*job, world);
  for (const Processes* job : {&in_memory, &over_tcp}) kill(job->process(victim), SIGSTOP);
  for (Processes* job : {&in_memory, &over_tcp}) {
    for (const int rank : {0, 1}) {
      const std::string said = job->line(rank);
      EXPECT_EQ(said.substr(0, 8), "Timeout:") << "rank " << rank << ": " << said;
      // Itself, or through one that waits for it.
      EXPECT_NE(said.find("for rank 2 on"), std::string::npos) << "rank " << rank << ": " << said;
    }
    kill(job->process(victim), SIGCONT);
  }
}

TEST(Fault, ARankThatDiesBeforeItConnectedIsPeerLost) {
  // Its listener is gone: who connects to it first must not try until the deadline.
  Processes job({.world = 2, .shared_memory = false}, [](auto group) {
    // Measuring has used the mailbox and lane 0; lane 1 opens with the first bidirectional ring.
    if (group->rank() == 0) {
      Processes::say("running");
      pause();
    }
    Processes::say("running");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto half = group->split(0, 0);  // a new group has no connections yet
    float value = 1;
    half->all_reduce(DataType::f32, ReduceOp::sum, &value, &value, 1);
  });
  expect_running(job, 2);
  kill(job.process(0), SIGKILL);
  const std::string said = job.line(1);
  EXPECT_EQ(said.substr(0, 9), "PeerLost:") << said;
}

// ---- Strangers
// -----------------------------------------------------------------------------------

// Where a child's listener is: its peer info is known to all ranks.
std::uint16_t port_of(Processes& job, int rank) {
  const std::string said = job.line(rank);
  return std::uint16_t(std::stoi(said));
}

TEST(Fault, StrangersDoNotDisturbARunningJob) {
  constexpr int world = 2;
  Processes job({.world = world, .shared_memory = false}, [](auto group) {
    Processes::say(std::to_string(group->endpoint().peer_info(group->rank()).address.port));
    std::vector<float> data(1000, 1);
    const auto end = Clock::now() + std::chrono::milliseconds(700);
    float go = 1;
    while (go > 0) {
      group->all_reduce(DataType::f32, ReduceOp::max, data.data(), data.data(), data.size());
      go = Clock::now() < end ? 1 : 0;
      group->all_reduce(DataType::f32, ReduceOp::min, &go, &go, 1);
    }
    // New connections while strangers sit at the door.
    const auto again = group->split(0, 0);
    again->all_reduce(DataType::f32, ReduceOp::sum, &go, &go, 1);
  });
  std::vector<Descriptor> silent;
  for (int rank = 0; rank < world; ++rank) {
    const Address address{.host = "127.0.0.1", .port = port_of(job, rank)};
    for (int i = 0; i < 20; ++i) silent.push_back(connect_tcp(address, in_time()));
    // Garbage.
    auto garbage = Stream::plain(connect_tcp(address, in_time()), "a rank");
    garbage->write(bytes_of(std::string(5000, 'x')), in_time());
    // Half a hello, and reset.
    {
      const auto half = connect_tcp(address, in_time());
      const linger reset = {.l_onoff = 1, .l_linger = 0};
      setsockopt(half.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
      (void)!::write(half.get(), "ECHP\1\0\0\0abc", 11);
    }
    // Another token, and none (zeros where the proof should be).
    const auto other = outcome([&] {
      connect_proven(connect_tcp(address, in_time()), "a rank", false, another_token(), in_time());
    });
    EXPECT_EQ(other, "Refused") << other;
    auto none = Stream::plain(connect_tcp(address, in_time()), "a rank");
    none->write(bytes_of(std::string("ECHP\4\0\0\0", 8) + std::string(32, 'r')), in_time());
    std::vector<std::byte> answer(72);
    none->read(answer, in_time());
    none->write(std::vector<std::byte>(32), in_time());
    std::vector<std::byte> verdict(1);
    none->read(verdict, in_time());
    EXPECT_EQ(int(verdict[0]), 0) << "welcome without a token";
  }
  for (int rank = 0; rank < world; ++rank) EXPECT_EQ(job.line(rank), "done: ") << "rank " << rank;
}

TEST(Fault, JobsWithTheSameTokenDoNotMix) {
  const auto body = [](float mine) {
    return [mine](auto group) {
      for (int i = 0; i < 200; ++i) {
        float sum = mine;
        group->all_reduce(DataType::f32, ReduceOp::sum, &sum, &sum, 1);
        if (sum != mine * float(group->size())) throw Error("mixed up: " + std::to_string(sum));
      }
    };
  };
  for (const bool shared : {true, false}) {
    Processes first({.world = 2, .shared_memory = shared}, body(1));
    Processes second({.world = 3, .shared_memory = shared}, body(10));
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(first.line(rank), "done: ");
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(second.line(rank), "done: ");
  }
}

TEST(Fault, AProvenConnectionOfAnotherJobIsTurnedAway) {
  constexpr int world = 2;
  Processes job({.world = world, .shared_memory = false}, [](auto group) {
    Processes::say(std::to_string(group->endpoint().peer_info(group->rank()).address.port));
    sum_for_ever(group, 100);
  });
  const Address address{.host = "127.0.0.1", .port = port_of(job, 0)};
  auto stream =
      connect_proven(connect_tcp(address, in_time()), "rank 0", false, a_token(), in_time());
  // The right token, the control channel of rank 1, and another job's number.
  write_frame(*stream, FrameWriter().number(1234).number(1).number(0).number(0).frame(16),
              in_time());
  std::vector<std::byte> byte(1);
  const auto end = outcome([&] { stream->read(byte, in_time()); });
  EXPECT_EQ(end, "PeerLost") << end;
  EXPECT_EQ(job.line(0), "running");
  for (int rank = 0; rank < world; ++rank)
    EXPECT_EQ(waitpid(job.process(rank), nullptr, WNOHANG), 0) << "rank " << rank << " has ended";
}

// ---- Systems that forbid
// -------------------------------------------------------------------------

// From now on, process_vm_readv fails with EPERM, as in a container without CAP_SYS_PTRACE.
void forbid_reading_neighbours() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {.len = 4, .filter = code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    throw Error(with_errno("seccomp"));
}

TEST(Fault, NeighboursThatMustNotBeReadStillSum) {
  Processes job({.world = 2}, [](auto world) {
    forbid_reading_neighbours();
    const auto group = world->split(0, 0);  // asks again what is allowed
    constexpr std::size_t count = 300000;
    const auto registered = group->allocate(count * sizeof(float));
    auto* in = reinterpret_cast<float*>(registered.get());
    std::vector<float> out(count);
    // Registered in, private out: the output of a neighbour cannot be read.
    for (int i = 0; i < 3; ++i) {
      std::fill(in, in + count, 1.f);
      group->all_reduce(DataType::f32, ReduceOp::sum, in, out.data(), count,
                        {.algorithm = Algorithm::shared});
      group->all_reduce(DataType::f32, ReduceOp::sum, out.data(), in, count,
                        {.algorithm = Algorithm::shared});
      if (in[0] != 4 || in[count - 1] != 4) throw Error("a sum is wrong");
    }
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(job.line(rank), "done: ") << "rank " << rank;
}

}  // namespace
}  // namespace echelon
