// Both sides of a new connection prove that they know the job's token, before any other byte of it
// is read and without sending the token:
//
//   connecting -> accepting   magic "ECHP", version (4), 32 random bytes a  (40 bytes)
//   accepting  -> connecting  magic, version, 32 random bytes b, HMAC(token, "accepting"  | a | b |
//   binding) connecting -> accepting   HMAC(token, "connecting" | a | b | binding)  (32 bytes)
//   accepting  -> connecting  one byte: 1, welcome
//
// A side that refuses says so, that both may tell their users why: zeros in the place of its HMAC,
// or of the last byte.
//
// The roles in the message keep a proof from being sent back to its maker; `binding` is the TLS
// session's (empty without TLS), so a proof cannot be relayed into another session. All messages
// are of fixed length: nothing that an unproven peer sends decides how much memory is taken.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "echelon/base/deadline.h"
#include "echelon/net/stream.h"
#include "echelon/net/token.h"

namespace echelon {

// Throws Refused (another token, or none, or another version; names the peer), Timeout, PeerLost.
void authenticate(Stream& stream, const Token& token, Side side, Deadline deadline);

}  // namespace echelon
