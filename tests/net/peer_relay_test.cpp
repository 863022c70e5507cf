// The peer info on its way down the tree: what is refused, and who is named when a rank is lost.
#include "echelon/net/peer_relay.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "echelon/net/meeting.h"
#include "echelon/net/peer_pages.h"
#include "echelon/net/rendezvous.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

TEST(PeerTree, GivesEveryRankOneParentAndFewChildren) {
  for (const int fan_out : {1, 2, 16})
    for (const int world : {1, 2, 3, 17, 18, 100, 10'000}) {
      if (fan_out == 1 && world > 100) continue;
      const PeerTree tree{.world = world, .fan_out = fan_out};
      std::vector<int> parents(std::size_t(world), -1);
      for (int rank = 0; rank < world; ++rank) {
        const auto children = tree.children(rank);
        EXPECT_LE(int(children.size()), fan_out);
        EXPECT_EQ(tree.passes_on(rank), !children.empty()) << rank;
        for (const int child : children) {
          EXPECT_EQ(parents[std::size_t(child)], -1) << child << " has two parents";
          EXPECT_EQ(tree.parent(child), rank);
          EXPECT_LT(rank, child);
          parents[std::size_t(child)] = rank;
        }
      }
      for (int rank = 1; rank < world; ++rank) EXPECT_NE(parents[std::size_t(rank)], -1) << rank;
    }
  EXPECT_EQ((PeerTree{.world = 10'000}.hops(9'999)), 4);
}

TEST(PeerRoute, ComesBackAsItWasAndIsChecked) {
  const PeerTree tree{.world = 40};
  const PeerRoute route{.meeting = 5, .parent = 2, .who = "pid 1 on a", .relay = {"10.0.0.1", 80}};
  const PeerRoute same = PeerRoute::read(route.frame(), "rank 0", tree, 33);
  EXPECT_EQ(same.meeting, 5u);
  EXPECT_EQ(same.parent, 2);
  EXPECT_EQ(same.who, "pid 1 on a");
  EXPECT_EQ(same.relay.text(), "10.0.0.1:80");
  const auto read = [&](const Frame& frame) {
    return outcome([&] { PeerRoute::read(frame, "rank 0", tree, 33); });
  };
  Frame frame = route.frame();
  for (std::size_t size = 0; size < frame.payload.size(); ++size) {
    Frame cut = frame;
    cut.payload.resize(size);
    EXPECT_EQ(read(cut), "Corrupt") << size;
  }
  frame.payload.push_back({});
  EXPECT_EQ(read(frame), "Corrupt") << "bytes are left over";
  EXPECT_EQ(read(PeerRoute{.parent = 1, .relay = {"10.0.0.1", 80}}.frame()), "Corrupt")
      << "not the parent of rank 33";
  EXPECT_EQ(read(PeerRoute{.parent = 40, .relay = {"10.0.0.1", 80}}.frame()), "Corrupt");
  EXPECT_EQ(read(PeerRoute{.parent = 2, .relay = {"10.0.0.1", 0}}.frame()), "Corrupt") << "no port";
  EXPECT_EQ(read(PeerRoute{.parent = 2, .relay = {"", 80}}.frame()), "Corrupt") << "no host";
  EXPECT_EQ(read(FrameWriter().frame(99)), "Corrupt");
}

// A job of `world` ranks whose rank `odd` does not follow the protocol but runs `body`; what the
// others came to once all were, or should have been, connected.
struct Job {
  static constexpr int world = 7, fan_out = 2;  // ranks 1 and 2 pass on to 3, 4 and 5, 6
  std::vector<Outcome> outcomes = std::vector<Outcome>(world);

  // What the odd rank has: its stream to rank 0, and its route once all have come.
  struct Odd {
    std::unique_ptr<Stream> rank_0;
    PeerRelay& relay;
    std::vector<std::byte> pages;
    std::uint64_t meeting;
  };

  Job(int odd, const std::function<void(Odd)>& body, bool tls = false) {
    Descriptor listener = listen_tcp("127.0.0.1", 0);
    const Address address = local_address(listener);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world; ++rank)
      threads.emplace_back([&, rank] {
        outcomes[std::size_t(rank)] = outcome([&] {
          Rendezvous meeting{.rank = rank,
                             .world = world,
                             .address = address,
                             .listener = rank == 0 ? std::move(listener) : Descriptor(),
                             .tls = tls,
                             .token = a_token(),
                             .fan_out = fan_out};
          if (rank == odd) return body(come(meeting));
          const Gathered all = meeting.exchange("info", in_time());
          EXPECT_EQ(all.peer_infos, std::vector<std::string>(world, "info"));
          all.assembly->connected(in_time());
        });
      });
    for (auto& thread : threads) thread.join();
  }

  Odd come(const Rendezvous& meeting) {
    relay.emplace("127.0.0.1", meeting.tls, meeting.token, meeting.tree().children(meeting.rank));
    Hello hello;
    hello.rank = std::uint64_t(meeting.rank);
    hello.world = world;
    hello.who = "pid 7 on a";
    hello.relay = relay->address();
    hello.peer_info = "info";
    auto stream = connect_proven(connect_tcp(meeting.address, in_time()), "rank 0", meeting.tls,
                                 meeting.token, in_time());
    write_frame(*stream, hello.frame(), in_time());
    const auto route =
        PeerRoute::read(read_frame(*stream, in_time()), "rank 0", meeting.tree(), meeting.rank);
    const auto pages = encode(read_frame(*stream, in_time()));
    return {std::move(stream), *relay, pages, route.meeting};
  }

  // Rank 0 and the children of rank 1 cannot do without it; the others may have said that they are
  // connected before it was known.
  void expect_rank_1_lost() const {
    for (int rank = 0; rank < world; ++rank) {
      const Outcome& seen = outcomes[std::size_t(rank)];
      const bool needs_it = rank == 0 || rank == 3 || rank == 4;
      if (rank == 1 || (!needs_it && seen == "done")) continue;
      EXPECT_EQ(seen, "PeerLost") << "rank " << rank << ": " << seen;
      EXPECT_NE(seen.message.find("rank 1 (pid 7 on a) ended while the ranks were connecting"),
                std::string::npos)
          << "rank " << rank << ": " << seen;
    }
  }

  std::optional<PeerRelay> relay;
};

