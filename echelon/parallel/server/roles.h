// Which ranks of a job with parameter servers do what: all work and the first `server.count` also
// serve (colocated), or the last ones serve and the others work (separate).
#pragma once

#include <string>

#include "echelon/parallel/server/options.h"

namespace echelon {

struct ServerRoles {
  int ranks = 1, servers = 0;
  bool separate = false;
  // Throws InvalidArgument where there are too few ranks.
  ServerRoles(const ServerOptions& options, int ranks);

  int workers() const { return separate ? ranks - servers : ranks; }
  bool works(int rank) const { return rank < workers(); }
  int server_of(int rank) const;  // its number among the servers; -1: none
  int rank_of(int server) const { return separate ? workers() + server : server; }
  std::string name_of(int server) const;
};

}  // namespace echelon
