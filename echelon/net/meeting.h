// Rank 0's side of the rendezvous: receives the hellos of the other ranks until all have come,
// refuses ranks of other jobs, and reports ranks that do not fit together.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/acceptor.h"
#include "echelon/net/assembly.h"
#include "echelon/net/peer_relay.h"
#include "echelon/net/rendezvous.h"

namespace echelon {

// The first message of a rank.
struct Hello {
  std::uint64_t rank = 0, world = 1;
  std::string who;  // "pid 4711 on node7"
  JobIdentity identity;
  std::uint64_t number = 0;  // random: rank 0 recognises its own hello by it
  Address relay = {};        // of its PeerRelay; port 0 if it has none
  std::string peer_info;

  Frame frame() const;
  static Hello read(const Frame& frame, const std::string& peer);
};

// Kinds of frames: the hello, and what rank 0 answers.
enum class MeetingFrame : std::uint8_t {
  hello = 1,
  peer_page,  // peer info of some ranks (peer_pages.h)
  misfit,     // the class of an error, and its message
  yourself,   // rank 0 connected to itself
  late,       // from a guest: its deadline has passed
  connected,  // from a guest: it is connected to all others (assembly.h)
  route,      // where a guest gets the pages from (peer_relay.h)
  fetch,      // from a rank to its parent: it wants the pages
};

// The error that rank 0 sends to the other ranks, and how they throw it.
Frame misfit_frame(std::uint64_t kind, const std::string& problem);
[[noreturn]] void throw_misfit(const Frame& frame, const std::string& name);

class Meeting {
 public:
  // `setup` must outlive it; `mine` is rank 0's own hello.
  Meeting(const Rendezvous& setup, Hello mine, std::vector<Listener> listeners);

  // The peer info of all ranks. Throws what Rendezvous::exchange does; all guests get the same
  // error.
  Gathered gather(Deadline deadline);
  // Ends the meeting because rank 0 has failed: the next gather() throws this error.
  void call_off(const std::exception& error);

 private:
  struct Guest {
    Hello hello;
    std::unique_ptr<Stream> stream;
  };

  void welcome(std::unique_ptr<Stream> stream, const Frame& frame);
  std::string why_not_ours(const Hello& guest) const;
  std::string what_does_not_fit(const Hello& guest) const;
  PeerRoute route_of(int rank) const;
  void send_to_guests(std::span<const std::byte> pages, Deadline deadline);
  void look_after_guests();
  std::string who_is_missing() const;
  void end_with(std::uint64_t kind, std::string problem);
  [[noreturn]] void fail();

  const Rendezvous& setup_;
  Hello mine_;
  std::mutex mutex_;  // the next six
  std::condition_variable arrived_;
  std::map<int, Guest> guests_;
  std::map<int, int> launches_;  // first rank of a launch -> its first guest
  std::vector<std::unique_ptr<Stream>> misfits_;
  std::string problem_;
  std::uint64_t problem_kind_ = 0;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace echelon
