#include "python/lane.h"

#include <utility>

namespace echelon::python {

void Lane::submit(std::shared_ptr<Job> job, bool blocking) {
  std::unique_lock lock(mutex_);
  jobs_.push_back(std::move(job));
  if (blocking && !busy_ && jobs_.size() == 1) return run_next(lock, false);
  provide_thread();
  changed_.notify_all();
}

void Lane::help(const Job& job) {
  std::unique_lock lock(mutex_);
  while (!job.over) {
    if (!busy_)
      run_next(lock, false);
    else
      changed_.wait(lock);
  }
}

// Takes the first job, runs it without the lock, and runs its callbacks when the next job may
// start.
void Lane::run_next(std::unique_lock<std::mutex>& lock, bool patient) {
  const std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  busy_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    job->run(patient);
  } catch (...) {
    error = std::current_exception();
  }
  job->run = {};  // releases its tensors
  lock.lock();
  job->over = true;
  busy_ = false;
  if (!jobs_.empty()) provide_thread();
  changed_.notify_all();
  lock.unlock();
  job->finish(error);
  job->finish = {};
  lock.lock();
}

void Lane::provide_thread() {
  if (idle_ > 0) return;
  threads_.emplace_back([self = shared_from_this()] { self->loop(); });
  ++idle_;  // counted from its start, before it waits
}

void Lane::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || (!busy_ && !jobs_.empty()); });
    if (stop_) return;
    --idle_;
    run_next(lock, true);
    ++idle_;
  }
}

void Lane::close() {
  std::vector<std::thread> threads;
  {
    std::unique_lock lock(mutex_);
    while (busy_ || !jobs_.empty()) {
      if (!busy_)
        run_next(lock, false);
      else
        changed_.wait(lock);
    }
    stop_ = true;
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (auto& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id())
      thread
          .detach();  // a callback dropped the last process group: its thread owns the lane itself
    else
      thread.join();
  }
}

}  // namespace echelon::python
