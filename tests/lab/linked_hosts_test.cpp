// Two hosts that only their link joins. They need root, ip, tc and a kernel that allows network
// namespaces; elsewhere these tests are skipped.
#include "echelon/lab/linked_hosts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "echelon/base/descriptor.h"
#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/base/folder.h"
#include "echelon/launch/launcher.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

std::string host(int i, pid_t owner = ::getpid()) {
  return "echelon-lab-" + std::to_string(owner) + "-" + std::to_string(i);
}

// The hosts of a process that exist now.
std::vector<std::string> hosts_of(pid_t owner = ::getpid()) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : list_folder("/run/netns", none))
    if (entry.name == host(0, owner) || entry.name == host(1, owner)) names.push_back(entry.name);
  return names;
}

// What a command of the shell prints.
std::string output(const std::string& command) {
  std::string text;
  FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  for (int c; (c = std::fgetc(pipe)) != EOF;) text += char(c);
  EXPECT_EQ(::pclose(pipe), 0) << command << "\n" << text;
  return text;
}

// Runs on a host, in a thread of its own.
void on_host(int i, const std::function<void()>& body) {
  std::thread([&] {
    const Descriptor network(::open(("/run/netns/" + host(i)).c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(::setns(network.get(), CLONE_NEWNET), 0) << std::strerror(errno);
    body();
  }).join();
}

sockaddr_in address_of(const char* ip, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  EXPECT_EQ(::inet_pton(AF_INET, ip, &address.sin_addr), 1);
  return address;
}

// Listens at every address of the host it is made on.
struct Listener {
  Descriptor socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::uint16_t port = 0;
  Listener() {
    sockaddr_in address = address_of("0.0.0.0", 0);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket.get(), any, size), 0) << std::strerror(errno);
    EXPECT_EQ(::listen(socket.get(), 4), 0) << std::strerror(errno);
    EXPECT_EQ(::getsockname(socket.get(), any, &size), 0) << std::strerror(errno);
    port = ntohs(address.sin_port);
  }
};

// What connect() says: 0, or the number of an error.
int connects(const char* ip, std::uint16_t port) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = address_of(ip, port);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0
             ? 0
             : errno;
}

class LinkedHostsTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      LinkedHosts();
    } catch (const InvalidArgument& impossible) {
      GTEST_SKIP() << impossible.what();
    }
  }
};

TEST_F(LinkedHostsTest, ReachEachOtherOverTheLinkAndNothingElse) {
  const LinkedHosts hosts;
  const Listener outside;
  ASSERT_EQ(connects("127.0.0.1", outside.port), 0);
  std::array<std::optional<Listener>, 2> listeners;
  for (int i = 0; i < 2; ++i) on_host(i, [&] { listeners[std::size_t(i)].emplace(); });
  const std::array<const char*, 2> addresses = {"10.214.0.1", "10.214.0.2"};
  for (int i = 0; i < 2; ++i) {
    const int other = 1 - i;
    on_host(i, [&] {
      EXPECT_EQ(connects(addresses[std::size_t(other)], listeners[std::size_t(other)]->port), 0)
          << "host " << i << " does not reach the other";
      EXPECT_EQ(connects("127.0.0.1", listeners[std::size_t(i)]->port), 0)
          << "host " << i << " does not reach itself";
      EXPECT_EQ(connects("127.0.0.1", outside.port), ECONNREFUSED)
          << "host " << i << " reaches the machine's own loopback";
      EXPECT_EQ(connects("192.0.2.1", 80), ENETUNREACH) << "host " << i << " has another way out";
    });
    EXPECT_EQ(output("ip -n " + host(i) + " route"),
              "10.214.0.0/24 dev ech0 proto kernel scope link src " +
                  std::string(addresses[std::size_t(i)]) + " \n");
  }
}

// What tc says about both directions: bits a second.
std::vector<double> rates() {
  std::vector<double> all;
  for (int i = 0; i < 2; ++i) {
    const auto queues =
        nlohmann::json::parse(output("ip netns exec " + host(i) + " tc -json qdisc show dev ech0"));
    EXPECT_EQ(queues.size(), 1u) << queues;
    EXPECT_EQ(queues.at(0).at("kind"), "tbf") << queues;
    all.push_back(8 * queues.at(0).at("options").at("rate").get<double>());
  }
  return all;
}

TEST_F(LinkedHostsTest, HaveALinkOfTheBandwidthThatIsSet) {
  LinkedHosts hosts;
  EXPECT_EQ(rates(), (std::vector<double>{1e9, 1e9})) << "a gigabit at first";
  for (const double rate : {300e6, 100e6, 1e6, 10e9}) {
    hosts.limit(rate);
    EXPECT_EQ(rates(), (std::vector<double>{rate, rate}));
  }
}

TEST_F(LinkedHostsTest, RunOneRankEachAndMeetOverTheLink) {
  const LinkedHosts hosts;
  const ScratchFolder folder;
  const std::string said = (folder / "$RANK").string();
  const int code =
      launch({.program = hosts.spread(
                  {"sh", "-c",
                   "(echo \"$RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE "
                   "$MASTER_ADDR $ECHELON_RENDEZVOUS$ECHELON_RENDEZVOUS_FD\"; "
                   "ip netns identify $$; echo \"$1\"; test -n \"$ECHELON_TOKEN\") > " +
                       said,
                   "sh", "two words"}),
              .nproc = 2,
              .rendezvous = {},
              .log_dir = {},
              .prefix = false});
  ASSERT_EQ(code, 0);
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(read_file(folder / std::to_string(i)),
              std::to_string(i) + " 2 0 1 10.214.0.1 \n" + host(i) + "\ntwo words\n");
}

