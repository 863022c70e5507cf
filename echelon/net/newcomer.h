// An accepted connection that has not proven itself yet. It goes through the TLS handshake, the
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

  // Goes as far as it can; true once the peer is proven and its first frame is here. Throws what
  // turns the peer away: Refused, Corrupt, PeerLost.
  bool advance();

  // Once advance() gave true.
  std::unique_ptr<Stream> take_stream() { return std::move(stream_); }
  const Frame& first() const { return *first_; }

  pollfd poll_entry() const;
  const std::string& from() const { return from_; }  // its address
  bool silent() const { return silent_; }            // it has not sent a byte
  Deadline deadline() const { return deadline_; }
  Deadline::Clock::time_point since() const { return since_; }

 private:
  void open_stream();
  bool read(std::size_t size);  // into message_; true when it has so many bytes
  bool flush();                 // true when nothing is left to send
  void take_message();

  std::string from_;
  Descriptor socket_;  // until the stream has it
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
