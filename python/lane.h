// Runs the operations of a process group one at a time, in the order of their calls, in a thread of
// the lane or in a thread that waits for one, whichever comes first.
//
// An operation ends with callbacks, and a callback may start another operation and wait for it
// (PowerSGD's hook does). So an operation is over before its callbacks run, and while a thread of
// the lane runs callbacks, another one runs the next operations: there is always one more thread
// than there are callbacks in progress.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace echelon::python {

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  struct Job {
    // `patient` in a thread of the lane: other threads may need its core.
    std::function<void(bool patient)> run;
    std::function<void(std::exception_ptr error)> finish;  // must not throw
    bool over = false;                                     // written by the lane
  };

  // With `blocking`, the job has run and is finished when this returns if nothing else was queued.
  void submit(std::shared_ptr<Job> job, bool blocking);

  // Returns when the job has run. Runs it and those before it if no other thread does.
  void help(const Job& job);

  // Runs the queued jobs and ends the threads. Called without the GIL, before the last owner
  // releases.
  void close();

 private:
  void run_next(std::unique_lock<std::mutex>& lock, bool patient);
  void provide_thread();
  void loop();

  std::mutex mutex_;  // guards all below, and Job::over
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool busy_ = false;  // a job is running
  bool stop_ = false;
  int idle_ = 0;  // threads that wait for a job
  std::vector<std::thread> threads_;
};

}  // namespace echelon::python
