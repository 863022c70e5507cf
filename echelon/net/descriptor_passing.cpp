// Passes open files between processes over a Unix socket: SCM_RIGHTS (unix(7)).
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/net/socket.h"

namespace echelon {

namespace {

std::string other_end(const Descriptor& socket) {
  const int process = peer_process(socket);
  return process > 0 ? fmt::format("process {}", process) : "the process at the other end";
}

[[noreturn]] void hand_over_failed(const Descriptor& socket, const std::string& doing, int error) {
  errno = error;
  auto what = with_errno(fmt::format("cannot {} {}", doing, other_end(socket)));
  if (error == EPIPE || error == ECONNRESET) throw PeerLost(what);
  throw Error(what);
}

// All open files that came with a message. Each gets an owner before anything is checked.
std::vector<Descriptor> take_files(msghdr& message) {
  std::vector<Descriptor> files;
  for (auto* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const auto count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof fd);
      files.emplace_back(fd);
    }
  }
  return files;
}

}  // namespace

void send_descriptor(const Descriptor& socket, int fd, Deadline deadline) {
  std::byte payload = {};
  iovec part = {.iov_base = &payload, .iov_len = 1};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  auto* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);

  while (::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) hand_over_failed(socket, "hand an open file to", errno);
    if (!wait_ready(socket.get(), POLLOUT, deadline)) {
      throw Timeout(
          fmt::format("{} did not take an open file in the time given: it is stuck or busy",
                      other_end(socket)));
    }
  }
}

Descriptor receive_descriptor(const Descriptor& socket, Deadline deadline) {
  std::byte payload = {};
  iovec part = {.iov_base = &payload, .iov_len = 1};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))];
  msghdr message = {};
  ssize_t got = -1;
  while (true) {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    got = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got >= 0) break;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) hand_over_failed(socket, "take an open file from", errno);
    if (!wait_ready(socket.get(), POLLIN, deadline)) {
      throw Timeout(fmt::format(
          "{} handed over no open file in the time given: it is stuck or busy", other_end(socket)));
    }
  }
  auto files = take_files(message);
  if (got == 0) {
    throw PeerLost(fmt::format("{} closed the connection instead of handing over an open file",
                               other_end(socket)));
  }
  if (files.size() != 1 || (message.msg_flags & MSG_CTRUNC) != 0) {
    throw Corrupt(
        fmt::format("{} sent a message with {} open files where one was due (or this "
                    "process has no room for another: see 'ulimit -n')",
                    other_end(socket), files.size()));
  }
  return std::move(files.front());
}

}  // namespace echelon
