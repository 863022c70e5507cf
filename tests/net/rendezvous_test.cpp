#include "echelon/net/rendezvous.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <future>

#include "tests/net/connection.h"

namespace echelon {
namespace {

struct Guest {
  int rank = 0, world = 3;
  Token token = a_token();
  int after = -1;  // comes when this guest has gone
};

// All guests at one rendezvous; what each took home.
struct Meeting {
  std::vector<Outcome> outcomes;
  std::vector<std::vector<std::string>> cards;

  explicit Meeting(const std::vector<Guest>& guests, double seconds = 10, bool tls = false)
      : outcomes(guests.size()), cards(guests.size()) {
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
                                 .token = guests[i].token};
              cards[i] = meeting.exchange("card " + std::to_string(i), deadline);
            });
            gone[i].set_value();
          });
    for (auto& thread : threads) thread.join();
  }
};

TEST(Rendezvous, GivesEveryRankTheCardsOfAllInOrder) {
  for (const bool tls : {false, true}) {
    const Meeting meeting({{0, 4}, {1, 4}, {2, 4}, {3, 4}}, 10, tls);
    const std::vector<std::string> expected = {"card 0", "card 1", "card 2", "card 3"};
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(meeting.outcomes[i], "done") << meeting.outcomes[i];
      EXPECT_EQ(meeting.cards[i], expected) << "rank " << i;
    }
  }
}

TEST(Rendezvous, NamesTheRanksThatDidNotCome) {
  const Meeting meeting({{0, 4}, {2, 4}}, 0.3);
  EXPECT_EQ(meeting.outcomes[0], "Timeout") << meeting.outcomes[0];
  EXPECT_NE(meeting.outcomes[0].message.find("ranks 1, 3 of 4"), std::string::npos)
      << meeting.outcomes[0];
  EXPECT_EQ(meeting.outcomes[1], "Timeout") << meeting.outcomes[1];
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

TEST(Rendezvous, SaysThatItsPortIsTaken) {
  const auto taken = listen_tcp("127.0.0.1", 0);
  Rendezvous meeting{.rank = 0,
                     .world = 2,
                     .address = local_address(taken),
                     .listener = {},
                     .tls = false,
                     .token = a_token()};
  const auto refused = outcome([&] { meeting.exchange("card", in_time()); });
  EXPECT_EQ(refused, "another error") << refused;
  EXPECT_NE(refused.message.find("taken by another process"), std::string::npos) << refused;
  EXPECT_NE(refused.message.find(local_address(taken).text()), std::string::npos) << refused;
}

TEST(Rendezvous, OfOneRankNeedsNobody) {
  Rendezvous alone{.address = {}, .listener = {}, .token = a_token()};
  EXPECT_EQ(alone.exchange("mine", in_time()), std::vector<std::string>{"mine"});
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
