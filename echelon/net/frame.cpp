#include "echelon/net/frame.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "echelon/base/error.h"

namespace echelon {

namespace {

constexpr std::string_view magic = "ECH1";
constexpr std::size_t kind_offset = 4;
constexpr std::size_t length_offset = 8;
constexpr std::size_t number_bytes = 8;
constexpr std::size_t text_length_bytes = 4;

void put(std::vector<std::byte>& bytes, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) bytes.push_back(std::byte(value >> (8 * i)));
}

std::uint64_t get(std::span<const std::byte> bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    value |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  }
  return value;
}

[[noreturn]] void corrupt(const std::string& peer, std::size_t offset, const std::string& what) {
  throw Corrupt(fmt::format("a frame from {} is broken at offset {}: {}", peer, offset, what));
}

struct Header {
  std::uint8_t kind;
  std::size_t length;
};

Header checked_header(std::span<const std::byte> bytes, const std::string& peer) {
  if (std::memcmp(bytes.data(), magic.data(), magic.size()) != 0) {
    corrupt(peer, 0, "it does not start with ECH1");
  }
  for (std::size_t i = kind_offset + 1; i < length_offset; ++i) {
    if (bytes[i] != std::byte{0}) corrupt(peer, i, "this byte must be zero");
  }
  const auto length = get(bytes.subspan(length_offset, 4));
  if (length > Frame::max_payload) {
    corrupt(
        peer, length_offset,
        fmt::format("a payload of {} bytes; at most {} are allowed", length, Frame::max_payload));
  }
  return {std::to_integer<std::uint8_t>(bytes[kind_offset]), static_cast<std::size_t>(length)};
}

void check_size(std::size_t payload) {
  if (payload > Frame::max_payload) {
    throw InvalidArgument(
        fmt::format("a frame's payload of {} bytes is too long: at most {} are allowed", payload,
                    Frame::max_payload));
  }
}

}  // namespace

FrameWriter& FrameWriter::number(std::uint64_t value) {
  put(payload_, value, number_bytes);
  return *this;
}

FrameWriter& FrameWriter::text(std::string_view value) {
  check_size(value.size());  // so that the length fits its four bytes
  put(payload_, value.size(), text_length_bytes);
  const auto bytes = std::as_bytes(std::span(value));
  payload_.insert(payload_.end(), bytes.begin(), bytes.end());
  return *this;
}

Frame FrameWriter::frame(std::uint8_t kind) {
  check_size(payload_.size());
  return {.kind = kind, .payload = std::exchange(payload_, {})};
}

std::span<const std::byte> FrameReader::take(std::size_t size, const char* what) {
  const auto left = frame_.payload.size() - offset_;
  if (size > left) {
    corrupt(peer_, Frame::header_size + offset_,
            fmt::format("{} of {} bytes is due and {} are left", what, size, left));
  }
  const auto bytes = std::span(frame_.payload).subspan(offset_, size);
  offset_ += size;
  return bytes;
}

std::uint64_t FrameReader::number() { return get(take(number_bytes, "a number")); }

std::uint64_t FrameReader::number_at_most(std::uint64_t limit) {
  const auto start = offset_;
  const auto value = number();
  if (value > limit) {
    corrupt(peer_, Frame::header_size + start,
            fmt::format("the number {} where at most {} is allowed", value, limit));
  }
  return value;
}

std::string FrameReader::text(std::size_t longest) {
  const auto start = offset_;
  const auto size = static_cast<std::size_t>(get(take(text_length_bytes, "the length of a text")));
  if (size > longest) {
    corrupt(peer_, Frame::header_size + start,
            fmt::format("a text of {} bytes where at most {} are allowed", size, longest));
  }
  const auto bytes = take(size, "a text");
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void FrameReader::end() {
  if (offset_ != frame_.payload.size()) {
    corrupt(peer_, Frame::header_size + offset_,
            fmt::format("{} bytes are left over after the last field",
                        frame_.payload.size() - offset_));
  }
}

std::vector<std::byte> encode(const Frame& frame) {
  check_size(frame.payload.size());
  std::vector<std::byte> bytes;
  bytes.reserve(Frame::header_size + frame.payload.size());
  for (const char letter : magic) bytes.push_back(std::byte(letter));
  put(bytes, frame.kind, 4);  // and three zero bytes
  put(bytes, frame.payload.size(), 4);
  bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
  return bytes;
}

void FrameParser::feed(std::span<const std::byte> bytes) {
  // Drops what next() has returned, once for all frames that arrived together.
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(given_));
  given_ = 0;
  pending_.insert(pending_.end(), bytes.begin(), bytes.end());
}

std::optional<Frame> FrameParser::next() {
  const auto bytes = std::span(pending_).subspan(given_);
  if (bytes.size() < Frame::header_size) return std::nullopt;
  const auto header = checked_header(bytes, peer_);
  if (bytes.size() - Frame::header_size < header.length) return std::nullopt;
  const auto payload = bytes.subspan(Frame::header_size, header.length);
  given_ += Frame::header_size + header.length;
  return Frame{.kind = header.kind, .payload = {payload.begin(), payload.end()}};
}

std::size_t FrameParser::missing() const {
  const auto bytes = std::span(pending_).subspan(given_);
  if (bytes.size() < Frame::header_size) return Frame::header_size - bytes.size();
  return Frame::header_size + checked_header(bytes, peer_).length - bytes.size();
}

void write_frame(Stream& stream, const Frame& frame, Deadline deadline) {
  stream.write(encode(frame), deadline);
}

Frame read_frame(Stream& stream, Deadline deadline) {
  std::array<std::byte, Frame::header_size> start;
  stream.read(start, deadline);
  const auto header = checked_header(start, stream.name());
  Frame frame = {.kind = header.kind, .payload = std::vector<std::byte>(header.length)};
  stream.read(frame.payload, deadline);
  return frame;
}

}  // namespace echelon
