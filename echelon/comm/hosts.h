// Which ranks share a host. Hosts are numbered in the order in which ranks name them.
#pragma once

#include <string>
#include <vector>

namespace echelon {

struct Hosts {
  std::vector<std::string> names;       // by host
  std::vector<std::vector<int>> ranks;  // by host, in rank order
  std::vector<int> of;                  // by rank: its host
  std::vector<int> local;               // by rank: its index on its host
};
// `hosts` has the host of every rank, from Communicator::host.
Hosts number_hosts(const std::vector<std::string>& hosts);

}  // namespace echelon
