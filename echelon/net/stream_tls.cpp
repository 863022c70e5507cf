// TLS 1.3 with an external pre-shared key, on OpenSSL.
//
// Neither side has a certificate. Both derive HMAC(token, "echelon tls psk") and offer or look it
// up under one fixed identity. The client's binder and both Finished messages prove that they hold
// the key, and psk_dhe_ke adds an ephemeral key exchange (OpenSSL's default: it offers psk_ke only
// on request). A server that presents a certificate instead is refused: no certificate is trusted.
//
// OpenSSL reads and writes through our own BIO (socket_bio.h).
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/net/socket_bio.h"
#include "echelon/net/stream.h"

namespace echelon {

namespace {

constexpr std::string_view identity = "echelon";
constexpr std::string_view key_label = "echelon tls psk";
constexpr std::string_view binding_label = "EXPORTER-Channel-Binding";  // RFC 9266
constexpr std::size_t binding_bytes = 32;
constexpr unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};

constexpr std::size_t record_bytes = 1 << 14;  // the largest record in TLS
constexpr std::size_t read_ahead_bytes = 1 << 16;
// RFC 8446, 5.5: AES-GCM is safe for 2^24.5 records under one key.
constexpr std::uint64_t records_per_key = 1 << 22;

template <auto free>
struct Free {
  template <class T>
  void operator()(T* object) const {
    free(object);
  }
};
using Context = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, Free<SSL_free>>;

// Why OpenSSL's last call failed, in OpenSSL's words. Empties its error queue.
std::string library_reason() {
  const auto code = ERR_peek_error();
  const char* const reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return reason != nullptr ? reason : "no reason given";
}

[[noreturn]] void unusable(const char* what) {
  throw Error(fmt::format("cannot {} with OpenSSL: {}", what, library_reason()));
}

// ---- The pre-shared key -------------------------------------------------------------------------

// The key as a session for OpenSSL to resume. The key exists only during the handshake.
SSL_SESSION* key_session(SSL* ssl) {
  const auto* const key = static_cast<const Token::Mac*>(SSL_get_app_data(ssl));
  const auto* const cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
  if (key == nullptr || cipher == nullptr) return nullptr;
  auto* const session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  if (SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key->data()),
                                  key->size()) != 1 ||
      SSL_SESSION_set_cipher(session, cipher) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int offer_key(SSL* ssl, const EVP_MD* digest, const unsigned char** id, std::size_t* id_size,
              SSL_SESSION** session) {
  *session = nullptr;
  // After a HelloRetryRequest the digest is fixed, and a key for another digest must not be
  // offered.
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 1;
  *session = key_session(ssl);
  if (*session == nullptr) return 0;
  *id = reinterpret_cast<const unsigned char*>(identity.data());
  *id_size = identity.size();
  return 1;
}

int find_key(SSL* ssl, const unsigned char* id, std::size_t id_size, SSL_SESSION** session) {
  *session = nullptr;
  const bool known =
      id_size == identity.size() && std::memcmp(id, identity.data(), identity.size()) == 0;
  if (!known) return 1;  // continues without a key, and so fails: there is no certificate
  *session = key_session(ssl);
  return *session != nullptr ? 1 : 0;
}

Context make_context() {
  Context context(SSL_CTX_new(TLS_method()));
  if (!context || SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context.get(), TLS1_3_VERSION) != 1 ||
      // The cipher suites whose hash is the key's: SHA-256.
      SSL_CTX_set_ciphersuites(context.get(),
                               "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(context.get(), 0) != 1) {
    unusable("set up TLS 1.3");
  }
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_clear_options(context.get(), SSL_OP_ALLOW_NO_DHE_KEX);
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_default_read_buffer_len(context.get(), read_ahead_bytes);
  SSL_CTX_set_psk_use_session_callback(context.get(), offer_key);
  SSL_CTX_set_psk_find_session_callback(context.get(), find_key);
  return context;
}

// ---- The stream ---------------------------------------------------------------------------------

// Walks over the bytes of several parts.
class Cursor {
 public:
  explicit Cursor(std::span<const iovec> parts) : parts_(parts) {}

