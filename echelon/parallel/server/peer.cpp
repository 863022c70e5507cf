#include "echelon/parallel/server/peer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "echelon/base/error.h"
#include "echelon/net/health.h"

namespace echelon {

void Peer::send(const Frame& frame, Deadline deadline, std::span<const std::byte> raw) {
  write_frame(*stream_, frame, deadline);
  if (!raw.empty()) stream_->write(raw, deadline);
}

bool Peer::asked(Deadline deadline) const {
  return wait_ready(stream_->socket().get(), POLLIN, deadline);
}

Frame Peer::ask(const Frame& frame, Deadline deadline, std::span<const std::byte> raw) {
  send(frame, deadline, raw);
  return check(receive(deadline));
}

Frame Peer::check(Frame reply) const {
  if (reply.kind != failed) return reply;
  FrameReader reader(reply, name());
  const auto kind = reader.number();
  throw_kind(kind, reader.text());
}

void Peer::shut() { ::shutdown(stream_->socket().get(), SHUT_RDWR); }

Frame failure(const std::exception& error) {
  std::string message = error.what();
  message.resize(std::min<std::size_t>(message.size(), 2000));
  return FrameWriter().number(kind_of(error)).text(message).frame(Peer::failed);
}

}  // namespace echelon
