#include "echelon/net/rendezvous.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <tuple>
#include <utility>

#include "echelon/net/acceptor.h"
#include "echelon/net/meeting.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

struct Guest {
  int rank = 0, world = 3;
  Token token = a_token();
  int after = -1;  // comes when this guest has gone
  JobIdentity identity = {};
};

std::pair<std::vector<std::string>, std::shared_ptr<Assembly>> take_home(Gathered all) {
  return {std::move(all.peer_infos), std::move(all.assembly)};
}

// All guests at one rendezvous; what each took home.
struct Meeting {
  std::vector<Outcome> outcomes;
  std::vector<std::vector<std::string>> infos;

  explicit Meeting(const std::vector<Guest>& guests, double seconds = 10, bool tls = false,
                   int fan_out = 16)
      : outcomes(guests.size()), infos(guests.size()) {
    std::vector<std::shared_ptr<Assembly>> assemblies(guests.size());  // until all have gone
    Descriptor listener = listen_tcp("127.0.0.1", 0);
    const Address address = local_address(listener);
    const Deadline deadline = Deadline::in(std::chrono::milliseconds(std::int64_t(seconds * 1000)));
    std::vector<std::thread> threads;
    std::vector<std::promise<void>> gone(guests.size());
    for (std::size_t i = 0; i < guests.size(); ++i)
      threads.emplace_back(
          [&, i, own = std::make_shared<Descriptor>(i == 0 ? std::move(listener) : Descriptor())] {
            if (guests[i].after >= 0) gone[std::size_t(guests[i].after)].get_future().wait();
            outcomes[i] = outcome([&] {
              Rendezvous meeting{.rank = guests[i].rank,
                                 .world = guests[i].world,
                                 .address = address,
                                 .listener = std::move(*own),
                                 .tls = tls,
                                 .token = guests[i].token,
                                 .identity = guests[i].identity,
                                 .fan_out = fan_out};
              std::tie(infos[i], assemblies[i]) =
                  take_home(meeting.exchange("info " + std::to_string(i), deadline));
            });
            gone[i].set_value();
          });
    for (auto& thread : threads) thread.join();
  }
};

TEST(Rendezvous, GivesEveryRankThePeerInfoOfAllInOrder) {
  for (const bool tls : {false, true}) {
    const Meeting meeting({{0, 4}, {1, 4}, {2, 4}, {3, 4}}, 10, tls);
    const std::vector<std::string> expected = {"info 0", "info 1", "info 2", "info 3"};
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(meeting.outcomes[i], "done") << meeting.outcomes[i];
      EXPECT_EQ(meeting.infos[i], expected) << "rank " << i;
    }
  }
}

TEST(Rendezvous, GivesThemDownATreeToWorldsOfAnySize) {
  for (int world = 1; world <= 9; ++world)
    for (const int fan_out : {1, 2, 3})
      for (const bool tls : {false, true}) {
        std::vector<Guest> guests;
        std::vector<std::string> expected;
        for (int rank = 0; rank < world; ++rank) {
          guests.push_back({rank, world});
          expected.push_back("info " + std::to_string(rank));
        }
        const Meeting meeting(guests, 10, tls, fan_out);
        for (std::size_t i = 0; i < guests.size(); ++i) {
          EXPECT_EQ(meeting.outcomes[i], "done")
              << world << " ranks, fan-out " << fan_out << ": " << meeting.outcomes[i];
          EXPECT_EQ(meeting.infos[i], expected) << "rank " << i;
        }
      }
}

TEST(Rendezvous, NamesTheRanksThatDidNotCome) {
  const Meeting meeting({{0, 4}, {2, 4}}, 1);
  EXPECT_EQ(meeting.outcomes[0], "Timeout") << meeting.outcomes[0];
  EXPECT_NE(meeting.outcomes[0].message.find("ranks 1, 3 of 4"), std::string::npos)
      << meeting.outcomes[0];
  EXPECT_EQ(meeting.outcomes[1], "Timeout") << meeting.outcomes[1];
}

