#include "echelon/net/endpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>

#include "echelon/net/host.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

using Body = std::function<void(Endpoint&)>;

// Endpoints as threads of this process, each after `before`; what each came to.
std::vector<Outcome> join(
    int world, const NetOptions& options, const Body& body,
    const std::function<void(int rank)>& before = [](int) {}) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> infos(std::size_t(world), "");
  int arrived = 0;
  std::vector<Outcome> outcomes(std::size_t(world), Outcome{});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      outcomes[std::size_t(rank)] = outcome([&] {
        NetOptions net = options;
        net.heap = 16 << 20;
        before(rank);
        Endpoint endpoint(rank, world, "127.0.0.1", net, a_token(),
                          [&](const std::string& info, Deadline) {
                            std::unique_lock lock(mutex);
                            infos[std::size_t(rank)] = info;
                            ++arrived;
                            changed.notify_all();
                            changed.wait(lock, [&] { return arrived == world; });
                            return infos;
                          });
        body(endpoint);
      });
    });
  for (auto& thread : threads) thread.join();
  return outcomes;
}

void expect_done(const std::vector<Outcome>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    EXPECT_EQ(outcomes[rank], "done") << "rank " << rank << ": " << outcomes[rank];
}

// Waits for something that another thread brings about.
bool soon(const std::function<bool()>& condition) {
  for (int i = 0; i < 5000 && !condition(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

TEST(Endpoint, SharesItsHeapWithItsNeighbours) {
  expect_done(join(3, {}, [](Endpoint& endpoint) {
    auto* mine = reinterpret_cast<std::atomic<int>*>(endpoint.heap().allocate(64));
    const std::size_t offset = *endpoint.heap().offset(mine, 64);
    mine->store(100 + endpoint.rank());
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_TRUE(endpoint.near(rank));
      const auto* theirs = reinterpret_cast<std::atomic<int>*>(endpoint.heap(rank).at(offset, 64));
      EXPECT_TRUE(soon([&] { return theirs->load() == 100 + rank; })) << theirs->load();
      if (rank != endpoint.rank()) {
        EXPECT_EQ(endpoint.process(rank), getpid());
      }
    }
  }));
}

// It has taken the peer info home and connects to nobody.
TEST(Endpoint, NamesARankThatDiesBetweenTheRendezvousAndItsConnections) {
  constexpr int world = 3;
  for (int turn = 0; turn < 2 * world; ++turn) {
    const int dying = turn / 2;
    Descriptor listener = listen_tcp("127.0.0.1", 0);
    const Address address = local_address(listener);
    std::vector<Outcome> outcomes(world);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank)
      threads.emplace_back([&, rank] {
        outcomes[std::size_t(rank)] = outcome([&] {
          NetOptions net;
          net.heap = 16 << 20;
          Rendezvous meeting{.rank = rank,
                             .world = world,
                             .address = address,
                             .listener = rank == 0 ? std::move(listener) : Descriptor(),
                             .token = a_token(),
                             .fan_out = 1 + turn % 2};  // rank 1 passes the peer info on, or 0 does
          Endpoint endpoint(rank, world, "127.0.0.1", net, a_token(),
                            [&](const std::string& info, Deadline deadline) {
                              Gathered all = meeting.exchange(info, deadline);
                              if (rank == dying) throw Corrupt("killed");
                              return all;
                            });
        });
      });
    for (auto& thread : threads) thread.join();
    for (int rank = 0; rank < world; ++rank) {
      if (rank == dying) continue;
      const Outcome& seen = outcomes[std::size_t(rank)];
      EXPECT_EQ(seen, "PeerLost") << "rank " << rank << ": " << seen;
      EXPECT_NE(seen.message.find(fmt::format("rank {} ", dying)), std::string::npos) << seen;
    }
  }
}

TEST(Endpoint, KnowsWhetherEachRankHasACoreOfItsOwn) {
  const CpuList cpus = allowed_cpus();
  if (cpus.size() < 2 || cores() < 2) GTEST_SKIP() << "one core";
  const auto seen = [&](const std::function<void(int)>& bind) {
    std::string words;
    std::mutex mutex;
    expect_done(join(
        2, {},
        [&](Endpoint& endpoint) {
          const std::lock_guard lock(mutex);
          words += fmt::format("{}/{} ", endpoint.have_cores({0, 1}), endpoint.have_cores({0}));
        },
        bind));
    return words;
  };
  EXPECT_EQ(seen([](int) {}), "true/true true/true ");
  EXPECT_EQ(seen([&](int rank) { bind_to_cpus({cpus[std::size_t(rank)]}); }),
            "true/true true/true ");
  EXPECT_EQ(seen([&](int) { bind_to_cpus({cpus[0]}); }), "false/true false/true ");
  const auto overlapping = [&](int rank) {  // three on two
    bind_to_cpus(rank == 2 ? CpuList{cpus[0], cpus[1]} : CpuList{cpus[std::size_t(rank)]});
  };
  expect_done(join(
      3, {},
      [](Endpoint& endpoint) {
        EXPECT_EQ(endpoint.cores({0, 1, 2}), 2);
        EXPECT_FALSE(endpoint.have_cores({0, 1, 2}));
        EXPECT_TRUE(endpoint.have_cores({0, 1}));
        EXPECT_TRUE(endpoint.have_cores({1, 2}));
      },
      overlapping));
}

TEST(Endpoint, IsAloneOnItsHostWithoutSharedMemory) {
  NetOptions net;
  net.shared_memory = false;
  expect_done(join(3, net, [](Endpoint& endpoint) {
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(endpoint.near(rank), rank == endpoint.rank()) << rank;
  }));
}

TEST(Endpoint, OpensStreamsForAPurposePlainAndTls) {
  for (const bool tls : {false, true}) {
    NetOptions net;
    net.tls = tls;
    net.shared_memory = !tls;
    expect_done(join(3, net, [](Endpoint& endpoint) {
      const int rank = endpoint.rank();
      for (const auto& [low, high] : {std::pair{0, 1}, {0, 2}, {1, 2}}) {
        if (rank != low && rank != high) continue;
        const int other = rank == low ? high : low;
        // Two purposes, which do not get mixed up.
        const auto first = endpoint.open(other, {.channel = 100, .count = 2}, in_time()),
                   second = endpoint.open(other, {101}, in_time());
        for (const auto* stream : {&second[0], &first[1], &first[0]}) {
          const std::string text = stream == &second[0] ? "b" : stream == &first[1] ? "a1" : "a0";
          (*stream)->write(bytes_of(text), in_time());
          std::vector<std::byte> got(text.size());
          (*stream)->read(got, in_time());
          EXPECT_EQ(text_of(got), text) << "rank " << rank << " with " << other;
        }
      }
    }));
  }
}

TEST(Endpoint, TriesToOpenWithoutWaitingForTheOther) {
  expect_done(join(2, {}, [](Endpoint& endpoint) {
    if (endpoint.rank() == 0) {
      EXPECT_FALSE(endpoint.try_open(1, {55}, in_time())) << "nobody has connected";
      std::optional<std::vector<std::unique_ptr<Stream>>> streams;
      EXPECT_TRUE(soon([&] {
        if (!streams) streams = endpoint.try_open(1, {55}, in_time());
        return streams.has_value();
      }));
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_TRUE(endpoint.try_open(0, {55}, in_time()));
    }
  }));
}

TEST(Endpoint, HearsThatARankLeftOrGaveUp) {
  const auto outcomes = join(3, {}, [](Endpoint& endpoint) {
    if (endpoint.rank() == 0) return;  // goodbye
    if (endpoint.rank() == 1) {
      endpoint.tell_wait({0, 1, 2}, {.group = 7, .number = 3, .call = 5, .bytes = 64, .on = 0});
      endpoint.give_up({0, 1, 2}, 7, Timeout("too late"));
      EXPECT_TRUE(soon([&] { return endpoint.health().state(2) == Health::State::left; }));
      return;
    }
    EXPECT_TRUE(soon([&] { return endpoint.health().changes() == 2; }));
    EXPECT_EQ(endpoint.health().state(0), Health::State::left);
    EXPECT_EQ(endpoint.health().state(1), Health::State::alive);
    const auto waits = endpoint.health().waits_in(7);
    ASSERT_EQ(waits.size(), 1u);
    EXPECT_EQ(waits.at(1).number, 3u);
    EXPECT_EQ(waits.at(1).call, 5u);
    EXPECT_EQ(waits.at(1).bytes, 64u);
    EXPECT_EQ(waits.at(1).on, 0);
    endpoint.health().check({1}, 8);
    endpoint.health().check({1}, 7);
  });
  EXPECT_EQ(outcomes[2], "Timeout") << outcomes[2];
  EXPECT_NE(outcomes[2].message.find("too late"), std::string::npos) << outcomes[2];
}

TEST(Endpoint, DoesNotWaitForOneThatIsGone) {
  NetOptions net;
  net.shared_memory = false;
  for (const int gone : {0, 1}) {  // the one that would be connected to, and the one that would
    const auto start = std::chrono::steady_clock::now();
    const auto outcomes = join(2, net, [&](Endpoint& endpoint) {
      if (endpoint.rank() == gone) return;
      EXPECT_TRUE(soon([&] { return endpoint.health().changes() > 0; }));
      endpoint.open(gone, {9}, Deadline::in(std::chrono::seconds(60)));
    });
    EXPECT_EQ(outcomes[std::size_t(1 - gone)], "PeerLost") << outcomes[std::size_t(1 - gone)];
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    EXPECT_LT(took.count(), 40) << "waited for the deadline";
  }
}

TEST(Endpoint, RefusesPeerInfoThatIsNone) {
  NetOptions net;
  net.heap = 16 << 20;
  const auto with = [&](std::vector<std::string> infos) {
    return outcome([&] {
      Endpoint(0, 2, "127.0.0.1", net, a_token(),
               [&](const std::string&, Deadline) { return infos; });
    });
  };
  EXPECT_EQ(with({"x", "y"}), "Corrupt");
  EXPECT_EQ(with({}), "Corrupt");
}

}  // namespace
}  // namespace echelon
