// A socket as OpenSSL reads and writes it. Its own socket BIO calls write(2), which raises SIGPIPE
// when the peer is gone, and does not keep errno. For stream_tls.cpp.
#pragma once

#include <string>

struct bio_st;  // OpenSSL's BIO

namespace echelon {

// The socket, what is kept back from it, and how it failed, if it did.
struct SocketState {
  int fd = -1;
  bool closed = false;
  int error = 0;
  bool hold = false;  // while set, what OpenSSL writes is held
  std::string held;   // goes out before anything else
};

// A BIO on the state, which must outlive it; OpenSSL frees it with its session. Throws Error.
bio_st* make_bio(SocketState& state);

}  // namespace echelon
