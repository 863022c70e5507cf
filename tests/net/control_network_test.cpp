#include "echelon/net/control_network.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <condition_variable>
#include <functional>

#include "echelon/net/endpoint.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

constexpr int world = 12;

bool soon(const std::function<bool()>& condition) {
  for (int i = 0; i < 5000 && !condition(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

// Ranks as threads, each on a host of its own unless `hosts` says otherwise, in a world that is too
// large for its mesh.
std::vector<Outcome> in_sparse_world(const std::function<void(Endpoint&)>& body,
                                     int hosts = world) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> infos(world);
  int arrived = 0;
  std::vector<Outcome> outcomes(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      outcomes[std::size_t(rank)] = outcome([&] {
        NetOptions net;
        net.heap = 16 << 20;
        net.control_mesh = 2;
        net.host = fmt::format("host{}", rank * hosts / world);
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

// Until so many ranks are here.
void meet(std::atomic<int>& arrived, int ranks = world) {
  ++arrived;
  EXPECT_TRUE(soon([&] { return arrived == ranks; }));
}

void expect_done(const std::vector<Outcome>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    EXPECT_EQ(outcomes[rank], "done") << "rank " << rank << ": " << outcomes[rank];
}

TEST(ControlNetwork, LinksAllRanksOfASmallWorldAndFewOfALargeOne) {
  for (const int size : {2, 3, 64})
    for (int a = 0; a < size; ++a)
      for (int b = 0; b < size; ++b)
        if (a != b) {
          EXPECT_TRUE(ControlNetwork::linked(a, b, size, 64)) << a << " " << b << " of " << size;
        }
  for (const int size : {65, 1000, 1024, 10'000}) {
    const int most = 2 * int(std::bit_width(unsigned(size - 1)));
    for (const int a : {0, 1, size / 2, size - 1}) {
      int links = 0;
      for (int b = 0; b < size; ++b) {
        if (a == b) continue;
        links += ControlNetwork::linked(a, b, size, 64);
        EXPECT_EQ(ControlNetwork::linked(a, b, size, 64), ControlNetwork::linked(b, a, size, 64));
      }
      EXPECT_LE(links, most) << "of " << size;
      EXPECT_GE(links, most / 2) << "of " << size;
    }
  }
}

TEST(ControlNetwork, HoldsAConnectionToItsHostAndItsLinks) {
  std::atomic<int> alone = 0, together = 0;
  expect_done(in_sparse_world([&](Endpoint& endpoint) {
    std::size_t linked = 0;
    for (int r = 0; r < world; ++r)
      linked += r != endpoint.rank() && ControlNetwork::linked(endpoint.rank(), r, world, 2);
    EXPECT_EQ(linked, 6u) << "1, 2 and 4 on both sides; 8 is 4 on the other";
    EXPECT_EQ(endpoint.control_connections(), linked);
    meet(alone);
  }));
  expect_done(in_sparse_world(
      [&](Endpoint& endpoint) {
        std::size_t expected = 0;
        for (int r = 0; r < world; ++r)
          expected += r != endpoint.rank() &&
                      (endpoint.near(r) || ControlNetwork::linked(endpoint.rank(), r, world, 2));
        EXPECT_EQ(endpoint.control_connections(), expected);
        meet(together);
      },
      2));
}

TEST(ControlNetwork, TellsAllRanksOfAWaitAndOfGivingUp) {
  std::atomic<int> heard = 0, checked = 0;
  const auto outcomes = in_sparse_world([&](Endpoint& endpoint) {
    std::vector<int> all;
    for (int r = 0; r < world; ++r) all.push_back(r);
    if (endpoint.rank() == 5) {
      endpoint.tell_wait(all, {.group = 7, .number = 3, .call = 5, .bytes = 64, .on = 0});
      endpoint.give_up(all, 7, Timeout("too late"));
    } else {
      EXPECT_TRUE(soon([&] { return endpoint.health().changes() == 1; }));
      EXPECT_TRUE(soon([&] { return endpoint.health().waits_in(7).contains(5); }));
    }
    meet(heard);
    EXPECT_EQ(endpoint.health().changes(), endpoint.rank() == 5 ? 0u : 1u) << "more than once";
    meet(checked);
    if (endpoint.rank() != 5) endpoint.health().check({5}, 7);
  });
  for (int r = 0; r < world; ++r) {
    if (r == 5) continue;
    EXPECT_EQ(outcomes[std::size_t(r)], "Timeout") << r << ": " << outcomes[std::size_t(r)];
    EXPECT_NE(outcomes[std::size_t(r)].message.find("rank 5 on"), std::string::npos);
  }
}

TEST(ControlNetwork, TellsAllRanksThatOneFailed) {
  std::atomic<int> heard = 0;
  const auto outcomes = in_sparse_world([&](Endpoint& endpoint) {
    if (endpoint.rank() == 3) throw Error("the disk is full");
    EXPECT_TRUE(soon([&] { return endpoint.health().state(3) == Health::State::left; }))
        << endpoint.rank();
    ++heard;
    EXPECT_TRUE(soon([&] { return heard == world - 1; }));
    endpoint.health().check_present({3}, 1);
  });
  for (int r = 0; r < world; ++r) {
    const Outcome& seen = outcomes[std::size_t(r)];
    EXPECT_EQ(seen, r == 3 ? "another error" : "PeerLost") << r << ": " << seen;
  }
}

// Ranks 0 and 3 are not linked, and all that could pass something on are gone.
TEST(ControlNetwork, FindsOutThatARankIsGoneWithNobodyBetween) {
  std::atomic<int> connected = 0, seen = 0;
  expect_done(in_sparse_world([&](Endpoint& endpoint) {
    const int rank = endpoint.rank();
    if (rank != 0 && rank != 3) {
      EXPECT_TRUE(soon([&] { return connected == 1; }));
      return;
    }
    if (rank == 0) {
      const auto before = endpoint.control_connections();
      endpoint.ask_after(3);
      EXPECT_TRUE(soon([&] { return endpoint.control_connections() == before + 1; }));
      EXPECT_EQ(endpoint.health().state(3), Health::State::alive);
      ++connected;
    }
    EXPECT_TRUE(soon([&] { return endpoint.control_connections() == 1; }))
        << endpoint.control_connections() << " at " << rank;
    meet(seen, 2);
    if (rank == 3) return;
    EXPECT_TRUE(soon([&] { return endpoint.health().state(3) == Health::State::left; }));
  }));
}

TEST(ControlNetwork, AsksAfterARankThatHasEndedAlready) {
  std::atomic<int> ended = 0;
  expect_done(in_sparse_world([&](Endpoint& endpoint) {
    if (endpoint.rank() != 0) return;
    EXPECT_TRUE(soon([&] { return endpoint.control_connections() == 0; }));
    for (int r = 1; r < world; ++r) {
      endpoint.ask_after(r);
      EXPECT_TRUE(soon([&] { return endpoint.health().state(r) == Health::State::left; })) << r;
    }
    ++ended;
  }));
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace echelon
