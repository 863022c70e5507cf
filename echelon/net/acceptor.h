// Takes connections, and lets through those that prove the job's token and say what they are for.
//
// Each new connection is proven in a thread of its own, so that a stranger who connects and says
// nothing delays nobody; it is dropped at its deadline, with a warning. At most `most_unproven` are
// looked at at a time: further ones are left in the kernel's queue until there is room.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "echelon/net/frame.h"
#include "echelon/net/socket.h"
#include "echelon/net/stream.h"
#include "echelon/net/token.h"

namespace echelon {

struct Listener {
  Descriptor socket;
  bool tls = false;
};

class Acceptor {
 public:
  static constexpr std::size_t most_unproven = 128;

  // `welcome` is called with each proven connection and the first frame that came over it, from
  // several threads. It must not wait.
  using Welcome = std::function<void(std::unique_ptr<Stream>, const Frame& first)>;
  Acceptor(std::vector<Listener> listeners, const Token& token, Welcome welcome);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  void run();
  void prove(Descriptor socket, bool tls, std::uint64_t key);
  void reap();
  std::size_t unproven();

  std::vector<Listener> listeners_;
  Token token_;
  Welcome welcome_;
  Descriptor stop_;   // an eventfd: readable when the thread shall end
  std::mutex mutex_;  // the rest
  // Connections that threads are at work on, by descriptors of their own: the threads may close
  // theirs at any time.
  std::map<std::uint64_t, Descriptor> unproven_;
  std::map<std::uint64_t, std::thread> threads_;
  std::vector<std::uint64_t> finished_;
  bool stopping_ = false;
  std::thread thread_;
};

// A connection to a listener of the same job, proven.
std::unique_ptr<Stream> connect_proven(Descriptor socket, std::string name, bool tls,
                                       const Token& token, Deadline deadline);

}  // namespace echelon
