// An accepted connection that is not authenticated yet. It goes through the TLS handshake, the
// proof of the token and its first frame in small steps, none of which waits.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/frame.h"
#include "echelon/net/handshake.h"
#include "echelon/net/socket.h"
#include "echelon/net/stream.h"
#include "echelon/net/token.h"

namespace echelon {

class Newcomer {
 public:
  Newcomer(Descriptor socket, bool tls, const Token& token, Deadline deadline);

  // Goes as far as it can; true once the peer is authenticated and its first frame has arrived.
  // Throws Refused, Corrupt or PeerLost if the peer must be turned away.
  bool advance();

  // After advance() has returned true.
  std::unique_ptr<Stream> take_stream() { return std::move(stream_); }
  const Frame& first() const { return *first_; }

  pollfd poll_entry() const;
  const std::string& from() const { return from_; }  // its address
  bool silent() const { return silent_; }            // it has not sent any byte
  Deadline deadline() const { return deadline_; }
  Deadline::Clock::time_point since() const { return since_; }

 private:
  void open_stream();
  bool read(std::size_t size);  // into message_; true once it has `size` bytes
  bool flush();                 // true when nothing is left to send
  void take_message();

  std::string from_;
  Descriptor socket_;  // until the stream owns it
  bool tls_;
  Token token_;
  Deadline deadline_;
  Deadline::Clock::time_point since_ = Deadline::Clock::now();
  bool silent_ = true;
  bool established_ = false;
  std::unique_ptr<Stream> stream_;
  AcceptingProof proof_;
  std::vector<std::byte> message_, reply_;
  std::optional<FrameParser> parser_;
  std::optional<Frame> first_;
};

}  // namespace echelon
