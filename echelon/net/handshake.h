// Both sides of a new connection prove that they know the job's token, before any other byte of it
// is read and without sending the token:
//
//   connecting -> accepting   magic "ECHP", version (4), 32 random bytes a  (40 bytes)
//   accepting  -> connecting  magic, version, 32 random bytes b,
//                             HMAC(token, "accepting" | a | b | binding)  (72 bytes)
//   connecting -> accepting   HMAC(token, "connecting" | a | b | binding)  (32 bytes)
//   accepting  -> connecting  one byte: 1, welcome
//
// A side that refuses sends zeros in place of its HMAC or of the last byte, so that both sides can
// tell their users why.
//
// The role in the message prevents reflecting a proof to its sender. `binding` identifies the TLS
// session (empty without TLS), so a proof cannot be relayed into another session. All messages have
// a fixed length: nothing that an unauthenticated peer sends decides how much memory is allocated.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/base/error.h"
#include "echelon/net/stream.h"
#include "echelon/net/token.h"

namespace echelon {

// Throws Refused (another token, or none, or another version; names the peer), Timeout, PeerLost.
void authenticate(Stream& stream, const Token& token, Side side, Deadline deadline);

// The accepting side, fed with the peer's messages. It does no input or output itself, so one
// thread can authenticate many connections at a time.
class AcceptingProof {
 public:
  explicit AcceptingProof(const Token& token) : token_(token) {}

  // The size of the peer's next message; 0 once the peer is proven.
  std::size_t wants() const;

  // The answer to send. After a refusal nothing more is read from the peer.
  struct Reply {
    std::vector<std::byte> bytes;
    std::optional<Refused> refusal;
  };
  // `message` has wants() bytes. `stream` gives the TLS session's binding and the peer's name.
  Reply take(std::span<const std::byte> message, const Stream& stream);

 private:
  Reply take_hello(std::span<const std::byte> message, const Stream& stream);

  enum class Stage { hello, proof, proven };
  Token token_;
  Stage stage_ = Stage::hello;
  Token::Mac expected_ = {};  // the proof that the peer must give
};

}  // namespace echelon
