#include "echelon/net/socket_bio.h"

#include <openssl/bio.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>

#include "echelon/base/error.h"

namespace echelon {

namespace {

SocketState& state_of(BIO* bio) { return *static_cast<SocketState*>(BIO_get_data(bio)); }

// Returns bytes sent, or -1 with the BIO's retry flag or the state's error set.
int send_some(BIO* bio, const char* bytes, std::size_t size) {
  while (true) {
    const auto sent = ::send(state_of(bio).fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<int>(sent);
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {
      BIO_set_retry_write(bio);
    } else {
      state_of(bio).error = errno;
    }
    return -1;
  }
}

int socket_write(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  auto& state = state_of(bio);
  if (state.hold) {
    state.held.append(bytes, static_cast<std::size_t>(size));
    return size;
  }
  while (!state.held.empty()) {
    const int sent = send_some(bio, state.held.data(), state.held.size());
    if (sent < 0) return -1;
    state.held.erase(0, static_cast<std::size_t>(sent));
  }
  return send_some(bio, bytes, static_cast<std::size_t>(size));
}

int socket_read(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  while (true) {
    const auto got = ::recv(state_of(bio).fd, bytes, static_cast<std::size_t>(size), MSG_DONTWAIT);
    if (got > 0) return static_cast<int>(got);
    if (got == 0) {
      state_of(bio).closed = true;
      return 0;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {
      BIO_set_retry_read(bio);
    } else {
      state_of(bio).error = errno;
    }
    return -1;
  }
}

long socket_control(BIO* bio, int command, long, void*) {
  if (command == BIO_CTRL_FLUSH) return 1;  // held bytes wait for the next write
  if (command == BIO_CTRL_EOF) return state_of(bio).closed ? 1 : 0;
  return 0;
}

}  // namespace

bio_st* make_bio(SocketState& state) {
  // Lives as long as the process.
  static BIO_METHOD* const method = [] {
    auto* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "echelon socket");
    if (made == nullptr) throw Error("cannot set up TLS: OpenSSL has no memory left");
    BIO_meth_set_write(made, socket_write);
    BIO_meth_set_read(made, socket_read);
    BIO_meth_set_ctrl(made, socket_control);
    return made;
  }();
  auto* const bio = BIO_new(method);
  if (bio == nullptr) throw Error("cannot set up TLS: OpenSSL has no memory left");
  BIO_set_data(bio, &state);
  BIO_set_init(bio, 1);
  return bio;
}

}  // namespace echelon
