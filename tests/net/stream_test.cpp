#include "echelon/net/stream.h"

#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Bytes that differ from one place to the next, so that a lost or repeated piece shows.
Bytes pattern(std::size_t size) {
  Bytes bytes(size);
  std::uint32_t state = 1;
  for (auto& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = std::byte(state >> 24);
  }
  return bytes;
}

iovec part_of(Bytes& bytes, std::size_t offset, std::size_t size) {
  return {.iov_base = bytes.data() + offset, .iov_len = size};
}

struct Kind {
  const char* name;
  bool tls;
  bool tcp;
  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
};

class AStream : public testing::TestWithParam<Kind> {
 protected:
  Streams streams() {
    auto sockets = GetParam().tcp ? tcp_sockets() : local_sockets();
    return GetParam().tls ? tls_streams(std::move(sockets)) : plain_streams(std::move(sockets));
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, AStream,
                         testing::Values(Kind{"PlainLocal", false, false},
                                         Kind{"PlainTcp", false, true},
                                         Kind{"TlsLocal", true, false}, Kind{"TlsTcp", true, true}),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(AStream, CarriesBytesBothWays) {
  const auto [one, other] = streams();
  Bytes got(5);
  one->write(bytes_of("hello"), in_time());
  other->read(got, in_time());
  EXPECT_EQ(text_of(got), "hello");
  other->write(bytes_of("world"), in_time());
  one->read(got, in_time());
  EXPECT_EQ(text_of(got), "world");
}

TEST_P(AStream, CarriesManyBytesBothWaysAtOnce) {
  const auto [one, other] = streams();
  const auto sent = pattern(8'000'000);
  // Each side writes while it reads: neither may wait for the other alone.
  const auto exchange = [&](Stream& stream) {
    Bytes got(sent.size());
    std::size_t written = 0;
    std::size_t read = 0;
    while (written < sent.size() || read < got.size()) {
      const auto wrote = stream.try_write(std::span(sent).subspan(written));
      const auto received = stream.try_read(std::span(got).subspan(read));
      written += wrote;
      read += received;
      if (wrote + received > 0) continue;
      short events = 0;
      if (written < sent.size()) events |= stream.write_events();
      if (read < got.size()) events |= stream.read_events();
      if (!wait_ready(stream.socket().get(), events, in_time()))
        throw Timeout("the exchange is stuck");
    }
    return got;
  };
  auto there = std::async(std::launch::async, [&] { return exchange(*other); });
  EXPECT_TRUE(exchange(*one) == sent);
  EXPECT_TRUE(there.get() == sent);
}

TEST_P(AStream, CarriesPartsInOrder) {
  const auto [one, other] = streams();
  auto sent = pattern(100'000);
  auto reading = std::async(std::launch::async, [&] {
    // Parts that fall apart in other places than the sender's, some empty.
    Bytes got(sent.size());
    std::size_t done = 0;
    while (done < got.size()) {
      const auto left = got.size() - done;
      const std::array parts = {
          part_of(got, done, std::min<std::size_t>(left, 1)), part_of(got, done, 0),
          part_of(got, done + std::min<std::size_t>(left, 1),
                  std::min<std::size_t>(left - std::min<std::size_t>(left, 1), 30'000))};
      const auto took = other->try_read(parts);
      done += took;
      if (took == 0 && !wait_ready(other->socket().get(), other->read_events(), in_time())) break;
    }
    return got;
  });
  std::size_t done = 0;
  while (done < sent.size()) {
    // The parts shift with every call.
    const auto left = sent.size() - done;
    const auto first = std::min<std::size_t>(left, 12);
    const std::array parts = {
        part_of(sent, done, 0), part_of(sent, done, first),
        part_of(sent, done + first, (left - first) / 2),
        part_of(sent, done + first + (left - first) / 2, left - first - (left - first) / 2)};
    const auto took = one->try_write(parts);
    done += took;
    if (took == 0) {
      ASSERT_TRUE(wait_ready(one->socket().get(), one->write_events(), in_time()));
    }
  }
  EXPECT_TRUE(reading.get() == sent);
}

TEST_P(AStream, TakesMorePartsThanOneCallMay) {
  const auto [one, other] = streams();
  auto sent = pattern(3000);
  std::vector<iovec> parts;
  for (std::size_t i = 0; i < sent.size(); ++i) parts.push_back(part_of(sent, i, 1));
  std::size_t done = 0;
  while (done < sent.size()) {
    const auto took = one->try_write(std::span(parts).subspan(done));
    ASSERT_GT(took, 0u);
    done += took;
  }
  Bytes got(sent.size());
  other->read(got, in_time());
  EXPECT_TRUE(got == sent);
}

TEST_P(AStream, NeverWaitsWhenItTries) {
  const auto [one, other] = streams();
  Bytes bytes = pattern(1 << 16);
  EXPECT_EQ(one->try_read(bytes), 0u);
  EXPECT_EQ(one->try_read(std::span<std::byte>()), 0u);
  EXPECT_EQ(one->try_write(std::span<const std::byte>()), 0u);
  std::size_t taken = 0;
  std::size_t rounds = 0;
  while (const auto took = one->try_write(std::span<const std::byte>(bytes))) {
    taken += took;
    ASSERT_LT(++rounds, 10'000u) << "a socket that nobody reads takes no end of bytes";
  }
  EXPECT_GT(taken, 0u);
}

TEST_P(AStream, TimesOutWhenNothingComes) {
  const auto [one, other] = streams();
  one->rename("rank 7 (far-away)");
  other->write(bytes_of("12"), in_time());
  Bytes got(5);
  const auto said = thrown<Timeout>([&] { one->read(got, too_soon()); });
  EXPECT_TRUE(has(said, "reading from rank 7 (far-away)")) << said;
  EXPECT_TRUE(has(said, "2 of 5 bytes")) << said;
}

TEST_P(AStream, TimesOutWhenNothingIsTaken) {
  const auto [one, other] = streams();
  const auto sent = pattern(64'000'000);
  const auto said = thrown<Timeout>([&] { one->write(sent, too_soon()); });
  EXPECT_TRUE(has(said, "writing to the accepting side")) << said;
}

TEST_P(AStream, TimesOutThoughBytesTrickle) {
  const auto [one, other] = streams();
  std::atomic<bool> stop = false;
  auto trickle = std::async(std::launch::async, [&] {
    while (!stop) {
      other->write(bytes_of("."), in_time());
      std::this_thread::sleep_for(1ms);
    }
  });
  Bytes got(100'000);
  const auto start = Deadline::Clock::now();
  EXPECT_EQ(outcome([&] { one->read(got, too_soon()); }), "Timeout");
  EXPECT_LT(Deadline::Clock::now() - start, 50s) << "half of the bytes at one a millisecond";
  stop = true;
  trickle.get();
}

TEST_P(AStream, GivesTheLastBytesBeforeItSaysThatThePeerIsLost) {
  auto [one, other] = streams();
  other->write(bytes_of("bye"), in_time());
  other.reset();
  Bytes got(10);
  std::size_t done = 0;
  const auto said = thrown<PeerLost>([&] {
    while (true) {
      done += one->try_read(std::span(got).subspan(done));
      wait_ready(one->socket().get(), one->read_events(), in_time());
    }
  });
  EXPECT_EQ(text_of(std::span(got).first(done)), "bye");
  EXPECT_TRUE(has(said, "reading from the accepting side: it closed the connection")) << said;
  EXPECT_EQ(outcome([&] { one->read(got, in_time()); }), "PeerLost") << "and again";
}

TEST_P(AStream, LosesThePeerWhenItWritesAndRaisesNoSignal) {
  auto [one, other] = streams();
  auto* const old = std::signal(SIGPIPE, [](int) { ::abort(); });
  other.reset();
  const auto sent = pattern(10'000'000);
  EXPECT_EQ(outcome([&] {
              for (int i = 0; i < 3; ++i) one->write(sent, in_time());
            }),
            "PeerLost");
  std::signal(SIGPIPE, old);
}

TEST_P(AStream, LosesThePeerThatGoesInTheMiddle) {
  auto [one, other] = streams();
  auto reading = std::async(std::launch::async, [stream = std::move(other)]() mutable {
    Bytes some(100'000);
    stream->read(some, in_time());
    stream.reset();
  });
  const auto sent = pattern(30'000'000);
  EXPECT_EQ(outcome([&] { one->write(sent, in_time()); }), "PeerLost");
  reading.get();
}

TEST_P(AStream, HasABindingOfItsOwnUnderTlsOnly) {
  const auto [one, other] = streams();
  const auto [third, fourth] = streams();
  EXPECT_EQ(one->channel_binding(), other->channel_binding());
  EXPECT_EQ(one->channel_binding().size(), GetParam().tls ? 32u : 0u);
  if (GetParam().tls) {
    EXPECT_NE(one->channel_binding(), third->channel_binding());
  }
}

// ---- TLS alone

// Both sides' handshakes: the connecting one's outcome first.
std::pair<Outcome, Outcome> shake_hands(Sockets sockets, const Token& connecting,
                                        const Token& accepting) {
  auto there = std::async(std::launch::async, [&] {
    return outcome([&] {
      Stream::tls(std::move(sockets.second), "the connecting side", accepting, Side::accepting,
                  in_time());
    });
  });
  auto here = outcome([&] {
    Stream::tls(std::move(sockets.first), "the accepting side", connecting, Side::connecting,
                in_time());
  });
  return {std::move(here), there.get()};
}

TEST(Tls, RefusesAnotherTokenOnBothSides) {
  for (int i = 0; i < 20; ++i) {
    auto sockets = i % 2 == 0 ? local_sockets() : tcp_sockets();
    const auto [connecting, accepting] =
        shake_hands(std::move(sockets), a_token(), another_token());
    EXPECT_EQ(connecting, "Refused") << connecting;
    EXPECT_EQ(accepting, "Refused") << accepting;
    EXPECT_TRUE(has(connecting.message, "the accepting side")) << connecting;
    EXPECT_TRUE(has(connecting.message, "ECHELON_TOKEN")) << connecting;
    EXPECT_TRUE(has(accepting.message, "the connecting side")) << accepting;
  }
}

TEST(Tls, RefusesAPeerThatDoesNotSpeakIt) {
  for (const auto side : {Side::connecting, Side::accepting}) {
    const auto [one, other] = local_sockets();
    ASSERT_GT(::send(other.get(), "GET / HTTP/1.1\r\nHost: here\r\n\r\n", 30, 0), 0);
    const auto seen = outcome([&] {
      Stream::tls(Descriptor(::dup(one.get())), "a stranger", a_token(), side, in_time());
    });
    EXPECT_EQ(seen, "Refused") << seen;
  }
}

TEST(Tls, TimesOutOnAPeerThatSaysNothing) {
  for (const auto side : {Side::connecting, Side::accepting}) {
    auto [one, other] = local_sockets();
    const auto said = thrown<Timeout>(
        [&] { Stream::tls(std::move(one), "a silent peer", a_token(), side, too_soon()); });
    EXPECT_TRUE(has(said, "the TLS handshake with a silent peer")) << said;
  }
}

TEST(Tls, LosesAPeerThatClosesDuringTheHandshake) {
  for (const auto side : {Side::connecting, Side::accepting}) {
    auto [one, other] = local_sockets();
    other = Descriptor();
    EXPECT_EQ(outcome([&] { Stream::tls(std::move(one), "a peer", a_token(), side, in_time()); }),
              "PeerLost");
  }
}

// A peer that speaks TLS by other rules than ours: waits, since its socket is made to block, until
// it is welcomed or not. As a server it has a certificate that it made itself.
class ForeignPeer {
 public:
  explicit ForeignPeer(int version) : context_(SSL_CTX_new(TLS_method())) {
    SSL_CTX_set_min_proto_version(context_, version);
    SSL_CTX_set_max_proto_version(context_, version);
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509* const certificate = X509_new();
    X509_set_version(certificate, X509_VERSION_3);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    SSL_CTX_use_certificate(context_, certificate);
    SSL_CTX_use_PrivateKey(context_, key);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  ForeignPeer(const ForeignPeer&) = delete;
  ForeignPeer& operator=(const ForeignPeer&) = delete;
  ~ForeignPeer() { SSL_CTX_free(context_); }

  void speak(Descriptor socket, Side side) const {
    ::fcntl(socket.get(), F_SETFL, 0);
    SSL* const session = SSL_new(context_);
    SSL_set_fd(session, socket.get());
    char byte = 0;
    if ((side == Side::accepting ? SSL_accept(session) : SSL_connect(session)) == 1) {
      SSL_read(session, &byte, 1);
    }
    SSL_free(session);
  }

 private:
  SSL_CTX* context_;
};

TEST(Tls, RefusesAPeerThatHasACertificateInsteadOfTheToken) {
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    for (const auto side : {Side::connecting, Side::accepting}) {
      const ForeignPeer peer(version);
      auto sockets = local_sockets();
      auto there = std::async(std::launch::async, [&] {
        peer.speak(std::move(sockets.second),
                   side == Side::connecting ? Side::accepting : Side::connecting);
      });
      const auto seen = outcome([&] {
        Stream::tls(std::move(sockets.first), "a foreign peer", a_token(), side, in_time());
      });
      EXPECT_EQ(seen, "Refused") << seen;
      there.get();
    }
  }
}

// Copies bytes from one socket to the other until either ends; `change` may alter them.
template <class Change>
void relay(const Descriptor& from, const Descriptor& to, Change change) {
  std::array<std::byte, 4096> buffer;
  while (wait_ready(from.get(), POLLIN, in_time())) {
    const auto got = ::recv(from.get(), buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    change(std::span(buffer).first(static_cast<std::size_t>(got)));
    if (::send(to.get(), buffer.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) != got) break;
  }
  ::shutdown(to.get(), SHUT_WR);
}

TEST(Tls, FindsBytesThatWereChangedOnTheWay) {
  auto left = local_sockets();
  auto right = local_sockets();
  std::atomic<bool> tamper = false;
  auto there = std::async(std::launch::async, [&] {
    relay(left.second, right.first, [&](std::span<std::byte> bytes) {
      if (tamper) bytes.back() ^= std::byte{1};
    });
  });
  auto back = std::async(std::launch::async, [&] { relay(right.first, left.second, [](auto) {}); });
  {
    const auto [one, other] = tls_streams({std::move(left.first), std::move(right.second)});
    Bytes got(5);
    one->write(bytes_of("hello"), in_time());
    other->read(got, in_time());
    EXPECT_EQ(text_of(got), "hello");
    tamper = true;
    one->write(bytes_of("world"), in_time());
    const auto first = outcome([&] { other->read(got, in_time()); });
    EXPECT_EQ(first, "Corrupt") << first;
    const auto again = outcome([&] { other->read(got, in_time()); });
    EXPECT_EQ(again, "Corrupt") << again;
  }
  there.get();
  back.get();
}

TEST(Tls, HidesWhatIsSent) {
  auto left = local_sockets();
  auto right = local_sockets();
  std::string seen;
  auto there = std::async(std::launch::async, [&] {
    relay(left.second, right.first, [&](std::span<std::byte> bytes) { seen += text_of(bytes); });
  });
  auto back = std::async(std::launch::async, [&] { relay(right.first, left.second, [](auto) {}); });
  {
    const auto [one, other] = tls_streams({std::move(left.first), std::move(right.second)});
    Bytes got(18);
    one->write(bytes_of("a secret to be hid"), in_time());
    other->read(got, in_time());
    EXPECT_EQ(text_of(got), "a secret to be hid");
  }
  there.get();
  back.get();
  EXPECT_GT(seen.size(), 18u);
  EXPECT_FALSE(has(seen, "secret"));
  EXPECT_FALSE(has(seen, a_token().text()));
}

TEST(Tls, RefusesFewerBytesThanAreUnderWay) {
  const auto [one, other] = tls_streams(local_sockets());
  const auto sent = pattern(1 << 20);
  while (one->try_write(std::span<const std::byte>(sent)) > 0) {
  }
  EXPECT_EQ(outcome([&] { one->try_write(std::span<const std::byte>(sent).first(1)); }),
            "InvalidArgument");
}

}  // namespace
}  // namespace echelon
