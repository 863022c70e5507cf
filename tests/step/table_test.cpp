#include "echelon/step/table.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "echelon/step/walk.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

using Kind = Action::Kind;

Action forward(int layer, int micro_batch) { return {Kind::forward, layer, micro_batch}; }
Action backward(int layer, int micro_batch) { return {Kind::backward, layer, micro_batch}; }
Action recompute(int layer, int micro_batch) { return {Kind::recompute, layer, micro_batch}; }
Action update() { return {Kind::update}; }

using Again = std::vector<bool>;  // by layer: whether it is recomputed

StepShape shape_of(int layers, int micro_batches, const Again& again) {
  StepShape shape{layers, micro_batches, {}};
  shape.recompute = again;
  return shape;
}

std::string refusal(const Table& table, int layers, int micro_batches, const Again& again = {}) {
  return thrown<InvalidArgument>([&] { validate(table, shape_of(layers, micro_batches, again)); });
}
bool accepted(const Table& table, int layers, int micro_batches, const Again& again = {}) {
  return refusal(table, layers, micro_batches, again) == "(nothing was thrown)";
}

// The most activations alive at once, in (layer, micro-batch) pairs. A recomputed layer counts from
// its recompute on.
std::int64_t peak_activations(const Table& table, int layers, const Again& again = {}) {
  StepCosts costs;
  for (std::size_t l = 0; l < std::size_t(layers); ++l) {
    const bool twice = !again.empty() && again[l];
    costs.layers.push_back({.kept = twice ? 0 : 1, .recomputed = twice ? 1 : 0});
  }
  return walk(table, costs).activations.peak;
}

// An independent reference: a store of tensors. Every action takes its inputs out of the store and
// puts its results in; an action that misses a tensor cannot run.
bool runs(const Table& table, int layers, int micro_batches, const Again& again = {}) {
  enum What { input, source, kept, gradient, through };
  std::set<std::tuple<What, int, int>> store;
  int finished = 0;
  for (int m = 0; m < micro_batches; ++m) store.insert({input, 0, m});
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto [kind, layer, m, bucket, group] = table[i];
    if (bucket != 0 || group != 0) return false;
    switch (kind) {
      case Kind::forward:
        if (store.erase({input, layer, m}) == 0) return false;
        store.insert({!again.empty() && again[std::size_t(layer)] ? source : kept, layer, m});
        if (layer + 1 < layers) {
          store.insert({input, layer + 1, m});
        } else {
          store.insert({gradient, layer, m});  // the loss starts the backward
        }
        break;
      case Kind::recompute:
        if (store.erase({source, layer, m}) == 0) return false;
        store.insert({kept, layer, m});
        break;
      case Kind::backward:
        if (store.erase({kept, layer, m}) == 0 || store.erase({gradient, layer, m}) == 0)
          return false;
        if (layer > 0) store.insert({gradient, layer - 1, m});
        ++finished;
        break;
      case Kind::input:
        if (!store.contains({kept, layer, m}) || store.erase({gradient, layer, m}) == 0)
          return false;
        store.insert({through, layer, m});
        if (layer > 0) store.insert({gradient, layer - 1, m});
        break;
      case Kind::weight:
        if (store.erase({through, layer, m}) == 0) return false;
        store.erase({kept, layer, m});
        ++finished;
        break;
      case Kind::receive:
      case Kind::send:
      case Kind::receive_grad:
      case Kind::send_grad:
      case Kind::tie:
      case Kind::reduce:
      case Kind::fetch:
      case Kind::gather:
      case Kind::wait_unshard:
      case Kind::reshard:
      case Kind::alloc_grads:
      case Kind::scatter:
      case Kind::synchronize:
        return false;  // one process has none of these
      case Kind::update:
      case Kind::push:
        return finished == layers * micro_batches && i + 1 == table.size();
    }
  }
  return false;
}

// Reproducible random draws.
class Draw {
 public:
  explicit Draw(std::uint64_t key) : key_(key) {}
  std::size_t below(std::size_t n) {
    return static_cast<std::size_t>(uniform_at(key_, counter_++) * static_cast<double>(n));
  }

 private:
  Key key_;
  std::uint64_t counter_ = 0;
};

void shuffle(Table& table, std::size_t begin, std::size_t end, Draw& draw) {
  for (std::size_t i = end; i > begin + 1; --i)
    std::swap(table[i - 1], table[begin + draw.below(i - begin)]);
}

