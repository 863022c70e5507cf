#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "echelon/base/block_engine.h"

namespace echelon {
namespace {

constexpr unsigned entries = 64;
// Bytes; the rest is requested afterwards.
constexpr std::size_t most_at_once = std::size_t{1} << 30;

class UringEngine final : public BlockEngine {
 public:
  ~UringEngine() override {
    if (ready_) io_uring_queue_exit(&ring_);
  }
  bool start() { return ready_ = io_uring_queue_init(entries, &ring_, 0) == 0; }

  const char* name() const override { return "io_uring"; }

  void begin(BlockRequest& request) override {
    const auto deadline = Deadline::in(std::chrono::minutes(1));
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    while (entry == nullptr) {  // all are in use: wait for one to complete
      if (!reap(deadline)) return fail(request, ETIMEDOUT);
      entry = io_uring_get_sqe(&ring_);
    }
    auto* const at = static_cast<char*>(request.memory) + request.moved;
    const auto left = static_cast<unsigned>(std::min(request.bytes - request.moved, most_at_once));
    const auto offset = request.offset + request.moved;
    if (request.write)
      io_uring_prep_write(entry, request.descriptor, at, left, offset);
    else
      io_uring_prep_read(entry, request.descriptor, at, left, offset);
    io_uring_sqe_set_data(entry, &request);
    int status = io_uring_submit(&ring_);
    while (status == -EAGAIN || status == -EBUSY || status == -EINTR) {
      if (!reap(deadline)) break;
      status = io_uring_submit(&ring_);
    }
    if (status >= 0) return;
    // The entry stays in the ring and must do nothing if it is submitted later.
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data(entry, nullptr);
    fail(request, -status);
  }

  bool wait(BlockRequest& request, Deadline deadline) override {
    io_uring_cqe* completion = nullptr;
    while (!request.done && io_uring_peek_cqe(&ring_, &completion) == 0) finish(completion);
    while (!request.done)
      if (!reap(deadline)) return false;
    return true;
  }

 private:
  static void fail(BlockRequest& request, int error) {
    request.error = error;
    request.done = true;
  }

  bool reap(Deadline deadline) {
    const auto left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.remaining()).count();
    if (left <= 0) return false;
    __kernel_timespec time{left / 1'000'000'000, left % 1'000'000'000};
    io_uring_cqe* completion = nullptr;
    const int status = io_uring_wait_cqe_timeout(&ring_, &completion, &time);
    if (status == 0) finish(completion);
    return status == 0 || status == -EINTR || status == -EAGAIN;
  }

  void finish(io_uring_cqe* completion) {
    auto* const request = static_cast<BlockRequest*>(io_uring_cqe_get_data(completion));
    const int moved = completion->res;
    io_uring_cqe_seen(&ring_, completion);
    if (request == nullptr) return;  // of an entry that was cancelled
    if (moved == -EAGAIN || moved == -EINTR) return begin(*request);
    if (moved <= 0) return fail(*request, moved == 0 ? ENODATA : -moved);
    request->moved += static_cast<std::size_t>(moved);
    if (request->moved < request->bytes) return begin(*request);
    request->done = true;
  }

  io_uring ring_ = {};
  bool ready_ = false;
};

}  // namespace

bool uring_built() { return true; }

std::unique_ptr<BlockEngine> uring_engine() {
  auto engine = std::make_unique<UringEngine>();
  if (!engine->start()) return nullptr;
  return engine;
}

}  // namespace echelon
