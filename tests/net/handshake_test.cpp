#include "echelon/net/handshake.h"

#include <algorithm>
#include <array>
#include <future>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

using Bytes = std::vector<std::byte>;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Both sides' outcomes, the connecting one's first.
std::pair<Outcome, Outcome> authenticate_both(Streams streams, const Token& connecting,
                                              const Token& accepting) {
  auto there = std::async(std::launch::async, [&] {
    auto seen =
        outcome([&] { authenticate(*streams.second, accepting, Side::accepting, in_time()); });
    streams.second.reset();
    return seen;
  });
  auto here =
      outcome([&] { authenticate(*streams.first, connecting, Side::connecting, in_time()); });
  streams.first.reset();
  return {std::move(here), there.get()};
}

TEST(Handshake, WelcomesAPeerWithTheSameToken) {
  for (int i = 0; i < 20; ++i) {
    const auto [connecting, accepting] =
        authenticate_both(plain_streams(tcp_sockets()), a_token(), a_token());
    EXPECT_EQ(connecting, "done") << connecting;
    EXPECT_EQ(accepting, "done") << accepting;
  }
}

TEST(Handshake, WelcomesAPeerWithTheSameTokenUnderTls) {
  const auto [connecting, accepting] =
      authenticate_both(tls_streams(tcp_sockets()), a_token(), a_token());
  EXPECT_EQ(connecting, "done") << connecting;
  EXPECT_EQ(accepting, "done") << accepting;
}

TEST(Handshake, LeavesTheStreamAtTheFirstByteAfterIt) {
  const auto streams = tls_streams(local_sockets());
  auto there = std::async(std::launch::async, [&] {
    authenticate(*streams.second, a_token(), Side::accepting, in_time());
    streams.second->write(bytes_of("hello"), in_time());
  });
  authenticate(*streams.first, a_token(), Side::connecting, in_time());
  Bytes got(5);
  streams.first->read(got, in_time());
  EXPECT_EQ(text_of(got), "hello");
  there.get();
}

TEST(Handshake, RefusesAPeerWithAnotherToken) {
  for (const bool tls : {false, true}) {
    for (int i = 0; i < 10; ++i) {
      const auto [connecting, accepting] =
          authenticate_both(tls ? tls_streams(tcp_sockets()) : plain_streams(tcp_sockets()),
                            a_token(), another_token());
      EXPECT_EQ(connecting, "Refused") << connecting;
      EXPECT_EQ(accepting, "Refused") << accepting;
      EXPECT_TRUE(has(connecting.message, "the accepting side did not prove")) << connecting;
      EXPECT_TRUE(has(connecting.message, "ECHELON_TOKEN")) << connecting;
      EXPECT_TRUE(has(accepting.message, "the connecting side did not prove")) << accepting;
      EXPECT_FALSE(has(connecting.message, a_token().text())) << connecting;
    }
  }
}

TEST(Handshake, RefusesATokenRelayedIntoAnotherTlsSession) {
  // One in the middle has both sides' sessions, and passes on what they say to prove the token.
  auto left = tls_streams(local_sockets());
  auto right = tls_streams(local_sockets());
  auto there = std::async(std::launch::async, [&] {
    return outcome([&] { authenticate(*right.second, a_token(), Side::accepting, in_time()); });
  });
  auto here = std::async(std::launch::async, [&] {
    return outcome([&] { authenticate(*left.first, a_token(), Side::connecting, in_time()); });
  });
  const auto pass = [](Stream& from, Stream& to, std::size_t size) {
    Bytes bytes(size);
    from.read(bytes, in_time());
    to.write(bytes, in_time());
  };
  pass(*left.second, *right.first, 40);
  pass(*right.first, *left.second, 72);
  pass(*left.second, *right.first, 32);
  EXPECT_EQ(here.get(), "Refused");
  EXPECT_EQ(there.get(), "Refused");
}

// ---- Peers that break the rules. The test speaks their bytes.

constexpr auto magic_and_version = std::string_view("ECHP\x04\0\0\0", 8);

struct Victim {
  explicit Victim(Side side, Deadline deadline = in_time()) {
    auto sockets = local_sockets();
    peer = Stream::plain(std::move(sockets.first), "the victim");
    seen = std::async(std::launch::async,
                      [side, deadline, socket = std::move(sockets.second)]() mutable {
                        const auto stream = Stream::plain(std::move(socket), "a peer");
                        return outcome([&] { authenticate(*stream, a_token(), side, deadline); });
                      });
  }

  Bytes read(std::size_t size) {
    Bytes bytes(size);
    peer->read(bytes, in_time());
    return bytes;
  }
  void write(std::span<const std::byte> bytes) { peer->write(bytes, in_time()); }
  void write(std::string_view text) { write(bytes_of(text)); }

  std::unique_ptr<Stream> peer;
  std::future<Outcome> seen;
};

