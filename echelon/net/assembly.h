// Watches over the ranks between the rendezvous and the last control connection. A rank that dies
// in this phase may have no connection by which the others would notice. So its stream to rank 0
// stays open until all ranks are connected: rank 0 sees it end and tells the rest.
//
//   rank r -> rank 0   connected
//   rank 0 -> rank r   misfit: which rank ended
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/stream.h"

namespace echelon {

class Assembly {
 public:
  struct Member {
    std::string who;  // "pid 4711 on node7"
    std::unique_ptr<Stream> stream;
    bool connected = false;
  };

  // On rank 0, all other ranks; on any other rank, rank 0 alone.
  explicit Assembly(std::map<int, Member> members) : members_(std::move(members)) {}

  // Throws PeerLost naming a rank that ended before it was connected. Does not wait.
  void look();
  // After a connection broke: waits up to a second for the news which rank ended, and throws as
  // look() does. Returns if no rank ended, or if an earlier call has thrown.
  void look_for_the_cause();
  // Call when this rank has all its connections. Rank 0 waits until all ranks have called it;
  // throws as look() does, and Timeout naming a rank that is late.
  void connected(Deadline deadline);

 private:
  bool at_rank_0() const { return !members_.contains(0); }
  void hear(int rank, Member& member);

  std::map<int, Member> members_;
  bool found_ = false;  // look() has thrown
};

// The result of a rendezvous: the peer info of every rank, and the assembly that watches over the
// ranks until they are connected. No assembly if another store than Echelon's own was used.
struct Gathered {
  std::vector<std::string> peer_infos;
  std::shared_ptr<Assembly> assembly = {};

  Gathered(std::vector<std::string> all)
      : peer_infos(std::move(all)) {}  // NOLINT: a store's answer
  Gathered(std::vector<std::string> all, std::shared_ptr<Assembly> members)
      : peer_infos(std::move(all)), assembly(std::move(members)) {}
};

}  // namespace echelon
