// Runs operations one at a time, in the order in which they were issued: in the queue's thread or
// in a thread that waits for one, whichever comes first. An operation that is waited for
// immediately costs no hand-over between threads, and one that is not waited for still makes
// progress.
#pragma once

#include <functional>
#include <memory>

#include "echelon/comm/work.h"

namespace echelon {

class Queue {
 public:
  // `patient` is true in the queue's own thread, whose core other threads may need.
  using Body = std::function<void(bool patient)>;

  Queue();
  ~Queue();  // runs queued operations; their Work objects stay valid
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // With `blocking`, the operation is done when this returns if nothing else was queued. Its error,
  // if any, is still reported by the Work.
  Work submit(Body body, bool blocking);

 private:
  struct State;
  class Job;
  std::shared_ptr<State> state_;
};

}  // namespace echelon
