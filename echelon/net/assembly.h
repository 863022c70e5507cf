// The ranks after the rendezvous, while they connect to each other. A rank that dies then has no
// connection yet by which the others would notice: its stream to rank 0 stays open until all are
// connected, rank 0 sees it end and tells the rest.
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

  // Rank 0: the others by rank. Other ranks: rank 0 alone.
  explicit Assembly(std::map<int, Member> members) : members_(std::move(members)) {}

  // Throws PeerLost, naming the rank, where one ended before it was connected. Does not wait.
  void look();
  // After a connection broke: gives whoever sees the cause the time to tell. Throws as look() does;
  // returns where nobody ended, or where it has thrown already.
  void look_for_the_cause();
  // This rank is connected to all. Rank 0 waits until all are; throws as look() does, and Timeout
  // naming a rank that is not in time.
  void connected(Deadline deadline);

 private:
  bool at_rank_0() const { return !members_.contains(0); }
  void hear(int rank, Member& member);

  std::map<int, Member> members_;
  bool found_ = false;  // who ended
};

// What a rendezvous gives: every rank's peer info, and who watches over the ranks until they are
// connected; nobody where another store than Echelon's own was used.
struct Gathered {
  std::vector<std::string> peer_infos;
  std::shared_ptr<Assembly> assembly = {};

  Gathered(std::vector<std::string> all)
      : peer_infos(std::move(all)) {}  // NOLINT: a store's answer
  Gathered(std::vector<std::string> all, std::shared_ptr<Assembly> members)
      : peer_infos(std::move(all)), assembly(std::move(members)) {}
};

}  // namespace echelon
