// The tree down which the peer info of all ranks goes at the rendezvous. Rank 0 is its root, and
// rank r sends to ranks fan_out * r + 1 … fan_out * r + fan_out: so no rank sends it more than
// fan_out times, and it is everywhere after log(world) / log(fan_out) hops.
#pragma once

#include <algorithm>
#include <vector>

namespace echelon {

struct PeerTree {
  int world = 1;
  int fan_out = 16;

  int parent(int rank) const { return (rank - 1) / fan_out; }  // of a rank other than 0
  std::vector<int> children(int rank) const {
    std::vector<int> all;
    const auto first = std::min<long>(long(rank) * fan_out + 1, world);
    const auto end = std::min<long>(first + fan_out, world);
    for (long child = first; child < end; ++child) all.push_back(int(child));
    return all;
  }
  bool passes_on(int rank) const { return long(rank) * fan_out + 1 < world; }
  int hops(int rank) const { return rank == 0 ? 0 : 1 + hops(parent(rank)); }
};

}  // namespace echelon
