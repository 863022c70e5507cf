#include "echelon/net/peer_pages.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "echelon/net/peer_info.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

PeerInfo info_of(int rank, int local) {
  PeerInfo info;
  info.host = fmt::format("host-{:016x}", rank / local);
  info.machine = fmt::format("node{}.cluster.example", rank / local);
  info.kernel = fmt::format("{:032x}", rank / local);
  info.cpus = {0, 1, 2, 3};
  info.options = "net.connections=2 net.tls=false";
  info.address = {fmt::format("10.0.{}.{}", rank / local / 256, rank / local % 256),
                  std::uint16_t(30000 + rank % local)};
  info.local = fmt::format("echelon-{:032x}", std::uint64_t(rank) * 0x9e3779b97f4a7c15);
  info.process = std::uint64_t(4000 + rank % local);
  info.job = 42 + std::uint64_t(rank);
  return info;
}

std::vector<std::string> infos_of(int world, int local = 8) {
  std::vector<std::string> all;
  for (int r = 0; r < world; ++r) all.push_back(encode(info_of(r, local)));
  return all;
}

std::vector<std::string> put_together(int world, const std::vector<Frame>& pages) {
  PeerPages all(world, "rank 0");
  for (const auto& page : pages) all.add(page);
  EXPECT_TRUE(all.complete());
  return all.take();
}

TEST(PeerPages, GiveTheSameTextsForAnyNumberOfRanks) {
  for (const int world : {1, 2, 3, 100, 1000, 10'000}) {
    const auto infos = infos_of(world);
    const auto pages = peer_pages(infos, 2);
    for (const auto& page : pages) EXPECT_LE(page.payload.size(), peer_page_bytes + 16);
    EXPECT_EQ(put_together(world, pages), infos) << world;
    EXPECT_EQ(world >= 1000, pages.size() > 1) << world;
  }
}

TEST(PeerPages, TakeTextsOfAnyLengthAndLikeness) {
  const std::string long_text(PeerInfo::longest, 'x');
  const std::vector<std::string> infos = {"", "", "a", "ab", "abc", "ab", "", long_text, long_text};
  EXPECT_EQ(put_together(int(infos.size()), peer_pages(infos, 2)), infos);
}

TEST(PeerPages, SendOnceWhatRanksOfOneHostHaveInCommon) {
  const auto infos = infos_of(1000);
  std::size_t plain = 0, sent = 0;
  for (const auto& info : infos) plain += info.size();
  for (const auto& page : peer_pages(infos, 2)) sent += page.payload.size();
  EXPECT_LT(sent, plain * 6 / 10) << "of " << plain;
}

TEST(PeerPages, RefuseAPageThatIsMissingRepeatedOrOutOfOrder) {
  const auto pages = peer_pages(infos_of(2000), 2);
  ASSERT_GE(pages.size(), 3u);
  const auto with = [&](const std::vector<std::size_t>& order) {
    return outcome([&] {
      PeerPages all(2000, "the rendezvous");
      for (const auto i : order) all.add(pages[i]);
    });
  };
  EXPECT_EQ(with({0, 1, 2}), "done");
  for (const auto& order : std::vector<std::vector<std::size_t>>{{1}, {0, 2}, {0, 0}, {0, 1, 0}}) {
    const auto refused = with(order);
    EXPECT_EQ(refused, "Corrupt") << refused;
    EXPECT_NE(refused.message.find("the rendezvous sent a page of peer info that begins with rank"),
              std::string::npos)
        << refused;
  }
}

TEST(PeerPages, RefuseCountsAndLengthsThatCannotBe) {
  const auto with = [](const Frame& page) {
    return outcome([&] { PeerPages(3, "rank 0").add(page); });
  };
  EXPECT_EQ(with(FrameWriter().number(0).number(1).number(0).text("a").frame(2)), "done");
  EXPECT_EQ(with(FrameWriter().frame(2)), "Corrupt");
  EXPECT_EQ(with(FrameWriter().number(0).number(0).frame(2)), "Corrupt") << "no rank";
  EXPECT_EQ(with(FrameWriter().number(0).number(4).frame(2)), "Corrupt") << "one too many";
  EXPECT_EQ(with(FrameWriter().number(0).number(2).number(0).text("a").frame(2)), "Corrupt");
  EXPECT_EQ(with(FrameWriter().number(0).number(1).number(1).text("a").frame(2)), "Corrupt")
      << "the first shares nothing";
  const auto second = [](std::uint64_t shared) {
    return FrameWriter().number(0).number(2).number(0).text("a").number(shared).text("b").frame(2);
  };
  EXPECT_EQ(with(second(1)), "done");
  EXPECT_EQ(with(second(2)), "Corrupt");
  EXPECT_EQ(with(second(~std::uint64_t{0})), "Corrupt");
  const std::string too_long(PeerInfo::longest + 1, 'x');
  EXPECT_EQ(with(FrameWriter().number(0).number(1).number(0).text(too_long).frame(2)), "Corrupt");
  EXPECT_EQ(with(FrameWriter().number(0).number(1).number(0).text("a").number(7).frame(2)),
            "Corrupt")
      << "bytes are left over";
}

TEST(PeerInfo, ComesBackAsItWas) {
  const PeerInfo info = info_of(77, 8), same = decode_peer_info(encode(info), 77);
  EXPECT_EQ(encode(same), encode(info));
  EXPECT_EQ(same.address.port, info.address.port);
  EXPECT_EQ(same.cpus, info.cpus);
  const std::string text = encode(info);
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_EQ(outcome([&] { decode_peer_info(text.substr(0, size), 3); }), "Corrupt") << size;
  EXPECT_EQ(outcome([&] { decode_peer_info(text + "x", 3); }), "Corrupt");
}

}  // namespace
}  // namespace echelon
