// Which ranks are together on a host, and how hosts are numbered: in the order in which ranks name
// them.
#pragma once

#include <string>
#include <vector>

namespace echelon {

struct Hosts {
  std::vector<std::string> names;       // by host
  std::vector<std::vector<int>> ranks;  // by host, in their order
  std::vector<int> of;                  // by rank: its host
  std::vector<int> local;               // by rank: which of its host's
};
// `hosts`: of every rank, as Communicator::host gives them.
Hosts number_hosts(const std::vector<std::string>& hosts);

}  // namespace echelon