Token::Mac proof(std::string_view role, std::span<const std::byte> a, std::span<const std::byte> b,
                 const Token& token = a_token()) {
  const auto text = std::string(role) + text_of(a) + text_of(b);
  return token.mac(bytes_of(text));
}

TEST(Handshake, IsWhatItsDocumentSaysOnTheConnectingSide) {
  Victim victim(Side::connecting);
  const auto hello = victim.read(40);
  EXPECT_EQ(text_of(std::span(hello).first(8)), magic_and_version);
  const Bytes b(32, std::byte{0xbb});
  victim.write(magic_and_version);
  victim.write(b);
  victim.write(proof("accepting", std::span(hello).subspan(8), b));
  const auto answer = victim.read(32);
  EXPECT_EQ(text_of(answer), text_of(proof("connecting", std::span(hello).subspan(8), b)));
  victim.write("\x01");
  const auto seen = victim.seen.get();
  EXPECT_EQ(seen, "done") << seen;
}

TEST(Handshake, IsWhatItsDocumentSaysOnTheAcceptingSide) {
  Victim victim(Side::accepting);
  const Bytes a(32, std::byte{0xaa});
  victim.write(magic_and_version);
  victim.write(a);
  const auto answer = victim.read(72);
  EXPECT_EQ(text_of(std::span(answer).first(8)), magic_and_version);
  const auto b = std::span(answer).subspan(8, 32);
  EXPECT_EQ(text_of(std::span(answer).subspan(40)), text_of(proof("accepting", a, b)));
  victim.write(proof("connecting", a, b));
  EXPECT_EQ(victim.read(1)[0], std::byte{1});
  const auto seen = victim.seen.get();
  EXPECT_EQ(seen, "done") << seen;
}

TEST(Handshake, UsesFreshRandomBytesEachTime) {
  Victim one(Side::connecting);
  Victim other(Side::connecting);
  EXPECT_NE(text_of(one.read(40)), text_of(other.read(40)));
  one.peer.reset();
  other.peer.reset();
}

TEST(Handshake, TimesOutOnAPeerThatSaysNothing) {
  for (const auto side : {Side::connecting, Side::accepting}) {
    Victim victim(side, too_soon());
    const auto seen = victim.seen.get();
    EXPECT_EQ(seen, "Timeout") << seen;
    EXPECT_TRUE(has(seen.message, "prove the job's token")) << seen;
    EXPECT_TRUE(has(seen.message, "a peer")) << seen;
  }
}

TEST(Handshake, LosesAPeerThatClosesAtOnce) {
  for (const auto side : {Side::connecting, Side::accepting}) {
    Victim victim(side);
    victim.peer.reset();
    const auto seen = victim.seen.get();
    EXPECT_EQ(seen, "PeerLost") << seen;
  }
}

TEST(Handshake, RefusesGarbageAndAnswersNothing) {
  for (const auto side : {Side::connecting, Side::accepting}) {
    Victim victim(side);
    if (side == Side::connecting) victim.read(40);
    victim.write(
        "GET / HTTP/1.1\r\nHost: example.com\r\nAccept: everything that there is at all\r\n\r\n");
    const auto seen = victim.seen.get();
    EXPECT_EQ(seen, "Refused") << seen;
    EXPECT_TRUE(has(seen.message, "a peer does not speak Echelon's protocol")) << seen;
    Bytes more(1);
    EXPECT_EQ(outcome([&] { victim.peer->read(more, in_time()); }), "PeerLost");
  }
}

TEST(Handshake, RefusesEveryTruncation) {
  const Bytes a(32, std::byte{0xaa});
  Bytes hello(magic_and_version.size());
  std::ranges::copy(bytes_of(magic_and_version), hello.begin());
  hello.insert(hello.end(), a.begin(), a.end());
  for (std::size_t size = 0; size < hello.size(); ++size) {
    Victim victim(Side::accepting);
    victim.write(std::span(hello).first(size));
    victim.peer.reset();
    EXPECT_EQ(victim.seen.get(), "PeerLost") << size << " bytes";
  }
  for (std::size_t size = 0; size < 32; ++size) {
    Victim victim(Side::accepting);
    victim.write(hello);
    const auto answer = victim.read(72);
    const auto right = proof("connecting", a, std::span(answer).subspan(8, 32));
    victim.write(std::span(right).first(size));
    victim.peer.reset();
    EXPECT_EQ(victim.seen.get(), "PeerLost") << size << " bytes of the proof";
  }
}

TEST(Handshake, RefusesItsOwnProofSentBack) {
  Victim victim(Side::accepting);
  victim.write(magic_and_version);
  victim.write(Bytes(32, std::byte{0xaa}));
  const auto answer = victim.read(72);
  victim.write(std::span(answer).subspan(40));
  EXPECT_EQ(victim.read(1)[0], std::byte{0});
  EXPECT_EQ(victim.seen.get(), "Refused");
}

