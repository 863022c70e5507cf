// Rank 0's side of the rendezvous: takes the hellos of the other ranks until all have come, refuses
// those of other jobs, and says what is wrong where ranks do not fit together.
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

// What a rank says when it comes.
struct Hello {
  std::uint64_t rank = 0, world = 1;
  std::string who;  // "pid 4711 on node7"
  JobIdentity identity;
  std::uint64_t number = 0;  // random: rank 0 knows its own hello by it
  Address relay = {};        // where it passes peer info on (peer_relay.h); port 0: nowhere
  std::string peer_info;

  Frame frame() const;
  static Hello read(const Frame& frame, const std::string& peer);
};

// Kinds of frames: the hello, and what rank 0 answers.
enum class MeetingFrame : std::uint8_t {
  hello = 1,
  peer_page,  // peer info of some ranks (peer_pages.h)
  misfit,     // the class of an error, and its sentence
  yourself,   // rank 0 came to its own rendezvous
  late,       // from a guest: its time is over
  connected,  // from a guest: it is connected to all others (assembly.h)
  route,      // where a guest gets the pages from (peer_relay.h)
  fetch,      // from a rank to its parent: it wants the pages
};

// What rank 0 tells ranks that cannot go on, and the error that they make of it.
Frame misfit_frame(std::uint64_t kind, const std::string& problem);
[[noreturn]] void throw_misfit(const Frame& frame, const std::string& name);

class Meeting {
 public:
  // `setup` must outlive it; `mine` is rank 0's own hello.
  Meeting(const Rendezvous& setup, Hello mine, std::vector<Listener> listeners);

  // All ranks' peer info. Throws what Rendezvous::exchange does; the guests are told the same.
  Gathered gather(Deadline deadline);
  // Ends the meeting, since rank 0 cannot go on: the next gather() throws this.
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
  std::map<int, int> launches_;  // the first guest of each, by the launch's first rank
  std::vector<std::unique_ptr<Stream>> misfits_;
  std::string problem_;
  std::uint64_t problem_kind_ = 0;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace echelon