TEST(Rendezvous, TellsAGuestWhoseTimeIsOverWhoIsMissing) {
  Descriptor listener = listen_tcp("127.0.0.1", 0);
  const Address address = local_address(listener);
  const auto come = [&](int rank, Descriptor own, Deadline deadline) {
    return outcome([&] {
      Rendezvous meeting{.rank = rank,
                         .world = 3,
                         .address = address,
                         .listener = std::move(own),
                         .token = a_token()};
      meeting.exchange("info", deadline);
    });
  };
  auto zero = std::async(std::launch::async, come, 0, std::move(listener), in_time());
  const auto guest = come(1, {}, Deadline::in(std::chrono::seconds(1)));
  for (const auto& one : {zero.get(), guest}) {
    EXPECT_EQ(one, "Timeout") << one;
    EXPECT_NE(one.message.find("rank 2 of 3 did not come in time"), std::string::npos) << one;
  }
}

TEST(Rendezvous, TellsAllThatTwoAreTheSameRank) {
  const Meeting meeting(std::vector<Guest>{{.rank = 0}, {.rank = 1}, {.rank = 1}});
  for (const auto& one : meeting.outcomes) {
    EXPECT_EQ(one, "InvalidArgument") << one;
    EXPECT_NE(one.message.find("two processes came as rank 1"), std::string::npos) << one;
  }
}

TEST(Rendezvous, TellsAllThatWorldsDiffer) {
  const Meeting meeting({{0, 2}, {1, 3}});
  for (const auto& one : meeting.outcomes) {
    EXPECT_EQ(one, "InvalidArgument") << one;
    EXPECT_NE(one.message.find("world is 3"), std::string::npos) << one;
  }
}

TEST(Rendezvous, TurnsAwayAnotherTokenAndGoesOn) {
  const Meeting meeting({{0, 2}, {1, 2, another_token()}, {1, 2, a_token(), 1}});
  EXPECT_EQ(meeting.outcomes[1], "Refused") << meeting.outcomes[1];
  EXPECT_EQ(meeting.outcomes[0], "done") << meeting.outcomes[0];
  EXPECT_EQ(meeting.outcomes[2], "done") << meeting.outcomes[2];
}

Guest of_job(int rank, const std::string& job, int after = -1) {
  return {.rank = rank, .world = 2, .after = after, .identity = {.job = job}};
}

TEST(Rendezvous, RefusesARankOfAnotherJobAndGoesOnWithItsOwn) {
  for (const std::string other : {"Slurm 8.0", ""}) {
    const Meeting meeting({of_job(0, "Slurm 7.0"), of_job(1, other), of_job(1, "Slurm 7.0", 1)});
    EXPECT_EQ(meeting.outcomes[0], "done") << meeting.outcomes[0];
    EXPECT_EQ(meeting.outcomes[2], "done") << meeting.outcomes[2];
    EXPECT_EQ(meeting.infos[0], (std::vector<std::string>{"info 0", "info 2"}));
    const auto& refused = meeting.outcomes[1];
    EXPECT_EQ(refused, "InvalidArgument") << refused;
    const std::vector<std::string> parts = {"\"Slurm 7.0\"",
                                            other.empty() ? "without an id" : "\"Slurm 8.0\"",
                                            "pid " + std::to_string(getpid()), "a port of its own"};
    for (const auto& part : parts)
      EXPECT_NE(refused.message.find(part), std::string::npos) << refused;
  }
}

