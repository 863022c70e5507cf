// Two hosts on this machine: network namespaces that are joined by one link, whose bandwidth can be
// set.
//
//   LinkedHosts hosts;   // needs root, ip and tc
//   hosts.limit(100e6);  // bits per second, in both directions
//   launch({.program = hosts.spread(program), .nproc = 2, …});  // one rank on each
//
// Processes on the hosts reach each other through the link and nothing else. The destructor removes
// the namespaces. If the process is killed before that, the next LinkedHosts removes them. SIGPIPE
// is ignored meanwhile: a reader of standard output that goes away must not end the process.
#pragma once

#include <array>
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

namespace echelon {

class LinkedHosts {
 public:
  // Throws InvalidArgument, with the reason, where namespaces are not possible.
  LinkedHosts();
  ~LinkedHosts();
  LinkedHosts(const LinkedHosts&) = delete;
  LinkedHosts& operator=(const LinkedHosts&) = delete;

  void limit(double bits_per_second);

  // The program of a launcher with two ranks, such that each rank runs on a host of its own and
  // they meet over the link.
  std::vector<std::string> spread(std::vector<std::string> program) const;

 private:
  // Ignores SIGPIPE while it lives.
  class NoBrokenPipe {
   public:
    NoBrokenPipe();
    ~NoBrokenPipe();
    NoBrokenPipe(const NoBrokenPipe&) = delete;
    NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

   private:
    struct sigaction before_ {};
  };

  void remove() const noexcept;

  const NoBrokenPipe no_broken_pipe_;
  std::array<std::string, 2> names_;
  bool mounted_ = false;  // /run/netns was there before
};

}  // namespace echelon
