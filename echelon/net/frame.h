// Messages of the control connections: a kind, and fields whose lengths are checked before memory
// is taken. On the wire, little-endian:
//
//   0   4  magic "ECH1"
//   4   1  kind
//   5   3  zero
//   8   4  length of the payload, at most max_payload
//   12  …  payload: fields one after another; a number is 8 bytes, a text its length (4 bytes)
//          and its bytes
//
// A frame that breaks a rule throws Corrupt, which names the peer and the offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/net/stream.h"

namespace echelon {

struct Frame {
  static constexpr std::size_t header_size = 12;
  static constexpr std::size_t max_payload = 1 << 20;

  std::uint8_t kind = 0;
  std::vector<std::byte> payload;
};

// Builds a payload.
class FrameWriter {
 public:
  FrameWriter& number(std::uint64_t value);
  FrameWriter& text(std::string_view value);
  Frame frame(std::uint8_t kind);

 private:
  std::vector<std::byte> payload_;
};

// Reads the fields of a payload in the same order. `peer` is for messages. The frame must outlive
// it.
class FrameReader {
 public:
  FrameReader(const Frame& frame, std::string peer) : frame_(frame), peer_(std::move(peer)) {}
  FrameReader(Frame&&, std::string) = delete;  // it keeps a reference to the frame
  std::uint64_t number();
  std::uint64_t number_at_most(std::uint64_t limit);
  std::string text(std::size_t longest = 4096);
  void end();  // throws when bytes are left over

 private:
  std::span<const std::byte> take(std::size_t size, const char* what);

  const Frame& frame_;
  std::string peer_;
  std::size_t offset_ = 0;
};

std::vector<std::byte> encode(const Frame& frame);

// Turns a stream of bytes into frames.
class FrameParser {
 public:
  explicit FrameParser(std::string peer) : peer_(std::move(peer)) {}
  void feed(std::span<const std::byte> bytes);
  std::optional<Frame> next();
  // How many bytes the next frame still needs, as far as its header is known; never more than that,
  // so that no byte after the frame is read.
  std::size_t missing() const;

 private:
  std::string peer_;
  std::vector<std::byte> pending_;
  std::size_t given_ = 0;  // bytes at the start of pending_ that next() has returned
};

void write_frame(Stream& stream, const Frame& frame, Deadline deadline);
Frame read_frame(Stream& stream, Deadline deadline);

}  // namespace echelon
