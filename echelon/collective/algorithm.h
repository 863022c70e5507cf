#pragma once

#include <cstdint>

#include "echelon/base/named_enum.h"

namespace echelon {

enum class Algorithm : std::uint8_t {
  automatic,  // the chooser's
  direct,     // everyone to everyone
  ring,
  bidirectional_ring,  // half of the vector each way
  recursive_doubling,
  rabenseifner,  // recursive halving, then doubling
  tree,
  scatter_all_gather,  // broadcast in two parts
  server,              // everyone sums and gives out its part: servers beside the workers
  hierarchical,        // within hosts, across them, within them
  shared_direct,       // one host, small: everyone reads everyone's whole vector
  shared,              // one host: everyone sums its slice
};
constexpr auto names_of(Algorithm) {
  return names("auto", "direct", "ring", "bidirectional_ring", "recursive_doubling", "rabenseifner",
               "tree", "scatter_all_gather", "server", "hierarchical", "shared_direct", "shared");
}
inline const char* name(Algorithm algorithm) { return name_of(algorithm).data(); }

}  // namespace echelon
