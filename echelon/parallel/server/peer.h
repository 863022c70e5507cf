// A connection between a worker and a server, or two servers: requests and their replies, each a
// frame and, where it says so, raw bytes after it. One request at a time.
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
  // Requests (first a hello), then replies.
  enum Kind : std::uint8_t {
    hello = 64,  // who it is
    begin,       // parameters, optimiser state and where to start: from the first worker
    next,        // what shall I compute?
    done,        // all owners have my gradient
    pull,        // parameters of the version that my task is to be computed on
    newest,      // which version is the newest, which all servers keep for me
    push,        // a gradient
    order,       // which step is applied as the n-th update?
    norm,        // my part of a gradient's norm; what is the whole?
    state,       // parameters and optimiser state
    saved,       // the state after so many updates is on disk
    stop,        // begin no further step; with a reason: nor finish those that were begun
    bye,         // I am through, or (with a reason) I failed; no reply
    pin,         // which version's masters do all servers keep for me, to be read in parts?
    masters,     // a part of them
    memory,      // what did your process take of memory?
    ok = 96,
    wait,      // ask again
    finished,  // there is no more to do
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
  // Whether a request has begun to arrive within this time; PeerLost where none will.
  bool asked(Deadline deadline) const;

  // A request whose reply may be anything but a failure, which is thrown.
  Frame ask(const Frame& frame, Deadline deadline, std::span<const std::byte> raw = {});

  // The reply, unless it is a failure, which is thrown.
  Frame check(Frame reply) const;

  const std::string& name() const { return stream_->name(); }
  void rename(std::string name) { stream_->rename(std::move(name)); }
  void shut();  // wakes whoever waits for it

 private:
  std::unique_ptr<Stream> stream_;
};

Frame failure(const std::exception& error);

inline std::uint64_t bits_of(double value) { return std::bit_cast<std::uint64_t>(value); }
inline double double_of(std::uint64_t bits) { return std::bit_cast<double>(bits); }

}  // namespace echelon
