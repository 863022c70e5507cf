#include "echelon/net/newcomer.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {

Newcomer::Newcomer(Descriptor socket, bool tls, const Token& token, Deadline deadline)
    : from_(peer_address(socket).text()),
      socket_(std::move(socket)),
      tls_(tls),
      token_(token),
      deadline_(deadline),
      proof_(token) {}

// A TLS session takes memory, so it is created only once the peer has sent something.
void Newcomer::open_stream() {
  silent_ = false;
  const std::string name = fmt::format("a connection from {}", from_);
  stream_ = tls_ ? Stream::tls(std::move(socket_), name, token_, Side::accepting)
                 : Stream::plain(std::move(socket_), name);
  parser_.emplace(name);
}

pollfd Newcomer::poll_entry() const {
  if (!stream_) return {socket_.get(), POLLIN, 0};
  const short events = reply_.empty() ? stream_->read_events() : stream_->write_events();
  return {stream_->socket().get(), events, 0};
}

bool Newcomer::read(std::size_t size) {
  const std::size_t had = message_.size();
  message_.resize(size);
  const std::size_t got = had < size ? stream_->try_read(std::span(message_).subspan(had)) : 0;
  message_.resize(had + got);
  return message_.size() == size;
}

bool Newcomer::flush() {
  const std::size_t sent = reply_.empty() ? 0 : stream_->try_write(reply_);
  reply_.erase(reply_.begin(), reply_.begin() + static_cast<std::ptrdiff_t>(sent));
  return reply_.empty();
}

void Newcomer::take_message() {
  auto reply = proof_.take(message_, *stream_);
  message_.clear();
  reply_ = std::move(reply.bytes);
  if (!reply.refusal) return;
  try {
    flush();  // fits into the socket's buffer; does not wait for a peer that reads nothing
  } catch (const Error&) {
  }
  throw *reply.refusal;
}

bool Newcomer::advance() {
  if (!stream_) open_stream();
  if (!established_ && !(established_ = stream_->try_establish())) return false;
  while (flush()) {
    if (proof_.wants() > 0) {
      if (!read(proof_.wants())) return false;
      take_message();
      continue;
    }
    if (!read(parser_->missing())) return false;
    parser_->feed(message_);
    message_.clear();
    first_ = parser_->next();
    if (first_) return true;
  }
  return false;
}

}  // namespace echelon
