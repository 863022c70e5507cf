#include "echelon/net/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
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

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

int option(const Descriptor& socket, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  ::getsockopt(socket.get(), level, name, &value, &size);
  return value;
}

std::string a_name(const std::string& test) {
  return "echelon-socket-test-" + test + "-" + std::to_string(::getpid());
}

TEST(Descriptor, ClosesWhatItOwnsOnce) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  {
    Descriptor one(fds[0]);
    Descriptor other(std::move(one));
    EXPECT_FALSE(one);
    EXPECT_EQ(other.get(), fds[0]);
    Descriptor third(fds[1]);
    third = std::move(other);
    EXPECT_EQ(third.get(), fds[0]);
  }
  EXPECT_FALSE(is_open(fds[0]));
  EXPECT_FALSE(is_open(fds[1]));
}

TEST(Descriptor, GivesUpWhatItReleases) {
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const Descriptor kept(fds[1]);
  { EXPECT_EQ(Descriptor(fds[0]).release(), fds[0]); }
  EXPECT_TRUE(is_open(fds[0]));
  ::close(fds[0]);
}

TEST(Address, IsReadAndWritten) {
  for (const std::string text :
       {"host-1.example:1", "10.0.0.1:65535", "[::1]:80", "[fe80::1%eth0]:9", "h:0"}) {
    EXPECT_EQ(parse_address(text).text(), text);
  }
  EXPECT_EQ(parse_address("[::1]:80").host, "::1");
  EXPECT_EQ(parse_address("[::1]:80").port, 80);
}

TEST(Address, RefusesWhatIsNone) {
  for (const std::string text :
       {"", ":", "host", "host:", ":80", "host:65536", "host:-1", "host: 1", "host:1 ", "host:0x1",
        "host:99999999999999999999", "::1:80", "[]:80", "[::1]80", "[::1", "[host]:80", "a b:80",
        "[[::1]]:80", "http://host:80"}) {
    const auto said = thrown<InvalidArgument>([&] { parse_address(text); });
    EXPECT_TRUE(has(said, "'" + text + "' is no address")) << said;
  }
}

