// Workers and servers that sum a vector: every worker pushes each part to the rank that owns it,
// which sums and gives it back, while the next parts are still on their way. Ranks that only serve
// make the exchange faster than any among workers alone, since a worker then sends the vector once
// and receives it once, at the same time (BytePS, Jiang et al. 2020).
//
// Parts are cut into chunks; a chunk is given back as soon as all workers' are there, so that both
// directions of every link are busy. Sums are in the order of the workers: same bits on all.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "echelon/collective/group.h"

namespace echelon {

// What workers and extra servers should own so that all their links are equally busy: n workers,
// then k <= n servers. With D = n^2 + kn - 2k a worker owns (n-k)/D, an extra server 2(n-1)/D, and
// every link carries 2n(n-1)/D vectors each way.
std::vector<double> balanced_weights(int workers, int extra_servers);
double vectors_a_link(int workers, int extra_servers);

class ServerExchange {
 public:
  static constexpr std::size_t chunk = 64 << 10;  // elements

  // The first `workers` ranks of the group push and pull; rank r owns elements [bounds[r],
  // bounds[r + 1]).
  ServerExchange(std::shared_ptr<Group> group, int workers, std::vector<std::size_t> bounds);

  // Collective: `data` becomes the sum of all workers', on each of them. Ranks that only serve give
  // nullptr.
  void run(float* data);

 private:
  bool works() const { return group_->rank() < workers_; }
  void serve(float* data);
  void push_and_pull(float* data);

  std::shared_ptr<Group> group_;
  int workers_;
  std::vector<std::size_t> bounds_;
  std::vector<std::vector<float>> pushed_;  // by worker: what came for the part that is owned here
  std::vector<float> sum_;                  // of a rank that only serves
};

}  // namespace echelon
