// The error family. Every error says what happened, where and what to do about it, in a sentence.
//
//   InvalidArgument  the caller's or user's mistake: what was given, what is allowed
//   Corrupt          bytes from outside break their format's rules: names file or peer, and offset
//   Timeout          a wait reached its deadline: names the operation and who is missing
//   PeerLost         another rank is gone: names rank and host
//   Refused          a peer did not prove who it is
//   Error            all of them, and what fits none (a full disk, a loss that became NaN)
#pragma once

#include <stdexcept>
#include <string>

namespace echelon {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class InvalidArgument : public Error {
 public:
  using Error::Error;
};

class Corrupt : public Error {
 public:
  using Error::Error;
};

class Timeout : public Error {
 public:
  using Error::Error;
};

class PeerLost : public Error {
 public:
  using Error::Error;
};

class Refused : public Error {
 public:
  using Error::Error;
};

// `what` and the system's reason for the current errno:
// "cannot write runs/a/config.toml: No space left on device".
[[nodiscard]] std::string with_errno(const std::string& what);

}  // namespace echelon
