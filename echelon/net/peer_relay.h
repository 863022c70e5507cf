// How a rank that is no child of rank 0 gets the peer info of all ranks: from its parent in the
// tree (peer_tree.h), over a connection of its own that is proven and encrypted like every other.
//
//   rank 0 -> rank r   route: the meeting's number, r's parent and where its relay listens
//   rank r -> parent   fetch: the meeting's number, r
//   parent -> rank r   pages (peer_pages.h), once the parent has all of them
//
// While they wait for each other, both look at the assembly (assembly.h): a rank that dies on the
// way is named by rank 0. A connection that is being made, or a page that is being read, is bounded
// by the deadline alone.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/acceptor.h"
#include "echelon/net/assembly.h"
#include "echelon/net/frame.h"
#include "echelon/net/peer_tree.h"
#include "echelon/net/socket.h"
#include "echelon/net/token.h"

namespace echelon {

// What rank 0 answers to a hello, once all ranks are there.
struct PeerRoute {
  std::uint64_t meeting = 0;  // random: two jobs with one token do not mix
  int parent = 0;             // 0: the pages follow on this connection
  std::string who = {};       // the parent: "pid 4711 on node7"
  Address relay = {};         // where the parent listens

  Frame frame() const;
  // As `rank` was told by `peer`.
  static PeerRoute read(const Frame& frame, const std::string& peer, const PeerTree& tree,
                        int rank);
};

// Writes bytes to many streams at a time: one that is slow or far away delays nobody else. Streams
// whose peer is gone are dropped without a word; the assembly sees them end.
class FanOut {
 public:
  void add(Stream& stream, std::vector<std::span<const std::byte>> parts);
  // Goes as far as it can without waiting; true when nothing is left to send.
  bool advance();
  // Waits until advance() can go on, but no longer than this.
  void wait(Deadline::Clock::duration longest) const;
  // The peer of a stream that has not taken everything yet.
  const std::string& slowest() const { return sending_.front().stream->name(); }

 private:
  struct Sending {
    Stream* stream;
    std::vector<std::span<const std::byte>> parts;
  };
  std::vector<Sending> sending_;
};

// The listener of a rank that passes the peer info on.
class PeerRelay {
 public:
  PeerRelay(const std::string& bind, bool tls, const Token& token, std::vector<int> children);

  Address address() const { return address_; }
  // Sends the pages to each child as soon as it comes. Throws what Assembly::look() does, and
  // Timeout naming a child that did not come or did not take them.
  void pass_on(std::span<const std::byte> pages, std::uint64_t meeting, Assembly& assembly,
               Deadline deadline);

 private:
  using Key = std::pair<std::uint64_t, int>;  // meeting, child

  void welcome(std::unique_ptr<Stream> stream, const Frame& first);
  std::unique_ptr<Stream> take(std::uint64_t meeting, int child);

  std::vector<int> children_;
  Address address_;
  std::mutex mutex_;  // the next two
  std::condition_variable came_;
  std::map<Key, std::unique_ptr<Stream>> waiting_;
  std::unique_ptr<Acceptor> acceptor_;
};

// The other side: the stream from which `rank` reads the pages, which have begun to come. Throws
// what Assembly::look() does; else PeerLost, Refused or Timeout naming the parent.
std::unique_ptr<Stream> connect_to_parent(int rank, const PeerRoute& route, bool tls,
                                          const Token& token, Assembly& assembly,
                                          Deadline deadline);

}  // namespace echelon
