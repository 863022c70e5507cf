// Operations in the order they were issued, run one at a time: by a thread of the queue, or by the
// thread that waits for one, whichever comes first. So an operation that is waited for at once
// costs no handing over, and one that is not goes on by itself.
#pragma once

#include <functional>
#include <memory>

#include "echelon/comm/work.h"

namespace echelon {

class Queue {
 public:
  // `patient` is true in the queue's own thread: someone else may want its core.
  using Body = std::function<void(bool patient)>;

  Queue();
  ~Queue();  // runs what is still queued; works of it stay good
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // With `blocking`, the operation is done when this returns if nothing else was queued; its error,
  // if any, still comes out of the work.
  Work submit(Body body, bool blocking);

 private:
  struct State;
  class Job;
  std::shared_ptr<State> state_;
};

}  // namespace echelon
