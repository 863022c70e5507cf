#include "echelon/net/socket_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "echelon/base/error.h"

namespace echelon {

namespace {

using namespace std::chrono_literals;

std::string numeric(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST];
  if (::getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return host;
}

Resolved look_up(const Address& address, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Resolved resolved;
  resolved.error =
      ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (resolved.error != 0) return resolved;
  for (const auto* entry = list; entry != nullptr; entry = entry->ai_next) {
    resolved.addresses.push_back(SocketAddress::copy(entry->ai_addr, entry->ai_addrlen));
  }
  ::freeaddrinfo(list);
  return resolved;
}

struct Interface {
  std::string name;
  std::string host;  // numeric
  // IPv4 before IPv6, and link-local addresses last.
  int rank = 0;
};

std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw Error(with_errno("cannot list the network interfaces"));
  std::vector<Interface> found;
  for (const auto* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (entry->ifa_addr->sa_family == AF_INET) {
      found.push_back({entry->ifa_name, numeric(entry->ifa_addr, sizeof(sockaddr_in)), 0});
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      const int rank = IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? 2 : 1;
      found.push_back({entry->ifa_name, numeric(entry->ifa_addr, sizeof(sockaddr_in6)), rank});
    }
  }
  ::freeifaddrs(list);
  std::ranges::stable_sort(found, {}, &Interface::rank);
  return found;
}

}  // namespace

Address as_address(const SocketAddress& address) {
  if (!address.is_internet()) return {.host = "?", .port = 0};
  const auto port = address.family() == AF_INET
                        ? reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port
                        : reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port;
  return {.host = numeric(address.get(), address.size), .port = ntohs(port)};
}

Resolved resolve_numeric(const Address& address) { return look_up(address, AI_NUMERICHOST); }

// getaddrinfo has no deadline: a thread calls it and is abandoned if the time runs out.
Resolved resolve(const Address& address, Deadline deadline) {
  if (auto resolved = resolve_numeric(address); resolved.error == 0) return resolved;

  struct Question {
    std::mutex mutex;
    std::condition_variable answered;
    std::optional<Resolved> answer;  // guarded by mutex
  };
  auto question = std::make_shared<Question>();
  std::thread([question, address] {
    auto resolved = look_up(address, 0);
    const std::lock_guard lock(question->mutex);
    question->answer = std::move(resolved);
    question->answered.notify_one();
  }).detach();

  std::unique_lock lock(question->mutex);
  const auto wait = std::min<Deadline::Clock::duration>(deadline.remaining(), 1h);
  question->answered.wait_for(lock, wait, [&] { return question->answer.has_value(); });
  if (question->answer) return *question->answer;
  return {.error = EAI_AGAIN, .addresses = {}};
}

std::string Address::text() const {
  const bool v6 = host.find(':') != host.npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Address parse_address(const std::string& text) {
  const auto refuse = [&](const char* reason) {
    throw InvalidArgument(fmt::format(
        "'{}' is no address: {}; write host:port or, for IPv6, [::1]:port", text, reason));
  };
  const auto colon = text.rfind(':');
  if (colon == text.npos) refuse("the port is missing");
  std::string host = text.substr(0, colon);
  const std::string_view digits = std::string_view(text).substr(colon + 1);

  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    if (host.find(':') == host.npos) refuse("only IPv6 numbers stand in brackets");
  } else if (host.find(':') != host.npos) {
    refuse("it has more than one colon");
  }
  if (host.empty()) refuse("the host is missing");
  if (host.find_first_of("[] \t\r\n/") != host.npos || host.find('\0') != host.npos) {
    refuse("no host has such a name");
  }
  Address address = {.host = std::move(host), .port = 0};
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), address.port);
  if (error != std::errc() || end != digits.data() + digits.size()) {
    refuse("the port is no number from 0 to 65535");
  }
  return address;
}

std::string interface_address(const std::string& interface_or_address) {
  const auto present = interfaces();
  for (const auto& interface : present) {
    if (interface.name == interface_or_address) return interface.host;
  }
  constexpr auto longest_lookup = 10s;
  const auto resolved =
      resolve({.host = interface_or_address, .port = 0}, Deadline::in(longest_lookup));
  for (const auto& address : resolved.addresses) {
    const auto host = as_address(address).host;
    if (is_loopback(host) || std::ranges::find(present, host, &Interface::host) != present.end()) {
      return host;
    }
  }
  std::vector<std::string> known;
  for (const auto& interface : present) {
    known.push_back(fmt::format("{} ({})", interface.name, interface.host));
  }
  throw InvalidArgument(fmt::format(
      "'{}' is no network interface of this machine and no address of one; there are: {}",
      interface_or_address, fmt::join(known, ", ")));
}

bool is_loopback(const std::string& numeric_host) {
  in_addr v4 = {};
  if (::inet_pton(AF_INET, numeric_host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6 = {};
  if (::inet_pton(AF_INET6, numeric_host.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

}  // namespace echelon
