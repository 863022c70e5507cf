// A connected socket as a stream of bytes, plain or under TLS 1.3. TLS needs no certificates: both
// sides know the job's token, and an external pre-shared key derived from it opens the session
// (with an ephemeral key exchange, so that a token that leaks later opens no recorded session).
//
// try_write and try_read never wait. They throw PeerLost, with `name` in the message, if the peer
// has closed or reset the connection, and Corrupt for bytes that break the rules of TLS.
//
// TLS needs two rules, which hold for both kinds: bytes that try_write did not take must be offered
// next (some of them may already be in flight); and poll only after a try transferred less than
// requested (TLS may hold bytes that poll does not see). Not thread-safe.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "echelon/base/deadline.h"
#include "echelon/net/socket.h"
#include "echelon/net/token.h"

namespace echelon {

enum class Side { connecting, accepting };

class Stream {
 public:
  virtual ~Stream() = default;

  // `name` describes the peer in messages; rename() changes it once the peer is known.
  static std::unique_ptr<Stream> plain(Descriptor socket, std::string name);
  // Does the TLS handshake. Throws Refused when the other side does not know the token.
  static std::unique_ptr<Stream> tls(Descriptor socket, std::string name, const Token& token,
                                     Side side, Deadline deadline);
  // Does not wait for the handshake: call try_establish() until it returns true.
  static std::unique_ptr<Stream> tls(Descriptor socket, std::string name, const Token& token,
                                     Side side);

  // Continues the TLS handshake without waiting; true once bytes can be exchanged (always for a
  // plain stream). Until then, poll for read_events(). Throws Refused.
  virtual bool try_establish() { return true; }

  // Returns the bytes transferred, in order over the parts; 0 if none can be transferred now.
  virtual std::size_t try_write(std::span<const iovec> parts) = 0;
  virtual std::size_t try_read(std::span<const iovec> parts) = 0;
  std::size_t try_write(std::span<const std::byte> bytes);
  std::size_t try_read(std::span<std::byte> bytes);

  // Transfer all bytes, or throw Timeout.
  void write(std::span<const std::byte> bytes, Deadline deadline);
  void read(std::span<std::byte> bytes, Deadline deadline);

  // What to poll before trying again.
  const Descriptor& socket() const { return socket_; }
  virtual short read_events() const;   // POLLIN, but TLS may have to write first
  virtual short write_events() const;  // POLLOUT, likewise

  // Bytes that bind an authentication to this one session (RFC 9266's exporter); empty when plain.
  virtual std::string channel_binding() const { return {}; }

  const std::string& name() const { return name_; }
  void rename(std::string name) { name_ = std::move(name); }

 protected:
  Stream(Descriptor socket, std::string name);
  // Throws for `error` (an errno), or for a closed connection if it is 0: PeerLost, or Error if the
  // peer did not cause it.
  [[noreturn]] void fail(const char* doing, int error) const;
  Descriptor socket_;
  std::string name_;
};

}  // namespace echelon
