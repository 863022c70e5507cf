// Accepts connections and passes on those that prove the job's token and send a first frame.
//
// One thread authenticates up to `most_unproven` connections at a time, so a stranger that connects
// and sends nothing delays nobody; its connection is dropped at its deadline. When all places are
// taken, a new connection replaces the oldest one, preferably one that has sent nothing. A
// connection keeps its place for at least `Patience::keep`: until then, further ones wait in the
// kernel's queue. Refused connections are logged, at most once in ten seconds.
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
  Descriptor stop_;  // an eventfd: readable when the thread must end
  // Used by the thread alone:
  Newcomers newcomers_;  // in the order they came
  TurnedAway turned_away_;
  std::thread thread_;
};

// Connects to a listener of the same job and authenticates both sides.
std::unique_ptr<Stream> connect_proven(Descriptor socket, std::string name, bool tls,
                                       const Token& token, Deadline deadline);

}  // namespace echelon