TEST(Rendezvous, RefusesARankThatAnotherLaunchStarted) {
  const auto launched = [](int rank, const std::string& launch, int after = -1) {
    return Guest{.rank = rank, .world = 2, .after = after, .identity = {.launch = launch}};
  };
  const Meeting meeting({launched(0, "a"), launched(1, "b"), launched(1, "a", 1)});
  EXPECT_EQ(meeting.outcomes[1], "InvalidArgument") << meeting.outcomes[1];
  EXPECT_NE(meeting.outcomes[1].message.find("started by different launches"), std::string::npos);
  EXPECT_EQ(meeting.outcomes[0], "done") << meeting.outcomes[0];
  EXPECT_EQ(meeting.outcomes[2], "done") << meeting.outcomes[2];
}

TEST(Rendezvous, TellsAllThatTwoLaunchesHaveOneNodeRank) {
  const auto launched = [](int rank, const std::string& launch, int first) {
    return Guest{.rank = rank, .world = 3, .identity = {.launch = launch, .first_rank = first}};
  };
  const Meeting meeting({launched(0, "a", 0), launched(1, "b", 1), launched(2, "c", 1)});
  for (const auto& one : meeting.outcomes) {
    EXPECT_EQ(one, "InvalidArgument") << one;
    EXPECT_NE(one.message.find("should be of one launch and are of two"), std::string::npos) << one;
  }
}

TEST(Rendezvous, RefusesARankOfALaunchThatRunsSomethingElse) {
  const auto launched = [](int rank, const std::string& command, int after = -1) {
    return Guest{.rank = rank,
                 .world = 2,
                 .after = after,
                 .identity = {.launch = command, .first_rank = rank, .command = command}};
  };
  const Meeting meeting(
      {launched(0, "train a.toml"), launched(1, "train b.toml"), launched(1, "train a.toml", 1)});
  EXPECT_EQ(meeting.outcomes[1], "InvalidArgument") << meeting.outcomes[1];
  EXPECT_NE(meeting.outcomes[1].message.find("to run 'train b.toml' and rank 0"), std::string::npos)
      << meeting.outcomes[1];
  EXPECT_EQ(meeting.outcomes[0], "done") << meeting.outcomes[0];
  EXPECT_EQ(meeting.outcomes[2], "done") << meeting.outcomes[2];
}

TEST(Rendezvous, TakesDifferentCommandsForOneJobWhereBothNameIt) {
  const auto launched = [](int rank, const std::string& command) {
    return Guest{
        .rank = rank,
        .world = 2,
        .identity = {.job = "one", .launch = command, .first_rank = rank, .command = command}};
  };
  const Meeting meeting({launched(0, "train a.toml"), launched(1, "train b.toml")});
  for (const auto& one : meeting.outcomes) EXPECT_EQ(one, "done") << one;
}

TEST(Rendezvous, TellsBothThatTwoProcessesAreRankZero) {
  Descriptor listener = listen_tcp("127.0.0.1", 0);
  const Address address = local_address(listener);
  const auto come = [&](Descriptor own) {
    return outcome([&] {
      Rendezvous meeting{.rank = 0,
                         .world = 2,
                         .address = address,
                         .listener = std::move(own),
                         .token = a_token()};
      meeting.exchange("info", in_time());
    });
  };
  auto first = std::async(std::launch::async, come, std::move(listener));
  const auto second = come({});  // its port is taken
  for (const auto& one : {first.get(), second}) {
    EXPECT_EQ(one, "InvalidArgument") << one;
    EXPECT_NE(one.message.find("two processes came as rank 0"), std::string::npos) << one;
    EXPECT_NE(one.message.find("node rank"), std::string::npos) << one;
  }
}

TEST(Rendezvous, SaysAtOnceThatRankZeroIsNotAtTheAddress) {
  const auto probe = listen_tcp("127.0.0.1", 0);
  // No machine has this address (RFC 5737), and nothing may answer there.
  Rendezvous meeting{.rank = 0,
                     .world = 2,
                     .address = {"192.0.2.1", local_address(probe).port},
                     .listener = {},
                     .bind = "127.0.0.2",
                     .token = a_token()};
  const auto refused =
      outcome([&] { meeting.exchange("info", Deadline::in(std::chrono::seconds(50))); });
  EXPECT_EQ(refused, "InvalidArgument") << refused;
  EXPECT_NE(refused.message.find("192.0.2.1"), std::string::npos) << refused;
  EXPECT_NE(refused.message.find("start rank 0"), std::string::npos) << refused;
}

