#include "echelon/parallel/server/roles.h"

#include <fmt/format.h>

#include "echelon/base/error.h"

namespace echelon {

ServerRoles::ServerRoles(const ServerOptions& options, int all)
    : ranks(all),
      servers(static_cast<int>(options.count)),
      separate(options.place == ServerPlace::separate) {
  if (separate ? servers >= ranks : servers > ranks)
    throw InvalidArgument(fmt::format(
        "server.count = {} with server.place={} needs at least {} ranks, and there {} {}; give more "
        "with --nproc",
        servers, echelon::name_of(options.place), separate ? servers + 1 : servers,
        ranks == 1 ? "is" : "are", ranks));
}

int ServerRoles::server_of(int rank) const {
  const int index = separate ? rank - workers() : rank;
  return index >= 0 && index < servers ? index : -1;
}

std::string ServerRoles::name_of(int server) const {
  return fmt::format("parameter server {} (rank {})", server, rank_of(server));
}

}  // namespace echelon