// Any order that keeps the order within each micro-batch, as in pipelines. A layer may be
// recomputed at any time between its forward and its backward.
Table interleaved(int layers, int micro_batches, Draw& draw, const Again& again = {}) {
  std::vector<Table> own(static_cast<std::size_t>(micro_batches));
  std::size_t left = 0;
  for (int m = 0; m < micro_batches; ++m) {
    Table& mine = own[std::size_t(m)];
    for (int l = 0; l < layers; ++l) mine.push_back(forward(l, m));
    for (int l = layers; l-- > 0;) mine.push_back(backward(l, m));
    for (int l = 0; l < layers && !again.empty(); ++l) {
      if (!again[std::size_t(l)]) continue;
      const auto is = [&](Kind kind) {
        return [l, kind](const Action& a) { return a.kind == kind && a.layer == l; };
      };
      const auto first = std::find_if(mine.begin(), mine.end(), is(Kind::forward)) + 1,
                 last = std::find_if(mine.begin(), mine.end(), is(Kind::backward));
      mine.insert(first + std::ptrdiff_t(draw.below(std::size_t(last - first) + 1)),
                  recompute(l, m));
    }
    left += mine.size();
  }
  std::vector<std::size_t> done(own.size());
  Table table;
  while (table.size() < left) {
    const auto m = draw.below(done.size());
    if (done[m] < own[m].size()) table.push_back(own[m][done[m]++]);
  }
  table.push_back(update());
  return table;
}

// A random set of layers; empty in one case of three.
Again some_layers(int layers, Draw& draw) {
  if (draw.below(3) == 0) return {};
  Again again;
  for (int l = 0; l < layers; ++l) again.push_back(draw.below(2) == 0);
  return again;
}

TEST(OneProcess, IsValidForAnyNumberOfLayersAndMicroBatches) {
  for (int layers = 1; layers <= 7; ++layers) {
    for (int micro_batches = 1; micro_batches <= 5; ++micro_batches) {
      const Table table = one_process(layers, micro_batches);
      EXPECT_EQ(table.size(), static_cast<std::size_t>(2 * layers * micro_batches + 1));
      EXPECT_EQ(refusal(table, layers, micro_batches), "(nothing was thrown)");
      EXPECT_TRUE(runs(table, layers, micro_batches));
      EXPECT_EQ(peak_activations(table, layers), layers) << "one micro-batch is alive at a time";
    }
  }
}

TEST(Validate, AcceptsEveryOrderThatKeepsTheDependencies) {
  for (std::uint64_t key = 0; key < 300; ++key) {
    Draw draw(key);
    const int layers = 1 + static_cast<int>(draw.below(4)),
              micro_batches = 1 + static_cast<int>(draw.below(4));
    const Again again = some_layers(layers, draw);
    const Table table = interleaved(layers, micro_batches, draw, again);
    ASSERT_TRUE(runs(table, layers, micro_batches, again));
    EXPECT_EQ(refusal(table, layers, micro_batches, again), "(nothing was thrown)");
  }
}

