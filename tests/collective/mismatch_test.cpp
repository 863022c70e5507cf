// Ranks that do not call the same thing: all of them are told who called what, soon; nobody hangs,
// nobody gets a wrong sum, and a broken group stays broken.
#include <chrono>
#include <latch>
#include <list>
#include <mutex>
#include <sstream>
#include <thread>

#include "tests/collective/elements.h"
#include "tests/collective/ranks.h"

namespace echelon {
namespace {

using Clock = std::chrono::steady_clock;
using Body = std::function<void(Group&)>;

const std::vector<std::pair<const char*, Layout>> layouts = {
    {"one host", Layout{.world = 4}},
    {"two ranks", Layout{.world = 2}},
    {"two ranks over TCP", Layout{.world = 2, .shared_memory = false}},
    {"TCP", Layout{.world = 4, .shared_memory = false}},
    {"two hosts", Layout{.world = 4, .hosts = 2}}};

bool mentions(const Outcome& one, const std::string& text) {
  return one.message.find(text) != std::string::npos;
}

// Calls `one` for each layout, all at the same time: most of these tests is waiting. Deadlines are
// far away, so that a loaded machine does not reach them and whoever waits for one is seen.
constexpr double far_away = 60, before_the_deadline = 40;  // seconds

void for_each_layout(const std::vector<std::pair<const char*, Layout>>& where,
                     const std::function<void(const char* text, const Layout&)>& one) {
  std::vector<std::thread> threads;
  for (auto [text, layout] : where) {
    layout.comm.timeout = far_away;
    threads.emplace_back([&one, text = text, layout = layout] { one(text, layout); });
  }
  for (auto& thread : threads) thread.join();
}

// Every rank ends in InvalidArgument that names a rank and contains one of `words`, and so does the
// call after it. Ranks that all wait for each other's first message find out by telling each other
// after half a second.
void expect_disagreement(const char* what, const Body& body, const std::vector<std::string>& words,
                         const std::vector<std::pair<const char*, Layout>>& where = layouts) {
  for_each_layout(where, [&](const char* text, const Layout& layout) {
    const auto start = Clock::now();
    std::vector<Outcome> second(std::size_t(layout.world));
    const auto first = run_outcomes(layout, [&](Group& group) {
      const auto call = [&] {
        body(group);
        group.barrier();
      };
      const auto one = outcome(call);
      second[std::size_t(group.rank())] = outcome(call);
      EXPECT_EQ(second[std::size_t(group.rank())].message, one.message) << what << " on " << text;
      call();
    });
    const std::chrono::duration<double> took = Clock::now() - start;
    EXPECT_LT(took.count(), before_the_deadline)
        << what << " on " << text << ": waited for the deadline";
    for (std::size_t rank = 0; rank < first.size(); ++rank) {
      EXPECT_EQ(first[rank], "InvalidArgument")
          << what << " on " << text << ", rank " << rank << ": " << first[rank];
      EXPECT_TRUE(mentions(first[rank], "ranks disagree") && mentions(first[rank], "rank "))
          << what << " on " << text << ", rank " << rank << ": " << first[rank];
      bool any = words.empty();
      for (const auto& word : words) any |= mentions(first[rank], word);
      EXPECT_TRUE(any) << what << " on " << text << ", rank " << rank << ": " << first[rank];
    }
  });
}

struct Floats {
  std::vector<float> in = std::vector<float>(4000, 1), out = std::vector<float>(4000);
};

TEST(Mismatch, OfCountsIsTold) {
  for (const auto& [even, odd] : {std::pair{100, 101}, {0, 5}, {1, 2}, {1000, 3000}, {7, 0}})
    expect_disagreement("counts",
                        [even = even, odd = odd](Group& group) {
                          Floats data;
                          group.all_reduce(DataType::f32, ReduceOp::sum, data.in.data(),
                                           data.out.data(),
                                           std::size_t(group.rank() == 1 ? odd : even));
                        },
                        {"all_reduce"});
}

TEST(Mismatch, OfCountsIsToldByEveryAlgorithm) {
  for (const auto algorithm : message_algorithms(Operation::all_reduce))
    expect_disagreement(
        name(algorithm),
        [&](Group& group) {
          Floats data;
          group.all_reduce(DataType::f32, ReduceOp::sum, data.in.data(), data.out.data(),
                           group.rank() == 1 ? 2 : 3, {.algorithm = algorithm});
        },
        {"all_reduce"},
        {{"TCP", Layout{.world = 3, .shared_memory = false}}, {"rings", Layout{.world = 4}}});
}

TEST(Mismatch, OfCountsThatChooseDifferentAlgorithmsIsTold) {
  expect_disagreement("counts far apart",
                      [](Group& group) {
                        std::vector<float> data(1 << 20, 1);
                        const std::size_t count = group.rank() == 1 ? data.size() : 2;
                        group.all_reduce(DataType::f32, ReduceOp::sum, data.data(), data.data(),
                                         count);
                      },
                      {"all_reduce"},
                      {{"TCP", Layout{.world = 4, .shared_memory = false}},
                       {"two hosts", Layout{.world = 4, .hosts = 2}}});
}

TEST(Mismatch, OfTypesIsTold) {
  expect_disagreement("types",
                      [](Group& group) {
                        Floats data;
                        group.all_reduce(group.rank() == 1 ? DataType::i32 : DataType::f32,
                                         ReduceOp::sum, data.in.data(), data.out.data(), 100);
                      },
                      {"int32"});
}

TEST(Mismatch, OfReductionsIsTold) {
  expect_disagreement("reductions",
                      [](Group& group) {
                        Floats data;
                        group.all_reduce(DataType::f32,
                                         group.rank() == 0 ? ReduceOp::max : ReduceOp::sum,
                                         data.in.data(), data.out.data(), 100);
                      },
                      {"max"});
}

TEST(Mismatch, OfOperationsIsTold) {
  expect_disagreement("operations",
                      [](Group& group) {
                        Floats data;
                        const std::vector<std::size_t> counts(std::size_t(group.size()), 100);
                        if (group.rank() == 0)
                          group.barrier();
                        else
                          group.all_gather(DataType::f32, data.in.data(), data.out.data(), counts);
                      },
                      {"barrier"});
  expect_disagreement("operations",
                      [](Group& group) {
                        Floats data;
                        if (group.rank() == 1)
                          group.broadcast(DataType::f32, data.in.data(), 100, 0);
                        else
                          group.reduce(DataType::f32, ReduceOp::sum, data.in.data(),
                                       data.out.data(), 100, 0);
                      },
                      {});
}

TEST(Mismatch, OfRootsIsTold) {
  for (int kind = 0; kind < 4; ++kind)
    expect_disagreement(
        "roots",
        [&](Group& group) {
          Floats data;
          const int root = group.rank() == 1 ? 1 : 0;
          const std::vector<std::size_t> counts(std::size_t(group.size()), 10);
          if (kind == 0) group.broadcast(DataType::f32, data.in.data(), 100, root);
          if (kind == 1)
            group.reduce(DataType::f32, ReduceOp::sum, data.in.data(), data.out.data(), 100, root);
          if (kind == 2) group.gather(DataType::f32, data.in.data(), data.out.data(), counts, root);
          if (kind == 3)
            group.scatter(DataType::f32, data.in.data(), data.out.data(), counts, root);
        },
        {});
}

TEST(Mismatch, OfAlgorithmsIsTold) {
  expect_disagreement("algorithms",
                      [](Group& group) {
                        Floats data;
                        group.all_reduce(
                            DataType::f32, ReduceOp::sum, data.in.data(), data.out.data(), 100,
                            {.algorithm = group.rank() == 1 ? Algorithm::ring : Algorithm::direct});
                      },
                      {"ring"});
  expect_disagreement(
      "algorithms in shared memory",
      [](Group& group) {
        Floats data;
        group.all_reduce(
            DataType::f32, ReduceOp::sum, data.in.data(), data.out.data(), 100,
            {.algorithm = group.rank() == 1 ? Algorithm::shared : Algorithm::shared_direct});
      },
      {"shared_direct"}, {{"one host", Layout{.world = 3}}});
}

TEST(Mismatch, OfTablesIsTold) {
  std::mutex mutex;
  std::list<Storage> kept;
  const auto keep = [&](Group& group, Where where) -> const Storage& {
    const std::lock_guard lock(mutex);
    return kept.emplace_back(group, std::size_t(4000), where);
  };
  // The same sum, so that only the pieces differ.
  for (int kind = 0; kind < 5; ++kind)
    for (const bool registered : {false, true})
      expect_disagreement("tables",
                          [&](Group& group) {
                            std::vector<std::size_t> counts(std::size_t(group.size()), 10);
                            if (group.rank() == 1) {
                              counts[0] = 13;
                              counts[1] = 7;
                            }
                            const auto where = registered ? Where::registered : Where::own;
                            // Others may still read registered memory of a call that failed here:
                            // it is kept.
                            const auto& in = keep(group, where);
                            const auto& out = keep(group, where);
                            if (kind == 0)
                              group.reduce_scatter(DataType::f32, ReduceOp::sum, in.data(),
                                                   out.data(), counts);
                            if (kind == 1)
                              group.all_gather(DataType::f32, in.data(), out.data(), counts);
                            if (kind == 2)
                              group.gather(DataType::f32, in.data(), out.data(), counts, 0);
                            if (kind == 3)
                              group.scatter(DataType::f32, in.data(), out.data(), counts, 0);
                            if (kind == 4) {
                              const std::vector<std::size_t> back(std::size_t(group.size()), 10);
                              group.all_to_all(DataType::f32, in.data(), out.data(), counts, back);
                            }
                          },
                          {});
}

TEST(Mismatch, InsideAHierarchicalAllReduceIsTold) {
  for (const auto& [one, other] : {std::pair{1, 2}, {0, 3}, {1000, 1001}})
    for (const int odd : {0, 2, 3})
      expect_disagreement("hierarchical",
                          [&, one = one, other = other](Group& group) {
                            Floats data;
                            // A whole host, or one rank of it.
                            const bool differs = odd == 2 ? group.rank() >= 2 : group.rank() == odd;
                            group.all_reduce(DataType::f32, ReduceOp::sum, data.in.data(),
                                             data.out.data(), std::size_t(differs ? other : one),
                                             {.algorithm = Algorithm::hierarchical});
                          },
                          {}, {{"two hosts", Layout{.world = 4, .hosts = 2}}});
}

TEST(Mismatch, OfOneRanksImpossibleAlgorithmIsToldToAll) {
  Layout layout{.world = 3, .shared_memory = false};
  layout.comm.timeout = far_away;
  const auto outcomes = run_outcomes(layout, [](Group& group) {
    Floats data;
    const auto algorithm = group.rank() == 1 ? Algorithm::shared : Algorithm::ring;
    group.all_reduce(DataType::f32, ReduceOp::sum, data.in.data(), data.out.data(), 9,
                     {.algorithm = algorithm});
  });
  for (const auto& one : outcomes) {
    EXPECT_EQ(one, "InvalidArgument") << one;
    EXPECT_TRUE(mentions(one, "shared is for ranks of one host")) << one;
  }
}

TEST(Mismatch, OfArgumentsThatOneRankCanSeeBreaksNothing) {
  run_ranks_well({.world = 2}, [](Group& group) {
    float value = 1;
    const std::vector<std::size_t> wrong(3, 1);
    EXPECT_EQ(outcome([&] { group.broadcast(DataType::f32, &value, 1, 2); }), "InvalidArgument");
    EXPECT_EQ(outcome([&] { group.all_gather(DataType::f32, &value, &value, wrong); }),
              "InvalidArgument");
    std::int32_t whole = 1;
    EXPECT_EQ(
        outcome([&] { group.all_reduce(DataType::i32, ReduceOp::average, &whole, &whole, 1); }),
        "InvalidArgument");
    group.all_reduce(DataType::f32, ReduceOp::sum, &value, &value, 1);
    EXPECT_EQ(value, 2);
  });
}

// ---- Ranks that are not there
// --------------------------------------------------------------------

TEST(Absence, OfARankIsATimeoutThatNamesIt) {
  for_each_layout(layouts, [](const char* text, const Layout& layout) {
    const int late = layout.world - 1;
    std::vector<Outcome> seen(std::size_t(layout.world));
    std::latch given_up(late);
    const auto outcomes = run_outcomes(layout, [&](Group& group) {
      float value = 1;
      if (group.rank() == late) return given_up.wait();
      const auto start = Clock::now();
      const auto one = outcome([&] {
        group.all_reduce(DataType::f32, ReduceOp::sum, &value, &value, 1,
                         {.tag = "the loss", .timeout = std::chrono::milliseconds(100)});
      });
      const std::chrono::duration<double> took = Clock::now() - start;
      EXPECT_GT(took.count(), 0.08) << text;
      EXPECT_LT(took.count(), before_the_deadline) << text << ": the group's, not the call's";
      seen[std::size_t(group.rank())] = one;
      given_up.count_down();
    });
    for (const auto& one : outcomes) EXPECT_EQ(one, "done") << text << ": " << one;
    bool named = false;
    for (int rank = 0; rank < late; ++rank) {
      const auto& one = seen[std::size_t(rank)];
      EXPECT_EQ(one, "Timeout") << text << ", rank " << rank << ": " << one;
      EXPECT_TRUE(mentions(one, "all_reduce (sum)") || mentions(one, "did not connect"))
          << text << ": " << one;
      named |= mentions(one, "rank " + std::to_string(late));
    }
    EXPECT_TRUE(named) << text << ": nobody named rank " << late << "; rank 0 said " << seen[0];
  });
}

// Down a tree of four, rank 2 passes on to rank 3 what rank 0 sends, so without it rank 1 is done
// with the first call while rank 3 waits there; in the second rank 1 waits for rank 3.
TEST(Absence, InAnEarlierCallIsTracedToItsRank) {
  const Layout layout{.world = 4, .shared_memory = false, .comm = {.timeout = far_away}};
  Outcome seen;
  std::latch given_up(1);
  run_outcomes(layout, [&](Group& group) {
    float value = 1;
    group.broadcast(DataType::f32, &value, 1, 0);  // connects them
    if (group.rank() == 2) return given_up.wait();
    if (group.rank() != 1)
      return void(outcome([&] { group.broadcast(DataType::f32, &value, 1, 0); }));
    group.broadcast(DataType::f32, &value, 1, 0);
    // Rank 3 tells after half a second whom it waits for.
    seen = outcome([&] {
      group.broadcast(DataType::f32, &value, 1, 3, {.timeout = std::chrono::milliseconds(2000)});
    });
    given_up.count_down();
  });
  EXPECT_EQ(seen, "Timeout") << seen;
  EXPECT_TRUE(mentions(seen, "still waiting for rank 3 on")) << seen;
  EXPECT_TRUE(mentions(seen, "which in an earlier call waited for rank 2 on")) << seen;
}

TEST(Absence, OfARankThatLeftIsPeerLost) {
  for (const bool used : {false, true})  // whether connections were open
    for_each_layout(layouts, [&](const char* text, const Layout& layout) {
      const int gone = 1;
      const auto start = Clock::now();
      const auto outcomes = run_outcomes(layout, [&](Group& group) {
        Floats data;
        if (used)
          group.all_reduce(DataType::f32, ReduceOp::sum, data.in.data(), data.out.data(), 10);
        if (group.rank() == gone) return;
        if (used) std::this_thread::sleep_for(std::chrono::milliseconds(30));
        group.all_reduce(DataType::f32, ReduceOp::sum, data.in.data(), data.out.data(), 10);
      });
      const std::chrono::duration<double> took = Clock::now() - start;
      EXPECT_LT(took.count(), before_the_deadline) << text << ": waited for the deadline";
      for (int rank = 0; rank < layout.world; ++rank) {
        const auto& one = outcomes[std::size_t(rank)];
        EXPECT_EQ(one, rank == gone ? "done" : "PeerLost")
            << text << ", rank " << rank << ": " << one;
        if (rank != gone) {
          EXPECT_TRUE(mentions(one, "rank 1")) << text << ": " << one;
        }
      }
    });
}

TEST(Absence, OfARankDoesNotDisturbGroupsItIsNotIn) {
  for (const bool shared : {true, false}) {
    const auto outcomes = run_outcomes({.world = 3, .shared_memory = shared}, [](Group& group) {
      const auto two = group.split(group.rank() == 1 ? -1 : 0, 0);
      if (!two) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      float value = 1;
      for (int i = 0; i < 50; ++i) two->all_reduce(DataType::f32, ReduceOp::max, &value, &value, 1);
    });
    for (const auto& one : outcomes) EXPECT_EQ(one, "done") << one;
  }
}

TEST(GivingUp, InOneGroupLeavesOthersWhole) {
  for (const bool shared : {true, false}) {
    const auto outcomes = run_outcomes({.world = 3, .shared_memory = shared}, [](Group& group) {
      const auto all = group.split(0, 0), two = group.split(group.rank() == 2 ? -1 : 0, 0);
      float values[2] = {1, 1};
      EXPECT_EQ(outcome([&] {
                  all->all_reduce(DataType::f32, ReduceOp::sum, values, values,
                                  group.rank() == 0 ? 2 : 1);
                }),
                "InvalidArgument");
      values[0] = 1;
      if (two) two->all_reduce(DataType::f32, ReduceOp::sum, values, values, 1);
      group.all_reduce(DataType::f32, ReduceOp::max, values, values, 1);
      EXPECT_EQ(values[0], 2);
    });
    for (const auto& one : outcomes) EXPECT_EQ(one, "done") << one;
  }
}

// Rank 0 reaches its deadline and uses its memory for something else; then rank 1 comes.
TEST(GivingUp, GivesARanksRegisteredMemoryBack) {
  constexpr std::size_t count = 100'000;
  const std::vector<std::size_t> halves = {count / 2, count / 2};
  using Sum = std::function<void(Group&, float* in, float* out, const CallOptions&)>;
  const std::vector<std::pair<const char*, Sum>> calls = {
      {"all_reduce",
       [&](Group& group, float* in, float*, const CallOptions& options) {
         group.all_reduce(DataType::f32, ReduceOp::sum, in, in, count, options);
       }},
      {"reduce to 0",
       [&](Group& group, float* in, float* out, const CallOptions& options) {
         group.reduce(DataType::f32, ReduceOp::sum, in, out, count, 0, options);
       }},
      {"reduce_scatter",
       [&](Group& group, float* in, float* out, const CallOptions& options) {
         group.reduce_scatter(DataType::f32, ReduceOp::sum, in, out, halves, options);
       }},
      {"all_gather",
       [&](Group& group, float* in, float* out, const CallOptions& options) {
         group.all_gather(DataType::f32, in, out, halves, options);
       }},
      {"broadcast", [&](Group& group, float* in, float*, const CallOptions& options) {
         group.broadcast(DataType::f32, in, count, 0, options);
       }}};
  for (const auto& [what, sum] : calls) {
    std::latch given_up(1), came(1);
    const auto outcomes = run_outcomes({.world = 2}, [&, what = what, sum = sum](Group& group) {
      const auto in = group.allocate(count * sizeof(float)),
                 out = group.allocate(count * sizeof(float));
      auto* from = reinterpret_cast<float*>(in.get());
      auto* to = reinterpret_cast<float*>(out.get());
      std::fill_n(from, count, 1.f);
      const auto call = [&](int milliseconds) {
        return outcome(
            [&] { sum(group, from, to, {.timeout = std::chrono::milliseconds(milliseconds)}); });
      };
      if (group.rank() == 0) {
        EXPECT_EQ(call(50), "Timeout") << what;
        std::fill_n(from, count, 7.f);
        std::fill_n(to, count, 7.f);
        given_up.count_down();
        came.wait();
        EXPECT_EQ(std::count(from, from + count, 7.f), std::ptrdiff_t(count)) << what;
        EXPECT_EQ(std::count(to, to + count, 7.f), std::ptrdiff_t(count)) << what;
      } else {
        given_up.wait();
        EXPECT_EQ(call(10'000), "Timeout") << what << ": what rank 0 gave up with";
        came.count_down();
      }
    });
    for (const auto& one : outcomes) EXPECT_EQ(one, "done") << what << ": " << one;
  }
}

// Long waits are told and compared; nobody may take that for a disagreement.
TEST(Lateness, OfARankIsNoDisagreement) {
  for_each_layout(layouts, [](const char* text, const Layout& layout) {
    run_ranks_well(layout, [&](Group& group) {
      const auto late = [&](int rank) {
        if (group.rank() == rank % group.size())
          std::this_thread::sleep_for(std::chrono::milliseconds(600));  // told after 500
      };
      const std::size_t size = std::size_t(group.size()), rank = std::size_t(group.rank());
      std::vector<float> in(100, 1), out(400);
      std::vector<std::size_t> uneven, there, back;
      for (std::size_t k = 0; k < size; ++k) {
        uneven.push_back(k + 1);
        there.push_back(rank + 2 * k);
        back.push_back(k + 2 * rank);
      }
      late(0);
      group.all_to_all(DataType::f32, in.data(), out.data(), there, back);
      late(1);
      group.gather(DataType::f32, in.data(), out.data(), uneven, 0);
      group.scatter(DataType::f32, in.data(), out.data(), uneven, 1);
      late(2);
      group.all_gather(DataType::f32, in.data(), out.data(), uneven);
      for (int i = 0; i < 20; ++i) group.broadcast(DataType::f32, in.data(), 3, 0);
      late(3);
      // By name here and by the chooser's word there is the same, where it is the same.
      const bool names = group.shape().hosts > 1 && group.rank() == 0;
      const auto chosen =
          names ? group.algorithm(Operation::all_reduce, 100) : Algorithm::automatic;
      group.all_reduce(DataType::f32, ReduceOp::max, in.data(), in.data(), 25,
                       {.algorithm = chosen});
      EXPECT_EQ(in[24], 1) << text;
    });
  });
}

TEST(Mismatch, InAGroupThatHasNoConnectionsYetIsTold) {
  Layout layout{.world = 3, .shared_memory = false};
  layout.comm.timeout = far_away;
  const auto outcomes = run_outcomes(layout, [](Group& group) {
    const auto fresh = group.split(0, 0);
    float value = 1;
    fresh->broadcast(DataType::f32, &value, 1, (group.rank() + 1) % 3);
    fresh->barrier();
  });
  for (const auto& one : outcomes) {
    EXPECT_EQ(one, "InvalidArgument") << one;
    EXPECT_TRUE(mentions(one, "ranks disagree")) << one;
  }
}

}  // namespace
}  // namespace echelon
