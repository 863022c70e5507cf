#include "echelon/train/batch_reader.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "echelon/base/error.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using namespace std::chrono_literals;
using Request = BatchReader::Request;

BatchReader::Prepared numbered(const Request& r) {
  return {{at::full({1}, r.step * 1000 + r.begin * 10 + r.end, at::kLong), {}}, r.step};
}

std::int64_t value_of(const BatchReader::Prepared& prepared) {
  return prepared.batch.input.item<std::int64_t>();
}

bool waited(const BatchReader& reader) { return reader.waited_from() != reader.waited_until(); }

// Until a condition holds, or half a minute has passed.
template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 30'000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  return condition();
}

TEST(BatchReader, GivesWhatIsReadForEachStepWhateverIsAheadAndOnHowManyThreads) {
  for (const std::int64_t ahead : {0, 1, 2, 5})
    for (const int threads : {1, 3}) {
      BatchReader reader(numbered, {.ahead = ahead, .threads = threads, .steps = 50});
      for (std::int64_t step = 0; step < 50; ++step) {
        const auto prepared = reader.take({step, 2, 7});
        ASSERT_EQ(value_of(prepared), step * 1000 + 27);
        ASSERT_EQ(prepared.targets, step);
      }
    }
}

TEST(BatchReader, FollowsJumpsAndOtherPlaces) {
  BatchReader reader(numbered, {.ahead = 3, .threads = 2, .steps = 1000});
  for (const Request& r :
       {Request{0, 0, 4}, Request{1, 0, 4}, Request{2, 0, 5}, Request{3, 0, 5}, Request{700, 0, 5},
        Request{701, 0, 5}, Request{5, 1, 5}, Request{5, 1, 5}})
    EXPECT_EQ(value_of(reader.take(r)), r.step * 1000 + r.begin * 10 + r.end);
}

TEST(BatchReader, ReadsAheadAndNoFurther) {
  std::atomic<std::int64_t> last = -1;
  const auto read = [&](const Request& r) {
    last = std::max(last.load(), r.step);
    return numbered(r);
  };
  BatchReader reader(read, {.ahead = 4, .steps = 8});
  EXPECT_EQ(last, -1) << "nothing is read before it is known where to begin";
  reader.take({0, 0, 1});
  EXPECT_TRUE(eventually([&] { return last == 4; }));
  reader.take({1, 0, 1});
  reader.take({2, 0, 1});
  EXPECT_TRUE(eventually([&] { return last == 6; }));
  for (std::int64_t step = 3; step < 8; ++step) reader.take({step, 0, 1});
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(last, 7) << "there is no step 8";
}

// A batch takes a while to read, and a step longer: the loop takes one only when all that may be
// ahead is there, as a slow computation would.
TEST(BatchReader, NeverLetsTheLoopWaitWhereDataAreFaster) {
  std::atomic<std::int64_t> done = 0;
  const auto read = [&](const Request& r) {
    std::this_thread::sleep_for(1ms);
    ++done;
    return numbered(r);
  };
  BatchReader reader(read, {.ahead = 2, .steps = 100});
  reader.take({0, 0, 1});
  EXPECT_TRUE(waited(reader)) << "nobody could know where the loop would begin";
  for (std::int64_t step = 1; step < 100; ++step) {
    ASSERT_TRUE(eventually([&] { return done > step; }));  // the computation
    reader.take({step, 0, 1});
    // Done is what `read` has returned, which a thread then still has to hand over.
    if (waited(reader)) {
      EXPECT_LT(reader.waited_until() - reader.waited_from(), 1s);
    }
  }
  EXPECT_EQ(done, 100) << "each batch was read once";
}

TEST(BatchReader, SeveralThreadsReadAtTheSameTime) {
  std::atomic<int> now = 0, most = 0;
  const auto read = [&](const Request& r) {
    most = std::max(most.load(), ++now);
    // Nobody goes on alone, except in the loop itself.
    if (r.step > 0) eventually([&] { return most > 1; });
    --now;
    return numbered(r);
  };
  BatchReader reader(read, {.ahead = 4, .threads = 3, .steps = 100});
  for (std::int64_t step = 0; step < 10; ++step) reader.take({step, 0, 1});
  EXPECT_GT(most, 1);
}

TEST(BatchReader, OneThreadReadsInOrderAndOneAtATime) {
  std::atomic<int> now = 0;
  std::vector<std::int64_t> steps;
  const auto read = [&](const Request& r) {
    EXPECT_EQ(++now, 1);
    steps.push_back(r.step);
    std::this_thread::sleep_for(100us);
    --now;
    return numbered(r);
  };
  {
    BatchReader reader(read, {.ahead = 3, .steps = 40});
    for (std::int64_t step = 0; step < 40; ++step) reader.take({step, 0, 1});
  }
  for (std::int64_t step = 0; step < 40; ++step) EXPECT_EQ(steps[std::size_t(step)], step);
}

TEST(BatchReader, ThrowsWhatWasThrownForAStepAtThatStep) {
  std::atomic<int> attempts = 0;
  const auto read = [&](const Request& r) {
    if (r.step == 3 && ++attempts == 1) throw InvalidArgument("sample 7 is not to be read");
    return numbered(r);
  };
  BatchReader reader(read, {.ahead = 5, .steps = 10});
  for (std::int64_t step = 0; step < 3; ++step) reader.take({step, 0, 1});
  EXPECT_TRUE(eventually([&] { return attempts == 1; }));
  EXPECT_EQ(thrown<InvalidArgument>([&] { reader.take({3, 0, 1}); }), "sample 7 is not to be read");
  EXPECT_EQ(value_of(reader.take({3, 0, 1})), 3001) << "another attempt reads again";
  EXPECT_EQ(value_of(reader.take({4, 0, 1})), 4001);
}

TEST(BatchReader, ReadsNothingWhileItIsPaused) {
  std::atomic<int> reads = 0;
  const auto read = [&](const Request& r) {
    std::this_thread::sleep_for(2ms);
    ++reads;
    return numbered(r);
  };
  BatchReader reader(read, {.ahead = 8, .threads = 2, .steps = 100});
  reader.take({0, 0, 1});
  reader.pause();
  const int before = reads;
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(reads, before);
  EXPECT_EQ(value_of(reader.take({1, 0, 1})), 1001) << "and goes on";
}

TEST(BatchReader, EndsAfterTheBatchThatIsBeingRead) {
  std::atomic<int> reads = 0;
  const auto read = [&](const Request& r) {
    std::this_thread::sleep_for(5ms);
    ++reads;
    return numbered(r);
  };
  {
    BatchReader reader(read, {.ahead = 1000, .steps = 1'000'000});
    reader.take({0, 0, 1});
  }
  EXPECT_LT(reads, 100);
}

}  // namespace
}  // namespace echelon
