// Sockets as values: TCP between hosts, Unix sockets within a host. All are non-blocking and
// close-on-exec; every call that may wait takes a deadline. A system error becomes an Error that
// names the address and the reason.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "echelon/base/deadline.h"
#include "echelon/base/descriptor.h"

namespace echelon {

struct Address {
  std::string host;  // a name or a number; IPv6 numbers without brackets
  std::uint16_t port = 0;

  std::string text() const;  // "host:port", "[::1]:port"
};

// "host:port" or "[v6]:port". Throws InvalidArgument.
Address parse_address(const std::string& text);

// The numeric address of an interface ("eth0") or a name; a numeric address is returned unchanged.
// It must belong to this machine. Throws InvalidArgument, naming the existing interfaces.
std::string interface_address(const std::string& interface_or_address);

bool is_loopback(const std::string& numeric_host);

// Port 0 picks any free port. Throws Error if the port is taken.
Descriptor listen_tcp(const std::string& numeric_host, std::uint16_t port);
Address local_address(const Descriptor& socket);
Address peer_address(const Descriptor& socket);  // for messages; "?" when it has none

// Retries while the other side refuses (it may not be up yet); throws Timeout at the deadline. Sets
// TCP_NODELAY, and keepalive so that a vanished peer is noticed.
Descriptor connect_tcp(const Address& address, Deadline deadline);
// A single try, at a numeric address: nothing if nobody listens there. Throws Timeout if there is
// no answer.
std::optional<Descriptor> try_connect_tcp(const Address& address, Deadline deadline);

// Fixes SO_SNDBUF, which otherwise grows automatically.
void limit_send_buffer(const Descriptor& socket, int bytes);

// Unix sockets in the abstract namespace: no file is left behind; reachable within one network
// namespace.
Descriptor listen_local(const std::string& name);
Descriptor connect_local(const std::string& name, Deadline deadline);

// The next connection, or nothing at the deadline.
std::optional<Descriptor> accept(const Descriptor& listener, Deadline deadline);

// Waits until the descriptor is ready for `events` (POLLIN, POLLOUT) or the deadline; true if
// ready.
bool wait_ready(int fd, short events, Deadline deadline);

// Passes an open file to the process at the other end of a Unix socket, with one byte of payload.
void send_descriptor(const Descriptor& socket, int fd, Deadline deadline);
Descriptor receive_descriptor(const Descriptor& socket, Deadline deadline);

// The pid of the process at the other end of a Unix socket; 0 if unknown.
int peer_process(const Descriptor& socket);

}  // namespace echelon