TEST(Rendezvous, NamesARankThatEndedBeforeAllHadCome) {
  Descriptor listener = listen_tcp("127.0.0.1", 0);
  const Address address = local_address(listener);
  auto zero = std::async(std::launch::async, [&, own = std::move(listener)]() mutable {
    return outcome([&] {
      Rendezvous meeting{.rank = 0,
                         .world = 3,
                         .address = address,
                         .listener = std::move(own),
                         .token = a_token()};
      meeting.exchange("info", in_time());
    });
  });
  {
    Hello hello;
    hello.rank = 2;
    hello.world = 3;
    hello.who = "pid 7 on a";
    hello.peer_info = "info";
    const auto stream =
        connect_proven(connect_tcp(address, in_time()), "rank 0", false, a_token(), in_time());
    write_frame(*stream, hello.frame(), in_time());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const auto seen = zero.get();
  EXPECT_EQ(seen, "PeerLost") << seen;
  EXPECT_NE(seen.message.find("rank 2 (pid 7 on a) ended while the ranks were meeting"),
            std::string::npos)
      << seen;
}

TEST(Rendezvous, SaysThatALoopbackAddressIsOfNoUseToOtherMachines) {
  Descriptor listener = listen_tcp("127.0.0.1", 0);
  Rendezvous meeting{.rank = 0,
                     .world = 2,
                     .address = local_address(listener),
                     .listener = std::move(listener),
                     .token = a_token(),
                     .other_machines = true};
  const auto late = outcome([&] { meeting.exchange("info", too_soon()); });
  EXPECT_EQ(late, "Timeout") << late;
  EXPECT_NE(late.message.find("127.0.0.1 is each machine's own address"), std::string::npos)
      << late;
}

TEST(Rendezvous, SaysThatItsPortIsTaken) {
  const auto taken = listen_tcp("127.0.0.1", 0);
  const auto program =
      std::async(std::launch::async, [&] { accept(taken, in_time()); });  // hangs up
  Rendezvous meeting{.rank = 0,
                     .world = 2,
                     .address = local_address(taken),
                     .listener = {},
                     .tls = false,
                     .token = a_token()};
  const auto refused = outcome([&] { meeting.exchange("info", in_time()); });
  EXPECT_EQ(refused, "another error") << refused;
  EXPECT_NE(refused.message.find("taken by another process"), std::string::npos) << refused;
  EXPECT_NE(refused.message.find(local_address(taken).text()), std::string::npos) << refused;
}

TEST(Rendezvous, OfOneRankNeedsNobody) {
  Rendezvous alone{.address = {}, .listener = {}, .token = a_token()};
  EXPECT_EQ(alone.exchange("mine", in_time()).peer_infos, std::vector<std::string>{"mine"});
}

TEST(InheritedListener, IsTakenOnceAndOnlyIfItListens) {
  EXPECT_FALSE(inherited_listener());
  for (const char* wrong : {"", "x", "0", "-3", "99999", "3x"}) {
    setenv("ECHELON_RENDEZVOUS_FD", wrong, 1);
    EXPECT_EQ(outcome([] { inherited_listener(); }), "InvalidArgument") << wrong;
  }
  auto listener = listen_tcp("127.0.0.1", 0);
  const int number = listener.release();
  setenv("ECHELON_RENDEZVOUS_FD", std::to_string(number).c_str(), 1);
  EXPECT_EQ(inherited_listener().get(), number);
  EXPECT_EQ(getenv("ECHELON_RENDEZVOUS_FD"), nullptr);
}

}  // namespace
}  // namespace echelon
