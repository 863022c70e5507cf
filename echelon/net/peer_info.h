// What a rank tells every other rank at the rendezvous: where it runs and where it can be reached.
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
  std::string machine;      // its name, for people
  std::string kernel;       // equal for ranks of one machine
  CpuList cpus;             // of that machine, on which it may run
  std::uint64_t quota = 0;  // cores' worth of time; 0: no limit
  std::string options;      // those of net that must be the same
  Address address;
  std::string local;  // the Unix socket's name
  std::uint64_t process = 0;
  std::uint64_t job = 0;  // rank 0's is the job's: two jobs with one token do not mix
};

// Fields in the order above: what ranks of one host have in common comes first, so that pages
// (peer_pages.h) send it once.
std::string encode(const PeerInfo& info);
// Throws Corrupt, naming the rank.
PeerInfo decode_peer_info(const std::string& text, int rank);

}  // namespace echelon
