// How the ranks of a job find each other: rank 0 listens at an address that all know; every rank
// brings a card (who it is and where it listens), and takes home the cards of all.
//
//   rank r -> rank 0   hello: rank, world, card
//   rank 0 -> rank r   cards of ranks 0 … world-1, once all are there; or what does not fit
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/socket.h"
#include "echelon/net/token.h"

namespace echelon {

// Gives every rank's card for one's own: the seam through which another store (torch's) can serve.
using Exchange =
    std::function<std::vector<std::string>(const std::string& card, Deadline deadline)>;

struct Rendezvous {
  int rank = 0;
  int world = 1;
  Address address;
  Descriptor listener;    // rank 0: one that listens already; else it binds the address itself
  std::string bind = {};  // rank 0: the numeric address to listen on; empty: the meeting point's
  std::string also = {};  // rank 0: a second one, for those of this machine; empty: none
  bool tls = false;
  Token token;

  // Throws Timeout naming the ranks that did not come; InvalidArgument when two ranks are the same
  // or the worlds differ; Refused for another token.
  std::vector<std::string> exchange(const std::string& card, Deadline deadline);

 private:
  std::vector<std::string> gather(const std::string& card, Deadline deadline);
  std::vector<std::string> visit(const std::string& card, Deadline deadline);
};

// The listener that the launcher bound for rank 0 and left open (ECHELON_RENDEZVOUS_FD), so that no
// other process can take its port; empty where there is none.
Descriptor inherited_listener();

// The address of this machine from which `host` is reached; no packet is sent.
std::string address_towards(const std::string& host);

// The address of the interface that the default route leads through.
std::string outward_address();

// The address to listen on for ranks that meet at `host`. With ranks on other machines it is never
// the loopback: a machine's own name often means 127.0.1.1, where nobody else would find it. The
// loopback's own address says that there are none.
std::string bind_address(const std::string& host, bool other_machines);

}  // namespace echelon
