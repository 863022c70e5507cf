// Messages between two ranks: send and receive, matched by sender and tag.
//
// Messages from one rank with one tag arrive in the order in which they were sent. A send is done
// when its buffer may be reused. The order of calls cannot cause a deadlock: all posted messages
// make progress at the same time, driven by the threads that wait, or by a thread of the mailbox if
// none does.
//
// A message without a matching receive stays with its sender. If a later message of the same sender
// is requested first, it is buffered (up to most_unexpected bytes).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/collective/ledger.h"
#include "echelon/net/endpoint.h"
#include "echelon/net/link.h"

namespace echelon {

class Mailbox {
 public:
  static constexpr std::size_t most_unexpected = std::size_t{1} << 30;
  static constexpr int anyone = -1;

  struct Message {
    int peer = anyone;  // member; for a receive from anyone, set when it is done
    std::uint64_t tag = 0;
    std::byte* buffer = nullptr;
    std::size_t bytes = 0;
    Deadline deadline = Deadline::never();
    bool sends = false;
    std::string label = {};                  // the ledger's tag
    std::shared_ptr<const void> owner = {};  // keeps the buffer alive until the message is done

    bool done = false;  // the rest is private to the mailbox
    std::exception_ptr error = {};
    std::size_t moved = 0;
  };
  using Ticket = std::shared_ptr<Message>;

  // A link to a member, or nullptr while the other side has not connected yet.
  using LinkOf = std::function<std::unique_ptr<Link>(int member, Deadline deadline)>;
  Mailbox(Endpoint& endpoint, std::uint64_t group, std::vector<int> members, int index, LinkOf open,
          Ledger& ledger);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // `background`: the thread of the mailbox drives it too; otherwise only waiting callers do.
  Ticket post(Message message, bool background);
  bool done(const Ticket& ticket);  // throws the error of the message
  void set_deadline(const Ticket& ticket, Deadline deadline);
  void wait(const Ticket& ticket, bool spin);

 private:
  struct Header {
    std::uint32_t mark;
    std::uint32_t zero;
    std::uint64_t tag;
    std::uint64_t bytes;
    std::uint64_t number;  // of the message in its direction
  };
  struct Unexpected {
    std::uint64_t tag;
    std::vector<std::byte> bytes;
  };
  struct Peer {
    std::unique_ptr<Link> link;
    bool connecting = false;  // a thread is connecting
    std::deque<Ticket> sends;
    std::size_t sent = 0;  // bytes of the first message, including its header
    std::uint64_t numbers_sent = 0, numbers_received = 0;
    Header outgoing = {}, incoming = {};
    std::size_t received = 0;
    Ticket target;  // the receive of the incoming message
    bool aside = false;
    std::list<Unexpected> unexpected;      // the last one may be incomplete
    std::exception_ptr broken;             // why the link cannot be used any more
    std::optional<Deadline> explained_by;  // after the link ended: until then the cause may come
  };

  void end_of_link(int member);  // call while handling PeerLost, with mutex_ held
  bool progress();               // with mutex_ held; true if there was progress
  // Connects if that is up to this side and no other thread does it. Called without mutex_, since
  // it may take long. Throws if it fails; after a Timeout it can be tried again.
  void reach(int member, Deadline deadline);
  bool linked(int member);
  bool connects_to(int member) const;
  bool unreached(int member) const;  // a message waits for a connection that nobody opens
  bool progress_sends(int member);
  bool progress_receives(int member);
  Ticket match(int member, std::uint64_t tag);
  bool wanted(int member) const;  // a receive is posted that this member could answer
  void finish(const Ticket& ticket);
  void fail(int member, std::exception_ptr error);
  void abandon(const Ticket& ticket, std::exception_ptr error);
  // The ranks that it waits for: all, or those whose leaving would end the wait.
  std::vector<int> missing(const Message& message, bool all) const;
  [[noreturn]] void fail_late(const Message& message) const;
  void settle(const Ticket& ticket);
  void run();
  std::string describe(const Message& message) const;

  Endpoint& endpoint_;
  std::uint64_t group_;
  std::vector<int> members_;
  int index_;
  LinkOf open_;
  Ledger& ledger_;

  std::mutex mutex_;  // all below
  std::vector<Peer> peers_;
  std::list<Ticket> receives_;
  bool stop_ = false;
  std::condition_variable posted_;
  std::thread thread_;
};

}  // namespace echelon
