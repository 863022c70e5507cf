// Takes connections, and lets through those that prove the job's token and say what they are for.
//
// One thread proves up to `most_unproven` connections at a time, so that a stranger who connects
// and says nothing delays nobody; such a connection is dropped at its deadline. When all places are
// taken, a new connection gets the place of the oldest one, of those that have said nothing if
// there are any. A connection keeps its place for at least `Patience::keep`: until then, further
// ones wait in the kernel's queue. Refused connections are warned of, at most once in ten seconds.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/frame.h"
#include "echelon/net/newcomer.h"
#include "echelon/net/socket.h"
#include "echelon/net/stream.h"
#include "echelon/net/token.h"
#include "echelon/net/turned_away.h"

namespace echelon {

struct Listener {
  Descriptor socket;
  bool tls = false;
};

class Acceptor {
 public:
  static constexpr std::size_t most_unproven = 1024;  // less where few files may be open

  struct Patience {
    Deadline::Clock::duration proof = std::chrono::seconds(5);  // and for the first frame
    Deadline::Clock::duration keep = std::chrono::seconds(1);   // before a newer one may take over
  };

  // `welcome` is called with each proven connection and the first frame that came over it, from
  // the acceptor's thread. It must not wait.
  using Welcome = std::function<void(std::unique_ptr<Stream>, const Frame& first)>;
  Acceptor(std::vector<Listener> listeners, const Token& token, Welcome welcome)
      : Acceptor(std::move(listeners), token, std::move(welcome), Patience()) {}
  Acceptor(std::vector<Listener> listeners, const Token& token, Welcome welcome, Patience patience);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  using Newcomers = std::list<Newcomer>;

  void run();
  Deadline::Clock::duration longest_poll() const;
  bool has_room() const;
  Newcomers::iterator least_promising();
  void advance(Newcomers::iterator newcomer);
  void drop_expired();
  void accept_from(const Listener& listener);

  std::vector<Listener> listeners_;
  Token token_;
  Welcome welcome_;
  Patience patience_;
  std::size_t places_;
  Descriptor stop_;  // an eventfd: readable when the thread shall end
  // The thread's own:
  Newcomers newcomers_;  // in the order they came
  TurnedAway turned_away_;
  std::thread thread_;
};

// A connection to a listener of the same job, proven.
std::unique_ptr<Stream> connect_proven(Descriptor socket, std::string name, bool tls,
                                       const Token& token, Deadline deadline);

}  // namespace echelon