// Shuffles, swaps, drops, duplicates and changes actions of a valid table: some results stay valid,
// most do not, and the validator must tell which.
TEST(Validate, AcceptsExactlyWhatCanRun) {
  int valid = 0, invalid = 0;
  for (std::uint64_t key = 0; key < 6000; ++key) {
    Draw draw(key);
    const int layers = 1 + static_cast<int>(draw.below(3)),
              micro_batches = 1 + static_cast<int>(draw.below(3));
    const Again again = some_layers(layers, draw);
    Table table = interleaved(layers, micro_batches, draw, again);
    for (auto times = 1 + draw.below(2); times > 0; --times) {
      const auto at = draw.below(table.size());
      switch (draw.below(6)) {
        case 0:
          shuffle(table, 0, table.size(), draw);
          break;
        case 1:
          shuffle(table, at, std::min(table.size(), at + 3), draw);
          break;
        case 2:
          std::swap(table[at], table[draw.below(table.size())]);
          break;
        case 3:
          table.erase(table.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        case 4:
          table.insert(table.begin() + static_cast<std::ptrdiff_t>(at),
                       Action(table[draw.below(table.size())]));
          break;
        case 5:
          table[at].kind = static_cast<Kind>(draw.below(4));
          break;
      }
      if (table.empty()) table.push_back(update());
    }
    const bool can_run = runs(table, layers, micro_batches, again);
    (can_run ? valid : invalid)++;
    std::string shown;
    for (const auto& action : table) shown += to_string(action) + "; ";
    ASSERT_EQ(accepted(table, layers, micro_batches, again), can_run)
        << shown << refusal(table, layers, micro_batches, again);
  }
  EXPECT_GT(valid, 300);
  EXPECT_GT(invalid, 3000);
}

TEST(Validate, NamesTheActionAndTheReason) {
  struct Mistake {
    Table table;
    std::string sentence;
  };
  const Table good = {forward(0, 0), forward(1, 0), backward(1, 0), backward(0, 0), update()};
  ASSERT_TRUE(accepted(good, 2, 1));
  const std::vector<Mistake> mistakes = {
      {{forward(1, 0)},
       "action 0 of the step, forward(layer 1, micro-batch 0), cannot run: the layer below has given it no input"},
      {{forward(0, 0), forward(0, 0)},
       "action 1 of the step, forward(layer 0, micro-batch 0), cannot run: it ran before"},
      {{backward(1, 0)},
       "action 0 of the step, backward(layer 1, micro-batch 0), cannot run: its forward has not run"},
      {{forward(0, 0), forward(1, 0), backward(0, 0)},
       "action 2 of the step, backward(layer 0, micro-batch 0), cannot run: the layer above has given it no gradient"},
      {{forward(0, 0), forward(1, 0), backward(1, 0), backward(1, 0)},
       "action 3 of the step, backward(layer 1, micro-batch 0), cannot run: it ran before"},
      {{forward(0, 0), forward(1, 0), backward(1, 0), update()},
       "action 3 of the step, update, cannot run: backward(layer 0, micro-batch 0) is missing"},
      {{update()},
       "action 0 of the step, update, cannot run: backward(layer 0, micro-batch 0) is missing"},
      {{forward(0, 0), forward(1, 0), backward(1, 0), backward(0, 0), update(), update()},
       "action 5 of the step, update, cannot run: the step has ended"},
      {{forward(0, 0), forward(1, 0), backward(1, 0), backward(0, 0), update(), forward(0, 0)},
       "action 5 of the step, forward(layer 0, micro-batch 0), cannot run: the step has ended"},
      {{forward(0, 0), forward(1, 0), backward(1, 0), backward(0, 0)},
       "the step's table has no update at its end"},
      {{}, "the step's table has no update at its end"},
      {{forward(2, 0)},
       "action 0 of the step, forward(layer 2, micro-batch 0), cannot run: there are 2 layers"},
      {{forward(-1, 0)},
       "action 0 of the step, forward(layer -1, micro-batch 0), cannot run: there are 2 layers"},
      {{forward(0, 1)},
       "action 0 of the step, forward(layer 0, micro-batch 1), cannot run: the number of micro-batches is 1"},
      {{forward(0, -1)},
       "action 0 of the step, forward(layer 0, micro-batch -1), cannot run: the number of micro-batches is 1"},
  };
  for (const auto& [table, sentence] : mistakes) EXPECT_EQ(refusal(table, 2, 1), sentence);
}

TEST(OneProcess, RecomputesALayerRightBeforeItsBackward) {
  const Again again = {false, true, true, false};
  const Table table = one_process(shape_of(4, 2, again));
  ASSERT_TRUE(accepted(table, 4, 2, again)) << refusal(table, 4, 2, again);
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].kind != Kind::backward) continue;
    const Action& before = table[i - 1];
    EXPECT_EQ(before.kind == Kind::recompute, again[std::size_t(table[i].layer)]);
    if (before.kind == Kind::recompute) {
      EXPECT_EQ(before.layer, table[i].layer);
      EXPECT_EQ(before.micro_batch, table[i].micro_batch);
    }
  }
  EXPECT_EQ(peak_activations(table, 4, again), 2)
      << "the first and the last, or the first and one between";
  EXPECT_EQ(peak_activations(one_process(4, 2), 4), 4);
  EXPECT_EQ(for_servers(shape_of(4, 2, again)).size(), table.size());
}

TEST(Validate, RefusesARecomputeThatIsMissingEarlyTwiceOrNotNeeded) {
  const Again again = {true, false};
  const auto refused = [&](const Table& table) { return refusal(table, 2, 1, again); };
  ASSERT_TRUE(accepted(
      {forward(0, 0), forward(1, 0), backward(1, 0), recompute(0, 0), backward(0, 0), update()}, 2,
      1, again));
  EXPECT_EQ(refused({forward(0, 0), forward(1, 0), backward(1, 0), backward(0, 0), update()}),
            "action 3 of the step, backward(layer 0, micro-batch 0), cannot run: its recompute has "
            "not run");
  EXPECT_EQ(refused({recompute(0, 0)}),
            "action 0 of the step, recompute(layer 0, micro-batch 0), cannot run: its forward has "
            "not run");
  EXPECT_EQ(refused({forward(0, 0), recompute(0, 0), recompute(0, 0)}),
            "action 2 of the step, recompute(layer 0, micro-batch 0), cannot run: it ran before");
  EXPECT_EQ(refused({forward(0, 0), forward(1, 0), backward(1, 0), recompute(0, 0), backward(0, 0),
                     recompute(0, 0)}),
            "action 5 of the step, recompute(layer 0, micro-batch 0), cannot run: it ran before");
  EXPECT_EQ(refused({forward(0, 0), forward(1, 0), recompute(1, 0)}),
            "action 2 of the step, recompute(layer 1, micro-batch 0), cannot run: its forward kept "
            "what its backward needs");
  EXPECT_EQ(refused({recompute(2, 0)}),
            "action 0 of the step, recompute(layer 2, micro-batch 0), cannot run: there are 2 "
            "layers");
}

