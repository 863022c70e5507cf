// A connected socket as a stream of bytes, plain or under TLS 1.3. TLS needs no certificates: both
// sides know the job's token, and an external pre-shared key derived from it opens the session
// (with an ephemeral key exchange, so that a token that leaks later opens no recorded session).
//
// try_write and try_read never wait. A peer that has closed or reset the connection is PeerLost,
// with `name` in the message; bytes that TLS cannot have sent are Corrupt.
//
// Two rules that TLS needs and that hold for both kinds: bytes that try_write did not take must be
// the next that are offered (parts of them may already be under way); and poll only after a try
// gave less than was asked for (TLS may hold bytes that no poll sees). One thread at a time.
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

  // `name` says who is at the other end, for messages; it can be changed once the peer has said.
  static std::unique_ptr<Stream> plain(Descriptor socket, std::string name);
  // Does the TLS handshake. Throws Refused when the other side does not know the token.
  static std::unique_ptr<Stream> tls(Descriptor socket, std::string name, const Token& token,
                                     Side side, Deadline deadline);
  // The same, but the handshake is still to be done: call try_establish() until it is true.
  static std::unique_ptr<Stream> tls(Descriptor socket, std::string name, const Token& token,
                                     Side side);

  // Goes on with the TLS handshake without waiting; true once bytes can be exchanged (a plain
  // stream: at once). Until then, poll for read_events(). Throws Refused.
  virtual bool try_establish() { return true; }

  // Bytes taken, in order over the parts; 0 when none can be taken now.
  virtual std::size_t try_write(std::span<const iovec> parts) = 0;
  virtual std::size_t try_read(std::span<const iovec> parts) = 0;
  std::size_t try_write(std::span<const std::byte> bytes);
  std::size_t try_read(std::span<std::byte> bytes);

  // All of it, or Timeout.
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
  // Throws for errno's `error`, or for a closed connection when it is 0: PeerLost, or Error for
  // what is not the peer's doing.
  [[noreturn]] void fail(const char* doing, int error) const;
  Descriptor socket_;
  std::string name_;
};

}  // namespace echelon
