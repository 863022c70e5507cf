#include "echelon/net/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/net/socket_address.h"

namespace echelon {

namespace {

using namespace std::chrono_literals;

// A peer whose machine is gone answers nothing, not even a refusal. Keepalive detects this after 5
// + 3 * 2 s on an idle connection, and the user timeout detects it on one with bytes in flight.
constexpr int keepalive_idle_s = 5;
constexpr int keepalive_interval_s = 2;
constexpr int keepalive_count = 3;
constexpr unsigned user_timeout_ms = 20'000;

// The pause between attempts to connect. It is short at first, since the other side is often just
// starting.
constexpr Deadline::Clock::duration first_pause = 5ms;
constexpr Deadline::Clock::duration longest_pause = 200ms;

SocketAddress name_of(const Descriptor& socket) {
  SocketAddress address;
  if (::getsockname(socket.get(), address.get(), &address.size) != 0) {
    throw Error(with_errno("cannot get a socket's own address"));
  }
  return address;
}

std::optional<SocketAddress> peer_of(const Descriptor& socket) {
  SocketAddress address;
  if (::getpeername(socket.get(), address.get(), &address.size) != 0) return std::nullopt;
  return address;
}

// ---- Making sockets -----------------------------------------------------------------------------

void set_option(const Descriptor& socket, int level, int option, int value, const char* name) {
  if (::setsockopt(socket.get(), level, option, &value, sizeof value) != 0) {
    throw Error(with_errno(fmt::format("cannot set {} of a socket", name)));
  }
}

void set_tcp_options(const Descriptor& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, keepalive_idle_s, "TCP_KEEPIDLE");
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, keepalive_interval_s, "TCP_KEEPINTVL");
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, keepalive_count, "TCP_KEEPCNT");
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, user_timeout_ms, "TCP_USER_TIMEOUT");
}

Descriptor make_socket(int family) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) throw Error(with_errno("cannot make a socket"));
  return socket;
}

SocketAddress local_socket_address(const std::string& name) {
  SocketAddress address;
  auto& local = reinterpret_cast<sockaddr_un&>(address.storage);
  if (name.empty() || name.size() > sizeof(local.sun_path) - 1) {
    throw InvalidArgument(
        fmt::format("the name of a local socket has 1 to {} characters, '{}' has {}",
                    sizeof(local.sun_path) - 1, name, name.size()));
  }
  local.sun_family = AF_UNIX;
  // The zero byte in front makes the name abstract.
  std::memcpy(local.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Descriptor listen_at(const SocketAddress& address, const std::string& text) {
  auto socket = make_socket(address.family());
  // A port is free again as soon as its listener is gone, even if old connections linger.
  if (address.is_internet()) set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  if (::bind(socket.get(), address.get(), address.size) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    if (errno == EADDRINUSE) {
      throw Error(fmt::format(
          "cannot listen at {}: it is taken by another process; choose another, or end that process",
          text));
    }
    if (errno == EADDRNOTAVAIL) {
      throw Error(
          fmt::format("cannot listen at {}: this machine does not have that address", text));
    }
    throw Error(with_errno(fmt::format("cannot listen at {}", text)));
  }
  return socket;
}

// ---- Connecting ---------------------------------------------------------------------------------

// Errors that pass once the other side, or the network to it, comes up.
bool may_pass(int error) {
  constexpr int codes[] = {ECONNREFUSED, ECONNRESET, ETIMEDOUT, EHOSTUNREACH,  ENETUNREACH,
                           EHOSTDOWN,    ENETDOWN,   EAGAIN,    EADDRNOTAVAIL, ECONNABORTED};
  return std::ranges::find(codes, error) != std::end(codes);
}

// A connection to a free port of this machine can connect to itself, if the system picks that port
// for the connecting end.
bool met_itself(const Descriptor& socket) {
  const auto own = name_of(socket);
  const auto peer = peer_of(socket);
  return own.is_internet() && peer && as_address(own).text() == as_address(*peer).text();
}

// Makes one attempt. Returns the socket, or stores errno in `error`.
Descriptor connect_once(const SocketAddress& address, Deadline deadline, int& error) {
  auto socket = make_socket(address.family());
  if (address.is_internet()) set_tcp_options(socket);
  error = 0;
  if (::connect(socket.get(), address.get(), address.size) != 0) {
    error = errno;
    if (error == EINPROGRESS || error == EINTR) {
      socklen_t size = sizeof error;
      if (!wait_ready(socket.get(), POLLOUT, deadline)) {
        error = ETIMEDOUT;
      } else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
        error = errno;
      }
    }
  }
  if (error == 0 && met_itself(socket)) error = ECONNREFUSED;
  return error == 0 ? std::move(socket) : Descriptor();
}

// Tries one address after the other. Each gets a part of the time, so that an address that swallows
// all packets leaves time for the next.
Descriptor connect_any(const std::vector<SocketAddress>& addresses, Deadline deadline, int& error) {
  bool passing = false;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const auto left = static_cast<Deadline::Clock::rep>(addresses.size() - i);
    int reason = 0;
    auto socket = connect_once(addresses[i], Deadline::in(deadline.remaining() / left), reason);
    if (socket) return socket;
    if (!passing) error = reason;
    passing = passing || may_pass(reason);
  }
  return {};
}

