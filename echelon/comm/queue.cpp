#include "echelon/comm/queue.h"

#include <utility>

namespace echelon {

class Queue::Job final : public Operand {
 public:
  Job(Queue& queue, Body body) : queue_(queue), body_(std::move(body)) {}

  bool done() override {
    const std::lock_guard lock(queue_.mutex_);
    if (error_) std::rethrow_exception(error_);
    return done_;
  }

  void wait() override {
    std::unique_lock lock(queue_.mutex_);
    while (!done_) {
      if (!queue_.busy_)
        queue_.run_next(lock, false);
      else
        queue_.changed_.wait(lock);
    }
    if (error_) std::rethrow_exception(error_);
  }

 private:
  friend class Queue;
  Queue& queue_;
  Body body_;
  bool done_ = false;
  std::exception_ptr error_;
};

Queue::~Queue() {
  {
    std::unique_lock lock(mutex_);
    while (busy_ || !jobs_.empty()) {
      if (!busy_)
        run_next(lock, false);
      else
        changed_.wait(lock);
    }
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Takes the first job and runs it without the lock.
void Queue::run_next(std::unique_lock<std::mutex>& lock, bool patient) {
  const std::shared_ptr<Job> job = jobs_.front();
  jobs_.pop_front();
  busy_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    job->body_(patient);
  } catch (...) {
    error = std::current_exception();
  }
  job->body_ = {};  // lets go of its tensors
  lock.lock();
  job->error_ = error;
  job->done_ = true;
  busy_ = false;
  changed_.notify_all();
}

Work Queue::submit(Body body, bool blocking) {
  auto job = std::make_shared<Job>(*this, std::move(body));
  std::unique_lock lock(mutex_);
  jobs_.push_back(job);
  if (blocking && !busy_ && jobs_.size() == 1) {
    run_next(lock, false);
  } else {
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
    changed_.notify_all();
  }
  return Work(std::move(job));
}

void Queue::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || (!busy_ && !jobs_.empty()); });
    if (stop_) return;
    run_next(lock, true);
  }
}

}  // namespace echelon
