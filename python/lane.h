// The operations of a process group, in the order of their calls, one at a time: run by a thread of
// the lane or by one that waits, whichever comes first.
//
// Whoever waits for an operation may be told in a callback, and the callback may start another
// operation and wait for that in turn (PowerSGD's hook does). So an operation is over before it is
// told, and while a thread of the lane tells, another one runs what comes: there is always one more
// thread than there are callbacks under way.
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
    // `patient` in a thread of the lane: someone else may want its core.
    std::function<void(bool patient)> run;
    std::function<void(std::exception_ptr error)> finish;  // must not throw
    bool over = false;                                     // the lane's
  };

  // With `blocking`, the job has run and is finished when this returns if nothing else was queued.
  void submit(std::shared_ptr<Job> job, bool blocking);

  // Until the job has run; runs it and those before it where nobody else does.
  void help(const Job& job);

  // Runs what is queued and ends the threads. Before the last owner lets go, without the GIL.
  void close();

 private:
  void run_next(std::unique_lock<std::mutex>& lock, bool patient);
  void provide_thread();
  void loop();

  std::mutex mutex_;  // all below, and Job::over
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool busy_ = false;  // one is running
  bool stop_ = false;
  int idle_ = 0;  // threads that wait for a job
  std::vector<std::thread> threads_;
};

}  // namespace echelon::python
