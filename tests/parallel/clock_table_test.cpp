// The parameter servers' assignment of work, tested with random delays, deaths and newcomers.
#include "echelon/parallel/server/clock_table.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>

#include "echelon/base/error.h"

namespace echelon {
namespace {

using Share = std::pair<std::int64_t, int>;  // step and share

std::optional<Share> taken(ClockTable& table, int worker) {
  const auto task = table.take(worker);
  return task ? std::optional(Share(task->clock, task->share)) : std::nullopt;
}

void finish(ClockTable& table, int worker) { table.done(worker, *table.task_of(worker)); }

// Runs a table to its end: workers finish their tasks in a random order, updates are applied late,
// workers die and join. Checks the invariants on the way.
struct Simulation {
  int shares;
  std::int64_t steps, bound;
  unsigned seed;
  bool deaths = false;
  std::int64_t oldest = 0;  // staleness of an applied gradient

  void run() {
    std::mt19937 random(seed);
    ClockTable table(shares, 0, steps, bound);
    std::vector<int> workers;
    for (int i = 0; i < shares; ++i) workers.push_back(table.join("worker " + std::to_string(i)));
    std::map<std::pair<std::int64_t, int>, Task> computed;
    std::set<std::int64_t> numbers;
    std::set<std::pair<std::int64_t, int>> counted;
    std::int64_t applied = 0;
    for (int turns = 0; !table.finished(); ++turns) {
      ASSERT_LT(turns, 200000) << "it does not end";
      // Some workers are picked far less often than others.
      auto pick = random() % (workers.size() + 1);
      if (seed % 2 && pick < workers.size() && random() % (1 + 10 * pick) != 0) continue;
      if (pick == workers.size()) {  // the server applies the next update
        if (const auto step = table.order(applied)) {
          ASSERT_EQ(std::ssize(step->shares), shares);
          for (int j = 0; j < shares; ++j) {
            const auto& task = step->shares[std::size_t(j)];
            EXPECT_EQ(task, computed.at({step->clock, j})) << "of the worker that was done with it";
            const auto age = applied - task.version;
            oldest = std::max(oldest, age);
            if (bound == 0) {
              EXPECT_EQ(step->clock, applied) << "a synchronous job's updates are applied in order";
            }
            EXPECT_LE(age, bound);
          }
          table.applied();
          ++applied;
        }
        continue;
      }
      const int worker = workers[pick];
      if (const auto task = table.task_of(worker)) {
        if (deaths && workers.size() > 1 && random() % 50 == 0) {
          table.drop(worker);
          workers.erase(workers.begin() + std::ptrdiff_t(pick));
          if (random() % 2) workers.push_back(table.join("newcomer"));
          continue;
        }
        EXPECT_TRUE(counted.insert({task->clock, task->share}).second) << "a share counts once";
        computed[{task->clock, task->share}] = *task;
        table.done(worker, *task);
      } else if (const auto got = table.take(worker)) {
        EXPECT_EQ(got->version, table.version());
        EXPECT_TRUE(numbers.insert(got->number).second) << "no two have one number";
        if (bound != ClockTable::unbounded) {
          EXPECT_LE(got->clock - table.version(), bound);
        }
      }
    }
    EXPECT_EQ(applied, steps);
    EXPECT_EQ(std::int64_t(counted.size()), steps * shares);
  }
};

TEST(ClockTable, NeverAppliesAGradientOlderThanTheBound) {
  for (const std::int64_t bound : {0, 1, 3})
    for (const int shares : {1, 2, 5})
      for (unsigned seed = 0; seed < 20; ++seed) {
        SCOPED_TRACE(testing::Message()
                     << "bound " << bound << ", " << shares << " shares, seed " << seed);
        Simulation run{.shares = shares, .steps = 40, .bound = bound, .seed = seed};
        run.run();
        EXPECT_LE(run.oldest, bound);
      }
}

TEST(ClockTable, UsesTheBoundItIsGiven) {
  std::int64_t oldest = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    Simulation run{.shares = 4, .steps = 60, .bound = 3, .seed = seed};
    run.run();
    oldest = std::max(oldest, run.oldest);
  }
  EXPECT_EQ(oldest, 3) << "else the bound is not what limits";
}

TEST(ClockTable, LosesNothingWhenWorkersDieAndJoin) {
  for (const std::int64_t bound : {std::int64_t{0}, std::int64_t{2}, ClockTable::unbounded})
    for (unsigned seed = 0; seed < 50; ++seed) {
      SCOPED_TRACE(testing::Message() << "bound " << bound << ", seed " << seed);
      Simulation{.shares = 4, .steps = 30, .bound = bound, .seed = seed, .deaths = true}.run();
    }
}

TEST(ClockTable, AppliesInTheOrderOfCompletionWithoutABound) {
  ClockTable table(2, 0, 10, ClockTable::unbounded);
  const int slow = table.join("slow"), quick = table.join("quick");
  ASSERT_EQ(taken(table, slow), Share(0, 0));
  for (int i = 0; i < 3; ++i) table.done(quick, *table.take(quick));  // (0, 1), (1, 0), (1, 1)
  EXPECT_EQ(table.order(0)->clock, 1) << "step 0 still misses a share";
  finish(table, slow);
  EXPECT_EQ(table.order(1)->clock, 0);
}

// Two slow workers hold up steps that are equally old: neither may be released so late that the
// other misses the bound.
TEST(ClockTable, LetsNoStepWaitUntilItIsTooOld) {
  ClockTable table(1, 0, 10, 2);
  const int a = table.join("a"), b = table.join("b"), c = table.join("c");
  std::int64_t applied = 0;
  const auto apply = [&] {
    while (table.order(applied)) {
      table.applied();
      ++applied;
    }
  };
  ASSERT_EQ(taken(table, a), Share(0, 0));
  ASSERT_EQ(taken(table, b), Share(1, 0));
  ASSERT_EQ(taken(table, c), Share(2, 0));
  finish(table, a);
  apply();
  EXPECT_EQ(applied, 1);
  if (const auto next = table.take(a)) {
    table.done(a, *next);
    apply();
  }
  EXPECT_EQ(applied, 1) << "steps 2 and 3 are to be applied as updates 1 and 2";
  finish(table, b);
  finish(table, c);
  apply();
  EXPECT_GE(applied, 3);
}

TEST(ClockTable, GivesASlowWorkerFewerShares) {
  ClockTable table(4, 0, 100, 3);
  std::vector<int> workers, done(4, 0);
  std::vector<int> busy(4, 0);
  for (int i = 0; i < 4; ++i) workers.push_back(table.join("w"));
  std::int64_t applied = 0;
  for (int tick = 0; !table.finished() && tick < 10000; ++tick)
    for (int w = 0; w < 4; ++w) {
      if (!table.task_of(w)) {
        if (table.take(w)) busy[std::size_t(w)] = w == 3 ? 5 : 1;
      } else if (--busy[std::size_t(w)] == 0) {
        table.done(w, *table.task_of(w));
        ++done[std::size_t(w)];
      }
      while (table.order(applied)) {
        table.applied();
        ++applied;
      }
    }
  EXPECT_TRUE(table.finished());
  EXPECT_LT(done[3], done[0] / 2) << "it takes three times as long";
  EXPECT_EQ(done[0] + done[1] + done[2] + done[3], 400);
}

TEST(ClockTable, KeepsAShareForAWorkerThatJoinsLate) {
  ClockTable table(2, 3, 10, 0, ClockTable::Shares::to_each_its_own);
  const int early = table.join("early");
  ASSERT_EQ(taken(table, early), Share(3, 0));
  finish(table, early);
  EXPECT_EQ(table.take(early), std::nullopt) << "the other share is not its own";
  const int late = table.join("late");
  ASSERT_EQ(taken(table, late), Share(3, 1));
  finish(table, late);
  EXPECT_EQ(table.order(3)->clock, 3);
}

TEST(ClockTable, StopsAfterTheStepsThatWereBegun) {
  ClockTable table(2, 0, 100, 1);
  const int a = table.join("a"), b = table.join("b");
  ASSERT_EQ(taken(table, a), Share(0, 0));
  table.stop();
  EXPECT_EQ(table.end(), 1);
  ASSERT_EQ(taken(table, b), Share(0, 1)) << "what was begun is finished";
  finish(table, a);
  EXPECT_EQ(table.take(a), std::nullopt);
  finish(table, b);
  ASSERT_EQ(table.order(0)->clock, 0);
  table.applied();
  EXPECT_TRUE(table.finished());
}

TEST(ClockTable, AbandonsIncompleteSteps) {
  ClockTable table(2, 4, 100, 3);
  const int a = table.join("a"), b = table.join("b");
  ASSERT_EQ(taken(table, a), Share(4, 0));
  ASSERT_EQ(taken(table, b), Share(4, 1));
  finish(table, a);
  ASSERT_EQ(taken(table, a), Share(5, 0));
  finish(table, b);
  ASSERT_EQ(taken(table, b), Share(5, 1));
  table.abandon();
  EXPECT_FALSE(table.finished()) << "step 5 is complete and is to be applied";
  finish(table, a);
  finish(table, b);
  EXPECT_EQ(table.take(a), std::nullopt);
  ASSERT_EQ(table.order(4)->clock, 4);
  EXPECT_EQ(table.order(5), std::nullopt);
  table.applied();
  EXPECT_TRUE(table.finished());
  EXPECT_EQ(table.version(), 5);
}

TEST(ClockTable, RejectsATaskThatTheWorkerDoesNotHold) {
  ClockTable table(2, 0, 10, 0);
  const int a = table.join("rank 1");
  table.take(a);
  EXPECT_THROW(table.done(a, {5, 0}), InvalidArgument);
  EXPECT_THROW(table.take(a), InvalidArgument) << "one at a time";
}

// A worker that was dropped may finish after all.
TEST(ClockTable, AcceptsAShareOnlyFromItsPresentHolder) {
  ClockTable table(1, 0, 10, 3);
  const int slow = table.join("slow"), quick = table.join("quick");
  const Task before = *table.take(slow);
  table.drop(slow);
  const Task now = *table.take(quick);
  EXPECT_EQ(Share(now.clock, now.share), Share(before.clock, before.share));
  EXPECT_NE(now.number, before.number);
  EXPECT_THROW(table.done(slow, before), InvalidArgument);
  EXPECT_THROW(table.done(quick, before), InvalidArgument);
  table.done(quick, now);
  EXPECT_EQ(table.order(0)->shares, std::vector<Task>{now});
}

TEST(ClockTable, KnowsWhichVersionsMayStillBeRead) {
  ClockTable table(2, 0, 10, 3);
  const int a = table.join("a"), b = table.join("b"), c = table.join("c");
  const Task first = *table.take(a), second = *table.take(b), looks = table.read(c);
  EXPECT_EQ(table.held(), (std::vector<Task>{first, second, looks}));
  table.done(a, first);
  table.drop(b);
  EXPECT_EQ(table.held(), std::vector<Task>{looks});
  EXPECT_EQ(table.take(c)->share, 1);
  ASSERT_EQ(table.held().size(), 1u) << "who takes a share reads nothing else";
}

// However many workers are slow, only the gradients of a limited number of steps wait.
TEST(ClockTable, LimitsTheStepsThatAreBegunButNotApplied) {
  const int shares = 20;
  ClockTable table(shares, 0, 1000, ClockTable::unbounded);
  for (int i = 0; i <= shares; ++i) table.join("worker");
  const int quick = shares;
  std::vector<Task> slow;  // one share of each step
  for (std::int64_t step = 0; step < ClockTable::most_begun; ++step) {
    slow.push_back(table.take(int(step)).value());
    for (int share = 1; share < shares; ++share) table.done(quick, table.take(quick).value());
  }
  EXPECT_FALSE(table.take(quick)) << "each step misses a share";
  table.drop(5);
  const auto returned = table.take(quick);
  ASSERT_TRUE(returned) << "what came back is always handed out";
  EXPECT_EQ(returned->clock, 5);
  table.done(quick, *returned);
  EXPECT_FALSE(table.take(quick)) << "a step that is complete waits until it is applied";
  table.applied();
  EXPECT_EQ(table.take(quick).value().clock, ClockTable::most_begun);
}

}  // namespace
}  // namespace echelon