TEST(PeerRelay, PassesOnByHandAsARankDoes) {
  for (const bool tls : {false, true}) {
    const Job job(
        1,
        [](Job::Odd odd) {
          std::map<int, Assembly::Member> rank_0;
          rank_0[0] = {"rank 0", std::move(odd.rank_0)};
          Assembly assembly(std::move(rank_0));
          odd.relay.pass_on(odd.pages, odd.meeting, assembly, in_time());
          assembly.connected(in_time());
        },
        tls);
    for (const auto& one : job.outcomes) EXPECT_EQ(one, "done") << one;
  }
}

TEST(PeerRelay, ThatIsLostBeforeItPassesOnIsNamed) {
  Job(1, [](const Job::Odd&) {}).expect_rank_1_lost();
}

TEST(PeerRelay, ThatIsLostWhileItPassesOnIsNamed) {
  for (const bool tls : {false, true})
    Job(
        1,
        [](Job::Odd odd) {
          // Half of the pages to each child, and nothing more.
          std::map<int, Assembly::Member> rank_0;
          rank_0[0] = {"rank 0", std::move(odd.rank_0)};
          Assembly assembly(std::move(rank_0));
          odd.relay.pass_on(std::span(odd.pages).first(odd.pages.size() / 2), odd.meeting, assembly,
                            in_time());
        },
        tls)
        .expect_rank_1_lost();
}

