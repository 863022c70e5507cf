// The control connections of a rank: over them it learns that a rank is gone, gives up or has been
// waiting, and tells the same of itself.
//
// Ranks of one host are connected with each other, each with each. Across hosts so are those of a
// world of up to `mesh` ranks; in a larger one rank r is connected to ranks r ± 2^k (modulo the
// world), which makes at most 2 log2(world) connections. News then goes from rank to rank:
//
//   direct    for the receiver alone
//   flood     each rank that hears it for the first time passes it on over all its connections: it
//             arrives as long as any way is left, and costs a rank a frame per connection
//   cascade   a rank that has the next `span` ranks to serve sends to the one 2^k further (the
//             largest below span), which serves those behind it, and goes on with the 2^k before;
//             the same backward. Each rank gets two frames, and one where a rank on the way is
//             stuck
//
// Failures are flooded: a connection that ends without a goodbye, giving up, a goodbye in error. An
// error that follows from one that all have heard of is not flooded again, so that the end of n
// ranks does not become n floods. Goodbyes in order and waits cascade.
//
// Whoever waits for a rank for long asks after it (ask_after): then they are connected directly, or
// it turns out that nobody listens there any more. So a wait ends though all ranks between have
// left.
//
// Nothing here waits for another rank: what a connection does not take at once is queued, and the
// network's thread sends it.
#pragma once

#include <poll.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/frame.h"
#include "echelon/net/health.h"
#include "echelon/net/stream.h"

namespace echelon {

class ControlNetwork {
 public:
  // A new control connection to a rank; nothing where nobody listens at its address any more.
  using Connect = std::function<std::unique_ptr<Stream>(int rank)>;

  // `health` must outlive it.
  ControlNetwork(int rank, int world, int mesh, Health& health, Connect connect);
  ~ControlNetwork();  // without a word, unless leave() came before
  ControlNetwork(const ControlNetwork&) = delete;
  ControlNetwork& operator=(const ControlNetwork&) = delete;

  // Whether two ranks of different hosts are connected from the start.
  static bool linked(int a, int b, int world, int mesh);

  // From any thread, at any time. A rank may have several.
  void add(int rank, std::unique_ptr<Stream> stream);
  void start();
  // Says goodbye on all connections: all together take no longer than half a second.
  void leave(bool in_error) noexcept;

  // These do not throw and do not wait.
  void give_up(const std::vector<int>& ranks, std::uint64_t group,
               const std::exception& error) noexcept;
  void tell_wait(const std::vector<int>& ranks, const Health::Wait& wait) noexcept;
  void ask_after(int rank) noexcept;

  std::size_t connections() const;

 private:
  struct Connection {
    int rank;
    std::unique_ptr<Stream> stream;
    FrameParser parser;
    std::vector<std::byte> queue = {};  // not taken by the stream yet
    bool over = false;
  };
  struct News;

  void run();
  bool serve(const std::vector<Connection*>& polled, const std::vector<pollfd>& ready);
  void read(Connection& connection);
  void hear(Connection& connection, const Frame& frame);
  void lost(Connection& connection, const std::string& how);
  void send(Connection& connection, const std::vector<std::byte>& bytes);
  static void flush(Connection& connection);
  void send_to(const std::vector<int>& ranks, News& news);
  void flood(News& news, int except = -1);
  std::set<Connection*> cascade(News& news);
  std::set<Connection*> cascade(News& news, std::uint64_t span, std::uint64_t direction);
  bool known_to_end(int rank) const;
  void wake();
  void ask();

  const int rank_, world_;
  const bool sparse_;
  Health& health_;
  Connect connect_;
  Descriptor wake_;  // an eventfd

  mutable std::mutex mutex_;  // the next five
  std::list<Connection> connections_;
  bool stopping_ = false;
  std::uint64_t serial_ = 0;                       // of what this rank said last
  std::set<std::pair<int, std::uint64_t>> heard_;  // who gave up, by rank and serial
  std::set<std::uint64_t> failed_groups_;          // whose failure was flooded
  std::thread thread_;

  std::mutex asked_mutex_;  // the next four
  std::condition_variable asked_changed_;
  std::deque<int> asked_;
  bool asking_over_ = false;
  std::thread asker_;  // started when it is first needed
};

}  // namespace echelon
