// How the ranks of a job find each other: rank 0 listens at an address that all know; every rank
// brings its peer info (who it is and where it listens), and takes home that of all.
//
//   rank r -> rank 0   hello: rank, world, process, job, launch, command, peer info
//   rank 0 -> rank r   once all are there: where to get the pages of the peer info of ranks
//                      0 … world-1, here or from another rank; or what does not fit
//
// The pages go down a tree (peer_tree.h, peer_relay.h), so that rank 0 sends them to a few ranks
// and not to all.
//
// A rank of another job (job_identity.h) is refused and the job goes on without it. Ranks of one
// job that do not fit together end the rendezvous for all, with the same sentence.
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

// Gives every rank's peer info for one's own: the seam through which another store (torch's) can
// serve.
using PeerInfoExchange = std::function<Gathered(const std::string& peer_info, Deadline deadline)>;

struct Rendezvous {
  int rank = 0;
  int world = 1;
  Address address;
  Descriptor listener;    // rank 0: one that listens already; else it binds the address itself
  std::string bind = {};  // rank 0: the numeric address to listen on; empty: the meeting point's
  std::string also = {};  // rank 0: a second one, for those of this machine; empty: none
  bool tls = false;
  Token token;
  JobIdentity identity = {};
  bool other_machines = false;  // ranks run on several
  int fan_out = PeerTree().fan_out;

  // Throws Timeout naming the ranks that did not come; InvalidArgument when two ranks are the same,
  // the worlds differ, this rank is of another job than rank 0, or rank 0 runs on a machine that
  // does not have the address; PeerLost when a rank that came ended before all had come, or on the
  // way of the peer info down the tree; Refused for another token.
  Gathered exchange(const std::string& peer_info, Deadline deadline);

  PeerTree tree() const { return {.world = world, .fan_out = fan_out}; }

  // What to add where ranks are missing at an address that each machine takes for its own.
  std::string loopback_hint() const;

 private:
  Gathered gather(const std::string& peer_info, Deadline deadline);
  Gathered visit(const std::string& peer_info, Deadline deadline);
  std::unique_ptr<Stream> connect_to_rank_0(Deadline deadline) const;
  Descriptor listen(const Hello& mine) const;
  std::optional<std::string> ask_who_is_there(const Hello& mine, Deadline deadline) const;
  void require_here(const Hello& mine) const;
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
