// Socket addresses as the system calls take them, and the names they come from. For the sources of
// this component; socket.h is the page for users.
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

// Its host and port; host "?" when it is no internet address.
Address as_address(const SocketAddress& address);

struct Resolved {
  int error = 0;  // as getaddrinfo says
  std::vector<SocketAddress> addresses;
};

// A numeric address; nothing else is looked up.
Resolved resolve_numeric(const Address& address);

// A name too. When the deadline passes first, the error is EAI_AGAIN.
Resolved resolve(const Address& address, Deadline deadline);

}  // namespace echelon