  // The rest of the current part; empty at the end.
  std::span<std::byte> rest() {
    while (!parts_.empty() && offset_ == parts_.front().iov_len) {
      parts_ = parts_.subspan(1);
      offset_ = 0;
    }
    if (parts_.empty()) return {};
    return std::span(static_cast<std::byte*>(parts_.front().iov_base), parts_.front().iov_len)
        .subspan(offset_);
  }

  // Advances by at most the size of rest().
  void advance(std::size_t size) { offset_ += size; }

 private:
  std::span<const iovec> parts_;
  std::size_t offset_ = 0;
};

class TlsStream final : public Stream {
 public:
  TlsStream(Descriptor socket, std::string name, const Token& token, Side side)
      : Stream(std::move(socket), std::move(name)),
        key_(token.mac(std::as_bytes(std::span(key_label)))) {
    state_.fd = socket_.get();
    // Lives as long as the process.
    static SSL_CTX* const context = make_context().release();
    session_.reset(SSL_new(context));
    if (!session_) unusable("start a TLS session");
    auto* const bio = make_bio(state_);
    SSL_set_bio(session_.get(), bio, bio);
    SSL_set_app_data(session_.get(), &key_);
    if (side == Side::connecting) {
      SSL_set_verify(session_.get(), SSL_VERIFY_PEER, nullptr);
      SSL_set_connect_state(session_.get());
    } else {
      SSL_set_accept_state(session_.get());
    }
  }
  ~TlsStream() override { forget_key(); }

  bool try_establish() override {
    ERR_clear_error();
    const int result = SSL_do_handshake(session_.get());
    if (result != 1) {
      read_events_ = wanted_events(result);
      if (read_events_ != 0) return false;
      refuse();
    }
    read_events_ = POLLIN;
    forget_key();
    // This always holds, but security depends on it.
    if (SSL_session_reused(session_.get()) != 1 || SSL_version(session_.get()) != TLS1_3_VERSION) {
      throw Refused(fmt::format("{} opened a TLS session without the job's token", name_));
    }
    return true;
  }

  using Stream::try_read;
  using Stream::try_write;

  // Gathers each record into our own buffer. A record that the socket does not accept stays there,
  // already encrypted inside OpenSSL, and counts as written once OpenSSL has sent it.
  std::size_t try_write(std::span<const iovec> parts) override {
    Cursor cursor(parts);
    std::size_t taken = 0;
    while (true) {
      if (staged_ == 0) {
        staged_ = copy(cursor, {record_.data(), record_.size()});
        if (staged_ == 0) return taken;
        renew_key();
      } else if (skip(cursor, staged_) != staged_) {
        throw InvalidArgument(
            fmt::format("writing to {}: fewer bytes are offered than were under way", name_));
      }
      ERR_clear_error();
      std::size_t sent = 0;
      const int result = SSL_write_ex(session_.get(), record_.data(), staged_, &sent);
      if (result != 1) {
        write_events_ = wanted_events(result);
        if (write_events_ == 0) {
          note_end();
          write_events_ = POLLOUT;
          throw_end("writing to");
        }
        return taken;
      }
      taken += std::exchange(staged_, 0);
      ++records_;
    }
  }

  std::size_t try_read(std::span<const iovec> parts) override {
    Cursor cursor(parts);
    std::size_t taken = 0;
    for (auto rest = cursor.rest(); !rest.empty(); rest = cursor.rest()) {
      ERR_clear_error();
      std::size_t got = 0;
      const int result = SSL_read_ex(session_.get(), rest.data(), rest.size(), &got);
      if (result != 1) {
        read_events_ = wanted_events(result);
        if (read_events_ != 0) break;
        note_end();
        read_events_ = POLLIN;
        if (taken == 0) throw_end("reading from");
        break;  // returns earlier bytes first; the next call fails again
      }
      cursor.advance(got);
      taken += got;
    }
    return taken;
  }

  short read_events() const override { return read_events_; }
  short write_events() const override { return write_events_; }

  std::string channel_binding() const override {
    std::string binding(binding_bytes, '\0');
    if (SSL_export_keying_material(session_.get(), reinterpret_cast<unsigned char*>(binding.data()),
                                   binding.size(), binding_label.data(), binding_label.size(),
                                   nullptr, 0, 1) != 1) {
      unusable("export a TLS session's binding");
    }
    return binding;
  }

