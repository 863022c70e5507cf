#include "echelon/net/link.h"

#include <algorithm>
#include <cstring>

#include "echelon/base/error.h"

namespace echelon {
namespace {

constexpr std::size_t most_parts = 4;

// Writes the first `limit` bytes of the parts to `clipped`. Returns the number of parts.
std::size_t clip(std::span<const iovec> parts, std::size_t limit, iovec (&clipped)[most_parts]) {
  std::size_t count = 0;
  for (const auto& part : parts) {
    if (limit == 0 || count == most_parts) break;
    const std::size_t bytes = std::min(part.iov_len, limit);
    if (bytes == 0) continue;
    clipped[count++] = {part.iov_base, bytes};
    limit -= bytes;
  }
  return count;
}

std::size_t total(std::span<const iovec> parts) {
  std::size_t bytes = 0;
  for (const auto& part : parts) bytes += part.iov_len;
  return bytes;
}

iovec advanced(const iovec& part, std::size_t bytes) {
  return {static_cast<std::byte*>(part.iov_base) + bytes, part.iov_len - bytes};
}

// Calls move(parts, connection's room) for one block after another, until a call moves less than
// asked.
template <class Move>
std::size_t over_blocks(std::span<const iovec> parts, std::uint64_t& position, Move move) {
  iovec left[most_parts];
  std::size_t count = clip(parts, SIZE_MAX, left), moved = 0;
  std::size_t first = 0;
  while (first < count) {
    const std::size_t room = TcpLink::block - position % TcpLink::block;
    iovec now[most_parts];
    const std::size_t parts_now = clip({left + first, count - first}, room, now);
    const std::size_t wanted = total({now, parts_now});
    const std::size_t taken = move(position, std::span<const iovec>(now, parts_now));
    position += taken;
    moved += taken;
    for (std::size_t rest = taken; rest > 0;) {
      const std::size_t step = std::min(rest, left[first].iov_len);
      left[first] = advanced(left[first], step);
      rest -= step;
      if (left[first].iov_len == 0) ++first;
    }
    if (taken < wanted) break;
  }
  return moved;
}

}  // namespace

const char* name(LinkKind kind) { return kind == LinkKind::shared ? "shared" : "tcp"; }

std::size_t TcpLink::try_send(std::span<const iovec> parts) {
  return over_blocks(parts, sent_, [this](std::uint64_t position, std::span<const iovec> now) {
    return at(position).try_write(now);
  });
}

std::size_t TcpLink::try_receive(std::span<const iovec> parts) {
  return over_blocks(parts, received_, [this](std::uint64_t position, std::span<const iovec> now) {
    return at(position).try_read(now);
  });
}

pollfd TcpLink::send_poll() const {
  const Stream& stream = at(sent_);
  return {stream.socket().get(), stream.write_events(), 0};
}

pollfd TcpLink::receive_poll() const {
  const Stream& stream = at(received_);
  return {stream.socket().get(), stream.read_events(), 0};
}

std::size_t SharedRing::try_write(std::span<const iovec> parts) {
  const std::uint64_t written = memory_->written.load(std::memory_order_relaxed);
  const std::uint64_t used = written - memory_->read.load(std::memory_order_acquire);
  std::size_t room = used > capacity ? 0 : capacity - used, done = 0;
  for (const auto& part : parts) {
    const std::size_t bytes = std::min(part.iov_len, room);
    const std::size_t at = (written + done) % capacity, first = std::min(bytes, capacity - at);
    const auto* from = static_cast<const std::byte*>(part.iov_base);
    if (bytes == 0) continue;
    std::memcpy(memory_->bytes + at, from, first);
    std::memcpy(memory_->bytes, from + first, bytes - first);
    done += bytes;
    room -= bytes;
  }
  if (done) memory_->written.store(written + done, std::memory_order_release);
  return done;
}

std::size_t SharedRing::try_read(std::span<const iovec> parts, const std::string& peer) {
  const std::uint64_t read = memory_->read.load(std::memory_order_relaxed);
  std::size_t filled = memory_->written.load(std::memory_order_acquire) - read, done = 0;
  if (filled > capacity) throw Corrupt("the shared ring from " + peer + " is not in order");
  for (const auto& part : parts) {
    const std::size_t bytes = std::min(part.iov_len, filled);
    const std::size_t at = (read + done) % capacity, first = std::min(bytes, capacity - at);
    auto* to = static_cast<std::byte*>(part.iov_base);
    if (bytes == 0) continue;
    std::memcpy(to, memory_->bytes + at, first);
    std::memcpy(to + first, memory_->bytes, bytes - first);
    done += bytes;
    filled -= bytes;
  }
  if (done) memory_->read.store(read + done, std::memory_order_release);
  return done;
}

}  // namespace echelon
