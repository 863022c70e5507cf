// Plays a peer without the token that says arbitrary bytes, to both sides of the handshake, plain
// and under TLS: no such peer is ever welcomed, and every one is turned away by an error of ours.
// The first byte picks the side and the kind.
#include <fcntl.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/net/handshake.h"

namespace {

using namespace echelon;

// All that the peer says is there before this side starts, and then the end: nothing here waits.
Descriptor socket_with(std::span<const std::uint8_t> said, Descriptor& peer) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
  Descriptor socket(fds[0]);
  peer = Descriptor(fds[1]);
  if (!said.empty()) ::send(peer.get(), said.data(), said.size(), MSG_NOSIGNAL);
  // The peer still takes what this side says.
  ::shutdown(peer.get(), SHUT_WR);
  return socket;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto token = Token::random();
  if (size == 0) return 0;
  const auto side = (data[0] & 1) == 0 ? Side::connecting : Side::accepting;
  const bool tls = (data[0] & 2) != 0;
  Descriptor peer;
  auto socket = socket_with(std::span(data, size).subspan(1), peer);
  const auto deadline = Deadline::in(std::chrono::seconds(5));
  try {
    const auto stream = tls ? Stream::tls(std::move(socket), "a peer", token, side, deadline)
                            : Stream::plain(std::move(socket), "a peer");
    authenticate(*stream, token, side, deadline);
  } catch (const Refused&) {
    return 0;
  } catch (const PeerLost&) {
    return 0;
  }
  std::abort();  // it was welcomed; Timeout and every other error end the program too
}
