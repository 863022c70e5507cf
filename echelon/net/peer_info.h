// What every rank learns about each rank at the rendezvous: where it runs and how to reach it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "echelon/net/host.h"
#include "echelon/net/socket.h"

namespace echelon {

struct PeerInfo {
  static constexpr std::size_t longest = 16384;  // bytes of its text

  std::string host;         // equal for ranks that can share memory
  std::string machine;      // its name, for messages
  std::string kernel;       // equal for ranks of one machine
  CpuList cpus;             // that it may run on
  std::uint64_t quota = 0;  // CPU time quota in cores; 0: no limit
  std::string options;      // the net options that must be equal on all ranks
  Address address;
  std::string local;  // the Unix socket's name
  std::uint64_t process = 0;
  std::uint64_t job = 0;  // random; rank 0's identifies the job: two with one token do not mix
};

// Fields in the order above: those that ranks of a host have in common come first, so that pages
// (peer_pages.h) contain them once.
std::string encode(const PeerInfo& info);
// Throws Corrupt, naming the rank.
PeerInfo decode_peer_info(const std::string& text, int rank);

}  // namespace echelon
