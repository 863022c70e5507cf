// The control connections of a rank. They report when a rank is lost, gives up or has been waiting
// for long.
//
// All ranks of a host are connected to each other. Across hosts, all ranks are connected to each
// other in a world of up to `mesh` ranks; in a larger one rank r is connected to ranks r ± 2^k
// (modulo the world), at most 2 log2(world) connections. Messages are then forwarded by the ranks:
//
//   direct    for the receiver alone
//   flood     a rank that receives it for the first time forwards it on all its connections: it
//             arrives as long as any path is left, and costs each rank a frame per connection
//   cascade   a rank that serves the next `span` ranks sends to the one 2^k further (the largest
//             power below span), which serves the ranks behind it, and continues with the 2^k ranks
//             before; the same backward. Each rank gets two frames, or one if a rank on the path is
//             stuck
//
// Failures are flooded: a connection that ends without a goodbye, a rank that gives up, a goodbye
// after an error. An error caused by a failure that was flooded already is not flooded again, so
// that the end of n ranks does not cause n floods. Regular goodbyes and waits cascade.
//
// A rank that waits long for another calls ask_after(): either they are connected directly then, or
// nobody listens at its address any more and it is lost. So the wait ends even if all ranks on the
// path have left.
//
// Nothing here waits for another rank: bytes that a connection does not take at once are queued,
// and the thread of the network sends them.
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
  // Opens a control connection to a rank; nullptr if nobody listens at its address any more.
  using Connect = std::function<std::unique_ptr<Stream>(int rank)>;

  // `health` must outlive it.
  ControlNetwork(int rank, int world, int mesh, Health& health, Connect connect);
  ~ControlNetwork();  // sends no goodbye; leave() does
  ControlNetwork(const ControlNetwork&) = delete;
  ControlNetwork& operator=(const ControlNetwork&) = delete;

  // Whether two ranks of different hosts are connected from the start.
  static bool linked(int a, int b, int world, int mesh);

  // Adds a connection; a rank may have several. Thread-safe.
  void add(int rank, std::unique_ptr<Stream> stream);
  void start();
  // Sends a goodbye on all connections, within half a second in total.
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
    std::vector<std::byte> queue = {};  // not yet written to the stream
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
  std::uint64_t serial_ = 0;                       // of the last message of this rank
  std::set<std::pair<int, std::uint64_t>> heard_;  // give-ups, by origin and serial
  std::set<std::uint64_t> failed_groups_;          // whose failure was flooded
  std::thread thread_;

  std::mutex asked_mutex_;  // the next four
  std::condition_variable asked_changed_;
  std::deque<int> asked_;
  bool asking_over_ = false;
  std::thread asker_;  // started when it is first needed
};

}  // namespace echelon
