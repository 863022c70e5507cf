// Sockets as values: TCP between hosts, Unix sockets within one. All are non-blocking and closed on
// exec; every call that may wait takes a deadline. What the system refuses becomes an Error that
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

// The numeric address of an interface ("eth0"), of a name, or a numeric address as it is; it must
// be one of this machine's. Throws InvalidArgument, naming the interfaces there are.
std::string interface_address(const std::string& interface_or_address);

bool is_loopback(const std::string& numeric_host);

// Port 0 takes any free one. A port that is taken throws Error saying so.
Descriptor listen_tcp(const std::string& numeric_host, std::uint16_t port);
Address local_address(const Descriptor& socket);
Address peer_address(const Descriptor& socket);  // for messages; "?" when it has none

// Tries again while the other side refuses (it may not be up yet) until the deadline: Timeout.
// TCP_NODELAY is set, and keepalive so that a peer that vanished is noticed.
Descriptor connect_tcp(const Address& address, Deadline deadline);
// One try, at a numeric address: nothing where nobody listens. Throws Timeout where no answer
// comes.
std::optional<Descriptor> try_connect_tcp(const Address& address, Deadline deadline);

// How much may be under way, as the kernel counts it (SO_SNDBUF; it grows by itself otherwise).
void limit_send_buffer(const Descriptor& socket, int bytes);

// Unix sockets in the abstract namespace: no file, nothing left behind, one network namespace.
Descriptor listen_local(const std::string& name);
Descriptor connect_local(const std::string& name, Deadline deadline);

// The next connection, or nothing when the deadline passes first.
std::optional<Descriptor> accept(const Descriptor& listener, Deadline deadline);

// Waits until the descriptor is ready for `events` (POLLIN, POLLOUT) or the deadline; true if
// ready.
bool wait_ready(int fd, short events, Deadline deadline);

// Hands an open file to the process at the other end of a Unix socket, with one byte of payload.
void send_descriptor(const Descriptor& socket, int fd, Deadline deadline);
Descriptor receive_descriptor(const Descriptor& socket, Deadline deadline);

// The process at the other end of a Unix socket, as this process numbers it; 0 if unknown.
int peer_process(const Descriptor& socket);

}  // namespace echelon