// Calls `attempt` until it returns a socket. `attempt` stores in its argument why there is none
// yet, and throws if it can never succeed.
template <class Attempt>
Descriptor connect_until(const std::string& target, Deadline deadline, Attempt attempt) {
  auto pause = first_pause;
  while (true) {
    std::string reason;
    if (auto socket = attempt(reason)) return socket;
    if (deadline.expired()) {
      throw Timeout(fmt::format(
          "no connection to {} in the time given ({}): is that process running, is the address "
          "right, does a firewall stand between?",
          target, reason));
    }
    std::this_thread::sleep_for(std::min(pause, deadline.remaining()));
    pause = std::min(2 * pause, longest_pause);
  }
}

std::string reason_of(int error, const std::string& target) {
  errno = error;
  const auto said = with_errno("");
  if (!may_pass(error)) throw Error(fmt::format("cannot connect to {}{}", target, said));
  return said.substr(2);
}

}  // namespace

Descriptor listen_tcp(const std::string& numeric_host, std::uint16_t port) {
  const Address address = {.host = numeric_host, .port = port};
  const auto resolved = resolve_numeric(address);
  if (numeric_host.empty() || resolved.addresses.empty()) {
    throw InvalidArgument(
        fmt::format("cannot listen at '{}': this is no numeric address such as 127.0.0.1 or ::1",
                    numeric_host));
  }
  return listen_at(resolved.addresses.front(), address.text());
}

Address local_address(const Descriptor& socket) { return as_address(name_of(socket)); }

Address peer_address(const Descriptor& socket) {
  const auto peer = peer_of(socket);
  return peer ? as_address(*peer) : Address{.host = "?", .port = 0};
}

void limit_send_buffer(const Descriptor& socket, int bytes) {
  set_option(socket, SOL_SOCKET, SO_SNDBUF, bytes, "SO_SNDBUF");
}

Descriptor connect_tcp(const Address& address, Deadline deadline) {
  const auto target = address.text();
  if (address.host.empty() || address.port == 0) {
    throw InvalidArgument(
        fmt::format("cannot connect to '{}': an address has a host and a port from 1 on", target));
  }
  return connect_until(target, deadline, [&](std::string& reason) {
    // Resolves again each time: the name of a machine that is starting may be unknown at first.
    const auto resolved = resolve(address, deadline);
    if (resolved.error != 0) {
      reason = fmt::format("the name cannot be resolved: {}", ::gai_strerror(resolved.error));
      return Descriptor();
    }
    int error = 0;
    auto socket = connect_any(resolved.addresses, deadline, error);
    if (!socket) reason = reason_of(error, target);
    return socket;
  });
}

std::optional<Descriptor> try_connect_tcp(const Address& address, Deadline deadline) {
  int error = 0;
  auto socket = connect_any(resolve_numeric(address).addresses, deadline, error);
  if (socket) return socket;
  if (error == ECONNREFUSED) return std::nullopt;
  throw Timeout(
      fmt::format("no answer from {} ({})", address.text(), reason_of(error, address.text())));
}

Descriptor listen_local(const std::string& name) {
  return listen_at(local_socket_address(name), fmt::format("local socket '{}'", name));
}

Descriptor connect_local(const std::string& name, Deadline deadline) {
  const auto address = local_socket_address(name);
  const auto target = fmt::format("local socket '{}'", name);
  return connect_until(target, deadline, [&](std::string& reason) {
    int error = 0;
    auto socket = connect_once(address, deadline, error);
    if (!socket) reason = reason_of(error, target);
    return socket;
  });
}

std::optional<Descriptor> accept(const Descriptor& listener, Deadline deadline) {
  // Errors of the single incoming connection, not of the listener (accept(2)).
  constexpr int passing[] = {EINTR,       EAGAIN,    ECONNABORTED, EPROTO,
                             ENETDOWN,    EHOSTDOWN, EHOSTUNREACH, ENETUNREACH,
                             ENOPROTOOPT, ENONET,    EOPNOTSUPP,   ETIMEDOUT};
  while (wait_ready(listener.get(), POLLIN, deadline)) {
    Descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (std::ranges::find(passing, errno) != std::end(passing)) continue;
      throw Error(with_errno(
          fmt::format("cannot accept a connection at {}", local_address(listener).text())));
    }
    if (name_of(socket).is_internet()) set_tcp_options(socket);
    return socket;
  }
  return std::nullopt;
}

bool wait_ready(int fd, short events, Deadline deadline) {
  pollfd entry = {.fd = fd, .events = events, .revents = 0};
  while (true) {
    // Waits at most an hour at a time: the system does not accept the remaining time of a deadline
    // that never comes.
    const auto left = std::min<Deadline::Clock::duration>(deadline.remaining(), 1h);
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec wait = {.tv_sec = seconds.count(),
                           .tv_nsec = std::chrono::nanoseconds(left - seconds).count()};
    const int ready = ::ppoll(&entry, 1, &wait, nullptr);
    if (ready < 0 && errno != EINTR) throw Error(with_errno("cannot wait for a socket"));
    if (ready > 0) {
      if ((entry.revents & POLLNVAL) != 0) {
        throw Error(fmt::format("cannot wait for a socket: descriptor {} is not open", fd));
      }
      return true;  // POLLERR and POLLHUP too: the next call on the socket says what is wrong
    }
    if (deadline.expired()) return false;
  }
}

int peer_process(const Descriptor& socket) {
  ucred credentials = {};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return 0;
  return std::max(credentials.pid, 0);
}

}  // namespace echelon
