// How the ranks of a job find each other: rank 0 listens at an address that all know; every rank
// sends its peer info (who it is and where it listens) and receives that of all.
//
//   rank r -> rank 0   hello: rank, world, process, job, launch, command, peer info
//   rank 0 -> rank r   once all are there: where to get the pages of the peer info of ranks
//                      0 … world-1, here or from another rank; or what does not fit
//
// The pages go down a tree (peer_tree.h, peer_relay.h), so that rank 0 sends them to a few ranks
// and not to all.
//
// A rank of another job (job_identity.h) is refused, and the job goes on without it. Ranks of one
// job that do not fit together end the rendezvous: all of them throw the same error.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/assembly.h"
#include "echelon/net/job_identity.h"
#include "echelon/net/peer_tree.h"
#include "echelon/net/socket.h"
#include "echelon/net/stream.h"
#include "echelon/net/token.h"

namespace echelon {

struct Hello;

// Exchanges this rank's peer info for that of all ranks. Another store, such as torch's, can be
// plugged in here.
using PeerInfoExchange = std::function<Gathered(const std::string& peer_info, Deadline deadline)>;

struct Rendezvous {
  int rank = 0;
  int world = 1;
  Address address;
  Descriptor listener;    // rank 0: an open listener; if empty, it binds the address itself
  std::string bind = {};  // the numeric address to listen on; empty: that of the rendezvous
  std::string also = {};  // rank 0: a second one, for ranks of its machine; empty: none
  bool tls = false;
  Token token;
  JobIdentity identity = {};
  bool other_machines = false;  // the ranks run on several machines
  int fan_out = PeerTree().fan_out;

  // Throws Timeout naming the ranks that did not come; InvalidArgument when two ranks are the same,
  // the worlds differ, this rank is of another job than rank 0, or rank 0 runs on a machine that
  // does not have the address; PeerLost when a rank that came ended before all had come, or on the
  // way of the peer info down the tree; Refused for another token.
  Gathered exchange(const std::string& peer_info, Deadline deadline);

  PeerTree tree() const { return {.world = world, .fan_out = fan_out}; }

  // A hint for errors about missing ranks if the rendezvous is a loopback address; else empty.
  std::string loopback_hint() const;

 private:
  Gathered gather(const std::string& peer_info, Deadline deadline);
  Gathered visit(const std::string& peer_info, Deadline deadline);
  std::unique_ptr<Stream> connect_to_rank_0(Deadline deadline) const;
  Descriptor listen(const Hello& mine) const;
  std::optional<std::string> ask_who_is_there(const Hello& mine, Deadline deadline) const;
  void require_here(const Hello& mine) const;
};

// The listener that the launcher opened for rank 0 (ECHELON_RENDEZVOUS_FD), so that no other
// process can take its port; empty if there is none.
Descriptor inherited_listener();

// The local address that connections to `host` come from; sends no packet.
std::string address_towards(const std::string& host);

// The address of the interface of the default route.
std::string outward_address();

// The address to listen on for ranks that meet at `host`. With ranks on other machines it is not
// the loopback, even if `host` resolves to it: a machine's own name often means 127.0.1.1, which
// others cannot reach. If `host` is a loopback address itself, there are no other machines.
std::string bind_address(const std::string& host, bool other_machines);

}  // namespace echelon
