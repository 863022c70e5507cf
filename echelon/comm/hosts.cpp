#include "echelon/comm/hosts.h"

#include <algorithm>

namespace echelon {

Hosts number_hosts(const std::vector<std::string>& hosts) {
  Hosts result;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto at = std::size_t(std::find(result.names.begin(), result.names.end(), hosts[rank]) -
                                result.names.begin());
    if (at == result.names.size()) {
      result.names.push_back(hosts[rank]);
      result.ranks.emplace_back();
    }
    result.of.push_back(int(at));
    result.local.push_back(int(result.ranks[at].size()));
    result.ranks[at].push_back(int(rank));
  }
  return result;
}

}  // namespace echelon
