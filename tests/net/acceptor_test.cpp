#include "echelon/net/acceptor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <sstream>

#include "echelon/net/file_limit.h"
#include "tests/net/connection.h"

namespace echelon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto far_away = std::chrono::seconds(60);  // a wait for it would be seen

// A listener on the loopback whose guests are kept.
struct Door {
  std::mutex mutex;
  std::condition_variable came;
  std::vector<std::unique_ptr<Stream>> guests;
  Address address;
  std::unique_ptr<Acceptor> acceptor;

  explicit Door(bool tls = false, Acceptor::Patience patience = {}) {
    std::vector<Listener> listeners;
    listeners.push_back({listen_tcp("127.0.0.1", 0), tls});
    address = local_address(listeners[0].socket);
    acceptor = std::make_unique<Acceptor>(
        std::move(listeners), a_token(),
        [this](std::unique_ptr<Stream> stream, const Frame& first) {
          const std::lock_guard lock(mutex);
          EXPECT_EQ(first.kind, 42);
          guests.push_back(std::move(stream));
          came.notify_all();
        },
        patience);
  }
  std::unique_ptr<Stream> knock(const Token& token = a_token(), bool tls = false) {
    auto stream = prove(token, tls);
    write_frame(*stream, FrameWriter().frame(42), in_time());
    return stream;
  }
  std::unique_ptr<Stream> prove(const Token& token, bool tls) {
    return connect_proven(connect_tcp(address, in_time()), "the door", tls, token, in_time());
  }
  bool has(std::size_t number) {
    std::unique_lock lock(mutex);
    return came.wait_for(lock, std::chrono::seconds(10), [&] { return guests.size() >= number; });
  }
};

TEST(Acceptor, LetsThroughWhoProvesTheToken) {
  for (const bool tls : {false, true}) {
    Door door(tls);
    const auto guest = door.knock(a_token(), tls);
    ASSERT_TRUE(door.has(1));
    guest->write(bytes_of("hello"), in_time());
    std::vector<std::byte> got(5);
    door.guests[0]->read(got, in_time());
    EXPECT_EQ(text_of(got), "hello");
  }
}

TEST(Acceptor, TurnsAwayOtherTokens) {
  Door door;
  const auto refused = outcome([&] { door.knock(another_token()); });
  EXPECT_EQ(refused, "Refused") << refused;
  door.knock();
  ASSERT_TRUE(door.has(1));
  EXPECT_EQ(door.guests.size(), 1u);
}

TEST(Acceptor, LetsASilentStrangerDelayNobody) {
  Door door(false, {.proof = far_away});
  const auto start = Clock::now();
  std::vector<Descriptor> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(connect_tcp(door.address, in_time()));
  const auto guest = door.knock();
  EXPECT_TRUE(door.has(1));
  door.acceptor.reset();  // nor its end
  const std::chrono::duration<double> took = Clock::now() - start;
  EXPECT_LT(took.count(), far_away.count()) << "seconds";
}

// Lines of a text that a stranger caused.
std::size_t lines_with(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) count += line.find(part) != std::string::npos;
  return count;
}

TEST(Acceptor, LetsAGuestInPastTwoThousandStrangersAndSaysSoInAFewLines) {
  raise_file_limit();
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 6000) GTEST_SKIP() << "only " << files.rlim_cur << " files may be open";
  for (const bool tls : {false, true})
    for (const std::string said : {"", "E"}) {  // some say a little and then stay silent
      testing::internal::CaptureStderr();
      {
        Door door(tls, {.keep = std::chrono::milliseconds(100)});
        std::vector<Descriptor> strangers;
        for (int i = 0; i < 2000; ++i) {
          strangers.push_back(connect_tcp(door.address, in_time()));
          if (!said.empty()) send(strangers.back().get(), said.data(), said.size(), MSG_NOSIGNAL);
        }
        const auto guest = outcome([&] { door.knock(a_token(), tls); });
        EXPECT_EQ(guest, "done") << guest << (tls ? ", TLS" : "") << ", strangers say '" << said
                                 << "'";
        EXPECT_TRUE(door.has(1));
      }
      const std::string log = testing::internal::GetCapturedStderr();
      EXPECT_GE(lines_with(log, "turned away"), 1u) << log;
      EXPECT_LE(lines_with(log, "turned away"), 4u) << log;
    }
}

TEST(Acceptor, DropsAStrangerThatSaysNothing) {
  testing::internal::CaptureStderr();
  {
    Door door(false, {.proof = std::chrono::milliseconds(250)});
    const auto silent = Stream::plain(connect_tcp(door.address, in_time()), "the door");
    std::vector<std::byte> byte(1);
    EXPECT_EQ(outcome([&] { silent->read(byte, in_time()); }), "PeerLost");
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("it said nothing within 0.25 s"), std::string::npos) << log;
}

TEST(Acceptor, EndsThoughAProvenConnectionSaysNothing) {
  for (const bool tls : {false, true}) {
    auto door = std::make_unique<Door>(tls, Acceptor::Patience{.proof = far_away});
    const auto silent = door->prove(a_token(), tls);
    const auto start = Clock::now();
    door->acceptor.reset();
    EXPECT_LT(Clock::now() - start, far_away);
    EXPECT_TRUE(door->guests.empty());
  }
}

TEST(Acceptor, TakesManyAtOnce) {
  Door door;
  std::vector<std::thread> threads;
  std::atomic<int> welcome = 0;
  for (int i = 0; i < 40; ++i) threads.emplace_back([&] { welcome += door.knock() != nullptr; });
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(door.has(40));
  EXPECT_EQ(welcome.load(), 40);
}

TEST(Acceptor, GoesOnWhenAWelcomeThrows) {
  std::atomic<int> calls = 0;
  std::vector<Listener> listeners;
  listeners.push_back({listen_tcp("127.0.0.1", 0), false});
  const Address address = local_address(listeners[0].socket);
  const Acceptor acceptor(std::move(listeners), a_token(),
                          [&](std::unique_ptr<Stream>, const Frame&) {
                            ++calls;
                            throw Corrupt("not what I hoped for");
                          });
  for (int i = 0; i < 3; ++i) {
    const auto stream =
        connect_proven(connect_tcp(address, in_time()), "it", false, a_token(), in_time());
    write_frame(*stream, FrameWriter().frame(42), in_time());
    std::vector<std::byte> byte(1);
    EXPECT_EQ(outcome([&] { stream->read(byte, in_time()); }), "PeerLost");
  }
  EXPECT_EQ(calls.load(), 3);
}

}  // namespace
}  // namespace echelon