TEST(Handshake, RefusesItsOwnHelloSentBack) {
  Victim victim(Side::connecting);
  // In one piece: it may hang up before it has read all.
  const Bytes hello = victim.read(40);
  Bytes all = hello;
  all.insert(all.end(), hello.begin(), hello.end());
  all.resize(all.size() + 32, std::byte{'x'});
  victim.write(all);
  EXPECT_EQ(victim.seen.get(), "Refused");
}

TEST(Handshake, RefusesAProofOfTheOtherRole) {
  Victim victim(Side::connecting);
  const auto a = victim.read(40);
  const Bytes b(32, std::byte{0xbb});
  victim.write(magic_and_version);
  victim.write(b);
  victim.write(proof("connecting", std::span(a).subspan(8), b));
  EXPECT_EQ(text_of(victim.read(32)), std::string(32, '\0'))
      << "no proof is given to one who gave none";
  EXPECT_EQ(victim.seen.get(), "Refused");
}

TEST(Handshake, RefusesAProofWithAnyBitChanged) {
  const Bytes a(32, std::byte{0xaa});
  for (std::size_t i = 0; i < 32; ++i) {
    Victim victim(Side::accepting);
    victim.write(magic_and_version);
    victim.write(a);
    const auto answer = victim.read(72);
    auto wrong = proof("connecting", a, std::span(answer).subspan(8, 32));
    wrong[i] ^= std::byte{0x80};
    victim.write(wrong);
    EXPECT_EQ(victim.seen.get(), "Refused") << "byte " << i;
  }
}

TEST(Handshake, RefusesAnOldProofPlayedAgain) {
  const Bytes a(32, std::byte{0xaa});
  Bytes old_b(32, std::byte{0xbb});
  Victim victim(Side::accepting);
  victim.write(magic_and_version);
  victim.write(a);
  victim.read(72);
  victim.write(proof("connecting", a, old_b));
  EXPECT_EQ(victim.seen.get(), "Refused");
}

TEST(Handshake, RefusesAnotherVersionAndSaysItsOwn) {
  constexpr auto other = std::string_view("ECHP\x04\x01\0\0", 8);
  {
    Victim victim(Side::accepting);
    victim.write(other);
    victim.write(Bytes(32));
    const auto answer = victim.read(72);
    EXPECT_EQ(text_of(std::span(answer).first(8)), magic_and_version);
    EXPECT_EQ(text_of(std::span(answer).subspan(40)), std::string(32, '\0'));
    const auto seen = victim.seen.get();
    EXPECT_EQ(seen, "Refused") << seen;
    EXPECT_TRUE(has(seen.message, "speaks version 260 of the protocol and this side version 4"))
        << seen;
  }
  {
    Victim victim(Side::connecting);
    victim.read(40);
    victim.write(other);
    victim.write(Bytes(64));
    const auto seen = victim.seen.get();
    EXPECT_EQ(seen, "Refused") << seen;
    EXPECT_TRUE(has(seen.message, "speaks version 260")) << seen;
  }
}

TEST(Handshake, RefusesAConnectionThatWasNotWelcomed) {
  Victim victim(Side::connecting);
  const auto a = victim.read(40);
  const Bytes b(32, std::byte{0xbb});
  victim.write(magic_and_version);
  victim.write(b);
  victim.write(proof("accepting", std::span(a).subspan(8), b));
  victim.read(32);
  victim.write("\x02");
  EXPECT_EQ(victim.seen.get(), "Refused");
}

TEST(Handshake, RefusesWhenOnlyOneSideUsesTls) {
  // A TLS client and a plain acceptor, then the other way round.
  {
    auto sockets = local_sockets();
    auto there = std::async(std::launch::async, [&] {
      const auto stream = Stream::plain(std::move(sockets.second), "a peer");
      return outcome([&] { authenticate(*stream, a_token(), Side::accepting, in_time()); });
    });
    const auto here = outcome([&] {
      Stream::tls(std::move(sockets.first), "a peer", a_token(), Side::connecting, in_time());
    });
    EXPECT_EQ(there.get(), "Refused");
    EXPECT_TRUE(here == "PeerLost" || here == "Refused") << here;
  }
  {
    auto sockets = local_sockets();
    auto there = std::async(std::launch::async, [&] {
      return outcome([&] {
        Stream::tls(std::move(sockets.second), "a peer", a_token(), Side::accepting, in_time());
      });
    });
    const auto stream = Stream::plain(std::move(sockets.first), "a peer");
    const auto here =
        outcome([&] { authenticate(*stream, a_token(), Side::connecting, in_time()); });
    EXPECT_EQ(there.get(), "Refused");
    EXPECT_TRUE(here == "PeerLost" || here == "Refused") << here;
  }
}

}  // namespace
}  // namespace echelon
