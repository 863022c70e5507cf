#include "echelon/net/health.h"

#include <gtest/gtest.h>

#include "tests/net/connection.h"

namespace echelon {
namespace {

TEST(Health, SaysNothingWhileAllAreAlive) {
  const Health health = Health({"rank 0 on a", "rank 1 on b"});
  EXPECT_EQ(health.changes(), 0u);
  EXPECT_EQ(outcome([&] { health.check_present({0, 1}, 1); }), "done");
}

TEST(Health, CallsALostRankPeerLostByName) {
  Health health({"rank 0 on a", "rank 1 on b"});
  health.lost(1, "its process ended");
  EXPECT_EQ(health.changes(), 1u);
  EXPECT_EQ(health.state(1), Health::State::lost);
  const auto lost = outcome([&] { health.check({0, 1}, 1); });
  EXPECT_EQ(lost, "PeerLost") << lost;
  EXPECT_EQ(lost.message, "rank 1 on b was lost: its process ended");
  EXPECT_EQ(outcome([&] { health.check({0}, 1); }), "done") << "rank 1 is not asked about";
}

TEST(Health, NamesTheRankThatWasLostBeforeTheOneThatIsMissed) {
  Health health({"rank 0 on a", "rank 1 on b", "rank 2 on b", "rank 3 on b"});
  health.lost(2, "its process ended");
  health.left(1);
  health.lost(3, "its process ended");
  const auto missed = outcome([&] { health.check_present({0, 1}, 1); });
  EXPECT_EQ(missed, "PeerLost") << missed;
  EXPECT_EQ(missed.message, "rank 2 on b was lost: its process ended; rank 1 on b ended after it");
  EXPECT_EQ(outcome([&] {
              health.check({1, 2}, 1);
            }).message,
            "rank 2 on b was lost: its process ended");
}

TEST(Health, NamesFirstWhomARankThatLeftBlames) {
  std::vector<int> blamed;
  Health health({"rank 0 on a", "rank 1 on b", "rank 2 on b"},
                [&](int rank) { blamed.push_back(rank); });
  health.left(1, true, {2, "rank 2 on b was lost: its process ended"});
  const auto missed = outcome([&] { health.check_present({0, 1}, 1); });
  EXPECT_EQ(missed, "PeerLost") << missed;
  EXPECT_EQ(missed.message, "rank 2 on b was lost: its process ended; rank 1 on b ended after it");
  EXPECT_EQ(blamed, std::vector<int>{2});
  EXPECT_EQ(health.blamed().rank, 2);
}

TEST(Health, BlamesARankThatLeftInAnErrorOfItsOwn) {
  std::vector<int> blamed;
  Health health({"rank 0 on a", "rank 1 on b"}, [&](int rank) { blamed.push_back(rank); });
  health.left(1, true);
  EXPECT_EQ(outcome([&] {
              health.check_present({0, 1}, 1);
            }).message,
            "rank 1 on b failed; its own output says why");
  EXPECT_EQ(blamed, std::vector<int>{1});
}

TEST(Health, NamesFirstWhomARankThatGaveUpBlames) {
  Health health({"rank 0 on a", "rank 1 on b", "rank 2 on b"});
  const std::string lost = "rank 2 on b was lost: its process ended";
  health.failed(1, 7, kind_of(PeerLost("")), lost, {2, lost});
  const auto seen = outcome([&] { health.check({0, 1}, 7); });
  EXPECT_EQ(seen, "PeerLost") << seen;
  EXPECT_EQ(seen.message, lost + "; rank 1 on b gave up because of it");
  EXPECT_EQ(health.blamed().rank, 2);
}

TEST(Health, SaysThatARankThatLeftMayNotBeTheCause) {
  Health health({"rank 0 on a", "rank 1 on b"});
  health.left(1);
  EXPECT_EQ(outcome([&] {
              health.check_present({0, 1}, 1);
            }).message,
            "rank 1 on b has ended, and cannot take part any more; it may have left because of "
            "another, as its own output says");
}

TEST(Health, HandsOnWhyARankGaveUp) {
  Health health({"rank 0 on a", "rank 1 on b"});
  health.failed(0, 1, kind_of(InvalidArgument("")), "ranks disagree");
  const auto failed = outcome([&] { health.check({0, 1}, 1); });
  EXPECT_EQ(failed, "InvalidArgument") << failed;
  EXPECT_EQ(failed.message, "rank 0 on a gave up: ranks disagree");
}

TEST(Health, CountsARankThatGaveUpInOneGroupAsPresentInOthers) {
  Health health({"rank 0 on a", "rank 1 on b"});
  health.failed(1, 5, kind_of(Timeout("")), "late");
  EXPECT_EQ(outcome([&] { health.check_present({0, 1}, 5); }), "Timeout");
  EXPECT_EQ(outcome([&] { health.check_present({0, 1}, 6); }), "done");
  health.lost(1, "and then it ended");
  EXPECT_EQ(outcome([&] { health.check({0, 1}, 6); }), "PeerLost");
  EXPECT_EQ(outcome([&] { health.check({0, 1}, 5); }), "Timeout") << "the first cause";
}

TEST(Health, KeepsTheLastWaitOfEachRankInEachGroup) {
  Health health({"rank 0 on a", "rank 1 on b"});
  EXPECT_TRUE(health.waits_in(5).empty());
  health.waits(1, {.group = 5, .number = 1, .on = 0});
  health.waits(1, {.group = 5, .number = 2, .on = 0});
  health.waits(1, {.group = 6, .number = 9, .on = 0});
  EXPECT_EQ(health.wait_reports(), 3u);
  EXPECT_EQ(health.changes(), 0u) << "nobody is gone";
  ASSERT_EQ(health.waits_in(5).size(), 1u);
  EXPECT_EQ(health.waits_in(5).at(1).number, 2u);
  EXPECT_EQ(health.waits_in(6).at(1).number, 9u);
}

TEST(Health, MissesARankThatLeftOnlyWhereItIsNeeded) {
  Health health({"rank 0 on a", "rank 1 on b"});
  health.left(0);
  EXPECT_EQ(health.changes(), 1u);
  EXPECT_EQ(outcome([&] { health.check({0, 1}, 1); }), "done");
  EXPECT_EQ(outcome([&] { health.check_present({1}, 1); }), "done");
  const auto gone = outcome([&] { health.check_present({0, 1}, 1); });
  EXPECT_EQ(gone, "PeerLost") << gone;
  EXPECT_NE(gone.message.find("rank 0 on a"), std::string::npos) << gone;
}

TEST(Health, NamesTheFirstCauseAndKeepsTheFirstWord) {
  Health health({"rank 0 on a", "rank 1 on b", "rank 2 on c"});
  health.failed(2, 1, kind_of(Timeout("")), "first");
  health.failed(0, 1, kind_of(Corrupt("")), "second");
  health.lost(2, "and then it ended");
  health.left(2);
  EXPECT_EQ(health.changes(), 3u);
  EXPECT_EQ(health.state(2), Health::State::lost);
  const auto first = outcome([&] { health.check({0, 1, 2}, 1); });
  EXPECT_EQ(first, "Timeout") << first;
  // A cause comes before a mere absence, whichever was known first.
  Health other({"rank 0 on a", "rank 1 on b", "rank 2 on c"});
  other.left(0);
  other.lost(1, "killed");
  const auto cause = outcome([&] { other.check_present({0, 1, 2}, 1); });
  EXPECT_NE(cause.message.find("rank 1 on b was lost"), std::string::npos) << cause;
}

TEST(Health, KnowsEveryKindOfErrorAcrossProcesses) {
  const auto there_and_back = [](const auto& error) {
    return outcome([&] { throw_kind(kind_of(error), "told"); });
  };
  EXPECT_EQ(there_and_back(InvalidArgument("")), "InvalidArgument");
  EXPECT_EQ(there_and_back(Corrupt("")), "Corrupt");
  EXPECT_EQ(there_and_back(Timeout("")), "Timeout");
  EXPECT_EQ(there_and_back(PeerLost("")), "PeerLost");
  EXPECT_EQ(there_and_back(Refused("")), "Refused");
  EXPECT_EQ(there_and_back(std::runtime_error("")), "another error");
  EXPECT_EQ(outcome([] { throw_kind(999, "from a newer version"); }), "another error");
}

}  // namespace
}  // namespace echelon
