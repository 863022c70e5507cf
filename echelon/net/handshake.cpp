#include "echelon/net/handshake.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "echelon/base/error.h"

namespace echelon {

namespace {

constexpr std::string_view magic = "ECHP";
constexpr std::uint32_t version = 4;  // of these messages and everything that follows them
constexpr std::byte welcome{1};
constexpr std::byte not_welcome{0};

using Nonce = std::array<std::byte, 32>;
using Proof = Token::Mac;

// The fixed-length messages are built and parsed at these offsets.
constexpr std::size_t version_offset = 4;
constexpr std::size_t nonce_offset = 8;
constexpr std::size_t proof_offset = 40;
using Hello = std::array<std::byte, 40>;   // magic, version, nonce
using Answer = std::array<std::byte, 72>;  // magic, version, nonce, proof

constexpr Proof no_proof = {};  // "you are refused"; no HMAC is all zeros

void put_hello(std::span<std::byte> message, const Nonce& nonce) {
  std::memcpy(message.data(), magic.data(), magic.size());
  for (std::size_t i = 0; i < 4; ++i) message[version_offset + i] = std::byte(version >> (8 * i));
  std::ranges::copy(nonce, message.begin() + nonce_offset);
}

bool has_magic(std::span<const std::byte> message) {
  return std::memcmp(message.data(), magic.data(), magic.size()) == 0;
}

std::uint32_t version_of(std::span<const std::byte> message) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    found |= std::to_integer<std::uint32_t>(message[version_offset + i]) << (8 * i);
  }
  return found;
}

template <class Part>
Part part_of(std::span<const std::byte> message, std::size_t offset) {
  Part part;
  std::ranges::copy(message.subspan(offset, part.size()), part.begin());
  return part;
}

Nonce random_nonce() {
  Nonce nonce;
  fill_random(nonce);
  return nonce;
}

Refused stranger(const Stream& stream) {
  return Refused(fmt::format(
      "{} does not speak Echelon's protocol, or one side uses TLS and the other does not: its "
      "connection is refused",
      stream.name()));
}

Refused other_version(const Stream& stream, std::uint32_t found) {
  return Refused(fmt::format(
      "{} speaks version {} of the protocol and this side version {}: run the same Echelon on both",
      stream.name(), found, version));
}

Refused other_token(const Stream& stream) {
  return Refused(
      fmt::format("{} did not prove that it knows this job's token: give all ranks the same "
                  "ECHELON_TOKEN or ECHELON_TOKEN_FILE",
                  stream.name()));
}

// Tells the other side that it is refused, if it still listens. A failure here must not hide the
// reason.
void tell(Stream& stream, std::span<const std::byte> message, Deadline deadline) {
  try {
    stream.write(message, deadline);
  } catch (const Error&) {
  }
}

// Covers everything that both sides must agree on, and the role of the side that proves.
Proof proof_of(const Token& token, std::string_view role, const Nonce& a, const Nonce& b,
               const std::string& binding) {
  std::vector<std::byte> message;
  const auto append = [&](std::span<const std::byte> bytes) {
    message.insert(message.end(), bytes.begin(), bytes.end());
  };
  append(std::as_bytes(std::span(role)));
  append(a);
  append(b);
  append(std::as_bytes(std::span(binding)));
  return token.mac(message);
}

void authenticate_connecting(Stream& stream, const Token& token, Deadline deadline) {
  const auto a = random_nonce();
  Hello hello;
  put_hello(hello, a);
  stream.write(hello, deadline);

  Answer answer;
  stream.read(answer, deadline);
  if (!has_magic(answer)) throw stranger(stream);
  if (version_of(answer) != version) throw other_version(stream, version_of(answer));
  const auto b = part_of<Nonce>(answer, nonce_offset);
  const auto binding = stream.channel_binding();
  if (!equal(part_of<Proof>(answer, proof_offset), proof_of(token, "accepting", a, b, binding))) {
    tell(stream, no_proof, deadline);
    throw other_token(stream);
  }
  stream.write(proof_of(token, "connecting", a, b, binding), deadline);

  std::array<std::byte, 1> verdict;
  stream.read(verdict, deadline);
  if (verdict[0] != welcome) throw other_token(stream);
}

void authenticate_accepting(Stream& stream, const Token& token, Deadline deadline) {
  AcceptingProof proof(token);
  std::vector<std::byte> message;
  while (proof.wants() > 0) {
    message.resize(proof.wants());
    stream.read(message, deadline);
    const auto reply = proof.take(message, stream);
    if (reply.refusal) {
      tell(stream, reply.bytes, deadline);
      throw *reply.refusal;
    }
    stream.write(reply.bytes, deadline);
  }
}

}  // namespace

std::size_t AcceptingProof::wants() const {
  switch (stage_) {
    case Stage::hello:
      return sizeof(Hello);
    case Stage::proof:
      return sizeof(Proof);
    default:
      return 0;
  }
}

AcceptingProof::Reply AcceptingProof::take(std::span<const std::byte> message,
                                           const Stream& stream) {
  if (stage_ == Stage::hello) return take_hello(message, stream);
  if (!equal(part_of<Proof>(message, 0), expected_)) return {{not_welcome}, other_token(stream)};
  stage_ = Stage::proven;
  return {{welcome}, {}};
}

AcceptingProof::Reply AcceptingProof::take_hello(std::span<const std::byte> message,
                                                 const Stream& stream) {
  if (!has_magic(message)) return {{}, stranger(stream)};
  const auto a = part_of<Nonce>(message, nonce_offset);
  const auto b = random_nonce();
  Reply reply{std::vector<std::byte>(sizeof(Answer)), {}};
  put_hello(reply.bytes, b);
  if (version_of(message) != version) {  // it learns the version, but gets no proof
    reply.refusal = other_version(stream, version_of(message));
    return reply;
  }
  const auto binding = stream.channel_binding();
  std::ranges::copy(proof_of(token_, "accepting", a, b, binding),
                    reply.bytes.begin() + proof_offset);
  expected_ = proof_of(token_, "connecting", a, b, binding);
  stage_ = Stage::proof;
  return reply;
}

void authenticate(Stream& stream, const Token& token, Side side, Deadline deadline) {
  try {
    if (side == Side::connecting) {
      authenticate_connecting(stream, token, deadline);
    } else {
      authenticate_accepting(stream, token, deadline);
    }
  } catch (const Timeout& error) {
    throw Timeout(fmt::format("while both sides prove the job's token: {}", error.what()));
  } catch (const PeerLost& error) {
    throw PeerLost(fmt::format("while both sides prove the job's token: {}", error.what()));
  } catch (const Corrupt& error) {
    throw Refused(fmt::format("while both sides prove the job's token: {}", error.what()));
  }
}

}  // namespace echelon