TEST_F(LinkedHostsTest, AreGoneWhenTheirObjectIs) {
  {
    const LinkedHosts hosts;
    EXPECT_EQ(hosts_of(), (std::vector{host(0), host(1)}));
  }
  EXPECT_EQ(hosts_of(), std::vector<std::string>{});
  try {
    const LinkedHosts hosts;
    throw Error("a job failed");
  } catch (const Error&) {
  }
  EXPECT_EQ(hosts_of(), std::vector<std::string>{});
}

// A process that makes hosts and ends without removing them, as one that is killed. The process has
// ended, and its number is free, when this returns.
pid_t killed_with_hosts() {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      new LinkedHosts;
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  return child;
}

TEST_F(LinkedHostsTest, RemoveWhatAKilledProcessLeft) {
  const pid_t gone = killed_with_hosts();
  EXPECT_EQ(hosts_of(gone), (std::vector{host(0, gone), host(1, gone)}));
  {
    const LinkedHosts hosts;
    EXPECT_EQ(hosts_of(gone), std::vector<std::string>{});
    EXPECT_EQ(hosts_of(), (std::vector{host(0), host(1)}));
  }
  EXPECT_EQ(hosts_of(), std::vector<std::string>{});
}

// Also those that bind a folder to itself, which stat() does not see.
bool is_mounted(const std::string& path) {
  return read_file("/proc/self/mountinfo").find(" " + path + " ") != std::string::npos;
}

TEST_F(LinkedHostsTest, UnmountWhatAKilledProcessMounted) {
  if (is_mounted("/run/netns")) GTEST_SKIP() << "/run/netns is mounted by others";
  killed_with_hosts();
  EXPECT_TRUE(is_mounted("/run/netns"));
  { const LinkedHosts hosts; }
  EXPECT_FALSE(is_mounted("/run/netns"));
}

TEST_F(LinkedHostsTest, OutliveAReaderThatGoesAway) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    const char byte = 0;
    try {
      const LinkedHosts hosts;
      if (::write(ends[1], &byte, 1) == 1 || errno != EPIPE) ::_exit(1);
    } catch (...) {
      ::_exit(2);
    }
    (void)!::write(ends[1], &byte, 1);  // now it does
    ::_exit(0);
  }
  ::close(ends[0]);
  ::close(ends[1]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE) << status;
  EXPECT_EQ(hosts_of(child), std::vector<std::string>{});
}

TEST_F(LinkedHostsTest, LeaveTheHostsOfALivingProcessAlone) {
  std::array<int, 2> made{}, end{};
  ASSERT_EQ(::pipe2(made.data(), O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(end.data(), O_CLOEXEC), 0);
  const pid_t other = ::fork();
  if (other == 0) {
    try {
      const LinkedHosts theirs;
      char byte = 0;
      (void)!::write(made[1], &byte, 1);
      ::close(end[1]);
      (void)!::read(end[0], &byte, 1);  // until the parent closes its end
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  const Descriptor read_made(made[0]), read_end(end[0]);
  ::close(made[1]);
  char byte = 0;
  EXPECT_EQ(::read(read_made.get(), &byte, 1), 1);
  { const LinkedHosts hosts; }
  EXPECT_EQ(hosts_of(other), (std::vector{host(0, other), host(1, other)}));
  { const LinkedHosts hosts; }
  EXPECT_EQ(output("ip netns exec " + host(0, other) + " true"), "") << "they can be entered still";
  ::close(end[1]);
  int status = 0;
  EXPECT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(hosts_of(other), std::vector<std::string>{});
}

// Hosts that were made while there was no /run/netns must not take away those that came later.
TEST_F(LinkedHostsTest, LeaveNamespacesThatOthersMadeMeanwhile) {
  const std::string theirs = "echelon-test-" + std::to_string(::getpid());
  {
    const LinkedHosts hosts;
    output("ip netns add " + theirs);
  }
  EXPECT_EQ(output("ip netns exec " + theirs + " true"), "");
  output("ip netns delete " + theirs);
}

TEST(LinkedHosts, SayWhyTheyCannotBeMade) {
  if (::geteuid() != 0) {
    EXPECT_EQ(thrown<InvalidArgument>([] { LinkedHosts(); }), "network namespaces need root");
    return;
  }
  // In a process of its own, which has no programs to run.
  const ScratchFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("PATH", folder.path().c_str(), 1);
    std::FILE* const file = std::fopen((folder / "said").c_str(), "w");  // while it may write here
    const auto said = thrown<InvalidArgument>([] { LinkedHosts(); });
    const auto who = ::seteuid(65534) == 0 ? thrown<InvalidArgument>([] { LinkedHosts(); }) : "";
    std::fputs((said + "\n" + who).c_str(), file);
    std::fflush(nullptr);
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(read_file(folder / "said"),
            "network namespaces do not work here: ip netns add " + host(0, child) +
                ": ip: No such file or directory\nnetwork namespaces need root");
  EXPECT_EQ(hosts_of(child), std::vector<std::string>{});
}

}  // namespace
}  // namespace echelon
