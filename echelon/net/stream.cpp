#include "echelon/net/stream.h"

#include <limits.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "echelon/base/error.h"

namespace echelon {

namespace {

class PlainStream final : public Stream {
 public:
  PlainStream(Descriptor socket, std::string name) : Stream(std::move(socket), std::move(name)) {}

  using Stream::try_read;
  using Stream::try_write;

  std::size_t try_write(std::span<const iovec> parts) override {
    auto message = message_of(parts);
    while (true) {
      const auto sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) return static_cast<std::size_t>(sent);
      if (errno == EAGAIN) return 0;
      if (errno != EINTR) fail("writing to", errno);
    }
  }

  std::size_t try_read(std::span<const iovec> parts) override {
    // Reading nothing returns 0, as the end of the stream does.
    if (std::ranges::all_of(parts, [](const iovec& part) { return part.iov_len == 0; })) return 0;
    auto message = message_of(parts);
    while (true) {
      const auto got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
      if (got > 0) return static_cast<std::size_t>(got);
      if (got == 0) fail("reading from", 0);
      if (errno == EAGAIN) return 0;
      if (errno != EINTR) fail("reading from", errno);
    }
  }

 private:
  static msghdr message_of(std::span<const iovec> parts) {
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(parts.data());  // the calls do not modify it
    message.msg_iovlen = std::min<std::size_t>(parts.size(), IOV_MAX);
    return message;
  }
};

[[noreturn]] void out_of_time(const char* doing, const std::string& name, std::size_t done,
                              std::size_t all) {
  throw Timeout(
      fmt::format("{} {} took longer than the time given, with {} of {} bytes done: that "
                  "process is stuck, or the network to it",
                  doing, name, done, all));
}

}  // namespace

Stream::Stream(Descriptor socket, std::string name)
    : socket_(std::move(socket)), name_(std::move(name)) {}

std::unique_ptr<Stream> Stream::plain(Descriptor socket, std::string name) {
  return std::make_unique<PlainStream>(std::move(socket), std::move(name));
}

short Stream::read_events() const { return POLLIN; }
short Stream::write_events() const { return POLLOUT; }

std::size_t Stream::try_write(std::span<const std::byte> bytes) {
  const iovec part = {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
  return try_write(std::span(&part, 1));
}

std::size_t Stream::try_read(std::span<std::byte> bytes) {
  const iovec part = {.iov_base = bytes.data(), .iov_len = bytes.size()};
  return try_read(std::span(&part, 1));
}

void Stream::write(std::span<const std::byte> bytes, Deadline deadline) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    done += try_write(bytes.subspan(done));
    if (done == bytes.size()) return;
    if (deadline.expired() || !wait_ready(socket_.get(), write_events(), deadline)) {
      out_of_time("writing to", name_, done, bytes.size());
    }
  }
}

void Stream::read(std::span<std::byte> bytes, Deadline deadline) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    done += try_read(bytes.subspan(done));
    if (done == bytes.size()) return;
    if (deadline.expired() || !wait_ready(socket_.get(), read_events(), deadline)) {
      out_of_time("reading from", name_, done, bytes.size());
    }
  }
}

void Stream::fail(const char* doing, int error) const {
  if (error == 0) {
    throw PeerLost(
        fmt::format("{} {}: it closed the connection; its own output says why", doing, name_));
  }
  errno = error;
  auto what = with_errno(fmt::format("{} {}", doing, name_));
  constexpr int lost[] = {EPIPE,        ECONNRESET,  ECONNABORTED, ETIMEDOUT,    ENOTCONN,
                          EHOSTUNREACH, ENETUNREACH, ENETDOWN,     ECONNREFUSED, EHOSTDOWN};
  if (std::ranges::find(lost, error) != std::end(lost)) throw PeerLost(what);
  throw Error(what);
}

}  // namespace echelon
