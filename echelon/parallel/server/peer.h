// A connection between a worker and a server, or between two servers. It carries requests and
// replies: each is a frame, followed by raw bytes if the frame says so. One request at a time.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "echelon/base/deadline.h"
#include "echelon/net/frame.h"
#include "echelon/net/stream.h"

namespace echelon {

class Peer {
 public:
  // Requests (hello comes first), then replies.
  enum Kind : std::uint8_t {
    hello = 64,  // who the caller is
    begin,       // parameters, optimiser state and first step, from the first worker
    next,        // what shall I compute next?
    done,        // all owners have my gradient
    pull,        // the parameters of my task's version
    newest,      // which version is the newest? All servers keep it for me
    push,        // a gradient
    order,       // which step is the n-th update?
    norm,        // my part of a gradient's norm; what is the total?
    state,       // parameters and optimiser state
    saved,       // the state after this many updates is on disk
    stop,        // begin no new step; with a reason: also abandon the steps that were begun
    bye,         // I am done, or (with a reason) I failed; no reply
    pin,         // which version's masters do all servers keep for me to read in parts?
    masters,     // a part of the pinned masters
    memory,      // how much memory does your process use?
    ok = 96,
    wait,      // ask again
    finished,  // nothing left to do
    failed,    // what went wrong
  };

  explicit Peer(std::unique_ptr<Stream> stream) : stream_(std::move(stream)) {}

  void send(const Frame& frame, Deadline deadline, std::span<const std::byte> raw = {});
  void send_raw(std::span<const std::byte> bytes, Deadline deadline) {
    stream_->write(bytes, deadline);
  }
  Frame receive(Deadline deadline) { return read_frame(*stream_, deadline); }
  void receive_raw(std::span<std::byte> bytes, Deadline deadline) {
    stream_->read(bytes, deadline);
  }
  // Whether a request begins to arrive before the deadline. Throws PeerLost if the connection is
  // gone.
  bool asked(Deadline deadline) const;

  // Sends a request and returns its reply. Throws if the reply is a failure.
  Frame ask(const Frame& frame, Deadline deadline, std::span<const std::byte> raw = {});

  // Returns the reply, or throws if it is a failure.
  Frame check(Frame reply) const;

  const std::string& name() const { return stream_->name(); }
  void rename(std::string name) { stream_->rename(std::move(name)); }
  void shut();  // wakes threads that wait on this connection

 private:
  std::unique_ptr<Stream> stream_;
};

Frame failure(const std::exception& error);

inline std::uint64_t bits_of(double value) { return std::bit_cast<std::uint64_t>(value); }
inline double double_of(std::uint64_t bits) { return std::bit_cast<double>(bits); }

}  // namespace echelon