TEST(InterfaceAddress, KnowsTheLoopbackByNameAndNumber) {
  EXPECT_EQ(interface_address("lo"), "127.0.0.1");
  EXPECT_EQ(interface_address("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(interface_address("127.0.0.5"), "127.0.0.5");
  EXPECT_TRUE(is_loopback(interface_address("localhost")));
}

TEST(InterfaceAddress, RefusesOneOfAnotherMachineAndNamesItsOwn) {
  for (const std::string other : {"192.0.2.77", "0.0.0.0", ""}) {
    const auto said = thrown<InvalidArgument>([&] { interface_address(other); });
    EXPECT_TRUE(has(said, "lo (127.0.0.1)")) << said;
  }
}

TEST(Loopback, IsToldFromOtherHosts) {
  for (const std::string host : {"127.0.0.1", "127.9.8.7", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const std::string host :
       {"128.0.0.1", "0.0.0.0", "::", "fe80::1", "::ffff:10.0.0.1", "localhost", ""}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

TEST(Tcp, ConnectsAndKnowsBothAddresses) {
  const auto listener = listen_tcp("127.0.0.1", 0);
  const auto address = local_address(listener);
  EXPECT_EQ(address.host, "127.0.0.1");
  EXPECT_NE(address.port, 0);
  const auto connecting = connect_tcp(address, in_time());
  const auto accepting = accept(listener, in_time());
  ASSERT_TRUE(accepting);
  EXPECT_EQ(peer_address(connecting).text(), address.text());
  EXPECT_EQ(peer_address(*accepting).text(), local_address(connecting).text());
}

TEST(Tcp, SetsWhatNoticesAPeerThatVanished) {
  const auto [connecting, accepting] = tcp_sockets();
  for (const auto* socket : {&connecting, &accepting}) {
    EXPECT_EQ(option(*socket, IPPROTO_TCP, TCP_NODELAY), 1);
    EXPECT_EQ(option(*socket, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(option(*socket, IPPROTO_TCP, TCP_KEEPIDLE), 5);
    EXPECT_EQ(option(*socket, IPPROTO_TCP, TCP_KEEPINTVL), 2);
    EXPECT_EQ(option(*socket, IPPROTO_TCP, TCP_KEEPCNT), 3);
    EXPECT_EQ(option(*socket, IPPROTO_TCP, TCP_USER_TIMEOUT), 20'000);
    EXPECT_TRUE(::fcntl(socket->get(), F_GETFL) & O_NONBLOCK);
    EXPECT_TRUE(::fcntl(socket->get(), F_GETFD) & FD_CLOEXEC);
  }
}

TEST(Tcp, ResolvesNames) {
  const auto listener = listen_tcp("127.0.0.1", 0);
  const auto socket = connect_tcp({"localhost", local_address(listener).port}, in_time());
  EXPECT_TRUE(accept(listener, in_time()));
}

TEST(Tcp, SaysThatAPortIsTaken) {
  const auto listener = listen_tcp("127.0.0.1", 0);
  const auto port = local_address(listener).port;
  const auto said = thrown<Error>([&] { listen_tcp("127.0.0.1", port); });
  EXPECT_TRUE(has(said, "127.0.0.1:" + std::to_string(port) + ": it is taken")) << said;
}

TEST(Tcp, RefusesToListenAtWhatIsNotItsOwn) {
  EXPECT_TRUE(
      has(thrown<Error>([] { listen_tcp("192.0.2.77", 0); }), "does not have that address"));
  for (const std::string host : {"localhost", "", "1.2.3.4.5"}) {
    const auto said = thrown<InvalidArgument>([&] { listen_tcp(host, 0); });
    EXPECT_TRUE(has(said, "no numeric address")) << said;
  }
}

TEST(Tcp, TriesAgainUntilTheOtherSideListens) {
  const auto port = local_address(listen_tcp("127.0.0.1", 0)).port;
  auto connecting = std::async(std::launch::async, [&] {
    return connect_tcp({"127.0.0.1", port}, in_time());
  });
  std::this_thread::sleep_for(40ms);
  const auto listener = listen_tcp("127.0.0.1", port);
  EXPECT_TRUE(accept(listener, in_time()));
  EXPECT_TRUE(connecting.get());
}

TEST(Tcp, TimesOutWhereNobodyListens) {
  const auto port = local_address(listen_tcp("127.0.0.1", 0)).port;
  const auto said = thrown<Timeout>([&] { connect_tcp({"127.0.0.1", port}, too_soon()); });
  EXPECT_TRUE(has(said, "127.0.0.1:" + std::to_string(port))) << said;
  EXPECT_TRUE(has(said, "Connection refused")) << said;
}

TEST(Tcp, TimesOutOnANameThatNobodyHas) {
  const auto start = Deadline::Clock::now();
  const auto said = thrown<Timeout>([] { connect_tcp({"no-such-host.invalid", 1}, too_soon()); });
  EXPECT_TRUE(has(said, "the name cannot be resolved")) << said;
  EXPECT_LT(Deadline::Clock::now() - start, 3s);
}

TEST(Tcp, RefusesToConnectToNoPort) {
  EXPECT_TRUE(has(thrown<InvalidArgument>([] {
                    connect_tcp({"127.0.0.1", 0}, in_time());
                  }),
                  "127.0.0.1:0"));
  EXPECT_TRUE(has(thrown<InvalidArgument>([] { connect_tcp({"", 1}, in_time()); }), "has a host"));
}

TEST(Accept, GivesNothingWhenNobodyComes) {
  const auto listener = listen_tcp("127.0.0.1", 0);
  EXPECT_FALSE(accept(listener, too_soon()));
}

TEST(WaitReady, TellsReadyFromNot) {
  const auto [one, other] = local_sockets();
  EXPECT_FALSE(wait_ready(one.get(), POLLIN, too_soon()));
  EXPECT_TRUE(wait_ready(one.get(), POLLOUT, too_soon()));
  ASSERT_EQ(::send(other.get(), "x", 1, 0), 1);
  EXPECT_TRUE(wait_ready(one.get(), POLLIN, Deadline::in(Deadline::Clock::duration::max())));
}

TEST(WaitReady, IsReadyWhenThePeerIsGone) {
  auto [one, other] = local_sockets();
  other = Descriptor();
  EXPECT_TRUE(wait_ready(one.get(), POLLIN, in_time()));
}

TEST(WaitReady, RefusesADescriptorThatIsNotOpen) {
  EXPECT_TRUE(has(thrown<Error>([] { wait_ready(1 << 20, POLLIN, in_time()); }), "is not open"));
}

TEST(Local, ConnectsAndKnowsTheProcess) {
  const auto name = a_name("connects");
  const auto listener = listen_local(name);
  const auto connecting = connect_local(name, in_time());
  const auto accepting = accept(listener, in_time());
  ASSERT_TRUE(accepting);
  EXPECT_EQ(peer_process(connecting), ::getpid());
  EXPECT_EQ(peer_process(*accepting), ::getpid());
  EXPECT_EQ(peer_address(connecting).host, "?");
}

TEST(Local, HasNoProcessAtTheOtherEndOfTcp) {
  const auto [connecting, accepting] = tcp_sockets();
  EXPECT_EQ(peer_process(connecting), 0);
}

TEST(Local, SaysThatANameIsTaken) {
  const auto name = a_name("taken");
  const auto listener = listen_local(name);
  const auto said = thrown<Error>([&] { listen_local(name); });
  EXPECT_TRUE(has(said, "'" + name + "': it is taken")) << said;
}

TEST(Local, RefusesNamesThatDoNotFit) {
  const std::string longest(107, 'x');
  EXPECT_TRUE(listen_local(longest));
  for (const auto& name : {std::string(), longest + "x"}) {
    const auto said = thrown<InvalidArgument>([&] { listen_local(name); });
    EXPECT_TRUE(has(said, "1 to 107 characters")) << said;
  }
}

TEST(Local, TimesOutWhereNobodyListens) {
  const auto said = thrown<Timeout>([] { connect_local(a_name("nobody"), too_soon()); });
  EXPECT_TRUE(has(said, "Connection refused")) << said;
}

TEST(Local, TriesAgainUntilTheOtherSideListens) {
  const auto name = a_name("late");
  auto connecting = std::async(std::launch::async, [&] { return connect_local(name, in_time()); });
  std::this_thread::sleep_for(20ms);
  const auto listener = listen_local(name);
  EXPECT_TRUE(connecting.get());
}

TEST(OpenFile, IsHandedToTheOtherProcess) {
  const auto [one, other] = local_sockets();
  int fds[2];
  ASSERT_EQ(::pipe(fds), 0);
  const Descriptor reading(fds[0]);
  {
    const Descriptor writing(fds[1]);
    send_descriptor(one, writing.get(), in_time());
  }
  {
    const auto received = receive_descriptor(other, in_time());
    EXPECT_TRUE(::fcntl(received.get(), F_GETFD) & FD_CLOEXEC);
    ASSERT_EQ(::write(received.get(), "x", 1), 1);
  }
  char letter = 0;
  EXPECT_EQ(::read(reading.get(), &letter, 1), 1);
  EXPECT_EQ(letter, 'x');
  EXPECT_EQ(::read(reading.get(), &letter, 1), 0) << "the writing end must be closed everywhere";
}

TEST(OpenFile, TimesOutWhenNoneComes) {
  const auto [one, other] = local_sockets();
  const auto said = thrown<Timeout>([&] { receive_descriptor(one, too_soon()); });
  EXPECT_TRUE(has(said, "process " + std::to_string(::getpid()))) << said;
}

TEST(OpenFile, TimesOutWhenNoneIsTaken) {
  const auto [one, other] = local_sockets();
  EXPECT_EQ(outcome([&] {
              for (int i = 0; i < 100'000; ++i) send_descriptor(one, one.get(), too_soon());
            }),
            "Timeout");
}

TEST(OpenFile, IsLostWithThePeer) {
  auto [one, other] = local_sockets();
  other = Descriptor();
  EXPECT_EQ(outcome([&] { receive_descriptor(one, in_time()); }), "PeerLost");
  EXPECT_EQ(outcome([&] { send_descriptor(one, 0, in_time()); }), "PeerLost");
}

TEST(OpenFile, IsRefusedWhenMissing) {
  const auto [one, other] = local_sockets();
  ASSERT_EQ(::send(one.get(), "x", 1, 0), 1);
  EXPECT_EQ(outcome([&] { receive_descriptor(other, in_time()); }), "Corrupt");
}

// Sends copies of one open file in one message.
void send_many(const Descriptor& socket, const std::vector<int>& fds) {
  char payload = 'x';
  iovec part = {&payload, 1};
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  auto* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  ASSERT_EQ(::sendmsg(socket.get(), &message, 0), 1);
}

TEST(OpenFile, IsRefusedWhenThereAreMoreAndAllAreClosed) {
  const auto [one, other] = local_sockets();
  for (const std::size_t count : {2, 3, 50}) {
    int fds[2];
    ASSERT_EQ(::pipe(fds), 0);
    const Descriptor reading(fds[0]);
    {
      const Descriptor writing(fds[1]);
      send_many(one, std::vector<int>(count, writing.get()));
    }
    EXPECT_EQ(outcome([&] { receive_descriptor(other, in_time()); }), "Corrupt");
    ::fcntl(reading.get(), F_SETFL, O_NONBLOCK);
    char letter = 0;
    EXPECT_EQ(::read(reading.get(), &letter, 1), 0) << "a received copy is still open";
  }
}

}  // namespace
}  // namespace echelon
