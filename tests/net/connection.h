// Connected sockets and streams with both ends in this process, and what each end's call came to.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <chrono>
#include <future>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "echelon/base/deadline.h"
#include "echelon/base/error.h"
#include "echelon/net/socket.h"
#include "echelon/net/stream.h"
#include "echelon/net/token.h"

namespace echelon {

// Long enough for a loaded machine: reached only when a test fails.
inline Deadline in_time() { return Deadline::in(std::chrono::seconds(30)); }
// For waits that are meant to end without a result.
inline Deadline too_soon() { return Deadline::in(std::chrono::milliseconds(30)); }

using Sockets = std::pair<Descriptor, Descriptor>;

inline Sockets local_sockets() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) {
    throw Error(with_errno("socketpair"));
  }
  return {Descriptor(fds[0]), Descriptor(fds[1])};
}

// The connecting end first.
inline Sockets tcp_sockets() {
  const auto listener = listen_tcp("127.0.0.1", 0);
  auto connecting = connect_tcp(local_address(listener), in_time());
  return {std::move(connecting), accept(listener, in_time()).value()};
}

inline Token a_token() { return Token::parse("the token of this test"); }
inline Token another_token() { return Token::parse("quite another token"); }

using Streams = std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>;

// The connecting side first.
inline Streams plain_streams(Sockets sockets) {
  return {Stream::plain(std::move(sockets.first), "the accepting side"),
          Stream::plain(std::move(sockets.second), "the connecting side")};
}

inline Streams tls_streams(Sockets sockets) {
  auto accepting = std::async(std::launch::async, [&] {
    return Stream::tls(std::move(sockets.second), "the connecting side", a_token(), Side::accepting,
                       in_time());
  });
  auto connecting = Stream::tls(std::move(sockets.first), "the accepting side", a_token(),
                                Side::connecting, in_time());
  return {std::move(connecting), accepting.get()};
}

// The kind of error that a call ended with, or "done".
struct Outcome {
  std::string kind;
  std::string message;

  bool operator==(std::string_view other) const { return kind == other; }
  friend std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
    return out << outcome.kind << ": " << outcome.message;
  }
};

template <class Call>
Outcome outcome(Call&& call) {
  try {
    call();
    return {"done", ""};
  } catch (const Refused& error) {
    return {"Refused", error.what()};
  } catch (const Timeout& error) {
    return {"Timeout", error.what()};
  } catch (const PeerLost& error) {
    return {"PeerLost", error.what()};
  } catch (const Corrupt& error) {
    return {"Corrupt", error.what()};
  } catch (const InvalidArgument& error) {
    return {"InvalidArgument", error.what()};
  } catch (const std::exception& error) {
    return {"another error", error.what()};
  }
}

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace echelon
