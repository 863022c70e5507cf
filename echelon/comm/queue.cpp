#include "echelon/comm/queue.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace echelon {

// Shared with the Work objects, which may outlive the queue.
struct Queue::State {
  std::mutex mutex;  // guards everything below and the jobs' states
  std::condition_variable changed;
  std::deque<std::shared_ptr<Job>> jobs;
  bool busy = false;  // a job is running
  bool stop = false;
  std::thread thread;

  void run_next(std::unique_lock<std::mutex>& lock, bool patient);
  void loop();
};

class Queue::Job final : public Operand {
 public:
  Job(std::shared_ptr<State> state, Body body) : state_(std::move(state)), body_(std::move(body)) {}

  bool done() override {
    const std::lock_guard lock(state_->mutex);
    if (error_) std::rethrow_exception(error_);
    return done_;
  }

  void wait() override {
    std::unique_lock lock(state_->mutex);
    while (!done_) {
      if (!state_->busy)
        state_->run_next(lock, false);
      else
        state_->changed.wait(lock);
    }
    if (error_) std::rethrow_exception(error_);
  }

  std::optional<WorkSpan> span() override {
    const std::lock_guard lock(state_->mutex);
    return done_ ? std::optional(span_) : std::nullopt;
  }

 private:
  friend struct State;
  std::shared_ptr<State> state_;
  Body body_;
  bool done_ = false;
  WorkSpan span_ = {};
  std::exception_ptr error_;
};

// Takes the first job and runs it without the lock.
void Queue::State::run_next(std::unique_lock<std::mutex>& lock, bool patient) {
  const std::shared_ptr<Job> job = jobs.front();
  jobs.pop_front();
  busy = true;
  lock.unlock();
  std::exception_ptr error;
  const auto begin = std::chrono::steady_clock::now();
  try {
    job->body_(patient);
  } catch (...) {
    error = std::current_exception();
  }
  const auto end = std::chrono::steady_clock::now();
  job->body_ = {};  // releases its tensors
  lock.lock();
  job->span_ = {begin, end};
  job->error_ = error;
  job->done_ = true;
  busy = false;
  changed.notify_all();
}

void Queue::State::loop() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stop || (!busy && !jobs.empty()); });
    if (stop) return;
    run_next(lock, true);
  }
}

Queue::Queue() : state_(std::make_shared<State>()) {}

Queue::~Queue() {
  {
    std::unique_lock lock(state_->mutex);
    while (state_->busy || !state_->jobs.empty()) {
      if (!state_->busy)
        state_->run_next(lock, false);
      else
        state_->changed.wait(lock);
    }
    state_->stop = true;
  }
  state_->changed.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

Work Queue::submit(Body body, bool blocking) {
  auto job = std::make_shared<Job>(state_, std::move(body));
  std::unique_lock lock(state_->mutex);
  state_->jobs.push_back(job);
  if (blocking && !state_->busy && state_->jobs.size() == 1) {
    state_->run_next(lock, false);
  } else {
    if (!state_->thread.joinable())
      state_->thread = std::thread([state = state_.get()] { state->loop(); });
    state_->changed.notify_all();
  }
  return Work(std::move(job));
}

}  // namespace echelon
