#include "echelon/net/link.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <thread>

#include "tests/net/connection.h"

namespace echelon {
namespace {

std::vector<std::byte> pattern(std::size_t bytes) {
  std::mt19937 engine(3);
  std::vector<std::byte> data(bytes);
  for (auto& one : data) one = std::byte(engine());
  return data;
}

// Pieces of odd sizes, in two parts each, until all of it is through.
template <class Try>
void move_all(std::vector<std::byte>& data, Try attempt) {
  std::mt19937 engine(11);
  for (std::size_t done = 0; done < data.size();) {
    const std::size_t now = std::min<std::size_t>(data.size() - done, engine() % 300000 + 1);
    const std::size_t first = engine() % (now + 1);
    const iovec parts[] = {{data.data() + done, first}, {data.data() + done + first, now - first}};
    const std::size_t moved = attempt(std::span<const iovec>(parts));
    ASSERT_LE(moved, now);
    if (moved == 0) std::this_thread::yield();
    done += moved;
  }
}

void expect_carries(Link& from, Link& to, std::size_t bytes) {
  auto sent = pattern(bytes), received = std::vector<std::byte>(bytes);
  std::thread sender([&] { move_all(sent, [&](auto parts) { return from.try_send(parts); }); });
  move_all(received, [&](auto parts) { return to.try_receive(parts); });
  sender.join();
  const auto differs = std::mismatch(sent.begin(), sent.end(), received.begin()).first;
  EXPECT_EQ(differs - sent.begin(), std::ptrdiff_t(bytes)) << "the first byte that is wrong";
}

std::pair<TcpLink, TcpLink> tcp_links(int connections) {
  std::vector<std::unique_ptr<Stream>> here, there;
  for (int i = 0; i < connections; ++i) {
    auto [a, b] = plain_streams(tcp_sockets());
    here.push_back(std::move(a));
    there.push_back(std::move(b));
  }
  return {TcpLink(std::move(here)), TcpLink(std::move(there))};
}

TEST(TcpLink, CarriesBytesInOrderOverAnyNumberOfConnections) {
  for (const int connections : {1, 2, 3, 5}) {
    auto [a, b] = tcp_links(connections);
    expect_carries(a, b, 3 * TcpLink::block + 12345);
    expect_carries(b, a, 2 * TcpLink::block);
    expect_carries(a, b, 77);  // goes on in the middle of a block
    EXPECT_EQ(a.kind(), LinkKind::tcp);
    EXPECT_GE(a.receive_poll().fd, 0);
  }
}

TEST(TcpLink, LosesItsPeerWhenTheOtherEndCloses) {
  auto [a, b] = tcp_links(2);
  std::byte byte{};
  const iovec part = {&byte, 1};
  EXPECT_EQ(a.try_receive({&part, 1}), 0u) << "nothing yet";
  { const TcpLink gone = std::move(b); }
  const auto lost = outcome([&] {
    for (int i = 0; i < 1000 && a.try_receive({&part, 1}) == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_EQ(lost, "PeerLost") << lost;
}

struct Rings {
  std::unique_ptr<SharedRing::Memory> there = std::make_unique<SharedRing::Memory>(),
                                      back = std::make_unique<SharedRing::Memory>();
  SharedLink a{SharedRing(there.get()), SharedRing(back.get()), "rank 1"},
      b{SharedRing(back.get()), SharedRing(there.get()), "rank 0"};
};

TEST(SharedLink, CarriesBytesInOrderPastItsEnd) {
  Rings rings;
  expect_carries(rings.a, rings.b, 3 * SharedRing::capacity + 12345);
  expect_carries(rings.b, rings.a, SharedRing::capacity);
  expect_carries(rings.a, rings.b, 5);
  EXPECT_EQ(rings.a.kind(), LinkKind::shared);
  EXPECT_LT(rings.a.receive_poll().fd, 0);
}

TEST(SharedLink, TakesNoMoreThanThereIsRoomFor) {
  Rings rings;
  auto data = pattern(SharedRing::capacity + 100);
  const iovec all = {data.data(), data.size()};
  EXPECT_EQ(rings.a.try_send({&all, 1}), SharedRing::capacity);
  EXPECT_EQ(rings.a.try_send({&all, 1}), 0u);
  std::vector<std::byte> got(10);
  const iovec ten = {got.data(), got.size()};
  EXPECT_EQ(rings.b.try_receive({&ten, 1}), 10u);
  EXPECT_EQ(rings.a.try_send({&all, 1}), 10u);
}

TEST(SharedLink, DoesNotTrustPositionsThatContradictEachOther) {
  Rings rings;
  rings.there->written = SharedRing::capacity + 1;
  std::vector<std::byte> got(10);
  const iovec ten = {got.data(), got.size()};
  const auto broken = outcome([&] { rings.b.try_receive({&ten, 1}); });
  EXPECT_EQ(broken, "Corrupt") << broken;
  EXPECT_NE(broken.message.find("rank 0"), std::string::npos) << broken;
  rings.back->read = 5;  // more was read than written
  EXPECT_EQ(rings.b.try_send({&ten, 1}), 0u);
}

}  // namespace
}  // namespace echelon
