// Prepares the batches of coming steps on its own threads, so that the loop does not wait for data
// that come faster than steps are computed.
//
//   BatchReader reader(read, {.ahead = 4, .steps = 1000});
//   const auto first = reader.take({.step = 0, .begin = 0, .end = 32});  // read here
//   const auto next = reader.take({.step = 1, .begin = 0, .end = 32});   // was read meanwhile
//
// A take() starts the reading of the same places in the following steps. If another step or other
// places are asked for than were expected, what was prepared is dropped. The result is what `read`
// returns for the request, so it does not depend on the number of threads or on their speed. An
// exception of `read` is thrown by the take() of its request.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "echelon/data/batch.h"
#include "echelon/nn/memory.h"

namespace echelon {

class BatchReader {
 public:
  // Places [begin, end) of the global batch of a step.
  struct Request {
    std::int64_t step = 0, begin = 0, end = 0;
    bool operator==(const Request&) const = default;
  };
  struct Prepared {
    Batch batch;
    std::int64_t targets = 0;  // of the step's global batch; 0: all samples have the same number
  };
  using Read = std::function<Prepared(const Request&)>;

  struct Options {
    std::int64_t ahead = 0;  // batches that are prepared at most; 0: take() reads itself
    int threads = 1;         // that read at the same time; with one, requests are read in order
    std::int64_t steps = 0;  // nothing is prepared for this step or later ones
  };

  // The threads' memory is counted in the account that counts on the constructing thread.
  BatchReader(Read read, const Options& options);
  ~BatchReader();  // waits until no thread reads

  Prepared take(const Request& request);

  // When the last take() waited, or read itself; an empty interval if the batch was there.
  std::chrono::steady_clock::time_point waited_from() const { return waited_from_; }
  std::chrono::steady_clock::time_point waited_until() const { return waited_until_; }

  // Returns when no thread reads, and none begins to until the next take().
  void pause();

 private:
  struct Slot {
    enum class State { expected, under_way, done };
    Request request;
    State state = State::expected;
    Prepared prepared = {};
    std::exception_ptr failure = {};
  };
  void work();
  void read_into(Slot& slot) const;
  void expect_after(Request request);
  std::shared_ptr<Slot> first_expected() const;

  Read read_;
  Options options_;
  MemoryContext memory_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable to_read_, was_read_;
  std::deque<std::shared_ptr<Slot>> slots_;  // of consecutive steps
  int reading_ = 0;                          // threads that read
  bool paused_ = false, ends_ = false;
  std::chrono::steady_clock::time_point waited_from_, waited_until_;  // of the caller of take()
  std::vector<std::thread> threads_;  // last: they use all of the above
};

// Pauses a reader at the end of a scope, also if that is left by an exception.
class ReadingEnds {
 public:
  explicit ReadingEnds(BatchReader& reader) : reader_(reader) {}
  ~ReadingEnds() { reader_.pause(); }
  ReadingEnds(const ReadingEnds&) = delete;
  ReadingEnds& operator=(const ReadingEnds&) = delete;

 private:
  BatchReader& reader_;
};

}  // namespace echelon
