// Which ranks of a job are workers and which are parameter servers. Colocated: all ranks are
// workers, and the first `server.count` are also servers. Separate: the last ranks are servers, the
// others workers.
#pragma once

#include <string>

#include "echelon/parallel/server/options.h"

namespace echelon {

struct ServerRoles {
  int ranks = 1, servers = 0;
  bool separate = false;
  // Throws InvalidArgument if there are too few ranks.
  ServerRoles(const ServerOptions& options, int ranks);

  int workers() const { return separate ? ranks - servers : ranks; }
  bool works(int rank) const { return rank < workers(); }
  int server_of(int rank) const;  // the rank's server number; -1: not a server
  int rank_of(int server) const { return separate ? workers() + server : server; }
  std::string name_of(int server) const;
};

}  // namespace echelon
