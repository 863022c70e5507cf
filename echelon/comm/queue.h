// Operations in the order they were issued, run one at a time: by a thread of the queue, or by the
// thread that waits for one, whichever comes first. So an operation that is waited for at once
// costs no handing over, and one that is not goes on by itself.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "echelon/comm/work.h"

namespace echelon {

class Queue {
 public:
  // `patient` is true in the queue's own thread: someone else may want its core.
  using Body = std::function<void(bool patient)>;

  Queue() = default;
  ~Queue();  // runs what is still queued
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // With `blocking`, the operation is done when this returns if nothing else was queued; its error,
  // if any, still comes out of the work.
  Work submit(Body body, bool blocking);

 private:
  class Job;
  void run_next(std::unique_lock<std::mutex>& lock, bool patient);
  void loop();

  std::mutex mutex_;  // all below, and the jobs' states
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool busy_ = false;  // one is running
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace echelon
