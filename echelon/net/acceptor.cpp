#include "echelon/net/acceptor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/log.h"
#include "echelon/net/handshake.h"

namespace echelon {
namespace {
constexpr auto proof_time = std::chrono::seconds(5);  // and for the first frame
}

Acceptor::Acceptor(std::vector<Listener> listeners, const Token& token, Welcome welcome)
    : listeners_(std::move(listeners)),
      token_(token),
      welcome_(std::move(welcome)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_) throw Error(with_errno("cannot make an eventfd"));
  thread_ = std::thread([this] { run(); });
}

Acceptor::~Acceptor() {
  const std::uint64_t one = 1;
  if (write(stop_.get(), &one, sizeof one) != sizeof one)
    log::error("an eventfd cannot be written");
  thread_.join();
  std::map<std::uint64_t, std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& [key, socket] : unproven_) shutdown(socket.get(), SHUT_RDWR);
    threads.swap(threads_);
  }
  for (auto& [key, thread] : threads) thread.join();
}

void Acceptor::run() {
  std::vector<pollfd> ready;
  for (const auto& listener : listeners_) ready.push_back({listener.socket.get(), POLLIN, 0});
  ready.push_back({stop_.get(), POLLIN, 0});
  for (std::uint64_t key = 0;;) {
    // While too many are unproven, further ones wait in the kernel's queue.
    const bool full = unproven() >= most_unproven;
    for (std::size_t i = 0; i < listeners_.size(); ++i)
      ready[i].fd = full ? -1 : listeners_[i].socket.get();
    if (poll(ready.data(), ready.size(), full ? 20 : -1) < 0) continue;
    if (ready.back().revents) return;
    reap();
    for (std::size_t i = 0; i < listeners_.size(); ++i) {
      if (!ready[i].revents) continue;
      try {
        auto socket = accept(listeners_[i].socket, Deadline::in(Deadline::Clock::duration::zero()));
        if (!socket) continue;
        Descriptor second(fcntl(socket->get(), F_DUPFD_CLOEXEC, 0));
        if (!second) throw Error(with_errno("cannot keep a connection"));
        const std::lock_guard lock(mutex_);
        ++key;
        unproven_[key] = std::move(second);
        threads_[key] =
            std::thread([this, moved = std::make_shared<Descriptor>(std::move(*socket)),
                         tls = listeners_[i].tls, key] { prove(std::move(*moved), tls, key); });
      } catch (const std::exception& error) {  // out of descriptors or threads: others may go on
        {
          const std::lock_guard lock(mutex_);
          if (!threads_.contains(key)) unproven_.erase(key);
        }
        log::warn(fmt::format("a connection could not be taken: {}", error.what()));
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
  }
}

std::size_t Acceptor::unproven() {
  const std::lock_guard lock(mutex_);
  return unproven_.size();
}

void Acceptor::reap() {
  std::vector<std::thread> ended;
  {
    const std::lock_guard lock(mutex_);
    for (const auto key : std::exchange(finished_, {})) {
      const auto thread = threads_.find(key);
      ended.push_back(std::move(thread->second));
      threads_.erase(thread);
    }
  }
  for (auto& thread : ended) thread.join();
}

void Acceptor::prove(Descriptor socket, bool tls, std::uint64_t key) {
  const std::string from = peer_address(socket).text();
  std::unique_ptr<Stream> stream;
  try {
    const Deadline deadline = Deadline::in(proof_time);
    const std::string name = fmt::format("a connection from {}", from);
    stream = tls ? Stream::tls(std::move(socket), name, token_, Side::accepting, deadline)
                 : Stream::plain(std::move(socket), name);
    authenticate(*stream, token_, Side::accepting, deadline);
    const Frame first = read_frame(*stream, deadline);
    {
      // From here on it is not ours to shut down.
      const std::lock_guard lock(mutex_);
      unproven_.erase(key);
    }
    welcome_(std::move(stream), first);
  } catch (const std::exception& error) {
    stream.reset();
    const std::lock_guard lock(mutex_);
    if (!stopping_)
      log::warn(fmt::format("turned away a connection from {}: {}", from, error.what()));
  }
  const std::lock_guard lock(mutex_);
  unproven_.erase(key);
  if (!stopping_) finished_.push_back(key);
}

std::unique_ptr<Stream> connect_proven(Descriptor socket, std::string name, bool tls,
                                       const Token& token, Deadline deadline) {
  auto stream =
      tls ? Stream::tls(std::move(socket), std::move(name), token, Side::connecting, deadline)
          : Stream::plain(std::move(socket), std::move(name));
  authenticate(*stream, token, Side::connecting, deadline);
  return stream;
}

}  // namespace echelon