 private:
  void forget_key() {
    SSL_set_app_data(session_.get(), nullptr);
    OPENSSL_cleanse(key_.data(), key_.size());
  }

  static std::size_t copy(Cursor& cursor, std::span<std::byte> out) {
    std::size_t size = 0;
    for (auto rest = cursor.rest(); !rest.empty() && size < out.size(); rest = cursor.rest()) {
      const auto part = rest.first(std::min(rest.size(), out.size() - size));
      std::ranges::copy(part, out.begin() + static_cast<std::ptrdiff_t>(size));
      size += part.size();
      cursor.advance(part.size());
    }
    return size;
  }

  static std::size_t skip(Cursor& cursor, std::size_t most) {
    std::size_t size = 0;
    for (auto rest = cursor.rest(); !rest.empty() && size < most; rest = cursor.rest()) {
      const auto part = std::min(rest.size(), most - size);
      cursor.advance(part);
      size += part;
    }
    return size;
  }

  // OpenSSL does not read while it has a key update to write, so two sides that renew at the same
  // time with full sockets would wait for each other. The update is therefore held and sent with
  // the record that is staged behind it.
  void renew_key() {
    if (records_ < records_per_key) return;
    ERR_clear_error();
    state_.hold = true;
    const bool renewed = SSL_key_update(session_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1 &&
                         SSL_do_handshake(session_.get()) == 1;
    state_.hold = false;
    if (!renewed) unusable("renew a TLS session's key");
    records_ = 0;
  }

  // What to poll for before the call is repeated; 0 if it has failed.
  short wanted_events(int result) const {
    switch (SSL_get_error(session_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return POLLIN;
      case SSL_ERROR_WANT_WRITE:
        return POLLOUT;
      default:
        return 0;
    }
  }

  // Whether OpenSSL found that the bytes violate the protocol, rather than that the connection
  // ended.
  bool found_fault() const { return ERR_peek_error() != 0 && !state_.closed; }

  // Records why the session is over at the first call that fails: OpenSSL does not report it again.
  void note_end() {
    if (broken_.empty() && found_fault()) broken_ = library_reason();
  }

  [[noreturn]] void throw_end(const char* doing) const {
    if (broken_.empty()) fail(doing, state_.closed ? 0 : state_.error);
    throw Corrupt(
        fmt::format("{} {}: TLS finds the bytes broken ({}): something between changes them", doing,
                    name_, broken_));
  }

  [[noreturn]] void refuse() const {
    // A connection that just ended says nothing about the token; an alert or a protocol violation
    // does.
    if (!found_fault()) fail("the TLS handshake with", state_.closed ? 0 : state_.error);
    throw Refused(fmt::format(
        "the TLS handshake with {} failed ({}): give all ranks the same ECHELON_TOKEN or "
        "ECHELON_TOKEN_FILE, and use TLS on all of them",
        name_, library_reason()));
  }

  Token::Mac key_;  // zero once the session is established
  SocketState state_;
  Session session_;
  std::array<std::byte, record_bytes> record_;
  std::size_t staged_ = 0;     // bytes of record_ that OpenSSL has not yet written
  std::uint64_t records_ = 0;  // written under the current key
  std::string broken_;         // OpenSSL's reason, if it found the bytes broken
  short read_events_ = POLLIN;
  short write_events_ = POLLOUT;
};

}  // namespace

std::unique_ptr<Stream> Stream::tls(Descriptor socket, std::string name, const Token& token,
                                    Side side) {
  return std::make_unique<TlsStream>(std::move(socket), std::move(name), token, side);
}

std::unique_ptr<Stream> Stream::tls(Descriptor socket, std::string name, const Token& token,
                                    Side side, Deadline deadline) {
  auto stream = tls(std::move(socket), std::move(name), token, side);
  while (!stream->try_establish()) {
    if (deadline.expired() ||
        !wait_ready(stream->socket().get(), stream->read_events(), deadline)) {
      throw Timeout(fmt::format(
          "the TLS handshake with {} took longer than the time given: that process is stuck, the "
          "network to it is, or it does not use TLS",
          stream->name()));
    }
  }
  return stream;
}

}  // namespace echelon