TEST(Validate, NamesTheMicroBatchThatAnUpdateMisses) {
  Table table = one_process(3, 4);
  const auto missing = std::find_if(table.begin(), table.end(), [](const Action& a) {
    return a.kind == Kind::backward && a.layer == 0 && a.micro_batch == 2;
  });
  table.erase(missing);
  EXPECT_EQ(
      refusal(table, 3, 4),
      "action 23 of the step, update, cannot run: backward(layer 0, micro-batch 2) is missing");
}

TEST(PeakActivations, FollowFromTheOrder) {
  constexpr int layers = 3, micro_batches = 4;
  Table all_forward_first;
  for (int m = 0; m < micro_batches; ++m) {
    for (int l = 0; l < layers; ++l) all_forward_first.push_back(forward(l, m));
  }
  for (int m = 0; m < micro_batches; ++m) {
    for (int l = layers; l-- > 0;) all_forward_first.push_back(backward(l, m));
  }
  all_forward_first.push_back(update());
  ASSERT_TRUE(accepted(all_forward_first, layers, micro_batches));
  EXPECT_EQ(peak_activations(all_forward_first, layers), layers * micro_batches);
  EXPECT_EQ(peak_activations({update()}, 1), 0);
  EXPECT_EQ(peak_activations({forward(0, 0), forward(0, 1), backward(0, 0), forward(0, 2),
                              backward(0, 1), backward(0, 2)},
                             1),
            2);
}

StepShape frozen_below(int lowest, int layers, int micro_batches) {
  StepShape shape{layers, micro_batches, {}};
  shape.lowest = lowest;
  return shape;
}

TEST(Table, RunsBackwardOnlyThroughLayersThatTrainOrHaveOneBelow) {
  for (int layers = 1; layers <= 4; ++layers)
    for (int lowest = 0; lowest < layers; ++lowest)
      for (const int micro_batches : {1, 3}) {
        const StepShape shape = frozen_below(lowest, layers, micro_batches);
        const Table table = one_process(shape);
        EXPECT_NO_THROW(validate(table, shape));
        const auto count = [&](Kind kind) {
          return std::ranges::count(table, kind, &Action::kind);
        };
        EXPECT_EQ(count(Kind::forward), layers * micro_batches);
        EXPECT_EQ(count(Kind::backward), (layers - lowest) * micro_batches);
        for (const Action& action : table) {
          EXPECT_TRUE(action.kind != Kind::backward || action.layer >= lowest);
        }
      }
}

TEST(Validate, RefusesABackwardThatNothingNeedsAndAForwardThatIsMissing) {
  const StepShape shape = frozen_below(1, 3, 1);
  const auto refusal = [&](const Table& table) {
    return thrown<InvalidArgument>([&] { validate(table, shape); });
  };
  EXPECT_EQ(refusal({forward(0, 0), forward(1, 0), forward(2, 0), backward(2, 0), backward(1, 0),
                     backward(0, 0), update()}),
            "action 5 of the step, backward(layer 0, micro-batch 0), cannot run: neither the layer "
            "nor one below it trains");
  EXPECT_EQ(
      refusal({forward(0, 0), forward(1, 0), forward(2, 0), backward(2, 0), update()}),
      "action 4 of the step, update, cannot run: backward(layer 1, micro-batch 0) is missing");
  // A rank of a pipeline with frozen layers alone still has to run them.
  StepShape stage = frozen_below(1, 2, 1);
  stage.own = {true, false};
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              validate({{Kind::synchronize}, update()}, stage);
            }),
            "action 1 of the step, update, cannot run: forward(layer 0, micro-batch 0) is missing");
  EXPECT_EQ(
      thrown<InvalidArgument>([&] {
        validate({forward(0, 0), {Kind::receive_grad, 0, 0}}, stage);
      }),
      "action 1 of the step, receive_grad(layer 0, micro-batch 0), cannot run: no layer below "
      "it trains");
  EXPECT_NO_THROW(
      validate({forward(0, 0), {Kind::send, 0, 0}, {Kind::synchronize}, update()}, stage));
}

}  // namespace
}  // namespace echelon
