// A reliable, ordered stream of bytes to another rank and one from it, on which the message-based
// algorithms run. TCP across hosts, a ring buffer in shared memory within a host.
//
// Neither call waits: each transfers what is possible now, and 0 means "try again later". Throws
// PeerLost if the peer is gone.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "echelon/net/stream.h"

namespace echelon {

enum class LinkKind : std::uint8_t { shared, tcp };
const char* name(LinkKind kind);

class Link {
 public:
  virtual ~Link() = default;
  virtual LinkKind kind() const = 0;
  virtual std::size_t try_send(std::span<const iovec> parts) = 0;
  virtual std::size_t try_receive(std::span<const iovec> parts) = 0;

  // What to poll for before the next try; a link without a descriptor must be tried again.
  virtual pollfd send_poll() const { return {-1, 0, 0}; }
  virtual pollfd receive_poll() const { return {-1, 0, 0}; }
};

// Over several connections: byte x of a direction goes over connection (x / block) mod count. Both
// ends count bytes, so no headers are needed; large messages use all connections, small ones stay
// on one.
class TcpLink final : public Link {
 public:
  static constexpr std::size_t block = 256 << 10;
  explicit TcpLink(std::vector<std::unique_ptr<Stream>> streams) : streams_(std::move(streams)) {}

  LinkKind kind() const override { return LinkKind::tcp; }
  std::size_t try_send(std::span<const iovec> parts) override;
  std::size_t try_receive(std::span<const iovec> parts) override;
  pollfd send_poll() const override;
  pollfd receive_poll() const override;

 private:
  Stream& at(std::uint64_t position) const { return *streams_[position / block % streams_.size()]; }
  std::vector<std::unique_ptr<Stream>> streams_;
  std::uint64_t sent_ = 0, received_ = 0;
};

// A ring of bytes in the sender's heap, with one writer and one reader. Positions only grow.
class SharedRing {
 public:
  static constexpr std::size_t capacity = 256 << 10;
  struct alignas(64) Memory {
    std::atomic<std::uint64_t> written;
    alignas(64) std::atomic<std::uint64_t> read;
    alignas(64) std::byte bytes[capacity];
  };

  explicit SharedRing(Memory* memory) : memory_(memory) {}
  std::size_t try_write(std::span<const iovec> parts);
  // Throws Corrupt when the positions contradict each other.
  std::size_t try_read(std::span<const iovec> parts, const std::string& peer);

 private:
  Memory* memory_;
};

class SharedLink final : public Link {
 public:
  SharedLink(SharedRing outgoing, SharedRing incoming, std::string peer)
      : outgoing_(outgoing), incoming_(incoming), peer_(std::move(peer)) {}
  LinkKind kind() const override { return LinkKind::shared; }
  std::size_t try_send(std::span<const iovec> parts) override { return outgoing_.try_write(parts); }
  std::size_t try_receive(std::span<const iovec> parts) override {
    return incoming_.try_read(parts, peer_);
  }

 private:
  SharedRing outgoing_, incoming_;
  std::string peer_;
};

}  // namespace echelon