TEST(PeerRelay, ThatSendsWhatIsNoPeerInfoIsRefused) {
  const Job job(1, [](Job::Odd odd) {
    std::map<int, Assembly::Member> rank_0;
    rank_0[0] = {"rank 0", std::move(odd.rank_0)};
    Assembly assembly(std::move(rank_0));
    const auto other = encode(peer_pages(std::vector<std::string>(Job::world, "else"), 2)[0]);
    odd.relay.pass_on(other, odd.meeting, assembly, in_time());
    EXPECT_EQ(outcome([&] {
                while (true) assembly.look();
              }),
              "PeerLost")
        << "the children end";
  });
  for (const int child : {3, 4}) {
    const Outcome& seen = job.outcomes[std::size_t(child)];
    EXPECT_TRUE(seen == "Corrupt" || seen == "PeerLost") << seen;
  }
  EXPECT_TRUE(job.outcomes[3] == "Corrupt" || job.outcomes[4] == "Corrupt") << job.outcomes[3];
}

// What a relay does with connections that are not its children's.
struct Relay {
  PeerRelay relay{"127.0.0.1", false, a_token(), {3, 4}};
  std::unique_ptr<Stream> fetch(std::uint64_t meeting, std::uint64_t rank,
                                MeetingFrame kind = MeetingFrame::fetch) {
    auto stream = connect_proven(connect_tcp(relay.address(), in_time()), "the relay", false,
                                 a_token(), in_time());
    write_frame(*stream,
                FrameWriter().number(meeting).number(rank).frame(static_cast<std::uint8_t>(kind)),
                in_time());
    return stream;
  }
};

TEST(PeerRelay, TurnsAwayWhoDoesNotKnowTheTokenOrIsNoChild) {
  Relay here;
  const auto refused = outcome([&] {
    connect_proven(connect_tcp(here.relay.address(), in_time()), "the relay", false,
                   another_token(), in_time());
  });
  EXPECT_EQ(refused, "Refused") << refused;
  std::vector<std::byte> byte(1);
  for (const std::uint64_t rank : {0, 2, 5})
    EXPECT_EQ(outcome([&] { here.fetch(9, rank)->read(byte, in_time()); }), "PeerLost") << rank;
  EXPECT_EQ(outcome([&] { here.fetch(9, 3, MeetingFrame::hello)->read(byte, in_time()); }),
            "PeerLost");
}

TEST(PeerRelay, ServesChildrenOfItsOwnMeetingAlone) {
  Relay here;
  const auto stranger = here.fetch(8, 3), third = here.fetch(9, 3), fourth = here.fetch(9, 4);
  Assembly nobody({});
  const std::string pages = "pages";
  here.relay.pass_on(bytes_of(pages), 9, nobody, in_time());
  std::vector<std::byte> got(pages.size());
  for (const auto* child : {&third, &fourth}) {
    (*child)->read(got, in_time());
    EXPECT_EQ(text_of(got), pages);
  }
  EXPECT_EQ(outcome([&] { stranger->read(got, too_soon()); }), "Timeout");
}

TEST(PeerRelay, NamesAChildThatDoesNotCome) {
  Relay here;
  const auto third = here.fetch(9, 3);
  Assembly nobody({});
  const auto late = outcome([&] { here.relay.pass_on(bytes_of("pages"), 9, nobody, too_soon()); });
  EXPECT_EQ(late, "Timeout") << late;
  EXPECT_NE(late.message.find("rank 4 did not fetch"), std::string::npos) << late;
}

TEST(PeerRelay, ThatIsStuckIsNamedByItsChild) {
  const Relay here;  // accepts, and passes nothing on
  Assembly nobody({});
  const PeerRoute route{
      .meeting = 9, .parent = 1, .who = "pid 7 on a", .relay = here.relay.address()};
  const auto late = outcome([&] {
    connect_to_parent(3, route, false, a_token(), nobody,
                      Deadline::in(std::chrono::milliseconds(300)));
  });
  EXPECT_EQ(late, "Timeout") << late;
  EXPECT_NE(late.message.find("rank 1 (pid 7 on a)"), std::string::npos) << late;
}

}  // namespace
}  // namespace echelon
