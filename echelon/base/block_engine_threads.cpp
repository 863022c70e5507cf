#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "echelon/base/block_engine.h"

namespace echelon {
namespace {

constexpr int workers = 4;

class ThreadEngine final : public BlockEngine {
 public:
  ThreadEngine() {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  }
  ~ThreadEngine() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    come_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  const char* name() const override { return "threads"; }

  void begin(BlockRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(&request);
    }
    come_.notify_one();
  }

  bool wait(BlockRequest& request, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    const auto left =
        std::min<Deadline::Clock::duration>(deadline.remaining(), std::chrono::hours(1));
    return done_.wait_for(lock, left, [&] { return request.done; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      come_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      BlockRequest& request = *queue_.front();
      queue_.pop_front();
      lock.unlock();
      const int error = move(request);
      lock.lock();
      request.error = error;
      request.done = true;
      done_.notify_all();
    }
  }

  static int move(BlockRequest& request) {
    while (request.moved < request.bytes) {
      char* const at = static_cast<char*>(request.memory) + request.moved;
      const std::size_t left = request.bytes - request.moved;
      const auto offset = static_cast<off_t>(request.offset + request.moved);
      const ssize_t moved = request.write ? ::pwrite(request.descriptor, at, left, offset)
                                          : ::pread(request.descriptor, at, left, offset);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) return moved == 0 ? ENODATA : errno;
      request.moved += static_cast<std::size_t>(moved);
    }
    return 0;
  }

  std::mutex mutex_;  // guards all below, and `done` and `error` of requests
  std::condition_variable come_, done_;
  std::deque<BlockRequest*> queue_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<BlockEngine> thread_engine() { return std::make_unique<ThreadEngine>(); }

}  // namespace echelon
