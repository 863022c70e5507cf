// Socket addresses for system calls, and name resolution. Internal to this component; socket.h is
// the public header.
#pragma once

#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/socket.h"

namespace echelon {

// Of any family.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  bool is_internet() const { return family() == AF_INET || family() == AF_INET6; }

  static SocketAddress copy(const sockaddr* address, socklen_t size) {
    SocketAddress copied;
    std::memcpy(&copied.storage, address, size);
    copied.size = size;
    return copied;
  }
};

// Its host and port; host "?" if it is not an internet address.
Address as_address(const SocketAddress& address);

struct Resolved {
  int error = 0;  // as getaddrinfo says
  std::vector<SocketAddress> addresses;
};

// Parses a numeric address; names are not resolved.
Resolved resolve_numeric(const Address& address);

// Also resolves names. If the deadline passes first, the error is EAI_AGAIN.
Resolved resolve(const Address& address, Deadline deadline);

}  // namespace echelon
